#include "fake.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

__thread struct fake fake;

typedef void (*callback_t)(void *, ucs_status_t, const void *, void *);

void fake_complete(void *callback, void *request, int status, const void *third, void *fourth)
{
    ((callback_t)callback)(request, (ucs_status_t)status, third, fourth);
}

struct run {
    void *callback, *request, *fourth;
    int status;
    const void *third;
};

static void *run(void *p)
{
    struct run *r = p;
    fake_complete(r->callback, r->request, r->status, r->third, r->fourth);
    return NULL;
}

static const ucp_tag_recv_info_t received = {.sender_tag = 0x1234, .length = 99};

static ucs_status_ptr_t start(void *callback, const void *third, void *fourth)
{
    struct run r = {callback, fake.result, fourth, fake.done_status, third};
    fake.callback = callback;
    fake.calls++;
    if (UCS_PTR_IS_PTR(fake.result) && callback && fake.when == FAKE_NOW) {
        run(&r);
    } else if (UCS_PTR_IS_PTR(fake.result) && callback && fake.when == FAKE_OTHER_THREAD) {
        pthread_t t;
        pthread_create(&t, NULL, run, &r);
        pthread_join(t, NULL);
    }
    errno = 77; /* whatever a real one leaves there, the application sees */
    return r.request;
}

static ucs_status_ptr_t nbx(const ucp_request_param_t *p, size_t count, int receive)
{
    void *user = p->op_attr_mask & UCP_OP_ATTR_FIELD_USER_DATA ? p->user_data : NULL;
    fake.param = p;
    memcpy(&fake.copy, p, offsetof(ucp_request_param_t, reply_buffer)); /* the rest only where named, as a real one reads it */
    if (p->op_attr_mask & UCP_OP_ATTR_FIELD_REPLY_BUFFER)
        fake.copy.reply_buffer = p->reply_buffer;
    if (p->op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE)
        fake.copy.memory_type = p->memory_type;
    if (p->op_attr_mask & UCP_OP_ATTR_FIELD_RECV_INFO)
        fake.copy.recv_info = p->recv_info;
    if (p->op_attr_mask & UCP_OP_ATTR_FIELD_MEMH)
        fake.copy.memh = p->memh;
    fake.count = count;
    if (receive && !fake.result && fake.fill_info && p->op_attr_mask & UCP_OP_ATTR_FIELD_RECV_INFO)
        *p->recv_info.tag_info = (ucp_tag_recv_info_t){.sender_tag = 0x5678, .length = fake.fill_info};
    return start(p->op_attr_mask & UCP_OP_ATTR_FIELD_CALLBACK ? (void *)p->cb.send : NULL, receive ? (const void *)&received : user, receive ? user : NULL);
}

static ucs_status_ptr_t nb(void *callback, size_t count, int receive)
{
    fake.count = count;
    return start(callback, receive ? &received : NULL, NULL);
}

static ucs_status_t status(void)
{
    fake.calls++;
    if (fake.in_progress)
        fake.in_progress();
    errno = 77;
    return (ucs_status_t)fake.status;
}

#define UNUSED __attribute__((unused))

const char *ucp_get_version_string(void) { return "0.0.fake"; }

ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h ep UNUSED, const void *b UNUSED, size_t n, ucp_tag_t t UNUSED, const ucp_request_param_t *p) { return nbx(p, n, 0); }
ucs_status_ptr_t ucp_tag_recv_nbx(ucp_worker_h w UNUSED, void *b UNUSED, size_t n, ucp_tag_t t UNUSED, ucp_tag_t m UNUSED, const ucp_request_param_t *p) { return nbx(p, n, 1); }
ucs_status_ptr_t ucp_tag_msg_recv_nbx(ucp_worker_h w UNUSED, void *b UNUSED, size_t n, ucp_tag_message_h m UNUSED, const ucp_request_param_t *p) { return nbx(p, n, 1); }
ucs_status_ptr_t ucp_stream_send_nbx(ucp_ep_h ep UNUSED, const void *b UNUSED, size_t n, const ucp_request_param_t *p) { return nbx(p, n, 0); }
ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep UNUSED, unsigned id UNUSED, const void *h UNUSED, size_t hn UNUSED, const void *b UNUSED, size_t n, const ucp_request_param_t *p) { return nbx(p, n, 0); }
ucs_status_ptr_t ucp_put_nbx(ucp_ep_h ep UNUSED, const void *b UNUSED, size_t n, uint64_t r UNUSED, ucp_rkey_h k UNUSED, const ucp_request_param_t *p) { return nbx(p, n, 0); }
ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h ep UNUSED, const ucp_request_param_t *p) { return nbx(p, 0, 0); }
ucs_status_ptr_t ucp_worker_flush_nbx(ucp_worker_h w UNUSED, const ucp_request_param_t *p) { return nbx(p, 0, 0); }
ucs_status_ptr_t ucp_tag_send_nb(ucp_ep_h ep UNUSED, const void *b UNUSED, size_t n, ucp_datatype_t d UNUSED, ucp_tag_t t UNUSED, ucp_send_callback_t cb) { return nb(cb, n, 0); }
ucs_status_ptr_t ucp_tag_recv_nb(ucp_worker_h w UNUSED, void *b UNUSED, size_t n, ucp_datatype_t d UNUSED, ucp_tag_t t UNUSED, ucp_tag_t m UNUSED, ucp_tag_recv_callback_t cb) { return nb(cb, n, 1); }
ucs_status_ptr_t ucp_put_nb(ucp_ep_h ep UNUSED, const void *b UNUSED, size_t n, uint64_t r UNUSED, ucp_rkey_h k UNUSED, ucp_send_callback_t cb) { return nb(cb, n, 0); }
ucs_status_t ucp_put_nbi(ucp_ep_h ep UNUSED, const void *b UNUSED, size_t n UNUSED, uint64_t r UNUSED, ucp_rkey_h k UNUSED) { return status(); }

ucs_status_t ucp_request_check_status(void *request UNUSED) { return (ucs_status_t)fake.status; }
void ucp_request_free(void *request UNUSED) { fake.freed++; }
void ucp_request_release(void *request UNUSED) { fake.released++; }

/* by the public names of other functions, as the real library does it */
ucs_status_t ucp_put(ucp_ep_h ep, const void *b, size_t n, uint64_t r, ucp_rkey_h k)
{
    ucp_put_nb(ep, b, n, r, k, NULL);
    return status();
}

ucs_status_ptr_t ucp_tag_send_sync_nbx(ucp_ep_h ep, const void *b, size_t n, ucp_tag_t t, const ucp_request_param_t *p)
{
    return ucp_tag_send_nbx(ep, b, n, t, p); /* a jump: what comes back is the address of our caller */
}

ucs_status_t ucp_tag_send_nbr(ucp_ep_h ep, const void *b, size_t n, ucp_datatype_t d, ucp_tag_t t, void *req)
{
    ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REQUEST, .datatype = d, .request = req};
    ucs_status_ptr_t r = fake.direct ? nbx(&p, n, 0) : ucp_tag_send_nbx(ep, b, n, t, &p);
    return UCS_PTR_IS_PTR(r) ? UCS_INPROGRESS : UCS_PTR_RAW_STATUS(r);
}

ucs_status_t ucp_tag_recv_nbr(ucp_worker_h w, void *b, size_t n, ucp_datatype_t d, ucp_tag_t t, ucp_tag_t m, void *req)
{
    ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REQUEST | UCP_OP_ATTR_FLAG_NO_IMM_CMPL, .datatype = d, .request = req};
    ucs_status_ptr_t r = fake.direct ? nbx(&p, n, 1) : ucp_tag_recv_nbx(w, b, n, t, m, &p);
    return UCS_PTR_IS_ERR(r) ? UCS_PTR_RAW_STATUS(r) : UCS_OK;
}

ucs_status_t ucp_worker_create(ucp_context_h c UNUSED, const ucp_worker_params_t *p UNUSED, ucp_worker_h *w)
{
    *w = fake.result;
    return status();
}
void ucp_worker_destroy(ucp_worker_h w UNUSED) {}
ucs_status_t ucp_ep_create(ucp_worker_h w UNUSED, const ucp_ep_params_t *p UNUSED, ucp_ep_h *ep)
{
    *ep = fake.result;
    return status();
}
