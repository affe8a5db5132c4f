/*
 * What the files of provider-ucx.so share.
 *
 *     ucx.c           the table of hooked functions, where the real ones are, and the frame of every hook
 *     ucx_messages.c  hooks: tag, stream, active message
 *     ucx_memory.c    hooks: put, get, atomic, flush
 *     ucx_objects.c   hooks: workers and endpoints, their creation, addresses and end
 *     ucx_requests.c  the slot table: how the completion of a request is learned
 *
 * The library is not linked with libucp: structures of the application are read only as far as their masks say, and copied only when
 * every bit of the mask is known here, so that a UCX newer than the header works as well.
 */
#ifndef ST_UCX_H
#define ST_UCX_H

#include "recorder.h"

#include <sys/socket.h>

#pragma GCC visibility push(default) /* what we hook is exported */
#include <ucp/api/ucp.h>
#pragma GCC visibility pop

/* ---- real functions ---------------------------------------------------------------------------------------------------------- */

#define UCX_FUNCTIONS(X)                                                                                                               \
    X(ucp_tag_send_nb) X(ucp_tag_send_nbr) X(ucp_tag_send_nbx) X(ucp_tag_send_sync_nb) X(ucp_tag_send_sync_nbx)                        \
    X(ucp_tag_recv_nb) X(ucp_tag_recv_nbr) X(ucp_tag_recv_nbx) X(ucp_tag_msg_recv_nb) X(ucp_tag_msg_recv_nbx)                          \
    X(ucp_stream_send_nb) X(ucp_stream_send_nbx) X(ucp_am_send_nb) X(ucp_am_send_nbx)                                                  \
    X(ucp_put) X(ucp_put_nbi) X(ucp_put_nb) X(ucp_put_nbx) X(ucp_get) X(ucp_get_nbi) X(ucp_get_nb) X(ucp_get_nbx)                      \
    X(ucp_atomic_post) X(ucp_atomic_fetch_nb) X(ucp_atomic_op_nbx)                                                                     \
    X(ucp_atomic_add32) X(ucp_atomic_add64) X(ucp_atomic_fadd32) X(ucp_atomic_fadd64)                                                  \
    X(ucp_atomic_swap32) X(ucp_atomic_swap64) X(ucp_atomic_cswap32) X(ucp_atomic_cswap64)                                              \
    X(ucp_ep_flush) X(ucp_ep_flush_nb) X(ucp_ep_flush_nbx) X(ucp_worker_flush) X(ucp_worker_flush_nb) X(ucp_worker_flush_nbx)          \
    X(ucp_worker_create) X(ucp_worker_destroy) X(ucp_worker_get_address) X(ucp_worker_query)                                           \
    X(ucp_ep_create) X(ucp_ep_close_nb) X(ucp_ep_close_nbx) X(ucp_ep_destroy) X(ucp_disconnect_nb)

#define UCX_MEMBER(f) __typeof__(&f) f;
struct ucx_real {
    UCX_FUNCTIONS(UCX_MEMBER)
};
extern struct ucx_real ucx_real;

/* Finds the function whose place in ucx_real is given; never NULL: where there is none, a function that returns
 * UCS_ERR_UNSUPPORTED, as status or as request. */
void *ucx_resolve(void *place);

/* Declares `real`, the real function of hook f. */
#define UCX_REAL(f) __typeof__(&f) real = (__typeof__(&f))ucx_function(&ucx_real.f)
static inline void *ucx_function(void *place)
{
    void *p = __atomic_load_n((void **)place, __ATOMIC_RELAXED);
    return st_likely(p != NULL) ? p : ucx_resolve(place);
}

/* Whether an address lies in libucp or in this library: a call from there is UCX calling itself. */
bool ucx_internal(const void *caller);

/* ---- calls ------------------------------------------------------------------------------------------------------------------- */

/* A call in its real function, as the thread's callbacks see it. */
struct ucx_frame {
    uint64_t id; /* of the call's request; 0 none */
    bool done;   /* the request's callback has run, on this thread, before the call returned */
    int status;
    uint64_t time, bytes, tag;
    ucp_tag_recv_info_t info; /* where UCX may say what a receive that was complete on return has got */
    struct ucx_call *carried; /* an nbr call, which UCX carries out by the nbx form: that one tracks the request */
};

#define UCX_FRAMES 8 /* deeper nesting goes on without a frame: a completion may then be recorded before its request */
#define UCX_CACHE 32

/* What a thread holds. Not wiped in a forked child: everything here is as good there. */
struct ucx_thread {
    uint32_t depth;  /* calls in their real function */
    uint32_t cached; /* free slots at hand */
    uint64_t next_id, end_id;
    struct ucx_frame frames[UCX_FRAMES], deeper;
    uint16_t cache[UCX_CACHE];
};
extern __thread struct ucx_thread ucx_thread __attribute__((tls_model("initial-exec")));

/* A call being recorded. */
struct ucx_call {
    struct st_thread *t;
    struct st_object *object;
    struct ucx_frame *frame;
    uint64_t begin; /* 0 in aggregate mode, which reads no clock */
    uint64_t bytes, tag, mask, local, remote, rkey;
    uint64_t id; /* given to the request; 0: its completion cannot be learned */
    const ucp_tag_recv_info_t *info; /* receives: filled when complete on return, by some versions of UCX */
    ucp_tag_recv_info_t before;      /* what was there before */
    ucs_status_ptr_t result; /* of the nbx call that carries out an nbr call */
    uint16_t slot;
    uint8_t event, api;
    bool carried;  /* result is set */
    bool reopened; /* the gate was shut when the call came: shut it again */
};

struct st_thread *ucx_enter_nested(const void *caller, bool *reopened);

/* st_enter, told apart by the caller's address where the thread is in a hook already: UCX calling itself is not recorded, the
 * application calling from a callback is. False: the call is only to be passed through. */
#define ucx_enter(c) ucx_enter_from(c, __builtin_return_address(0))
static inline bool ucx_enter_from(struct ucx_call *c, const void *caller)
{
    struct st_thread *t = st_self;
    if (st_likely(t->gate[ST_LAYER_UCP]))
        t->gate[ST_LAYER_UCP] = 0;
    else
        t = ucx_enter_nested(caller, &c->reopened);
    c->t = t;
    return t != NULL;
}

static inline void ucx_leave(struct ucx_call *c)
{
    st_leave(c->t, ST_LAYER_UCP);
    if (st_unlikely(c->reopened))
        st_close(ST_LAYER_UCP, 0);
}

/* Right before the real function, and right after it. */
static inline void ucx_begin(struct ucx_call *c)
{
    struct ucx_thread *me = &ucx_thread;
    struct ucx_frame *f = me->depth < UCX_FRAMES ? &me->frames[me->depth] : &me->deeper;
    me->depth++;
    f->id = c->id;
    f->done = false;
    f->carried = NULL;
    c->frame = f;
    c->begin = st_mode == ST_AGGREGATE ? 0 : st_clock();
}

static inline void ucx_end(void) { ucx_thread.depth--; }

/* The rest of a hook, from the return of its real function on: records and counts the call when it was accepted, and leaves. Each returns
 * its result. */
ucs_status_ptr_t ucx_finish_request(struct ucx_call *c, ucs_status_ptr_t result);
ucs_status_t ucx_finish_status(struct ucx_call *c, ucs_status_t status);
/* For an nbr call. done: whether UCS_OK says that the request is complete. */
ucs_status_t ucx_finish_carried(struct ucx_call *c, ucs_status_t status, bool done);

/* Bytes of count elements. A generic datatype's size is known to its owner only, and asking it would run code of the application that
 * UCX did not ask to run: 0. */
static inline uint64_t ucx_bytes(const void *buffer, size_t count, ucp_datatype_t datatype)
{
    uint64_t sum = 0;
    if (st_likely((datatype & UCP_DATATYPE_CLASS_MASK) == UCP_DATATYPE_CONTIG))
        return count * (datatype >> UCP_DATATYPE_SHIFT);
    if ((datatype & UCP_DATATYPE_CLASS_MASK) == UCP_DATATYPE_IOV)
        for (size_t i = 0; i < count; i++)
            sum += ((const ucp_dt_iov_t *)buffer)[i].length;
    return sum;
}

static inline uint64_t ucx_bytes_nbx(const void *buffer, size_t count, const ucp_request_param_t *param)
{
    return st_likely(!(param->op_attr_mask & UCP_OP_ATTR_FIELD_DATATYPE)) ? count : ucx_bytes(buffer, count, param->datatype);
}

/* ---- completions ------------------------------------------------------------------------------------------------------------- */

#define UCX_SLOTS 16384

/* Takes a slot for the request of c and returns the callback to give to UCX instead of `callback` (which may be NULL); `callback` itself
 * where no slot is free. */
void *ucx_track(struct ucx_call *c, void *callback);
/* The same for the nbx forms: returns param, or *copy with the callback replaced. */
const ucp_request_param_t *ucx_track_nbx(struct ucx_call *c, const ucp_request_param_t *param, ucp_request_param_t *copy);
/* Gives back the slot of a call whose callback will not run. id: the request's id was recorded. */
void ucx_untrack(struct ucx_call *c, bool recorded);
/* Records a completion (full mode) and counts it. */
void ucx_complete(struct st_thread *t, struct st_object *o, uint64_t time, uint64_t id, uint64_t bytes, uint64_t tag, int status);
/* Frees the slots of requests that end with their worker. */
void ucx_drop_worker(struct st_object *worker);

/* An nbr call is carried out by UCX through the nbx form, which has room for a callback. Within the hook of that nbx: the nbr call of the
 * given event, or NULL; its parameters with a callback; and noting its result. */
struct ucx_call *ucx_carrying(unsigned event);
const ucp_request_param_t *ucx_track_carried(struct ucx_call *outer, const ucp_request_param_t *param, ucp_request_param_t *copy);
static inline ucs_status_ptr_t ucx_carry(struct ucx_call *outer, ucs_status_ptr_t result)
{
    outer->carried = true;
    return outer->result = result;
}

/* ---- objects ----------------------------------------------------------------------------------------------------------------- */

/* Endpoints and workers keep: user[0] id of the worker, user[1] hash of the last address defined. */
struct st_object *ucx_new_endpoint(ucp_ep_h ep);
struct st_object *ucx_new_worker(ucp_worker_h worker);

/* The object of an endpoint; one that was not seen being made (given to a callback by UCX, or older than the recording) is defined now. */
static inline struct st_object *ucx_endpoint(ucp_ep_h ep)
{
    struct st_object *o = st_find(ST_KIND_ENDPOINT, (uintptr_t)ep);
    return st_likely(o->id) ? o : ucx_new_endpoint(ep);
}

static inline struct st_object *ucx_worker(ucp_worker_h worker)
{
    struct st_object *o = st_find(ST_KIND_WORKER, (uintptr_t)worker);
    return st_likely(o->id) ? o : ucx_new_worker(worker);
}

/* State that a forked child starts afresh. */
struct ucx_state {
    uint32_t generation; /* 0: to be set. Slots of another generation belong to a parent */
    uint32_t version_defined;
};
extern struct ucx_state *ucx_state;
/* Sets up what is missing: at the first use in a process, and in a forked child. */
void ucx_state_init(void);

#endif
