/*
 * The elements that were rung for: copied from their rings and decoded. A copy covers all that was rung for since the last one of its queue, and nobody waits for
 * it but the doorbell that leaves too many to be copied. What cannot be copied is counted as lost.
 */
#define _GNU_SOURCE
#include "doorbell.h"

#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pid_t copying; /* the process whose thread copies */
static uint32_t sleeping;
static uint32_t rounds; /* odd: within one */
static bool put_off;    /* something was left for a later round */

static bool running(void) { return BELL_GET(copying) == getpid(); }

static bool start_copy(struct bell_queue *o, const struct devmem *driver, uint32_t from, uint32_t to)
{
    uint32_t n = to - from, at = from & (o->q.blocks - 1), first = n < o->q.blocks - at ? n : o->q.blocks - at;
    bool ok = driver->copy(o->context, o->stream, o->blocks + (size_t)at * BELL_BLOCK, o->q.ring + (uint64_t)at * BELL_BLOCK, (size_t)first * BELL_BLOCK);
    return ok && (first == n || driver->copy(o->context, o->stream, o->blocks, o->q.ring, (size_t)(n - first) * BELL_BLOCK));
}

/* Decodes the doorbells up to the count `end`, whose elements are in blocks; ok: they were copied. */
static void take_out(struct bell_queue *o, uint32_t end, bool ok)
{
    if (BELL_GET(bell_abandoned)) /* it was counted */
        return;
    struct st_thread *t = st_enter(ST_LAYER_DOORBELL);
    uint64_t skipped = __atomic_exchange_n(&o->skipped, 0, __ATOMIC_RELAXED);
    for (uint32_t i = o->rungs_out; i != end; i++) {
        const struct rung *r = &o->rungs[i & (o->q.blocks - 1)];
        if (t && ok) {
            if (decode(t, r->at, &o->q, o->blocks, r->from, r->to))
                BELL_SET(o->overtaken, true);
        } else if (t) {
            st_missed(r->at, r->to - r->from);
        }
        BELL_SET(o->rungs_out, i + 1);
    }
    if (t && skipped)
        st_missed(st_clock(), skipped);
    if (t)
        st_leave(t, ST_LAYER_DOORBELL);
}

/* A GPU copies one thing after the other, also for the adapter that waits for it, so a copy for each of doorbells that come one by one would hold them up. Their elements wait for more,
 * but not for long, nor where somebody waits for them. */
static bool waits_for_more(struct bell_queue *o, uint32_t elements)
{
    enum { PART = 8, LONGEST_US = 1000 };
    bool waits = elements < o->threshold / PART && !o->overtaken && (int32_t)(BELL_GET(o->urgent) - o->rungs_out) <= 0;
    if (waits) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        uint64_t now = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
        o->put_off = o->put_off ? o->put_off : now;
        waits = now - o->put_off < LONGEST_US;
    }
    if (!waits)
        o->put_off = 0;
    return waits;
}

static bool step_queue(const struct bell_page *w, struct bell_queue *o)
{
    uint32_t in = BELL_GET(o->rungs_in);
    bool none = in == o->rungs_out;
    if (none && !__atomic_load_n(&o->skipped, __ATOMIC_RELAXED))
        return false;
    if (none || !o->context) { /* in the host's memory: they were copied as they were rung for */
        take_out(o, in, true);
        return true;
    }
    if (BELL_GET(bell_over) || (BELL_GET(o->gone) && o->started == o->rungs_out)) {
        take_out(o, in, false);
        return true;
    }
    if (o->started == o->rungs_out) {
        const struct rung *first = &o->rungs[o->rungs_out & (o->q.blocks - 1)], *last = &o->rungs[(in - 1) & (o->q.blocks - 1)];
        if (waits_for_more(o, last->to - first->from)) {
            put_off = true;
            return false;
        }
        o->failed = !start_copy(o, w->driver, first->from, last->to);
        o->started = in;
    }
    int done = w->driver->done(o->context, o->stream);
    if (done)
        take_out(o, o->started, done > 0 && !o->failed);
    return true;
}

/* The doorbell records of a page's queues, as far as they are in a GPU's memory. */
static bool answer(struct bell_page *w)
{
    uint32_t asked = BELL_GET(w->asked);
    if (asked == w->answered)
        return false;
    uint64_t now = st_clock();
    for (struct bell_queue *o = BELL_GET(w->queues); o; o = BELL_GET(o->next)) {
        void *context = BELL_GET(o->record_context);
        o->record[7] = context && !BELL_GET(bell_over) && w->driver->copy(context, o->record_stream, o->record, o->q.record + 4, 4);
        if (o->record[7])
            o->record[7] = w->driver->wait(context, o->record_stream);
    }
    if (!bell_try(BELL_SPINS + 100))
        return true; /* somebody has the lock who may wait for us */
    for (struct bell_queue *o = w->queues; o; o = o->next)
        if (o->record[7])
            bell_told(w, o, now, (uint16_t)(o->record[2] << 8 | o->record[3]), false);
    bell_give();
    BELL_SET(w->answered, asked);
    return true;
}

/* Copies and decodes what there is. true: there was something. */
static bool step(void)
{
    bool any = put_off = false;
    __atomic_fetch_add(&rounds, 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* before it is looked what there is: copier_passed */
    bell_left_lost();
    for (unsigned i = 0, n = BELL_GET(bell_used); i < n; i++) {
        struct bell_page *w = &bell_pages[i];
        if (!BELL_GET(w->reg))
            continue;
        any = answer(w) || any;
        for (struct bell_queue *o = BELL_GET(w->queues); o; o = BELL_GET(o->next))
            any = step_queue(w, o) || any;
    }
    __atomic_fetch_add(&rounds, 1, __ATOMIC_ACQ_REL);
    return any;
}

static void *copy(void *arg)
{
    enum { BUSY = 2000 }; /* rounds without anything before it sleeps */
    const struct timespec longest = {0, 100000000};
    unsigned idle = 0;
    (void)arg;
    bell_place("sgm-elements");
    while (running()) {
        idle = step() ? 0 : idle + 1;
        if (idle < BUSY || put_off) {
            if (idle < BUSY / 10)
                st_pause();
            else
                sched_yield();
            continue;
        }
        __atomic_store_n(&sleeping, 1, __ATOMIC_SEQ_CST);
        if (!step() && !put_off)
            syscall(SYS_futex, &sleeping, FUTEX_WAIT_PRIVATE, 1, &longest, NULL, 0);
        __atomic_store_n(&sleeping, 0, __ATOMIC_SEQ_CST);
        idle = 0;
    }
    return NULL;
}

uint32_t copier_round(void) { return BELL_GET(rounds); }

void copier_wake(void)
{
    /* written to, so that what there is to do is seen before it is looked whether somebody does it */
    if (__atomic_fetch_or(&sleeping, 0, __ATOMIC_SEQ_CST) && __atomic_exchange_n(&sleeping, 0, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &sleeping, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

bool copier_start(void)
{
    if (running())
        return true;
    rounds = sleeping = 0;
    BELL_SET(copying, getpid());
    if (bell_thread(copy))
        return true;
    BELL_SET(copying, 0);
    return false;
}

bool copier_passed(void)
{
    const struct timespec while_ = {0, 100000};
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* what was taken out was so before */
    uint32_t seen = BELL_GET(rounds);
    if (!(seen & 1))
        return true;
    for (unsigned i = 0; i < 5000; i++) {
        if (BELL_GET(rounds) != seen)
            return true;
        if (i < 100)
            sched_yield();
        else
            nanosleep(&while_, NULL);
    }
    return false;
}
