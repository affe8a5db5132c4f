/*
 * Provider ucx: how the completion of a request is learned.
 *
 * A request that may outlive its call takes a slot, and UCX gets the slot's trampoline for a callback: a few instructions that add the
 * slot's number as a fifth argument. So the user data, the request and all else that UCX hands to a callback goes through untouched,
 * the forms without user data need no look-up, and a request without a callback is tracked in the same way. Nothing of the request
 * is read or kept: the application may free or reuse it when it likes.
 *
 * The callback may run before the call has returned: on the same thread (then the call records the completion after the request), or on
 * another one (then the two are recorded by two threads, each with its time). Neither touches the slot after the callback has run.
 */
#define _GNU_SOURCE
#include "ucx.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

typedef void (*callback_t)(void *, ucs_status_t, void *, void *);

struct slot {
    callback_t callback;      /* the application's, or NULL. Ordinary memory: a forked child calls it as its parent would */
    struct st_object *object; /* NULL: free */
    uint64_t id;
    uint32_t generation;
    uint16_t next; /* free list */
    uint16_t receive;
};

static struct slot slots[UCX_SLOTS]; /* [0] is not used */
static uint32_t fresh = 1;           /* slots from here on have never been used */
static uint64_t free_list;           /* first slot in the low 16 bits, above them a count against ABA */
static uint64_t next_ids = 1;        /* request ids, given to threads in ranges */
static uint32_t generations;         /* ordinary memory: counts on through forks */
static pthread_key_t thread_end;

static struct ucx_state none;
struct ucx_state *ucx_state = &none;
__thread struct ucx_thread ucx_thread __attribute__((tls_model("initial-exec")));

/* ---- trampolines ------------------------------------------------------------------------------------------------------------- */

__attribute__((used, visibility("hidden"))) void ucx_completed(void *request, ucs_status_t status, void *a, void *b, uint32_t slot);

#define TRAMPOLINE_BYTES 16
#define TEXT(x) TEXT2(x)
#define TEXT2(x) #x
#if defined(__x86_64__)
#define TRAMPOLINE "    endbr64\n    movl $.Lslot, %r8d\n    jmp ucx_completed\n"
#else
#define TRAMPOLINE "    bti c\n    mov w4, #.Lslot\n    b ucx_completed\n"
#endif
__asm__(".text\n.p2align 4\n.hidden ucx_trampolines\n.globl ucx_trampolines\n.type ucx_trampolines, %function\n"
        "ucx_trampolines:\n.set .Lslot, 0\n.rept " TEXT(UCX_SLOTS) "\n" TRAMPOLINE "    .p2align 4\n    .set .Lslot, .Lslot + 1\n.endr\n"
        ".size ucx_trampolines, .-ucx_trampolines\n");
extern const char ucx_trampolines[] __attribute__((visibility("hidden")));
_Static_assert(UCX_SLOTS <= 65536, "slot numbers have 16 bits");

static void *trampoline(unsigned slot) { return (void *)(uintptr_t)(ucx_trampolines + TRAMPOLINE_BYTES * slot); }

static inline uint32_t generation(void)
{
    return __atomic_load_n(&__atomic_load_n(&ucx_state, __ATOMIC_RELAXED)->generation, __ATOMIC_RELAXED);
}

/* ---- free slots -------------------------------------------------------------------------------------------------------------- */

static void global_put(unsigned slot)
{
    uint64_t head = __atomic_load_n(&free_list, __ATOMIC_RELAXED);
    do
        __atomic_store_n(&slots[slot].next, (uint16_t)head, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&free_list, &head, (head & ~0xffffull) | slot, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

static unsigned global_get(void)
{
    uint64_t head = __atomic_load_n(&free_list, __ATOMIC_ACQUIRE), next;
    while ((uint16_t)head) {
        next = ((head >> 16) + 1) << 16 | __atomic_load_n(&slots[(uint16_t)head].next, __ATOMIC_RELAXED);
        if (__atomic_compare_exchange_n(&free_list, &head, next, 0, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE))
            return (uint16_t)head;
    }
    if (__atomic_load_n(&fresh, __ATOMIC_RELAXED) >= UCX_SLOTS)
        return 0;
    uint32_t slot = __atomic_fetch_add(&fresh, 1, __ATOMIC_RELAXED);
    return slot < UCX_SLOTS ? slot : 0;
}

static void slot_put(struct ucx_thread *me, unsigned slot)
{
    __atomic_store_n(&slots[slot].object, NULL, __ATOMIC_RELAXED);
    if (st_unlikely(me->cached == UCX_CACHE))
        while (me->cached > UCX_CACHE / 2)
            global_put(me->cache[--me->cached]);
    me->cache[me->cached++] = (uint16_t)slot;
}

static void thread_ended(void *p)
{
    struct ucx_thread *me = p;
    while (me->cached)
        global_put(me->cache[--me->cached]);
}

static void forked(void) { ucx_state->generation = 0; }

void ucx_state_init(void)
{
    static int made, busy;
    while (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE))
        st_pause();
    if (!made) {
        made = 1;
        void *m = mmap(NULL, sizeof *ucx_state, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (m != MAP_FAILED) {
            if (madvise(m, sizeof *ucx_state, MADV_WIPEONFORK))
                pthread_atfork(NULL, NULL, forked);
            __atomic_store_n(&ucx_state, m, __ATOMIC_RELEASE);
        }
        pthread_key_create(&thread_end, thread_ended);
    }
    if (!ucx_state->generation)
        __atomic_store_n(&ucx_state->generation, ++generations, __ATOMIC_RELEASE);
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
}

static __attribute__((noinline)) unsigned refill(struct ucx_thread *me)
{
    ucx_state_init();
    pthread_setspecific(thread_end, me);
    if (me->cached)
        return me->cache[--me->cached];
    for (unsigned i = 0; i < UCX_CACHE / 4; i++) {
        unsigned slot = global_get();
        if (!slot)
            break;
        me->cache[me->cached++] = (uint16_t)slot;
    }
    return me->cached ? me->cache[--me->cached] : 0;
}

/* ---- requests ---------------------------------------------------------------------------------------------------------------- */

#define ID_RANGE (1u << 20)

static inline uint64_t new_id(struct ucx_thread *me)
{
    if (st_unlikely(me->next_id == me->end_id)) {
        me->next_id = __atomic_fetch_add(&next_ids, ID_RANGE, __ATOMIC_RELAXED);
        me->end_id = me->next_id + ID_RANGE;
    }
    return me->next_id++;
}

void *ucx_track(struct ucx_call *c, void *callback)
{
    struct ucx_thread *me = &ucx_thread;
    unsigned slot = st_likely(generation() && me->cached) ? me->cache[--me->cached] : refill(me);
    if (st_unlikely(!slot))
        return callback;
    struct slot *s = &slots[slot];
    s->callback = (callback_t)callback;
    s->id = c->id = new_id(me);
    s->generation = generation();
    s->receive = c->event == ST_EV_UCP_TAG_RECV;
    __atomic_store_n(&s->object, c->object, __ATOMIC_RELAXED);
    c->slot = (uint16_t)slot;
    return trampoline(slot);
}

/* Every bit of op_attr_mask that the header knows. The fields from reply_buffer on came later than the rest of the structure and are
 * copied only when named. */
#define KNOWN                                                                                                                          \
    (UCP_OP_ATTR_FIELD_REQUEST | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |               \
     UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_REPLY_BUFFER | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_RECV_INFO |          \
     UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FLAG_NO_IMM_CMPL | UCP_OP_ATTR_FLAG_FAST_CMPL | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL |            \
     UCP_OP_ATTR_FLAG_MULTI_SEND)
#define LATER (UCP_OP_ATTR_FIELD_REPLY_BUFFER | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_RECV_INFO | UCP_OP_ATTR_FIELD_MEMH)

const ucp_request_param_t *ucx_track_nbx(struct ucx_call *c, const ucp_request_param_t *param, ucp_request_param_t *copy)
{
    uint32_t mask = param->op_attr_mask;
    if (st_unlikely(mask & ~KNOWN))
        return param;
    void *mine = ucx_track(c, mask & UCP_OP_ATTR_FIELD_CALLBACK ? (void *)param->cb.send : NULL);
    if (st_unlikely(!c->slot))
        return param;
    memcpy(copy, param, offsetof(ucp_request_param_t, reply_buffer));
    if (st_unlikely(mask & LATER)) {
        if (mask & UCP_OP_ATTR_FIELD_REPLY_BUFFER)
            copy->reply_buffer = param->reply_buffer;
        if (mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE)
            copy->memory_type = param->memory_type;
        if (mask & UCP_OP_ATTR_FIELD_RECV_INFO)
            copy->recv_info = param->recv_info;
        if (mask & UCP_OP_ATTR_FIELD_MEMH)
            copy->memh = param->memh;
    }
    if (c->event == ST_EV_UCP_TAG_RECV && !(mask & UCP_OP_ATTR_FLAG_NO_IMM_CMPL) && ucx_thread.depth < UCX_FRAMES) {
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

struct ucx_call *ucx_carrying(unsigned event)
{
    struct ucx_thread *me = &ucx_thread;
    struct ucx_call *c = me->depth && me->depth <= UCX_FRAMES ? me->frames[me->depth - 1].carried : NULL;
    return c && c->event == event && !c->carried ? c : NULL;
}

const ucp_request_param_t *ucx_track_carried(struct ucx_call *outer, const ucp_request_param_t *param, ucp_request_param_t *copy)
{
    param = ucx_track_nbx(outer, param, copy);
    outer->frame->id = outer->id;
    return param;
}

void ucx_untrack(struct ucx_call *c, bool recorded)
{
    struct ucx_thread *me = &ucx_thread;
    if (!c->slot || c->frame->done)
        return;
    slot_put(me, c->slot);
    if (!recorded && me->next_id == c->id + 1)
        me->next_id = c->id; /* so that the ids of requests that were pending stay in step */
}

void ucx_complete(struct st_thread *t, struct st_object *o, uint64_t time, uint64_t id, uint64_t bytes, uint64_t tag, int status)
{
    if (st_mode == ST_FULL)
        st_rec_ucp_completion(t, time, ST_EV_UCP_COMPLETION, o, id, bytes, tag, status);
    st_count(t, o, ST_EV_UCP_COMPLETION, bytes, 0);
}

/* What every trampoline leads to. a and b: what UCX passed in the third and fourth argument, if it passed that many. */
void ucx_completed(void *request, ucs_status_t status, void *a, void *b, uint32_t slot)
{
    struct ucx_thread *me = &ucx_thread;
    struct slot s = slots[slot];
    uint8_t was = 0;
    bool inside = me->depth; /* UCX was called by one of our hooks: what the application does here is recorded nevertheless */
    if (st_likely(s.generation == generation())) {
        uint64_t bytes = 0, tag = 0, time = st_mode == ST_FULL ? st_clock() : 0;
        if (s.receive && a && (status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED)) {
            const ucp_tag_recv_info_t *info = a;
            bytes = info->length;
            tag = info->sender_tag;
        }
        struct ucx_frame *f = NULL;
        for (unsigned i = me->depth < UCX_FRAMES ? me->depth : UCX_FRAMES; !f && i--;)
            if (me->frames[i].id == s.id)
                f = &me->frames[i];
        slot_put(me, slot);
        if (inside)
            was = st_open(ST_LAYER_UCP);
        if (f) {
            f->done = true;
            f->status = status;
            f->time = time;
            f->bytes = bytes;
            f->tag = tag;
        } else {
            struct st_thread *t = st_enter(ST_LAYER_UCP);
            if (t) {
                ucx_complete(t, s.object, time, s.id, bytes, tag, status);
                st_leave(t, ST_LAYER_UCP);
            }
        }
    } else {
        slot_put(me, slot); /* a request of the parent, completed in a forked child */
        inside = false;
    }
    if (s.callback)
        s.callback(request, status, a, b);
    if (inside)
        st_close(ST_LAYER_UCP, was);
}

void ucx_drop_worker(struct st_object *worker)
{
    struct ucx_thread *me = &ucx_thread;
    unsigned n = __atomic_load_n(&fresh, __ATOMIC_RELAXED);
    for (unsigned i = 1; i < n && i < UCX_SLOTS; i++) {
        struct st_object *o = __atomic_load_n(&slots[i].object, __ATOMIC_RELAXED);
        if (o && slots[i].generation == generation() && (o == worker || (o->kind == ST_KIND_ENDPOINT && o->user[0] == worker->id)))
            slot_put(me, i);
    }
}
