/* The process's and its threads' states, from the first traced call to the end; definitions. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <sched.h>

static struct st_thread closed; /* what a thread that has not recorded yet points to: every gate shut */
__thread struct st_thread *st_self __attribute__((tls_model("initial-exec"))) = &closed;
static __thread uint8_t starting __attribute__((tls_model("initial-exec")));
_Atomic uint32_t st_mode;
static struct st_object nobody; /* until there is an object table */
struct st_object *st_unknown = &nobody;
static struct st_name *no_names[ST_BUCKETS];
struct st_name **st_buckets = no_names;
struct st_process *st_process;

static pthread_key_t thread_end;
static int thread_end_made;

/* ---- memory and locking ------------------------------------------------------------------------------------------------------ */

/* A kernel before 4.14 cannot wipe on fork, and emulators may only say that they can: a fork handler makes up for it. There a child
 * made by a raw clone goes unseen. */
#define REGIONS 4096
static struct {
    void *start;
    size_t size;
} regions[REGIONS];
static uint32_t regions_used;

static void wipe_in_child(void)
{
    if (!st_process || !st_process->ready)
        return; /* the kernel did it */
    for (uint32_t i = 0; i < regions_used && i < REGIONS; i++)
        if (regions[i].start)
            mmap(regions[i].start, regions[i].size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void *st_wiped(size_t size)
{
    void *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED)
        return NULL;
    int wiped = !madvise(m, size, MADV_WIPEONFORK);
    uint32_t n = __atomic_fetch_add(&regions_used, 1, __ATOMIC_RELAXED);
    if (n < REGIONS) {
        regions[n].size = size;
        regions[n].start = m;
    } else if (!wiped) {
        munmap(m, size);
        return NULL;
    }
    return m;
}

static int cancel_was; /* of the thread that has the lock */
static sigset_t signals_were;

void st_lock(void)
{
    int was = st_uncancelled(), saved = errno;
    sigset_t signals = st_unsignalled();
    errno = saved;
    if (st_self->ready)
        st_busy(st_self);
    else
        starting++;
    for (unsigned n = 0; __atomic_exchange_n(&st_process->lock, 1, __ATOMIC_ACQUIRE); n++) {
        if (n % 64 == 63)
            sched_yield();
        st_pause();
    }
    cancel_was = was;
    signals_were = signals;
}

void st_unlock(void)
{
    int was = cancel_was, saved = errno;
    sigset_t signals = signals_were;
    __atomic_store_n(&st_process->lock, 0, __ATOMIC_RELEASE);
    if (st_self->ready)
        st_idle(st_self);
    else
        starting--;
    st_signalled(&signals);
    errno = saved;
    st_cancelled(was);
}

/* ---- process ----------------------------------------------------------------------------------------------------------------- */

static void thread_ended(void *state);
static void polls_flush_all(struct st_thread *t);

/* Makes the capture. 0 when the process is recorded from now on. Also in a forked child, which finds *st_process zeroed. configure: only
 * reads the configuration. */
static int process_start(bool configure)
{
    static int failed;
    static int holder; /* pid: a fork while another thread was here leaves the parent's number, which the child may take over */
    int pid = getpid(), was = 0;
    if (__atomic_load_n(&failed, __ATOMIC_RELAXED))
        return -1;
    int cancel = st_uncancelled();
    sigset_t signals = st_unsignalled();
    while (!__atomic_compare_exchange_n(&holder, &was, pid, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        if (was != pid && was)
            continue;
        was = 0;
        sched_yield();
    }
    struct st_process *p = st_process;
    int error = st_config_load() ? ENOENT : 0;
    if (!error && !p && !configure) {
        p = st_wiped(sizeof *p);
        if (p && !thread_end_made)
            thread_end_made = !pthread_key_create(&thread_end, thread_ended) && !pthread_atfork(NULL, NULL, wipe_in_child);
        st_process = p;
    }
    if (!error && !p && !configure)
        error = ENOMEM;
    if (!error && !configure && !p->ready && !(error = st_file_create())) {
        p->objects_used = 1; /* object 0 */
        st_unknown = &p->objects[0];
        st_buckets = p->buckets;
        __atomic_store_n(&p->ready, 1, __ATOMIC_RELEASE);
        st_clock_pair();
        st_watch_begin();
    }
    if (error) {
        if (!st_config.off)
            st_say_failed();
        __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&holder, 0, __ATOMIC_RELEASE);
    st_signalled(&signals);
    st_cancelled(cancel);
    return error ? -1 : 0;
}

__attribute__((destructor)) static void finish(void)
{
    struct st_process *p = st_process;
    if (!p || !p->ready)
        return;
    int saved = errno;
    struct st_thread *self = st_self;
    bool whole = self->ready && !self->busy; /* else a signal's handler ends the process, within a record of this thread */
    if (whole)
        polls_flush_all(self);
    st_clock_pair();
    /* What no thread writes to any more is closed, with a checksum; what comes after all begins a chunk of its own. */
    st_lock();
    if (whole)
        st_chunk_end(self);
    for (struct st_thread *t = p->idle; t; t = t->next)
        st_chunk_end(t);
    st_unlock();
    p->header->end_realtime_ns = st_realtime();
    if (p->written) {
        st_lock();
        for (struct st_thread *t = p->threads; t; t = t->all)
            if (t->block)
                st_chunk_write(t);
        p->header->end_mark = ST_END_EXIT;
        st_flush_again();
        st_unlock();
    }
    __atomic_store_n(&p->header->end_mark, ST_END_EXIT, __ATOMIC_RELEASE);
    errno = saved;
}

/* ---- threads ----------------------------------------------------------------------------------------------------------------- */

static void polls_flush_all(struct st_thread *t)
{
    for (struct st_polls *r = t->polls; r < t->polls + ST_POLLED; r++)
        if (r->count)
            st_polls_flush(t, r);
}

static void thread_ended(void *state)
{
    struct st_thread *t = state;
    struct st_process *p = st_process;
    if (!t->ready || !p || !p->ready || st_self != t)
        return;
    memset(t->gate, 0, sizeof t->gate);
    polls_flush_all(t);
    st_app_end(t);
    st_self = &closed;
    st_lock();
    t->next = p->idle;
    p->idle = t;
    st_unlock();
}

static struct st_thread *thread_new(void)
{
    struct st_process *p = st_process;
    char name[17] = "";
    st_lock();
    struct st_thread *t = p->idle;
    if (t) {
        p->idle = t->next;
    } else if (st_hold(p, sizeof *t, 0) && (t = st_wiped(sizeof *t))) {
        t->index = p->next_thread + 1;
        __atomic_store_n(&p->next_thread, t->index, __ATOMIC_RELAXED); /* these two are read without the lock */
        t->owner = t->index | (uint64_t)p->watch.epoch << 32;
        t->slots[0].next[0] = ~0ull;
        t->look = 1;
        t->all = p->threads;
        __atomic_store_n(&p->threads, t, __ATOMIC_RELEASE);
        p->header->threads = p->next_thread;
        t->ready = 1;
    } else if (!p->header->lost_cause) {
        p->header->lost_cause = ST_LOST_THREADS;
    }
    st_unlock();
    if (!t)
        return NULL;
    prctl(PR_GET_NAME, name);
    st_def_thread(t->index, (uint64_t)syscall(SYS_gettid), name);
    st_self = t;
    if (thread_end_made)
        pthread_setspecific(thread_end, t);
    memset(t->gate, 1, sizeof t->gate);
    return t;
}

struct st_thread *st_enter_slow(enum st_layer layer)
{
    struct st_thread *t = st_self;
    if (t->gate[layer] && t->busy) { /* nothing of ours calls a hook: a signal's handler does */
        struct st_file_header *h = st_process->header;
        if (!h->lost_cause)
            h->lost_cause = ST_LOST_HANDLER;
        __atomic_fetch_add(&h->lost_tables, 1, __ATOMIC_RELAXED);
        st_lost(st_clock(), 1, 0);
        return NULL;
    }
    if (__atomic_load_n(&st_config.off, __ATOMIC_RELAXED) || t->ready || starting)
        return NULL;
    int saved = errno;
    starting = 1;
    t = process_start(false) ? NULL : thread_new();
    starting = 0;
    errno = saved;
    if (t)
        t->gate[layer] = 0;
    return t;
}

void st_missed(uint64_t now, uint64_t requests)
{
    struct st_file_header *h = st_process->header;
    if (!h->lost_cause)
        h->lost_cause = ST_LOST_ELEMENTS;
    __atomic_fetch_add(&h->lost_tables, requests, __ATOMIC_RELAXED);
    st_lost(now, requests, 0);
}

bool st_wants_uct(void)
{
    int saved = errno;
    bool wanted = !__atomic_load_n(&st_config.off, __ATOMIC_RELAXED) && !process_start(true) &&
                  (st_config.ucx_level == 2 || (!st_config.ucx_level && st_config.mode == ST_FULL));
    errno = saved;
    return wanted;
}

enum st_kernels st_wants_kernels(void)
{
    int saved = errno;
    bool on = !__atomic_load_n(&st_config.off, __ATOMIC_RELAXED) && !process_start(true);
    errno = saved;
    if (!on)
        return ST_KERNELS_OFF;
    return st_config.kernels == ST_KERNELS_TIMES && st_config.mode == ST_AGGREGATE ? ST_KERNELS_LAUNCHES : (enum st_kernels)st_config.kernels;
}

int st_nccl_events(void)
{
    int saved = errno, events = __atomic_load_n(&st_config.off, __ATOMIC_RELAXED) || process_start(true) ? 0 : st_config.nccl_events;
    errno = saved;
    return events;
}

bool st_doorbells(struct st_doorbells *out)
{
    int saved = errno;
    bool wanted = !__atomic_load_n(&st_config.off, __ATOMIC_RELAXED) && !process_start(true);
    *out = st_config.doorbells;
    errno = saved;
    return wanted;
}

/* ---- definitions -------------------------------------------------------------------------------------------------------------- */

/* Takes the lock; st_define_end gives it back. */
struct st_definition st_define_begin(unsigned id, size_t size)
{
    struct st_definition d = {NULL, 0, size};
    struct st_process *p = st_process;
    if (!p || !p->ready)
        return d;
    int saved = errno;
    uint64_t now = st_clock();
    st_lock();
    size_t room = st_config.chunk - sizeof(struct st_block);
    if (!p->definitions || p->definitions->committed + size > room) {
        /* the written back end has each definition in the file already: the memory of a full block serves the next */
        void *memory = p->written ? p->definitions : NULL;
        struct st_block *b = size > room ? NULL : st_block_new(ST_BLOCK_DEFINITIONS, 0, p->sequences[ST_BLOCK_DEFINITIONS], now, 1, memory, &p->definitions_place);
        if (!b) {
            p->header->lost_definitions++;
            st_unlock();
            errno = saved;
            return d;
        }
        p->sequences[ST_BLOCK_DEFINITIONS]++;
        if (p->definitions)
            st_block_release(p->definitions);
        p->definitions = b;
        st_block_publish(b);
    }
    d.buffer = p->definitions->payload + p->definitions->committed;
    d.used = 12;
    memcpy(d.buffer + 2, &(uint16_t){(uint16_t)id}, 2);
    memcpy(d.buffer + 4, &now, 8);
    errno = saved;
    return d;
}

void st_define_end(struct st_definition *d)
{
    struct st_process *p = st_process;
    int saved = errno;
    struct st_block *b = p->definitions;
    memcpy(d->buffer, &(uint16_t){(uint16_t)d->used}, 2);
    uint32_t before = b->committed;
    __atomic_store_n(&b->committed, before + (uint32_t)d->used, __ATOMIC_RELEASE);
    if (p->written)
        st_write_added(b, before, p->definitions_place);
    st_unlock();
    errno = saved;
}

void st_clock_pair(void)
{
    uint64_t best = ~0ull, before = 0, after = 0, real = 0, mono = 0; /* best: with both clocks read, since of them alone a step of one is told */
    for (int i = 0; i < 5; i++) {
        uint64_t a = st_clock(), r = st_realtime(), b = st_clock(), m = st_monotonic(), c = st_clock();
        if (c - a < best) {
            best = c - a;
            before = a;
            after = b;
            real = r;
            mono = m;
        }
    }
    st_def_clock_pair(ST_CLOCK_DOMAIN, before, after, real, mono);
}
