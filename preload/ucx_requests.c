/*
 * Provider ucx: how the completion of a request is learned.
 *
 * A request that may outlive its call takes a slot, and UCX gets the slot's trampoline for a callback: a few instructions that add the
 * slot's number as a fifth argument. So the user data, the request and all else that UCX hands to a callback goes through untouched,
 * the forms without user data need no look-up, and a request without a callback is tracked in the same way. Nothing in the request
 * is read, and its address is kept only for the case that it is freed before it is complete.
 *
 * The callback may run before the call has returned: on the same thread (then the call records the completion after the request), or on
 * another one (then the two are recorded by two threads, each with its time). Neither touches the slot after the callback has run.
 */
#define _GNU_SOURCE
#include "ucx.h"

#include <errno.h>
#include <pthread.h>

struct ucx_slot ucx_slots[UCX_SLOTS];
uint16_t ucx_recent[UCX_RECENT];
static uint32_t fresh = 1;    /* slots from here on have never been used */
static uint64_t free_list;    /* first slot in the low 16 bits, above them a count against ABA */
static uint64_t next_ids = 1; /* request ids, given to threads in ranges */
static pthread_key_t thread_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;

__thread struct ucx_thread ucx_thread __attribute__((tls_model("initial-exec")));

/* ---- trampolines ------------------------------------------------------------------------------------------------------------- */

__attribute__((used)) void ucx_completed(void *request, ucs_status_t status, void *a, void *b, uint32_t slot);

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
_Static_assert(UCX_SLOTS <= 65536 && UCX_TRAMPOLINE_BYTES == 16, "slot numbers have 16 bits; .p2align 4 above");

/* ---- free slots -------------------------------------------------------------------------------------------------------------- */

static void global_put(unsigned slot)
{
    uint64_t head = __atomic_load_n(&free_list, __ATOMIC_RELAXED);
    do
        __atomic_store_n(&ucx_slots[slot].next, (uint16_t)head, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&free_list, &head, (head & ~0xffffull) | slot, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

static unsigned global_get(void)
{
    uint64_t head = __atomic_load_n(&free_list, __ATOMIC_ACQUIRE), next;
    while ((uint16_t)head) {
        next = ((head >> 16) + 1) << 16 | __atomic_load_n(&ucx_slots[(uint16_t)head].next, __ATOMIC_RELAXED);
        if (__atomic_compare_exchange_n(&free_list, &head, next, 0, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE))
            return (uint16_t)head;
    }
    if (__atomic_load_n(&fresh, __ATOMIC_RELAXED) >= UCX_SLOTS)
        return 0;
    uint32_t slot = __atomic_fetch_add(&fresh, 1, __ATOMIC_RELAXED);
    return slot < UCX_SLOTS ? slot : 0;
}

/* Threads that end give back the slots they hold. */
static void thread_ended(void *p)
{
    struct ucx_thread *me = p;
    while (me->cached)
        global_put(me->cache[--me->cached]);
}

static void make_key(void) { pthread_key_create(&thread_end, thread_ended); }

unsigned ucx_slot_refill(struct ucx_thread *me)
{
    pthread_once(&once, make_key);
    pthread_setspecific(thread_end, me);
    for (unsigned i = 0; i < UCX_CACHE / 4; i++) {
        unsigned slot = global_get();
        if (!slot)
            break;
        me->cache[me->cached++] = (uint16_t)slot;
    }
    return me->cached ? me->cache[--me->cached] : 0;
}

unsigned ucx_slots_used(void)
{
    uint32_t n = __atomic_load_n(&fresh, __ATOMIC_RELAXED);
    return n < UCX_SLOTS ? n : UCX_SLOTS;
}

void ucx_slot_spill(struct ucx_thread *me)
{
    while (me->cached > UCX_CACHE / 2)
        global_put(me->cache[--me->cached]);
}

#define ID_RANGE (1u << 20)
void ucx_new_ids(struct ucx_ids *ids)
{
    ids->next = __atomic_fetch_add(&next_ids, ID_RANGE, __ATOMIC_RELAXED);
    ids->end = ids->next + ID_RANGE;
}

/* ---- requests ---------------------------------------------------------------------------------------------------------------- */

void ucx_copy_later(ucp_request_param_t *copy, const ucp_request_param_t *param)
{
    if (param->op_attr_mask & UCP_OP_ATTR_FIELD_REPLY_BUFFER)
        copy->reply_buffer = param->reply_buffer;
    if (param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE)
        copy->memory_type = param->memory_type;
    if (param->op_attr_mask & UCP_OP_ATTR_FIELD_RECV_INFO)
        copy->recv_info = param->recv_info;
    if (param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMH)
        copy->memh = param->memh;
}

struct ucx_call *ucx_carrying(unsigned event)
{
    struct ucx_thread *me = &ucx_thread;
    struct ucx_call *c = me->depth && me->depth <= UCX_FRAMES ? me->frames[me->depth - 1].carried : NULL;
    return c && c->event == event && !c->carried ? c : NULL;
}

const ucp_request_param_t *ucx_track_carried(struct ucx_call *outer, const ucp_request_param_t *param, ucp_request_param_t *copy)
{
    param = ucx_track_nbx(outer, outer->event, param, copy);
    outer->frame->id = outer->id;
    return param;
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
    struct ucx_slot s = ucx_slots[slot];
    bool ours = s.t->ready;         /* else a request of the parent, completed in a forked child */
    bool inside = ours && me->depth; /* UCX was called by one of our hooks: what the application does here is recorded nevertheless */
    uint8_t was = inside ? st_open(ST_LAYER_UCP) : 0;
    ucx_slot_put(me, slot);
    if (st_likely(ours)) {
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
        struct st_thread *t;
        if (f) {
            f->done = true;
            f->status = status;
            f->time = time;
            f->bytes = bytes;
            f->tag = tag;
        } else if ((t = st_enter(ST_LAYER_UCP))) {
            ucx_complete(t, s.object, time, s.id, bytes, tag, status);
            st_leave(t, ST_LAYER_UCP);
        }
    }
    if (s.callback)
        s.callback(request, status, a, b);
    if (inside)
        st_close(ST_LAYER_UCP, was);
}

/* ---- requests freed before they are complete --------------------------------------------------------------------------------- */

static bool slot_is_of(unsigned slot, const void *request)
{
    struct ucx_slot *s = &ucx_slots[slot];
    return slot && __atomic_load_n(&s->object, __ATOMIC_RELAXED) && s->t->ready &&
           __atomic_load_n(&s->request, __ATOMIC_RELAXED) == ucx_request_word(request, s->id);
}

static unsigned slot_of(const void *request)
{
    unsigned slot = __atomic_load_n(ucx_recent_of(request), __ATOMIC_RELAXED), n = ucx_slots_used();
    if (slot_is_of(slot, request))
        return slot;
    for (slot = 1; slot < n; slot++)
        if (slot_is_of(slot, request))
            return slot;
    return 0;
}

/* ucp_request_free drops the callback of a request that is still outstanding, and with it the trampoline: its slot would be lost. The older
 * ucp_request_release frees in the same way and keeps the callback; the application's is taken out of the slot instead. */
void ucp_request_free(void *request)
{
    UCX_REAL(ucp_request_free);
    static __typeof__(&ucp_request_check_status) check_status;
    static __typeof__(&ucp_request_release) release;
    if (st_unlikely(!__atomic_load_n(&release, __ATOMIC_ACQUIRE))) {
        int saved = errno;
        check_status = (__typeof__(check_status))st_next("ucp_request_check_status", NULL);
        __atomic_store_n(&release, (__typeof__(release))st_next("ucp_request_release", NULL), __ATOMIC_RELEASE);
        errno = saved;
    }
    unsigned slot;
    if (st_likely(!release || !check_status || check_status(request) != UCS_INPROGRESS) || !(slot = slot_of(request))) {
        real(request);
        return;
    }
    ucx_slots[slot].callback = NULL;
    release(request);
}

void ucx_drop_worker(struct st_object *worker)
{
    unsigned n = ucx_slots_used();
    for (unsigned i = 1; i < n; i++) {
        struct st_object *o = __atomic_load_n(&ucx_slots[i].object, __ATOMIC_RELAXED);
        if (o && ucx_slots[i].t->ready && (o == worker || (o->kind == ST_KIND_ENDPOINT && o->user[0] == worker->id)))
            ucx_slot_put(&ucx_thread, i);
    }
}
