/* Stands in for libuct: one transport, whose every function does what it is told, and ucp_get_version. */
#include "fake_uct.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

__thread struct fake fake = { .version = { 1, 13, 1 } };

struct iface {
    uct_iface_t super;
    uct_iface_ops_t made;
};

enum { MOST = 40000 };
struct ep {
    uct_ep_t super;
    uct_completion_t *queue[MOST];
    int head, tail;
    pthread_mutex_t lock;
};

static void got(uct_ep_h tl, uct_completion_t *comp, const uint64_t *args, size_t n)
{
    struct ep *ep = (struct ep *)tl;
    memset(fake.args, 0, sizeof fake.args);
    memcpy(fake.args, args, n * sizeof *args);
    fake.calls++;
    fake.given = comp != NULL;
    if (ep && comp && fake.status == UCS_INPROGRESS) {
        pthread_mutex_lock(&ep->lock);
        ep->queue[ep->tail++ % MOST] = comp;
        pthread_mutex_unlock(&ep->lock);
    }
    if (fake.within)
        fake.within(comp);
}
#define GOT(ep, comp, ...) \
    do { \
        const uint64_t a_[] = { __VA_ARGS__ }; \
        got(ep, comp, a_, sizeof a_ / sizeof *a_); \
    } while (0)
#define P(x) (uint64_t)(uintptr_t)(x)

int fake_complete(uct_ep_h tl, ucs_status_t status)
{
    struct ep *ep = (struct ep *)tl;
    pthread_mutex_lock(&ep->lock);
    uct_completion_t *c = ep->head == ep->tail ? NULL : ep->queue[ep->head++ % MOST];
    pthread_mutex_unlock(&ep->lock);
    if (!c)
        return 0;
    uct_completion_update_status(c, status);
    if (--c->count == 0)
        c->func(c);
    return 1;
}

static ssize_t packed(uct_pack_callback_t pack, void *arg)
{
    char room[4096];
    return fake.status < 0 ? fake.status : (ssize_t)pack(room, arg);
}

static ucs_status_t put_short(uct_ep_h ep, const void *b, unsigned l, uint64_t r, uct_rkey_t k) { GOT(ep, NULL, P(b), l, r, k); return fake.status; }
static ssize_t put_bcopy(uct_ep_h ep, uct_pack_callback_t p, void *a, uint64_t r, uct_rkey_t k) { GOT(ep, NULL, P(p), P(a), r, k); return packed(p, a); }
static ucs_status_t put_zcopy(uct_ep_h ep, const uct_iov_t *v, size_t n, uint64_t r, uct_rkey_t k, uct_completion_t *c) { GOT(ep, c, P(v), n, r, k); return fake.status; }
static ucs_status_t get_short(uct_ep_h ep, void *b, unsigned l, uint64_t r, uct_rkey_t k) { GOT(ep, NULL, P(b), l, r, k); return fake.status; }
static ucs_status_t get_bcopy(uct_ep_h ep, uct_unpack_callback_t u, void *a, size_t l, uint64_t r, uct_rkey_t k, uct_completion_t *c) { GOT(ep, c, P(u), P(a), l, r, k); return fake.status; }
static ucs_status_t get_zcopy(uct_ep_h ep, const uct_iov_t *v, size_t n, uint64_t r, uct_rkey_t k, uct_completion_t *c) { GOT(ep, c, P(v), n, r, k); return fake.status; }
static ucs_status_t am_short(uct_ep_h ep, uint8_t id, uint64_t h, const void *b, unsigned l) { GOT(ep, NULL, id, h, P(b), l); return fake.status; }
static ucs_status_t am_short_iov(uct_ep_h ep, uint8_t id, const uct_iov_t *v, size_t n) { GOT(ep, NULL, id, P(v), n); return fake.status; }
static ssize_t am_bcopy(uct_ep_h ep, uint8_t id, uct_pack_callback_t p, void *a, unsigned f) { GOT(ep, NULL, id, P(p), P(a), f); return packed(p, a); }
static ucs_status_t am_zcopy(uct_ep_h ep, uint8_t id, const void *h, unsigned l, const uct_iov_t *v, size_t n, unsigned f, uct_completion_t *c) { GOT(ep, c, id, P(h), l, P(v), n, f); return fake.status; }
static ucs_status_t cswap64(uct_ep_h ep, uint64_t x, uint64_t s, uint64_t r, uct_rkey_t k, uint64_t *o, uct_completion_t *c) { GOT(ep, c, x, s, r, k, P(o)); return fake.status; }
static ucs_status_t cswap32(uct_ep_h ep, uint32_t x, uint32_t s, uint64_t r, uct_rkey_t k, uint32_t *o, uct_completion_t *c) { GOT(ep, c, x, s, r, k, P(o)); return fake.status; }
static ucs_status_t post32(uct_ep_h ep, unsigned op, uint32_t v, uint64_t r, uct_rkey_t k) { GOT(ep, NULL, op, v, r, k); return fake.status; }
static ucs_status_t post64(uct_ep_h ep, unsigned op, uint64_t v, uint64_t r, uct_rkey_t k) { GOT(ep, NULL, op, v, r, k); return fake.status; }
static ucs_status_t fetch32(uct_ep_h ep, unsigned op, uint32_t v, uint32_t *o, uint64_t r, uct_rkey_t k, uct_completion_t *c) { GOT(ep, c, op, v, P(o), r, k); return fake.status; }
static ucs_status_t fetch64(uct_ep_h ep, unsigned op, uint64_t v, uint64_t *o, uint64_t r, uct_rkey_t k, uct_completion_t *c) { GOT(ep, c, op, v, P(o), r, k); return fake.status; }
static ucs_status_t tag_short(uct_ep_h ep, uct_tag_t t, const void *b, size_t l) { GOT(ep, NULL, t, P(b), l); return fake.status; }
static ssize_t tag_bcopy(uct_ep_h ep, uct_tag_t t, uint64_t i, uct_pack_callback_t p, void *a, unsigned f) { GOT(ep, NULL, t, i, P(p), P(a), f); return packed(p, a); }
static ucs_status_t tag_zcopy(uct_ep_h ep, uct_tag_t t, uint64_t i, const uct_iov_t *v, size_t n, unsigned f, uct_completion_t *c) { GOT(ep, c, t, i, P(v), n, f); return fake.status; }
static ucs_status_ptr_t tag_rndv(uct_ep_h ep, uct_tag_t t, const void *h, unsigned l, const uct_iov_t *v, size_t n, unsigned f, uct_completion_t *c)
{
    GOT(ep, c, t, P(h), l, P(v), n, f);
    return fake.status < 0 ? UCS_STATUS_PTR(fake.status) : (void *)ep;
}
static ucs_status_t tag_request(uct_ep_h ep, uct_tag_t t, const void *h, unsigned l, unsigned f) { GOT(ep, NULL, t, P(h), l, f); return fake.status; }
static ucs_status_t tag_recv(uct_iface_h i, uct_tag_t t, uct_tag_t m, const uct_iov_t *v, size_t n, uct_tag_context_t *x) { (void)i; GOT(NULL, NULL, t, m, P(v), n, P(x)); return fake.status; }
static ucs_status_t ep_flush(uct_ep_h ep, unsigned f, uct_completion_t *c) { GOT(ep, c, f); return fake.status; }
static ucs_status_t ep_fence(uct_ep_h ep, unsigned f) { GOT(ep, NULL, f); return fake.status; }
static ucs_status_t iface_flush(uct_iface_h i, unsigned f, uct_completion_t *c) { (void)i; GOT(NULL, c, f); return fake.status; }

static ucs_status_t ep_create(const uct_ep_params_t *p, uct_ep_h *out)
{
    struct ep *ep = calloc(1, sizeof *ep);
    ep->super.iface = p->iface;
    pthread_mutex_init(&ep->lock, NULL);
    *out = &ep->super;
    return UCS_OK;
}
static void ep_destroy(uct_ep_h tl)
{
    while (fake_complete(tl, UCS_ERR_CANCELED))
        ;
    fake.destroyed++;
    free(tl);
}
static void iface_close(uct_iface_h i)
{
    fake.closed++;
    free(i);
}

ucs_status_t uct_base_ep_am_short_iov(uct_ep_h ep, uint8_t id, const uct_iov_t *v, size_t n);
ucs_status_t uct_base_ep_am_short_iov(uct_ep_h ep, uint8_t id, const uct_iov_t *v, size_t n)
{
    uint64_t header = 0;
    return n ? uct_ep_am_short(ep, id, header, v->buffer, (unsigned)(v->length - 8)) : UCS_ERR_INVALID_PARAM;
}

const uct_iface_ops_t *fake_ops(uct_iface_h iface) { return &((struct iface *)iface)->made; }

ucs_status_t uct_iface_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params, const uct_iface_config_t *config, uct_iface_h *out)
{
    (void)md, (void)worker, (void)config;
    struct iface *i = calloc(1, sizeof *i);
    uct_iface_ops_t *o = &i->made;
    o->ep_put_short = put_short, o->ep_put_bcopy = put_bcopy, o->ep_put_zcopy = put_zcopy;
    o->ep_get_short = get_short, o->ep_get_bcopy = get_bcopy, o->ep_get_zcopy = get_zcopy;
    o->ep_am_short = am_short, o->ep_am_short_iov = am_short_iov, o->ep_am_bcopy = am_bcopy, o->ep_am_zcopy = am_zcopy;
    if (params->open_mode & UCT_IFACE_OPEN_MODE_DEVICE && !strcmp(params->mode.device.tl_name, "general"))
        o->ep_am_short_iov = uct_base_ep_am_short_iov;
    o->ep_atomic_cswap64 = cswap64, o->ep_atomic_cswap32 = cswap32, o->ep_atomic32_post = post32, o->ep_atomic64_post = post64;
    o->ep_atomic32_fetch = fetch32, o->ep_atomic64_fetch = fetch64;
    o->ep_tag_eager_short = tag_short, o->ep_tag_eager_bcopy = tag_bcopy, o->ep_tag_eager_zcopy = tag_zcopy;
    o->ep_tag_rndv_zcopy = tag_rndv, o->ep_tag_rndv_request = tag_request, o->iface_tag_recv_zcopy = tag_recv;
    o->ep_flush = ep_flush, o->ep_fence = ep_fence, o->iface_flush = iface_flush;
    o->ep_create = ep_create, o->ep_destroy = ep_destroy, o->iface_close = iface_close;
    i->super.ops = i->made;
    *out = &i->super;
    return UCS_OK;
}

ucs_status_t uct_ep_create(const uct_ep_params_t *p, uct_ep_h *out) { return p->iface->ops.ep_create(p, out); }
void uct_ep_destroy(uct_ep_h ep) { ep->iface->ops.ep_destroy(ep); }
void uct_iface_close(uct_iface_h i) { i->ops.iface_close(i); }

void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release);
void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
    *major = fake.version[0], *minor = fake.version[1], *release = fake.version[2];
}
