/* Originals of patched function tables, in static memory: a forked child needs them as much as its parent does. */
#define _GNU_SOURCE
#include "ibverbs.h"

#include <errno.h>
#include <sched.h>
#include <unistd.h>

struct context contexts[CONTEXTS];
_Static_assert(sizeof(struct context) == 128, "an index is a shift");
struct queue queues[QUEUES];

static int holder;
static uint64_t serials;

void registry_lock(void)
{
    int saved = errno, pid = getpid(), was = 0;
    while (!__atomic_compare_exchange_n(&holder, &was, pid, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        if (was == pid) { /* another thread; any other number is left over from before a fork */
            was = 0;
            sched_yield();
        }
    errno = saved;
}

void registry_unlock(void) { __atomic_store_n(&holder, 0, __ATOMIC_RELEASE); }

static struct context *context_slot(const struct ibv_context *c, const struct ibv_context *want)
{
    unsigned i = (unsigned)((uintptr_t)c * 0x9e3779b97f4a7c15ull >> 56);
    for (unsigned n = 0; n < PROBES; n++, i = (i + 1) % CONTEXTS)
        if (contexts[i].context == want)
            return &contexts[i];
    return NULL;
}

static struct queue *queue_slot(const void *key, const void *want)
{
    unsigned i = (unsigned)((uintptr_t)key * 0x9e3779b97f4a7c15ull >> 48);
    for (unsigned n = 0; n < PROBES; n++, i = (i + 1) % QUEUES)
        if (queues[i].key == want)
            return &queues[i];
    return NULL;
}

/* A member that this library's verbs_context has and the driver has filled. */
#define PATCH(v, member, e, hook)                                                                                                            \
    do {                                                                                                                                     \
        if ((v)->sz >= sizeof *(v) - offsetof(struct verbs_context, member) && (v)->member && (v)->member != (hook)) {                       \
            (e)->member = (v)->member;                                                                                                       \
            (v)->member = (hook);                                                                                                            \
        }                                                                                                                                    \
    } while (0)

void patch_context(struct ibv_context *c)
{
    registry_lock();
    struct context *e = context_slot(c, c);
    if (e && c->ops.poll_cq == hook_poll_cq) { /* passed two of our hooks on its way to the program */
        registry_unlock();
        return;
    }
    if (!e)
        e = context_slot(c, NULL);
    if (e) {
        struct ibv_context_ops *o = &c->ops;
        e->serial = ++serials;
        e->post_send = o->post_send;
        e->post_recv = o->post_recv;
        e->post_srq_recv = o->post_srq_recv;
        e->poll_cq = o->poll_cq;
        e->req_notify_cq = o->req_notify_cq;
        e->bind_mw = o->bind_mw;
        __atomic_store_n(&e->context, c, __ATOMIC_RELEASE);
        if (e->post_send)
            o->post_send = hook_post_send;
        if (e->post_recv)
            o->post_recv = hook_post_recv;
        if (e->post_srq_recv)
            o->post_srq_recv = hook_post_srq_recv;
        if (e->poll_cq)
            o->poll_cq = hook_poll_cq;
        if (e->req_notify_cq)
            o->req_notify_cq = hook_req_notify_cq;
        if (e->bind_mw)
            o->bind_mw = hook_bind_mw;
        struct verbs_context *v = verbs_get_ctx(c);
        if (v) {
            PATCH(v, create_qp_ex, e, hook_create_qp_ex);
            PATCH(v, open_qp, e, hook_open_qp);
            PATCH(v, create_cq_ex, e, hook_create_cq_ex);
            PATCH(v, create_srq_ex, e, hook_create_srq_ex);
            PATCH(v, alloc_parent_domain, e, hook_alloc_parent_domain);
        }
    }
    registry_unlock();
}

uint64_t context_serial(const struct ibv_context *c)
{
    registry_lock();
    struct context *e = context_slot(c, c);
    uint64_t n = e ? e->serial : 0;
    registry_unlock();
    return n;
}

void context_gone(const struct ibv_context *c, uint64_t serial)
{
    registry_lock();
    struct context *e = context_slot(c, c);
    if (e && e->serial == serial)
        __atomic_store_n(&e->context, NULL, __ATOMIC_RELEASE);
    registry_unlock();
}

int queue_patched(const void *key, const void *originals)
{
    registry_lock();
    struct queue *q = queue_slot(key, key);
    if (!q)
        q = queue_slot(key, NULL);
    if (q) {
        q->originals = originals;
        q->serial = ++serials;
        __atomic_store_n(&q->key, key, __ATOMIC_RELEASE);
    }
    registry_unlock();
    return !!q;
}

uint64_t queue_serial(const void *key)
{
    registry_lock();
    struct queue *q = queue_slot(key, key);
    uint64_t n = q ? q->serial : 0;
    registry_unlock();
    return n;
}

void queue_gone(const void *key, uint64_t serial)
{
    if (!serial)
        return;
    registry_lock();
    struct queue *q = queue_slot(key, key);
    if (q && q->serial == serial)
        __atomic_store_n(&q->key, NULL, __ATOMIC_RELEASE);
    registry_unlock();
}
