/* A doorbell: what it covers, what it waits for, and how it is passed on. All of it with the lock. */
#define _GNU_SOURCE
#include "doorbell.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

uint64_t bell_milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void ring(const struct bell_page *w, unsigned area, uint64_t value)
{
    __atomic_store_n((volatile uint64_t *)(w->reg + area * BELL_AREA), value, __ATOMIC_RELEASE);
    st_flush_stores(); /* a register that combines writes would keep it back, and join it with the next */
}

/* How many elements are behind the oldest that was not copied yet. */
static uint32_t outstanding(const struct bell_queue *o)
{
    uint32_t out = BELL_GET(o->rungs_out);
    return out == o->rungs_in ? 0 : o->index - o->rungs[out & (o->q.blocks - 1)].from;
}

/* The longest that a doorbell is held back for copies: then elements are lost, and not the doorbell. A driver may have its callers wait for a kernel that waits for
 * the doorbell; but a thread may also wait as long for a processor. */
enum { LONGEST_MS = 2000, GAP_MS = 200 };

/* Whether the longest is over. Of a gap between two looks only some counts: this thread did not run in it either, so that it says nothing of the one that is waited for. */
static bool impatient(struct bell_patience *p)
{
    uint64_t now = bell_milliseconds(), gap = p->last ? now - p->last : 0;
    p->last = now;
    p->waited += gap < GAP_MS ? gap : GAP_MS;
    return p->waited >= LONGEST_MS;
}

/* Waits until all that was rung for has been read. */
void bell_wait(struct bell_queue *o)
{
    static bool stuck; /* the copying thread was, in the round stuck_in: it is not waited for again */
    static uint32_t stuck_in;
    uint32_t round = copier_round();
    struct bell_patience p = {0, 0};
    if ((stuck && round == stuck_in) || (o->late && BELL_GET(o->rungs_out) == o->late_at))
        return;
    o->late = false;
    BELL_SET(o->urgent, o->rungs_in);
    for (unsigned i = 0; BELL_GET(o->rungs_out) != o->rungs_in; i++) {
        if (i % 64 == 0)
            copier_wake();
        if (i % 64 == 63 && impatient(&p)) {
            stuck = copier_round() == round;
            stuck_in = round;
            o->late = true;
            o->late_at = BELL_GET(o->rungs_out);
            return;
        }
        if (i < 1000)
            st_pause();
        else
            sched_yield();
    }
}

/* Copies memory of the host's that a program need no longer have: the adapter keeps what was registered, and nobody tells us when it is unmapped. false: it is not there. */
static bool copy_if_there(void *to, uint64_t from, size_t n)
{
    const struct iovec local = {to, n}, remote = {(void *)(uintptr_t)from, n};
    int saved = errno;
    bool there = process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)n;
    if (!there && errno != EFAULT) { /* refused by a sandbox */
        unsigned char in_core[BELL_MAX_BLOCKS * BELL_BLOCK / 4096 + 1];
        there = !mincore((void *)(uintptr_t)(from & ~4095ull), n + (from & 4095), in_core);
        if (there)
            memcpy(to, (const void *)(uintptr_t)from, n);
    }
    errno = saved;
    return there;
}

static bool copy_blocks(const struct bell_queue *o, uint32_t at, uint32_t n)
{
    uint64_t from = o->q.ring + (uint64_t)at * BELL_BLOCK;
    if (bell_careful)
        return copy_if_there(o->blocks + (size_t)at * BELL_BLOCK, from, (size_t)n * BELL_BLOCK);
    memcpy(o->blocks + (size_t)at * BELL_BLOCK, (const void *)(uintptr_t)from, (size_t)n * BELL_BLOCK);
    return true;
}

/* Has the elements copied. They may lie over those of doorbells that were not read yet, if those could not be waited for. */
static void keep_elements(struct bell_queue *o, uint32_t from, uint32_t to, uint64_t now)
{
    uint32_t mask = o->q.blocks - 1, n = to - from, at = from & mask, first = n < o->q.blocks - at ? n : o->q.blocks - at;
    if (BELL_GET(o->gone) || outstanding(o) + n > o->q.blocks || (!o->context && (!copy_blocks(o, at, first) || (n != first && !copy_blocks(o, 0, n - first))))) {
        __atomic_fetch_add(&o->skipped, n, __ATOMIC_RELAXED);
        o->index = to;
        return;
    }
    o->rungs[o->rungs_in & mask] = (struct rung){from, to, now};
    o->index = to;
    BELL_SET(o->rungs_in, o->rungs_in + 1);
    copier_wake();
}

/* The queue goes on up to an index, for which `value` rings. wait: for copies, as the threshold says. */
static void advance(struct bell_page *w, struct bell_queue *o, unsigned area, uint64_t value, uint64_t now, uint16_t index, bool wait)
{
    uint32_t n = (uint16_t)(index - o->index), to = o->index + n, from = o->index;
    if (!n || (n > o->q.blocks && n >= 0x8000) || !o->read) { /* an older one than its record told of, or not to be followed */
        if (!o->read)
            o->index = to;
        ring(w, area, value);
        return;
    }
    bool before = !o->context || (wait && (n > o->threshold || BELL_GET(o->overtaken))); /* to be read before it is passed on; for the host's memory that takes no time */
    if (wait && o->context && outstanding(o) + n > o->threshold)
        bell_wait(o);
    if (!before)
        ring(w, area, value);
    if (n > o->q.blocks) { /* what was in the ring before has been overwritten */
        __atomic_fetch_add(&o->skipped, n - o->q.blocks, __ATOMIC_RELAXED);
        from = to - o->q.blocks;
    }
    if (wait && outstanding(o) + (to - o->index) > o->q.blocks)
        bell_wait(o);
    keep_elements(o, from, to, now);
    if (before && o->context)
        bell_wait(o);
    if (before)
        ring(w, area, value);
}

void bell_told(struct bell_page *w, struct bell_queue *o, uint64_t now, uint16_t index, bool wait)
{
    uint8_t bell[8] = {0, (uint8_t)(index >> 8), (uint8_t)index, 0, (uint8_t)(o->q.qpn >> 16), (uint8_t)(o->q.qpn >> 8), (uint8_t)o->q.qpn, 0};
    uint16_t n = (uint16_t)(index - o->index);
    uint64_t value;
    if (!n || (n > o->q.blocks && n >= 0x8000))
        return; /* as far as it has been rung for, or less */
    memcpy(&value, bell, sizeof value);
    advance(w, o, 0, value, now, index, wait);
}

/* The kernel need not copy the record at once, so that it is read twice; the first four bytes are the receive queue's. */
static bool read_record(const struct bell_queue *o, uint16_t *index)
{
    uint8_t r[4], again[4];
    do {
        if (!copy_if_there(r, o->q.record + 4, 4) || ((uint16_t)(r[2] << 8 | r[3]) != (uint16_t)o->index && !copy_if_there(again, o->q.record + 4, 4)))
            return false;
        *index = (uint16_t)(r[2] << 8 | r[3]);
    } while (*index != (uint16_t)o->index && memcmp(r, again, sizeof r));
    return true;
}

/* Several queues ring at one page, and a doorbell may have overwritten another's before we looked: their records say how far each is to go. */
static void look_at_records(struct bell_page *w, uint64_t now)
{
    bool ask = false;
    for (struct bell_queue *o = w->queues; o; o = o->next) {
        if (!o->record_known)
            continue;
        if (o->record_context) {
            ask = true;
            continue;
        }
        uint16_t index;
        o->record_known = read_record(o, &index); /* another's may have gone */
        if (o->record_known)
            bell_told(w, o, now, index, true);
    }
    if (ask) {
        BELL_SET(w->asked, w->asked + 1);
        copier_wake();
    }
}

struct bell {
    uint64_t value;
    uint32_t index, qpn;
};

/* The next index, or the control segment of the last element (BlueFlame). */
static struct bell read_bell(uint64_t value)
{
    uint8_t b[8];
    memcpy(b, &value, sizeof b);
    unsigned segments = b[7] & 0x3f;
    uint32_t index = (uint32_t)b[1] << 8 | b[2];
    if (b[3] || segments)
        index += (segments * 16 + BELL_BLOCK - 1) / BELL_BLOCK;
    return (struct bell){value, index & 0xffff, (uint32_t)b[4] << 16 | (uint32_t)b[5] << 8 | b[6]};
}

static void rung(struct bell_page *w, unsigned area, const struct bell *b, uint64_t now)
{
    struct bell_queue *o = w->home->queues;
    while (o && o->q.qpn != b->qpn)
        o = o->next;
    if (o)
        advance(w, o, area, b->value, now, (uint16_t)b->index, true);
    else
        ring(w, area, b->value);
}

volatile uint64_t *bell_word(const struct bell_page *w, unsigned area) { return (volatile uint64_t *)(w->page + area * BELL_AREA); }

/* At a page of several queues the adapter may find by itself in a queue's record what was not passed on yet, each time that another is rung. So nothing is passed on as long as
 * the records are not read, and the elements that they told of not copied. */
static bool held_back(struct bell_page *w)
{
    bool behind = BELL_GET(w->answered) != w->asked;
    for (const struct bell_queue *o = w->queues; o; o = o->next)
        behind = behind || (o->context && outstanding(o) > o->threshold);
    if (!behind) {
        w->held = (struct bell_patience){0, 0};
        return false;
    }
    return !impatient(&w->held);
}

static bool is_shared(const struct bell_page *w) { return w->queues && w->queues->next; }

/* What is rung is taken out of the page, so that the same value is seen when it is rung again, as by a queue whose number came back. */
bool bell_look(struct bell_page *w, bool hold)
{
    struct bell b[BELL_AREAS];
    unsigned n = 0, area[BELL_AREAS];
    for (unsigned a = 0; a < BELL_AREAS && a * BELL_AREA + 8 <= w->size; a++)
        if (__atomic_load_n(bell_word(w, a), __ATOMIC_RELAXED)) {
            if (hold && is_shared(w->home) && held_back(w->home))
                return true;
            b[n] = read_bell(__atomic_exchange_n(bell_word(w, a), 0, __ATOMIC_ACQ_REL));
            area[n++] = a;
        }
    if (!n)
        return false;
    uint64_t now = st_clock();
    /* two buffers in turn: the older one first */
    unsigned first = n == 2 && b[0].qpn == b[1].qpn && (int16_t)(b[0].index - b[1].index) > 0;
    for (unsigned i = 0; i < n; i++)
        rung(w, area[i ^ first], &b[i ^ first], now);
    if (is_shared(w->home))
        look_at_records(w->home, now);
    return true;
}

void bell_look_again(struct bell_page *home)
{
    for (unsigned i = 0; i < bell_used; i++)
        if (bell_pages[i].reg && bell_pages[i].home == home)
            bell_look(&bell_pages[i], false);
    if (is_shared(home))
        look_at_records(home, st_clock());
}
