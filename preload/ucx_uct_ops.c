/*
 * Provider ucx, level UCT: hooks of the functions that move data, and of flush and fence.
 *
 * Operations may be made within operations: the transport `self` hands a message to the receiver's callback at once, and UCP answers from
 * there. So the layer's gate is open while the real function runs.
 *
 * iface_fence is not hooked: a UCX built with assertions compares it with its own function.
 */
#include "ucx_uct.h"

/* An operation being recorded. */
struct uct_call {
    struct st_thread *t;
    struct st_object *object;
    uint64_t begin; /* 0 in aggregate mode, which reads no clock */
    uint64_t id, local, remote, rkey;
    uint64_t request; /* 0: not tracked */
    unsigned form, slot;
    bool completes; /* the caller gave a completion */
};

struct uct_slot uct_slots[UCX_SLOTS];

/* ---- completions --------------------------------------------------------------------------------------------------------------- */

/* What UCT calls instead of counting down the caller's completion: does the same to that one (uct_completion_update_status, uct.h). */
static void completed(uct_completion_t *mine)
{
    struct uct_slot *at = (struct uct_slot *)mine, s = *at;
    __atomic_store_n(&at->iface, NULL, __ATOMIC_RELAXED);
    ucx_slot_put(&ucx_thread, (unsigned)(at - uct_slots));
    struct st_thread *t = s.t->ready ? st_enter(ST_LAYER_UCT) : NULL; /* else an operation of the parent, completed in a forked child */
    if (t) {
        st_rec_uct_completion(t, st_clock(), ST_EV_UCT_COMPLETION, s.object, s.id, s.mine.status);
        st_count(t, s.object, ST_EV_UCT_COMPLETION, 0, 0);
        st_leave(t, ST_LAYER_UCT);
    }
    if (s.mine.status != UCS_OK && s.theirs->status == UCS_OK)
        s.theirs->status = s.mine.status;
    if (--s.theirs->count == 0)
        s.theirs->func(s.theirs);
}

/* Takes a slot for an operation and returns the completion to give to UCT instead of the caller's. Only full mode follows completions. */
UCX_INLINE uct_completion_t *track(struct uct_call *c, uct_iface_h iface, uct_completion_t *comp)
{
    struct ucx_thread *me = &ucx_thread;
    c->completes = comp;
    if (st_mode != ST_FULL || !comp || !(c->slot = ucx_slot_get(me)))
        return comp;
    struct uct_slot *s = &uct_slots[c->slot];
    s->mine = (uct_completion_t){.func = completed, .count = 1, .status = UCS_OK};
    s->theirs = comp;
    s->object = c->object;
    s->t = c->t;
    s->id = c->request = ucx_id(&me->ids[2]);
    __atomic_store_n(&s->iface, iface, __ATOMIC_RELAXED);
    return &s->mine;
}

/* Gives back the slot of an operation that will not complete. */
static void untrack(struct uct_call *c)
{
    struct ucx_ids *ids = &ucx_thread.ids[2];
    if (!c->slot)
        return;
    __atomic_store_n(&uct_slots[c->slot].iface, NULL, __ATOMIC_RELAXED);
    ucx_slot_put(&ucx_thread, c->slot);
    if (ids->next == c->request + 1)
        ids->next = c->request; /* so that ids stay in step */
    c->request = 0;
}

void uct_slots_pass(uct_iface_h from, uct_iface_h to)
{
    unsigned n = ucx_slots_used();
    for (unsigned i = 1; i < n; i++) {
        if (__atomic_load_n(&uct_slots[i].iface, __ATOMIC_RELAXED) != from)
            continue;
        __atomic_store_n(&uct_slots[i].iface, to, __ATOMIC_RELAXED);
        if (!to)
            ucx_slot_put(&ucx_thread, i);
    }
}

/* ---- the frame of a hook ------------------------------------------------------------------------------------------------------- */

/* False: the call is only to be passed through. */
#define enter(c, ep) enter_object(c, ep, NULL)
#define enter_interface(c, iface) enter_object(c, NULL, iface)
UCX_INLINE bool enter_object(struct uct_call *c, uct_ep_h ep, uct_iface_h iface)
{
    c->t = st_enter(ST_LAYER_UCT);
    if (st_unlikely(!c->t))
        return false;
    c->object = ep ? uct_endpoint(ep) : uct_interface(iface);
    st_leave(c->t, ST_LAYER_UCT);
    c->begin = st_mode == ST_AGGREGATE ? 0 : st_clock();
    return true;
}

/* The request id of the UCP call that the thread is in; 0 none. Such a call records it. */
static uint64_t parent_of(struct st_object *o)
{
    struct ucx_call *c = uct_within();
    if (!c || !c->object)
        return 0;
    if (!o->user[0] && o->kind == ST_KIND_UCT_ENDPOINT && c->object->kind == ST_KIND_ENDPOINT && !c->blocking)
        uct_owned(o, c->object);
    if (!c->parent && st_mode == ST_FULL)
        c->parent = c->id ? c->id : ucx_id(&ucx_thread.ids[0]);
    return c->parent;
}

static void record(struct uct_call *c, unsigned event, uint64_t bytes, unsigned status)
{
    struct st_thread *t = st_enter(ST_LAYER_UCT);
    if (t != c->t) { /* a child forked meanwhile */
        if (t)
            st_leave(t, ST_LAYER_UCT);
        return;
    }
    uint64_t parent = parent_of(c->object);
    if (st_likely(st_mode == ST_FULL))
        st_rec_uct_request(t, c->begin, event, c->object, bytes, c->form, c->id, c->local, c->remote, c->rkey ? st_hash_key(c->rkey) : 0,
                           c->request, status, parent, st_clock() - c->begin);
    else if (st_mode == ST_SIMPLE && event != ST_EV_UCT_FLUSH)
        st_rec_call(t, c->begin, ST_EV_UCT_CALL, c->object, event, 1, bytes, 0, st_clock() - c->begin);
    st_count(t, c->object, event, bytes, 1);
    if (status == ST_UCP_RESULT_DONE)
        st_count(t, c->object, ST_EV_UCT_COMPLETION, 0, 0);
    st_leave(t, ST_LAYER_UCT);
}

/* The rest of a hook, from the return of its real function on. */
static ucs_status_t finish(struct uct_call *c, unsigned event, uint64_t bytes, ucs_status_t status)
{
    if (status == UCS_INPROGRESS) {
        if (c->completes || event != ST_EV_UCT_FLUSH) /* a flush without completion is asked for again until it is done */
            record(c, event, bytes, c->request ? ST_UCP_RESULT_PENDING : c->completes ? ST_UCP_RESULT_UNTRACKED : ST_UCP_RESULT_IMPLICIT);
        return status;
    }
    untrack(c);
    if (status == UCS_OK)
        record(c, event, bytes, ST_UCP_RESULT_DONE);
    return status;
}

/* The same for functions that return how many bytes a callback has packed. */
static ssize_t finish_packed(struct uct_call *c, unsigned event, ssize_t packed)
{
    finish(c, event, packed < 0 ? 0 : (uint64_t)packed, packed < 0 ? (ucs_status_t)packed : UCS_OK);
    return packed;
}

static uint64_t total(const uct_iov_t *iov, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += iov[i].length * iov[i].count;
    return sum;
}
static uint64_t first(const uct_iov_t *iov, size_t n) { return n ? (uintptr_t)iov->buffer : 0; }

/* ---- put and get --------------------------------------------------------------------------------------------------------------- */

static ucs_status_t put_short(uct_ep_h ep, const void *buffer, unsigned length, uint64_t remote, uct_rkey_t rkey)
{
    __typeof__(&put_short) real = uct_real(ep->iface)->ep_put_short;
    struct uct_call c = {.form = ST_UCT_FORM_SHORT, .local = (uintptr_t)buffer, .remote = remote, .rkey = rkey};
    if (!enter(&c, ep))
        return real(ep, buffer, length, remote, rkey);
    return finish(&c, ST_EV_UCT_PUT, length, real(ep, buffer, length, remote, rkey));
}

static ssize_t put_bcopy(uct_ep_h ep, uct_pack_callback_t pack, void *arg, uint64_t remote, uct_rkey_t rkey)
{
    __typeof__(&put_bcopy) real = uct_real(ep->iface)->ep_put_bcopy;
    struct uct_call c = {.form = ST_UCT_FORM_BCOPY, .remote = remote, .rkey = rkey};
    if (!enter(&c, ep))
        return real(ep, pack, arg, remote, rkey);
    return finish_packed(&c, ST_EV_UCT_PUT, real(ep, pack, arg, remote, rkey));
}

static ucs_status_t put_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t n, uint64_t remote, uct_rkey_t rkey, uct_completion_t *comp)
{
    __typeof__(&put_zcopy) real = uct_real(ep->iface)->ep_put_zcopy;
    struct uct_call c = {.form = ST_UCT_FORM_ZCOPY, .local = first(iov, n), .remote = remote, .rkey = rkey};
    if (!enter(&c, ep))
        return real(ep, iov, n, remote, rkey, comp);
    uint64_t bytes = total(iov, n);
    comp = track(&c, ep->iface, comp);
    return finish(&c, ST_EV_UCT_PUT, bytes, real(ep, iov, n, remote, rkey, comp));
}

static ucs_status_t get_short(uct_ep_h ep, void *buffer, unsigned length, uint64_t remote, uct_rkey_t rkey)
{
    __typeof__(&get_short) real = uct_real(ep->iface)->ep_get_short;
    struct uct_call c = {.form = ST_UCT_FORM_SHORT, .local = (uintptr_t)buffer, .remote = remote, .rkey = rkey};
    if (!enter(&c, ep))
        return real(ep, buffer, length, remote, rkey);
    return finish(&c, ST_EV_UCT_GET, length, real(ep, buffer, length, remote, rkey));
}

static ucs_status_t get_bcopy(uct_ep_h ep, uct_unpack_callback_t unpack, void *arg, size_t length, uint64_t remote, uct_rkey_t rkey, uct_completion_t *comp)
{
    __typeof__(&get_bcopy) real = uct_real(ep->iface)->ep_get_bcopy;
    struct uct_call c = {.form = ST_UCT_FORM_BCOPY, .remote = remote, .rkey = rkey};
    if (!enter(&c, ep))
        return real(ep, unpack, arg, length, remote, rkey, comp);
    comp = track(&c, ep->iface, comp);
    return finish(&c, ST_EV_UCT_GET, length, real(ep, unpack, arg, length, remote, rkey, comp));
}

static ucs_status_t get_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t n, uint64_t remote, uct_rkey_t rkey, uct_completion_t *comp)
{
    __typeof__(&get_zcopy) real = uct_real(ep->iface)->ep_get_zcopy;
    struct uct_call c = {.form = ST_UCT_FORM_ZCOPY, .local = first(iov, n), .remote = remote, .rkey = rkey};
    if (!enter(&c, ep))
        return real(ep, iov, n, remote, rkey, comp);
    uint64_t bytes = total(iov, n);
    comp = track(&c, ep->iface, comp);
    return finish(&c, ST_EV_UCT_GET, bytes, real(ep, iov, n, remote, rkey, comp));
}

/* ---- active messages ----------------------------------------------------------------------------------------------------------- */

static ucs_status_t am_short(uct_ep_h ep, uint8_t id, uint64_t header, const void *payload, unsigned length)
{
    __typeof__(&am_short) real = uct_real(ep->iface)->ep_am_short;
    struct uct_call c = {.form = ST_UCT_FORM_SHORT, .id = id, .local = (uintptr_t)payload};
    if (!enter(&c, ep))
        return real(ep, id, header, payload, length);
    return finish(&c, ST_EV_UCT_AM_SEND, sizeof header + length, real(ep, id, header, payload, length));
}

static ucs_status_t am_short_iov(uct_ep_h ep, uint8_t id, const uct_iov_t *iov, size_t n)
{
    __typeof__(&am_short_iov) real = uct_real(ep->iface)->ep_am_short_iov;
    struct uct_call c = {.form = ST_UCT_FORM_SHORT_IOV, .id = id, .local = first(iov, n)};
    if (!enter(&c, ep))
        return real(ep, id, iov, n);
    uint64_t bytes = total(iov, n);
    return finish(&c, ST_EV_UCT_AM_SEND, bytes, real(ep, id, iov, n));
}

static ssize_t am_bcopy(uct_ep_h ep, uint8_t id, uct_pack_callback_t pack, void *arg, unsigned flags)
{
    __typeof__(&am_bcopy) real = uct_real(ep->iface)->ep_am_bcopy;
    struct uct_call c = {.form = ST_UCT_FORM_BCOPY, .id = id};
    if (!enter(&c, ep))
        return real(ep, id, pack, arg, flags);
    return finish_packed(&c, ST_EV_UCT_AM_SEND, real(ep, id, pack, arg, flags));
}

static ucs_status_t am_zcopy(uct_ep_h ep, uint8_t id, const void *header, unsigned length, const uct_iov_t *iov, size_t n, unsigned flags, uct_completion_t *comp)
{
    __typeof__(&am_zcopy) real = uct_real(ep->iface)->ep_am_zcopy;
    struct uct_call c = {.form = ST_UCT_FORM_ZCOPY, .id = id, .local = first(iov, n)};
    if (!enter(&c, ep))
        return real(ep, id, header, length, iov, n, flags, comp);
    uint64_t bytes = length + total(iov, n);
    comp = track(&c, ep->iface, comp);
    return finish(&c, ST_EV_UCT_AM_SEND, bytes, real(ep, id, header, length, iov, n, flags, comp));
}

/* ---- atomics ------------------------------------------------------------------------------------------------------------------- */

#define ATOMICS(bits)                                                                                                                         \
    static ucs_status_t cswap##bits(uct_ep_h ep, uint##bits##_t compare, uint##bits##_t swap, uint64_t remote, uct_rkey_t rkey,               \
                                    uint##bits##_t *result, uct_completion_t *comp)                                                           \
    {                                                                                                                                         \
        __typeof__(&cswap##bits) real = uct_real(ep->iface)->ep_atomic_cswap##bits;                                                           \
        struct uct_call c = {.form = ST_UCT_FORM_COMPARE_SWAP, .local = (uintptr_t)result, .remote = remote, .rkey = rkey};                   \
        if (!enter(&c, ep))                                                                                                                   \
            return real(ep, compare, swap, remote, rkey, result, comp);                                                                       \
        comp = track(&c, ep->iface, comp);                                                                                                    \
        return finish(&c, ST_EV_UCT_ATOMIC, bits / 8, real(ep, compare, swap, remote, rkey, result, comp));                                   \
    }                                                                                                                                         \
    static ucs_status_t post##bits(uct_ep_h ep, unsigned opcode, uint##bits##_t value, uint64_t remote, uct_rkey_t rkey)                      \
    {                                                                                                                                         \
        __typeof__(&post##bits) real = uct_real(ep->iface)->ep_atomic##bits##_post;                                                           \
        struct uct_call c = {.form = ST_UCT_FORM_POST, .id = opcode, .remote = remote, .rkey = rkey};                                         \
        if (!enter(&c, ep))                                                                                                                   \
            return real(ep, opcode, value, remote, rkey);                                                                                     \
        return finish(&c, ST_EV_UCT_ATOMIC, bits / 8, real(ep, opcode, value, remote, rkey));                                                 \
    }                                                                                                                                         \
    static ucs_status_t fetch##bits(uct_ep_h ep, unsigned opcode, uint##bits##_t value, uint##bits##_t *result, uint64_t remote,              \
                                    uct_rkey_t rkey, uct_completion_t *comp)                                                                  \
    {                                                                                                                                         \
        __typeof__(&fetch##bits) real = uct_real(ep->iface)->ep_atomic##bits##_fetch;                                                         \
        struct uct_call c = {.form = ST_UCT_FORM_FETCH, .id = opcode, .local = (uintptr_t)result, .remote = remote, .rkey = rkey};            \
        if (!enter(&c, ep))                                                                                                                   \
            return real(ep, opcode, value, result, remote, rkey, comp);                                                                       \
        comp = track(&c, ep->iface, comp);                                                                                                    \
        return finish(&c, ST_EV_UCT_ATOMIC, bits / 8, real(ep, opcode, value, result, remote, rkey, comp));                                   \
    }
ATOMICS(32)
ATOMICS(64)

/* ---- tags, where the device matches them --------------------------------------------------------------------------------------- */

static ucs_status_t tag_short(uct_ep_h ep, uct_tag_t tag, const void *data, size_t length)
{
    __typeof__(&tag_short) real = uct_real(ep->iface)->ep_tag_eager_short;
    struct uct_call c = {.form = ST_UCT_FORM_SHORT, .id = tag, .local = (uintptr_t)data};
    if (!enter(&c, ep))
        return real(ep, tag, data, length);
    return finish(&c, ST_EV_UCT_TAG_SEND, length, real(ep, tag, data, length));
}

static ssize_t tag_bcopy(uct_ep_h ep, uct_tag_t tag, uint64_t imm, uct_pack_callback_t pack, void *arg, unsigned flags)
{
    __typeof__(&tag_bcopy) real = uct_real(ep->iface)->ep_tag_eager_bcopy;
    struct uct_call c = {.form = ST_UCT_FORM_BCOPY, .id = tag};
    if (!enter(&c, ep))
        return real(ep, tag, imm, pack, arg, flags);
    return finish_packed(&c, ST_EV_UCT_TAG_SEND, real(ep, tag, imm, pack, arg, flags));
}

static ucs_status_t tag_zcopy(uct_ep_h ep, uct_tag_t tag, uint64_t imm, const uct_iov_t *iov, size_t n, unsigned flags, uct_completion_t *comp)
{
    __typeof__(&tag_zcopy) real = uct_real(ep->iface)->ep_tag_eager_zcopy;
    struct uct_call c = {.form = ST_UCT_FORM_ZCOPY, .id = tag, .local = first(iov, n)};
    if (!enter(&c, ep))
        return real(ep, tag, imm, iov, n, flags, comp);
    uint64_t bytes = total(iov, n);
    comp = track(&c, ep->iface, comp);
    return finish(&c, ST_EV_UCT_TAG_SEND, bytes, real(ep, tag, imm, iov, n, flags, comp));
}

/* Returns a handle for cancelling, which is no status. */
static ucs_status_ptr_t tag_rendezvous(uct_ep_h ep, uct_tag_t tag, const void *header, unsigned length, const uct_iov_t *iov, size_t n, unsigned flags, uct_completion_t *comp)
{
    __typeof__(&tag_rendezvous) real = uct_real(ep->iface)->ep_tag_rndv_zcopy;
    struct uct_call c = {.form = ST_UCT_FORM_RENDEZVOUS, .id = tag, .local = first(iov, n)};
    if (!enter(&c, ep))
        return real(ep, tag, header, length, iov, n, flags, comp);
    uint64_t bytes = length + total(iov, n);
    comp = track(&c, ep->iface, comp);
    ucs_status_ptr_t operation = real(ep, tag, header, length, iov, n, flags, comp);
    finish(&c, ST_EV_UCT_TAG_SEND, bytes, UCS_PTR_IS_ERR(operation) ? UCS_PTR_STATUS(operation) : UCS_INPROGRESS);
    return operation;
}

static ucs_status_t tag_rendezvous_request(uct_ep_h ep, uct_tag_t tag, const void *header, unsigned length, unsigned flags)
{
    __typeof__(&tag_rendezvous_request) real = uct_real(ep->iface)->ep_tag_rndv_request;
    struct uct_call c = {.form = ST_UCT_FORM_RENDEZVOUS_REQUEST, .id = tag, .local = (uintptr_t)header};
    if (!enter(&c, ep))
        return real(ep, tag, header, length, flags);
    return finish(&c, ST_EV_UCT_TAG_SEND, length, real(ep, tag, header, length, flags));
}

/* How it ends goes through the callbacks of the caller's context, which UCT keeps data of its own in: not followed. */
static ucs_status_t tag_recv(uct_iface_h iface, uct_tag_t tag, uct_tag_t mask, const uct_iov_t *iov, size_t n, uct_tag_context_t *context)
{
    __typeof__(&tag_recv) real = uct_real(iface)->iface_tag_recv_zcopy;
    struct uct_call c = {.form = ST_UCT_FORM_ZCOPY, .id = tag, .local = first(iov, n), .completes = true};
    if (!enter_interface(&c, iface))
        return real(iface, tag, mask, iov, n, context);
    uint64_t bytes = total(iov, n);
    ucs_status_t status = real(iface, tag, mask, iov, n, context);
    finish(&c, ST_EV_UCT_TAG_RECV, bytes, status == UCS_OK ? UCS_INPROGRESS : status);
    return status;
}

/* ---- flush and fence ----------------------------------------------------------------------------------------------------------- */

static ucs_status_t ep_flush(uct_ep_h ep, unsigned flags, uct_completion_t *comp)
{
    __typeof__(&ep_flush) real = uct_real(ep->iface)->ep_flush;
    struct uct_call c = {.form = ST_UCT_FORM_FLUSH};
    if (!enter(&c, ep))
        return real(ep, flags, comp);
    comp = track(&c, ep->iface, comp);
    return finish(&c, ST_EV_UCT_FLUSH, 0, real(ep, flags, comp));
}

static ucs_status_t ep_fence(uct_ep_h ep, unsigned flags)
{
    __typeof__(&ep_fence) real = uct_real(ep->iface)->ep_fence;
    struct uct_call c = {.form = ST_UCT_FORM_FENCE};
    if (!enter(&c, ep))
        return real(ep, flags);
    return finish(&c, ST_EV_UCT_FLUSH, 0, real(ep, flags));
}

static ucs_status_t iface_flush(uct_iface_h iface, unsigned flags, uct_completion_t *comp)
{
    __typeof__(&iface_flush) real = uct_real(iface)->iface_flush;
    struct uct_call c = {.form = ST_UCT_FORM_FLUSH};
    if (!enter_interface(&c, iface))
        return real(iface, flags, comp);
    comp = track(&c, iface, comp);
    return finish(&c, ST_EV_UCT_FLUSH, 0, real(iface, flags, comp));
}

void uct_patch(uct_iface_ops_t *ops)
{
    ops->ep_put_short = put_short;
    ops->ep_put_bcopy = put_bcopy;
    ops->ep_put_zcopy = put_zcopy;
    ops->ep_get_short = get_short;
    ops->ep_get_bcopy = get_bcopy;
    ops->ep_get_zcopy = get_zcopy;
    ops->ep_am_short = am_short;
    if (ops->ep_am_short_iov != st_next("uct_base_ep_am_short_iov", NULL)) /* that one calls ep_am_short of the table */
        ops->ep_am_short_iov = am_short_iov;
    ops->ep_am_bcopy = am_bcopy;
    ops->ep_am_zcopy = am_zcopy;
    ops->ep_atomic_cswap32 = cswap32;
    ops->ep_atomic_cswap64 = cswap64;
    ops->ep_atomic32_post = post32;
    ops->ep_atomic64_post = post64;
    ops->ep_atomic32_fetch = fetch32;
    ops->ep_atomic64_fetch = fetch64;
    ops->ep_tag_eager_short = tag_short;
    ops->ep_tag_eager_bcopy = tag_bcopy;
    ops->ep_tag_eager_zcopy = tag_zcopy;
    ops->ep_tag_rndv_zcopy = tag_rendezvous;
    ops->ep_tag_rndv_request = tag_rendezvous_request;
    ops->iface_tag_recv_zcopy = tag_recv;
    ops->ep_flush = ep_flush;
    ops->ep_fence = ep_fence;
    ops->iface_flush = iface_flush;
}
