/* What is remembered of NCCL's events while they last. Handles are numbers, never addresses: one that comes late is known to be so. */
#include "nccl.h"

enum { SLOTS = 1 << 16 };
#define TAG (0xb1ull << 56)
#define TAGGED (0xffull << 56)
#define KIND 52

static struct nccl_slot slots_of_tasks[SLOTS], slots_of_proxies[SLOTS], slots_of_steps[SLOTS];
static struct ring {
    struct nccl_slot *slots;
    uint64_t next;
} rings[] = {[NCCL_TASK] = {slots_of_tasks, 0}, [NCCL_PROXY] = {slots_of_proxies, 0}, [NCCL_STEP] = {slots_of_steps, 0}};

/* Takes a slot and makes its handle. NULL: the one whose turn it is, is still in use. */
struct nccl_slot *nccl_take(enum nccl_kind kind, uint32_t communicator, void **handle)
{
    uint64_t number = __atomic_add_fetch(&rings[kind].next, 1, __ATOMIC_RELAXED);
    struct nccl_slot *s = &rings[kind].slots[number % SLOTS];
    if (__atomic_load_n(&s->live, __ATOMIC_ACQUIRE))
        return NULL;
    __atomic_store_n(&s->number, 0, __ATOMIC_RELEASE);
    s->communicator = communicator;
    s->theirs = NULL;
    s->of = s->moved = 0;
    s->step = s->begun = 0;
    s->live = 1;
    __atomic_store_n(&s->number, number, __ATOMIC_RELEASE);
    *handle = (void *)(uintptr_t)(TAG | (uint64_t)kind << KIND | number);
    return s;
}

/* No address of a program's own begins so. */
bool nccl_is_ours(const void *handle) { return ((uintptr_t)handle & TAGGED) == TAG; }

/* The slot of a handle; NULL where it is not one of ours, or has been given to another since. */
struct nccl_slot *nccl_slot(const void *handle, enum nccl_kind *kind)
{
    uint64_t h = (uintptr_t)handle, number = h & ((1ull << KIND) - 1);
    *kind = (enum nccl_kind)(h >> KIND & 15);
    if (!nccl_is_ours(handle) || *kind > NCCL_STEP)
        return NULL;
    struct nccl_slot *s = &rings[*kind].slots[number % SLOTS];
    return __atomic_load_n(&s->number, __ATOMIC_ACQUIRE) == number ? s : NULL;
}
