/*
 * What the files of provider-ucx.so share.
 *
 *     ucx.c           the table of hooked functions, where the real ones are, and the frame of every hook
 *     ucx_messages.c  hooks: tag, stream, active message
 *     ucx_memory.c    hooks: put, get, atomic, flush
 *     ucx_objects.c   hooks: workers and endpoints, their creation, addresses and end
 *     ucx_requests.c  the slot table: how the completion of a request is learned
 *     ucx_uct*.c      the level below: see ucx_uct.h
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
#include <uct/api/uct.h>
#pragma GCC visibility pop

#pragma GCC visibility push(hidden)

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
    X(ucp_request_free) X(ucp_ep_create) X(ucp_ep_close_nb) X(ucp_ep_close_nbx) X(ucp_ep_destroy) X(ucp_disconnect_nb)      \
    X(uct_iface_open)

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
    struct ucx_call *call;    /* any call: what UCT operations within it are caused by */
};

#define UCX_FRAMES 8 /* deeper nesting goes on without a frame: a completion may then be recorded before its request */
#define UCX_CACHE 32

/* What a thread holds. Not wiped in a forked child: everything here is as good there. */
struct ucx_thread {
    uint32_t depth;  /* calls in their real function */
    uint32_t shut;   /* bit depth % 32: the gate was shut when the call at that depth came, and is to be shut after it */
    uint32_t cached; /* free slots at hand */
    struct ucx_ids {
        uint64_t next, end;
    } ids[3]; /* receives, and UCT operations, apart from the rest: each then tends to go up by one, as the encoder expects */
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
    uint64_t id;                     /* given to the request; 0: its completion cannot be learned */
    uint64_t parent;                 /* what UCT operations within the call have been told of it; 0: there were none */
    struct st_object *made;          /* UCT endpoints made within a call that is no request: the latest, chained by user[1] */
    const ucp_tag_recv_info_t *info; /* receives: filled when complete on return, by some versions of UCX */
    ucp_tag_recv_info_t before;      /* what was there before */
    ucs_status_ptr_t result;         /* of the nbx call that carries out an nbr call */
    unsigned slot, event, api;
    bool carried;  /* result is set */
    bool blocking; /* it makes progress, so operations within it may be of other endpoints */
};

#define UCX_INLINE static inline __attribute__((always_inline))

struct st_thread *ucx_enter_nested(const void *caller);
void ucx_leave_nested(struct st_thread *t);

/* st_enter, told apart by the caller's address where the thread is in a hook already: UCX calling itself is not recorded, the
 * application calling from a callback is. NULL: the call is only to be passed through. */
#define ucx_enter() ucx_enter_from(__builtin_return_address(0))
UCX_INLINE struct st_thread *ucx_enter_from(const void *caller)
{
    struct st_thread *t = st_self;
    if (st_unlikely(!t->gate[ST_LAYER_UCP]))
        return ucx_enter_nested(caller);
    t->gate[ST_LAYER_UCP] = 0;
    return t;
}

UCX_INLINE void ucx_leave(struct st_thread *t)
{
    st_leave(t, ST_LAYER_UCP);
    if (st_unlikely(ucx_thread.shut))
        ucx_leave_nested(t);
}

/* Right before the real function, and right after it. The second is false where the process is another one: a child forked by a callback
 * that returns from it finds the state of its parent wiped. */
UCX_INLINE void ucx_begin(struct ucx_call *c)
{
    if (st_likely(ucx_thread.depth < UCX_FRAMES))
        ucx_thread.frames[ucx_thread.depth].call = c;
    ucx_thread.depth++;
    c->begin = st_mode == ST_AGGREGATE ? 0 : st_clock();
}

UCX_INLINE bool ucx_end(struct ucx_call *c)
{
    ucx_thread.depth--;
    if (c->frame)
        c->frame->id = 0; /* a later call at this depth that tracks nothing must not be taken for this one when the completion comes */
    if (st_likely(c->t->ready))
        return true;
    c->t = st_self;
    return false;
}

UCX_INLINE void ucx_begin_blocking(struct ucx_call *c)
{
    c->blocking = true;
    ucx_begin(c);
}

/* ucx_begin for a call whose request is tracked. */
UCX_INLINE void ucx_begin_request(struct ucx_call *c)
{
    struct ucx_frame *f = st_likely(ucx_thread.depth < UCX_FRAMES) ? &ucx_thread.frames[ucx_thread.depth] : &ucx_thread.deeper;
    f->id = c->id;
    f->done = false;
    f->carried = NULL;
    c->frame = f;
    ucx_begin(c);
}

/* Bytes of count elements. A generic datatype's size is known to its owner only, and asking it would run code of the application that
 * UCX did not ask to run: 0. */
UCX_INLINE uint64_t ucx_bytes(const void *buffer, size_t count, ucp_datatype_t datatype)
{
    uint64_t sum = 0;
    if (st_likely((datatype & UCP_DATATYPE_CLASS_MASK) == UCP_DATATYPE_CONTIG))
        return count * (datatype >> UCP_DATATYPE_SHIFT);
    if ((datatype & UCP_DATATYPE_CLASS_MASK) == UCP_DATATYPE_IOV)
        for (size_t i = 0; i < count; i++)
            sum += ((const ucp_dt_iov_t *)buffer)[i].length;
    return sum;
}

UCX_INLINE uint64_t ucx_bytes_nbx(const void *buffer, size_t count, const ucp_request_param_t *param)
{
    return st_likely(!(param->op_attr_mask & UCP_OP_ATTR_FIELD_DATATYPE)) ? count : ucx_bytes(buffer, count, param->datatype);
}

/* ---- completions ------------------------------------------------------------------------------------------------------------- */

typedef void (*ucx_callback_t)(void *, ucs_status_t, void *, void *);

/* A request that is outstanding. */
struct ucx_slot {
    ucx_callback_t callback;  /* the application's, or NULL. Ordinary memory: a forked child calls it as its parent would */
    struct st_object *object; /* NULL: free */
    struct st_thread *t;      /* posted it: a state that is not ready is that of a parent */
    uint64_t id;
    uint64_t request; /* ucx_request_word: written by the call on its return, when the slot may be another's already */
    uint16_t next;    /* free list */
    uint16_t receive;
};

#define UCX_SLOTS 16384
#define UCX_TRAMPOLINE_BYTES 16

extern struct ucx_slot ucx_slots[UCX_SLOTS]; /* [0] is not used */
extern const char ucx_trampolines[];

#define UCX_RECENT 4096
extern uint16_t ucx_recent[UCX_RECENT]; /* slot by request: a hint */

/* A request in one word with the low bits of its id, which tell whether the slot is still the request's. */
UCX_INLINE uint64_t ucx_request_word(const void *request, uint64_t id) { return (uint64_t)(uintptr_t)request << 16 | (uint16_t)id; }
UCX_INLINE uint16_t *ucx_recent_of(const void *request) { return &ucx_recent[(uintptr_t)request / 64 % UCX_RECENT]; }

unsigned ucx_slot_refill(struct ucx_thread *me);
unsigned ucx_slots_used(void); /* slots from here on have never been used */
void ucx_slot_spill(struct ucx_thread *me);
void ucx_new_ids(struct ucx_ids *ids);

UCX_INLINE void ucx_slot_put(struct ucx_thread *me, unsigned slot)
{
    __atomic_store_n(&ucx_slots[slot].object, NULL, __ATOMIC_RELAXED);
    if (st_unlikely(me->cached == UCX_CACHE))
        ucx_slot_spill(me);
    me->cache[me->cached++] = (uint16_t)slot;
}

/* A free slot; 0 where there is none. */
UCX_INLINE unsigned ucx_slot_get(struct ucx_thread *me) { return st_likely(me->cached) ? me->cache[--me->cached] : ucx_slot_refill(me); }

UCX_INLINE uint64_t ucx_id(struct ucx_ids *ids)
{
    if (st_unlikely(ids->next == ids->end))
        ucx_new_ids(ids);
    return ids->next++;
}

/* Takes a slot for the request of c and returns the callback to give to UCX instead of `callback` (which may be NULL); `callback` itself
 * where no slot is free. */
UCX_INLINE void *ucx_track(struct ucx_call *c, unsigned event, void *callback)
{
    struct ucx_thread *me = &ucx_thread;
    unsigned slot = ucx_slot_get(me);
    if (st_unlikely(!slot))
        return callback;
    struct ucx_slot *s = &ucx_slots[slot];
    s->callback = (ucx_callback_t)callback;
    s->t = c->t;
    s->id = c->id = ucx_id(&me->ids[event == ST_EV_UCP_TAG_RECV]);
    s->receive = event == ST_EV_UCP_TAG_RECV;
    __atomic_store_n(&s->object, c->object, __ATOMIC_RELAXED);
    c->slot = slot;
    return (void *)(uintptr_t)(ucx_trampolines + UCX_TRAMPOLINE_BYTES * slot);
}

/* Every bit of op_attr_mask that the header knows. The fields from reply_buffer on came later than the rest of the structure and are
 * copied only when named. */
#define UCX_KNOWN                                                                                                                      \
    (UCP_OP_ATTR_FIELD_REQUEST | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |               \
     UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_REPLY_BUFFER | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_RECV_INFO |          \
     UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FLAG_NO_IMM_CMPL | UCP_OP_ATTR_FLAG_FAST_CMPL | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL |            \
     UCP_OP_ATTR_FLAG_MULTI_SEND)
#define UCX_LATER (UCP_OP_ATTR_FIELD_REPLY_BUFFER | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_RECV_INFO | UCP_OP_ATTR_FIELD_MEMH)

void ucx_copy_later(ucp_request_param_t *copy, const ucp_request_param_t *param);

/* ucx_track for the nbx forms: returns param, or copy with the callback replaced. */
UCX_INLINE const ucp_request_param_t *ucx_track_nbx(struct ucx_call *c, unsigned event, const ucp_request_param_t *param, ucp_request_param_t *copy)
{
    uint32_t mask = param->op_attr_mask;
    if (st_unlikely(mask & ~UCX_KNOWN))
        return param;
    void *mine = ucx_track(c, event, mask & UCP_OP_ATTR_FIELD_CALLBACK ? (void *)param->cb.send : NULL);
    if (st_unlikely(!c->slot))
        return param;
    __builtin_memcpy(copy, param, offsetof(ucp_request_param_t, reply_buffer));
    if (st_unlikely(mask & UCX_LATER))
        ucx_copy_later(copy, param);
    if (event == ST_EV_UCP_TAG_RECV && !(mask & UCP_OP_ATTR_FLAG_NO_IMM_CMPL) && st_likely(ucx_thread.depth < UCX_FRAMES)) {
        if (!(mask & UCP_OP_ATTR_FIELD_RECV_INFO)) {
            ucp_tag_recv_info_t *info = &ucx_thread.frames[ucx_thread.depth].info;
            info->length = info->sender_tag = ~0ull;
            mask |= UCP_OP_ATTR_FIELD_RECV_INFO;
            copy->recv_info.tag_info = info;
        }
        c->info = copy->recv_info.tag_info;
        c->before = *c->info;
    }
    copy->op_attr_mask = mask | UCP_OP_ATTR_FIELD_CALLBACK;
    copy->cb.send = (ucp_send_nbx_callback_t)mine;
    return copy;
}

/* Gives back the slot of a call whose callback will not run. recorded: with the request's id. */
UCX_INLINE void ucx_untrack(struct ucx_call *c, unsigned event, bool recorded)
{
    struct ucx_thread *me = &ucx_thread;
    struct ucx_ids *ids = &me->ids[event == ST_EV_UCP_TAG_RECV];
    if (!c->slot || c->frame->done)
        return;
    ucx_slot_put(me, c->slot);
    if (!recorded && !c->parent && ids->next == c->id + 1)
        ids->next = c->id; /* so that the ids of requests that were pending stay in step */
}

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

/* ---- the end of a hook ------------------------------------------------------------------------------------------------------- */

/* Records what the mode asks for of an accepted request, and counts it. status: ST_UCP_RESULT_... */
UCX_INLINE void ucx_record(struct ucx_call *c, unsigned event, unsigned api, unsigned status)
{
    if (st_likely(st_mode == ST_FULL))
        st_rec_ucp_request(c->t, c->begin, event, c->object, c->bytes, c->tag, c->mask, c->local, c->remote, c->rkey,
                           status == ST_UCP_RESULT_PENDING ? c->id : c->parent, status, api, st_clock() - c->begin);
    else if (st_mode == ST_SIMPLE)
        st_rec_call(c->t, c->begin, ST_EV_UCP_CALL, c->object, event, 1, c->bytes, 0, st_clock() - c->begin);
    st_count(c->t, c->object, event, c->bytes, 1);
    if (status == ST_UCP_RESULT_DONE)
        st_count(c->t, c->object, ST_EV_UCP_COMPLETION, 0, 0);
}

/* Records a completion (full mode) and counts it. */
void ucx_complete(struct st_thread *t, struct st_object *o, uint64_t time, uint64_t id, uint64_t bytes, uint64_t tag, int status);

/* A receive that was complete on return, and UCX says (1.13 does not) what it has got from which tag: a completion holds it. */
void ucx_received(struct ucx_call *c);

/* The rest of a hook, from the return of its real function on: records and counts the call when it was accepted, and leaves. Each returns
 * its result. */
UCX_INLINE ucs_status_ptr_t ucx_finish_request(struct ucx_call *c, unsigned event, unsigned api, ucs_status_ptr_t result)
{
    if (st_unlikely(!ucx_end(c) || UCS_PTR_IS_ERR(result))) {
        ucx_untrack(c, event, false);
    } else if (event == ST_EV_UCP_TAG_RECV && c->info && !result && __builtin_memcmp(c->info, &c->before, sizeof c->before)) {
        ucx_received(c);
    } else {
        ucx_record(c, event, api, !result ? ST_UCP_RESULT_DONE : c->id ? ST_UCP_RESULT_PENDING : ST_UCP_RESULT_UNTRACKED);
        if (!result) {
            ucx_untrack(c, event, false);
        } else if (st_unlikely(c->frame->done)) {
            ucx_complete(c->t, c->object, c->frame->time, c->id, c->frame->bytes, c->frame->tag, c->frame->status);
        } else {
            __atomic_store_n(&ucx_slots[c->slot].request, ucx_request_word(result, c->id), __ATOMIC_RELAXED);
            __atomic_store_n(ucx_recent_of(result), (uint16_t)c->slot, __ATOMIC_RELAXED);
        }
    }
    ucx_leave(c->t);
    return result;
}

UCX_INLINE ucs_status_t ucx_finish_status(struct ucx_call *c, unsigned event, unsigned api, ucs_status_t status)
{
    if (st_likely(ucx_end(c) && status >= 0))
        ucx_record(c, event, api, status == UCS_OK ? ST_UCP_RESULT_DONE : ST_UCP_RESULT_IMPLICIT);
    ucx_leave(c->t);
    return status;
}

/* For an nbr call. done: whether UCS_OK says that the request is complete. */
ucs_status_t ucx_finish_carried(struct ucx_call *c, ucs_status_t status, bool done);

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

#pragma GCC visibility pop

#endif
