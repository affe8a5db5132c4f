/* What a program does that elements have to be read before which were rung for: it gives memory back, or has a kernel run for the first time. */
#define _GNU_SOURCE
#include "doorbell.h"

#include <errno.h>
#include <time.h>

/* ---- memory that goes ---------------------------------------------------------------------------------------------------------------------------- */

static bool overlaps(uint64_t a, uint64_t bytes, uint64_t b, uint64_t size) { return a && (a - b < size || b - a < bytes); }

static bool ring_in(const struct bell_queue *o, uint64_t address, uint64_t size) { return o->context && overlaps(o->q.ring, (uint64_t)o->q.blocks * BELL_BLOCK, address, size); }

static bool record_in(const struct bell_queue *o, uint64_t address, uint64_t size) { return o->record_context && overlaps(o->q.record, sizeof o->record, address, size); }

static void forget_memory(struct bell_page *w, uint64_t address, uint64_t size)
{
    bool any = false;
    for (struct bell_queue *o = w->queues; o; o = o->next)
        any = any || ring_in(o, address, size) || record_in(o, address, size);
    if (!any)
        return;
    bell_settle(w);
    bell_take();
    for (struct bell_queue *o = w->queues; o; o = o->next) {
        if (ring_in(o, address, size))
            BELL_SET(o->gone, true);
        if (record_in(o, address, size)) {
            o->record_known = false;
            BELL_SET(o->record_context, NULL);
        }
    }
    bell_give();
    copier_passed();
}

void doorbell_memory_goes(const struct devmem *driver, uint64_t address, uint64_t size)
{
    if (!BELL_GET(bell_used) || !address || !bell_mine())
        return;
    int saved = errno, cancel = st_uncancelled();
    if (!size && driver->ready())
        size = driver->size_at(address);
    if (!size) /* the driver does not tell, as HIP with an error pending: of what lies there only what begins at the address is known to go */
        size = 1;
    if (bell_set_up()) {
        for (unsigned i = 0; i < BELL_GET(bell_used); i++)
            if (BELL_GET(bell_pages[i].reg) && bell_same(bell_pages[i].driver, driver))
                forget_memory(&bell_pages[i], address, size);
        bell_set_up_done();
    }
    st_cancelled(cancel);
    errno = saved;
}

/* ---- kernels ------------------------------------------------------------------------------------------------------------------------------------- */

/* Functions that have been launched, each in one of the places from that which its handle leads to; of one that found none free, another's place. */
enum { FUNCTIONS = 4096, PROBES = 16 };
static const void *launched[FUNCTIONS];

static bool is_new(const void *function)
{
    unsigned at = ((uintptr_t)function * 0x9e3779b97f4a7c15ull) >> 52;
    for (unsigned i = 0; i < PROBES; i++) {
        const void **place = &launched[(at + i) % FUNCTIONS], *there = __atomic_load_n(place, __ATOMIC_RELAXED);
        if (!there && __atomic_compare_exchange_n(place, &there, function, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return true;
        if (there == function)
            return false;
    }
    return __atomic_exchange_n(&launched[at], function, __ATOMIC_RELAXED) != function;
}

/* Whether what was rung for when it was marked has not been read yet. With the lock. */
static bool behind(bool mark)
{
    bool any = false;
    for (unsigned i = 0; i < bell_used; i++)
        for (struct bell_queue *o = bell_pages[i].reg ? bell_pages[i].queues : NULL; o; o = o->next) {
            if (mark) {
                o->marked = o->rungs_in;
                BELL_SET(o->urgent, o->rungs_in);
            }
            any = any || (o->context && (int32_t)(BELL_GET(o->rungs_out) - o->marked) < 0);
        }
    return any;
}

void doorbell_kernel_comes(const void *function)
{
    enum { MOST_MS = 10, PAUSES = 200, ROUNDS = 4 };
    const struct timespec while_ = {0, 20000};
    if (!BELL_GET(bell_used) || !function || !is_new(function) || !bell_mine())
        return;
    int saved = errno, cancel = st_uncancelled();
    uint64_t until = bell_milliseconds() + MOST_MS;
    bool any = true, marked = false;
    for (unsigned round = 0;; round++) {
        if (bell_try(BELL_SPINS)) { /* else a doorbell that waits for copies has it, for longer than a launch is to wait */
            any = behind(!marked);
            marked = true;
            bell_give();
        }
        if (!any || bell_milliseconds() >= until)
            break;
        copier_wake();
        for (unsigned i = 0; i < PAUSES; i++)
            st_pause();
        if (round >= ROUNDS) /* not sched_yield(), which takes as long as others want where processors are few */
            nanosleep(&while_, NULL);
    }
    st_cancelled(cancel);
    errno = saved;
}

void doorbell_kernels_gone(void)
{
    for (unsigned i = 0; i < FUNCTIONS; i++)
        __atomic_store_n(&launched[i], NULL, __ATOMIC_RELAXED);
}
