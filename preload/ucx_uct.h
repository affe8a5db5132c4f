/*
 * Provider ucx, level UCT: the transports that UCP puts its lanes on.
 *
 *     ucx_uct.c      which interfaces there are, whose functions are replaced; their endpoints
 *     ucx_uct_ops.c  the functions that replace them, and completions
 *
 * Programs and libucp reach a transport through the function table that every interface begins with (struct uct_iface, uct/api/tl.h),
 * by inline functions: the table of each interface is patched when it has been opened, and so every transport is seen, those that
 * build work requests themselves (rc_mlx5) too. The table is no stable interface. Versions of UCX that are not in the list of
 * ucx_uct.c are left alone, and a definition says so.
 *
 * What was patched lives longer than a capture, so the originals lie in static memory here; objects are made again when they are missing.
 */
#ifndef ST_UCX_UCT_H
#define ST_UCX_UCT_H

#include "ucx.h"

#include <uct/api/tl.h>

#pragma GCC visibility push(hidden)

/* ---- interfaces ---------------------------------------------------------------------------------------------------------------- */

struct uct_patched {
    uct_iface_h iface; /* NULL: free, and never used since the last one behind it; UCT_GONE: free */
    uct_iface_ops_t real;
    char transport[UCT_TL_NAME_MAX], device[UCT_DEVICE_NAME_MAX];
};
#define UCT_IFACES 4096 /* of which 3/4 are used */
#define UCT_GONE ((uct_iface_h)1)
extern struct uct_patched uct_ifaces[UCT_IFACES];
extern const uct_iface_ops_t uct_absent;

/* Where an interface is in the table, or the first place that was never used. */
UCX_INLINE struct uct_patched *uct_place(uct_iface_h iface)
{
    for (unsigned i = (unsigned)((uint64_t)(uintptr_t)iface * 0x9e3779b97f4a7c15ull >> 52);; i++) {
        uct_iface_h there = __atomic_load_n(&uct_ifaces[i % UCT_IFACES].iface, __ATOMIC_ACQUIRE);
        if (st_likely(there == iface) || !there)
            return &uct_ifaces[i % UCT_IFACES];
    }
}

/* The original functions of a patched interface. Never NULL. */
UCX_INLINE const uct_iface_ops_t *uct_real(uct_iface_h iface)
{
    struct uct_patched *p = uct_place(iface);
    return st_likely(p->iface == iface) ? &p->real : &uct_absent;
}

/* Puts the hooks of ucx_uct_ops.c into the table of an interface. */
void uct_patch(uct_iface_ops_t *ops);

/* ---- objects ------------------------------------------------------------------------------------------------------------------- */

/* Endpoints keep: user[0] id of their UCP endpoint, 0 not known; user[1] see struct ucx_call. */
struct st_object *uct_new_interface(uct_iface_h iface);
struct st_object *uct_new_endpoint(uct_ep_h ep, uct_iface_h iface);
/* Says that an endpoint is a lane of a UCP endpoint. */
void uct_owned(struct st_object *endpoint, struct st_object *owner);
/* The same for all that were made within a call. */
void uct_made(struct st_object *made, struct st_object *owner);

static inline struct st_object *uct_endpoint(uct_ep_h ep)
{
    struct st_object *o = st_find(ST_KIND_UCT_ENDPOINT, (uintptr_t)ep);
    return st_likely(o->id) ? o : uct_new_endpoint(ep, ep->iface);
}

static inline struct st_object *uct_interface(uct_iface_h iface)
{
    struct st_object *o = st_find(ST_KIND_UCT_INTERFACE, (uintptr_t)iface);
    return st_likely(o->id) ? o : uct_new_interface(iface);
}

/* ---- completions --------------------------------------------------------------------------------------------------------------- */

/* An outstanding operation; its number is that of a struct ucx_slot, which lies idle meanwhile. */
struct uct_slot {
    uct_completion_t mine;    /* given to UCT */
    uct_completion_t *theirs; /* counted down when the operation has ended, as UCT would */
    struct st_object *object;
    struct st_thread *t;
    uint64_t id;
    uct_iface_h iface; /* NULL: free */
};

/* Makes the outstanding operations of an interface those of another one, or frees their slots: NULL. */
void uct_slots_pass(uct_iface_h from, uct_iface_h to);

/* The UCP call that the thread is in and that recorded something of its own; NULL: none. */
UCX_INLINE struct ucx_call *uct_within(void)
{
    struct ucx_thread *me = &ucx_thread;
    struct ucx_call *c = me->depth && me->depth <= UCX_FRAMES ? me->frames[me->depth - 1].call : NULL;
    return c && c->t->ready ? c : NULL;
}

#pragma GCC visibility pop

#endif
