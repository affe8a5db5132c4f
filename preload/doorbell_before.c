/* What a program does that elements have to be read before which were rung for: it gives memory back, or has a kernel run for the first time. */
#define _GNU_SOURCE
#include "doorbell.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

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
            if (BELL_GET(bell_pages[i].reg) && bell_pages[i].driver->size_at == driver->size_at)
                forget_memory(&bell_pages[i], address, size);
        bell_set_up_done();
    }
    st_cancelled(cancel);
    errno = saved;
}

/* ---- kernels ------------------------------------------------------------------------------------------------------------------------------------- */

/* Functions that have been launched, each in the place that its handle leads to: of two with one place each is new again after the other. */
enum { FUNCTIONS = 4096 };
static const void *launched[FUNCTIONS];

static bool is_new(const void *function)
{
    const void **place = &launched[((uintptr_t)function * 0x9e3779b97f4a7c15ull) >> 52];
    return __atomic_load_n(place, __ATOMIC_RELAXED) != function && __atomic_exchange_n(place, function, __ATOMIC_RELAXED) != function;
}

/* Whether what was rung for when it was marked has not been read yet. */
static bool behind(bool mark)
{
    bool any = false;
    bell_take();
    for (unsigned i = 0; i < bell_used; i++)
        for (struct bell_queue *o = bell_pages[i].reg ? bell_pages[i].queues : NULL; o; o = o->next) {
            if (mark)
                o->marked = o->rungs_in;
            any = any || (o->context && (int32_t)(BELL_GET(o->rungs_out) - o->marked) < 0);
        }
    bell_give();
    return any;
}

void doorbell_kernel_comes(const void *function)
{
    enum { MOST_MS = 10, PAUSES = 200 };
    if (!BELL_GET(bell_used) || !is_new(function) || !bell_mine())
        return;
    int saved = errno, cancel = st_uncancelled();
    if (behind(true)) {
        uint64_t until = bell_milliseconds() + MOST_MS;
        do {
            copier_wake();
            for (unsigned i = 0; i < PAUSES; i++)
                st_pause();
            sched_yield();
        } while (behind(false) && bell_milliseconds() < until);
    }
    st_cancelled(cancel);
    errno = saved;
}

void doorbell_kernels_gone(void)
{
    for (unsigned i = 0; i < FUNCTIONS; i++)
        __atomic_store_n(&launched[i], NULL, __ATOMIC_RELAXED);
}
