/* Provider ucx, level UCT: interfaces and endpoints, and whether this UCX is known. */
#include "ucx_uct.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct uct_patched uct_ifaces[UCT_IFACES];
static unsigned patched;
static int busy; /* the table above is being changed */

/* ---- versions ------------------------------------------------------------------------------------------------------------------ */

/* The releases of UCX whose function table, completion and buffer list are laid out as below: so say their headers, from the first to the last. */
static const struct {
    unsigned major, first, last;
} known[] = {{1, 11, 22}};

/* The table of these releases. A build against headers that differ has to bring a layout of its own. */
#define LAYOUT(X)                                                                                                                        \
    X(ep_put_short) X(ep_put_bcopy) X(ep_put_zcopy) X(ep_get_short) X(ep_get_bcopy) X(ep_get_zcopy)                                      \
    X(ep_am_short) X(ep_am_short_iov) X(ep_am_bcopy) X(ep_am_zcopy)                                                                      \
    X(ep_atomic_cswap64) X(ep_atomic_cswap32) X(ep_atomic32_post) X(ep_atomic64_post) X(ep_atomic32_fetch) X(ep_atomic64_fetch)          \
    X(ep_tag_eager_short) X(ep_tag_eager_bcopy) X(ep_tag_eager_zcopy) X(ep_tag_rndv_zcopy) X(ep_tag_rndv_cancel) X(ep_tag_rndv_request)  \
    X(iface_tag_recv_zcopy) X(iface_tag_recv_cancel) X(ep_pending_add) X(ep_pending_purge) X(ep_flush) X(ep_fence) X(ep_check)           \
    X(ep_create) X(ep_connect) X(ep_disconnect) X(cm_ep_conn_notify) X(ep_destroy) X(ep_get_address) X(ep_connect_to_ep)                 \
    X(iface_accept) X(iface_reject) X(iface_flush) X(iface_fence)                                                                        \
    X(iface_progress_enable) X(iface_progress_disable) X(iface_progress) X(iface_event_fd_get) X(iface_event_arm)                        \
    X(iface_close) X(iface_query) X(iface_get_device_address) X(iface_get_address) X(iface_is_reachable)
#define PLACE(f) at_##f,
enum { LAYOUT(PLACE) functions };
#define CHECK(f) _Static_assert(offsetof(uct_iface_ops_t, f) == at_##f * sizeof(void *), #f);
LAYOUT(CHECK)
static intptr_t absent(void) { return UCS_ERR_UNSUPPORTED; }
#define ABSENT(f) .f = (void *)absent,
const uct_iface_ops_t uct_absent = {LAYOUT(ABSENT)};
_Static_assert(sizeof(uct_iface_ops_t) == functions * sizeof(void *) && !offsetof(uct_iface_t, ops) && !offsetof(uct_ep_t, iface), "interface");
_Static_assert(!offsetof(uct_completion_t, func) && offsetof(uct_completion_t, count) == 8 && offsetof(uct_completion_t, status) == 12, "completion");
_Static_assert(offsetof(uct_iov_t, length) == 8 && offsetof(uct_iov_t, count) == 32 && sizeof(uct_iov_t) == 40, "buffer list");

/* Says once in a process that UCT is not recorded. */
static void off(const char *version, const char *reason)
{
    static pid_t said; /* a forked child has a file of its own */
    if (__atomic_exchange_n(&said, getpid(), __ATOMIC_RELAXED) != getpid())
        st_def_uct_off(version, reason);
}

static bool version_known(void)
{
    unsigned major = 0, minor = 0, release = 0;
    char text[48] = "";
    void (*version)(unsigned *, unsigned *, unsigned *) = (void (*)(unsigned *, unsigned *, unsigned *))st_next("ucp_get_version", NULL);
    if (version) {
        version(&major, &minor, &release);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (major == known[i].major && minor >= known[i].first && minor <= known[i].last)
                return true;
        snprintf(text, sizeof text, "%u.%u.%u", major, minor, release);
    }
    off(text, version ? "function table of this version is not known" : "version of UCX is not known: there is no ucp_get_version");
    return false;
}

/* ---- interfaces ---------------------------------------------------------------------------------------------------------------- */

static void lock(void)
{
    while (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE))
        sched_yield();
}
static void unlock(void) { __atomic_store_n(&busy, 0, __ATOMIC_RELEASE); }

/* Enters an interface with its functions as they are now. False: there is no room. */
static bool remember(uct_iface_h iface, const uct_iface_params_t *params)
{
    bool room;
    lock();
    struct uct_patched *p = uct_place(iface);
    if (!p->iface) /* the first free place on the way is as good */
        for (unsigned i = (unsigned)((uint64_t)(uintptr_t)iface * 0x9e3779b97f4a7c15ull >> 52);; i++) {
            p = &uct_ifaces[i % UCT_IFACES];
            if (!p->iface || p->iface == UCT_GONE)
                break;
        }
    room = p->iface == iface || patched < UCT_IFACES / 4 * 3;
    if (room) {
        patched += p->iface != iface;
        p->real = iface->ops;
        p->transport[0] = p->device[0] = 0;
        if (params->open_mode & UCT_IFACE_OPEN_MODE_DEVICE) { /* whether the mask names the device or not: UCT itself does not ask */
            snprintf(p->transport, sizeof p->transport, "%s", params->mode.device.tl_name);
            if (params->mode.device.dev_name)
                snprintf(p->device, sizeof p->device, "%s", params->mode.device.dev_name);
        }
        __atomic_store_n(&p->iface, iface, __ATOMIC_RELEASE);
    }
    unlock();
    return room;
}

static void forget(uct_iface_h iface)
{
    lock();
    struct uct_patched *p = uct_place(iface);
    if (p->iface == iface) {
        patched--;
        /* a look-up passes over a place that is gone, and ends at one that never was */
        unsigned i = (unsigned)(p - uct_ifaces);
        bool last = !uct_ifaces[(i + 1) % UCT_IFACES].iface;
        __atomic_store_n(&p->iface, last ? NULL : UCT_GONE, __ATOMIC_RELEASE);
        for (; last && uct_ifaces[(i + UCT_IFACES - 1) % UCT_IFACES].iface == UCT_GONE; i--)
            __atomic_store_n(&uct_ifaces[(i + UCT_IFACES - 1) % UCT_IFACES].iface, NULL, __ATOMIC_RELEASE);
    }
    unlock();
}

/* ---- objects ------------------------------------------------------------------------------------------------------------------- */

struct st_object *uct_new_interface(uct_iface_h iface)
{
    struct uct_patched *p = uct_place(iface);
    struct st_object *o = st_object_new(ST_KIND_UCT_INTERFACE, (uintptr_t)iface);
    if (o->id)
        st_def_uct_interface(o->id, p->transport, p->device);
    return o;
}

struct st_object *uct_new_endpoint(uct_ep_h ep, uct_iface_h iface)
{
    struct st_object *i = uct_interface(iface), *o = st_object_new(ST_KIND_UCT_ENDPOINT, (uintptr_t)ep);
    if (o->id)
        st_def_uct_endpoint(o->id, i->id);
    return o;
}

void uct_owned(struct st_object *endpoint, struct st_object *owner)
{
    if (!endpoint->id || !owner->id || endpoint->user[0])
        return;
    endpoint->user[0] = owner->id;
    st_def_uct_endpoint_owner(endpoint->id, owner->id);
}

void uct_made(struct st_object *made, struct st_object *owner)
{
    for (; made; made = (struct st_object *)(uintptr_t)made->user[1])
        uct_owned(made, owner);
}

static ucs_status_t ep_create(const uct_ep_params_t *params, uct_ep_h *ep_p)
{
    const uct_iface_ops_t *real = uct_real(params->iface);
    ucs_status_t status = real->ep_create(params, ep_p);
    struct st_thread *t = status == UCS_OK ? st_enter(ST_LAYER_UCT) : NULL;
    if (!t)
        return status;
    struct st_object *o = uct_new_endpoint(*ep_p, params->iface);
    struct ucx_call *c = uct_within();
    if (c && !c->object && o->id) {
        o->user[1] = (uintptr_t)c->made;
        c->made = o;
    }
    st_leave(t, ST_LAYER_UCT);
    return status;
}

static void ep_destroy(uct_ep_h ep)
{
    const uct_iface_ops_t *real = uct_real(ep->iface);
    struct st_thread *t = st_enter(ST_LAYER_UCT);
    if (!t) {
        real->ep_destroy(ep);
        return;
    }
    /* its name goes first: another thread may get the same address for a new endpoint before this call has returned */
    struct st_object *o = st_find(ST_KIND_UCT_ENDPOINT, (uintptr_t)ep);
    st_object_forget(ST_KIND_UCT_ENDPOINT, (uintptr_t)ep);
    st_leave(t, ST_LAYER_UCT);
    real->ep_destroy(ep); /* completes what is outstanding */
    if (o->id && (t = st_enter(ST_LAYER_UCT))) {
        st_object_end(o);
        st_leave(t, ST_LAYER_UCT);
    }
}

static void iface_close(uct_iface_h iface)
{
    struct st_thread *t = st_enter(ST_LAYER_UCT);
    struct st_object *o = st_find(ST_KIND_UCT_INTERFACE, (uintptr_t)iface);
    st_object_forget(ST_KIND_UCT_INTERFACE, (uintptr_t)iface);
    /* everything goes before the interface does: its address may be another's at once. What it calls while it ends, it finds unhooked */
    iface->ops = *uct_real(iface);
    forget(iface);
    if (t)
        st_leave(t, ST_LAYER_UCT);
    uct_slots_pass(iface, (uct_iface_h)&t);
    iface->ops.iface_close(iface);
    uct_slots_pass((uct_iface_h)&t, NULL); /* what was never completed */
    if (o->id && (t = st_enter(ST_LAYER_UCT))) {
        st_object_end(o);
        st_leave(t, ST_LAYER_UCT);
    }
}

/* ---- opening ------------------------------------------------------------------------------------------------------------------- */

ucs_status_t uct_iface_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params, const uct_iface_config_t *config, uct_iface_h *iface_p)
{
    UCX_REAL(uct_iface_open);
    ucs_status_t status = real(md, worker, params, config, iface_p);
    if (status != UCS_OK || !st_wants_uct())
        return status;
    struct st_thread *t = st_enter(ST_LAYER_UCT);
    if (!t)
        return status;
    int saved = errno;
    if (version_known()) {
        if (remember(*iface_p, params)) {
            uct_new_interface(*iface_p);
            uct_patch(&(*iface_p)->ops);
            (*iface_p)->ops.ep_create = ep_create;
            (*iface_p)->ops.ep_destroy = ep_destroy;
            (*iface_p)->ops.iface_close = iface_close;
        } else {
            off("", "more interfaces than can be followed: those opened later are not recorded");
        }
    }
    errno = saved;
    st_leave(t, ST_LAYER_UCT);
    return status;
}
