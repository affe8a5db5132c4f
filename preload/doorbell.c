/*
 * Doorbells that kernels ring. A kernel gets the address of a page of ours in the place of the device's register. One thread looks at the pages: what it finds it
 * stamps, passes on to the register, and then reads the elements of the queue that the doorbell covers. A doorbell that covers too much of a queue is passed
 * on only when they have been read: a ring that goes on may overwrite them.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* As those of libc.h; here, since a sanitizer has to see the threads of programs that include that. */
static inline int st_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument)
{
    ST_LIBC(pthread_create);
    return real ? real(thread, attr, start, argument) : ENOSYS;
}

static inline int st_pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    ST_LIBC(pthread_sigmask);
    return real ? real(how, set, old) : ENOSYS;
}

enum { WATCHED = 1024, AREAS = 2, AREA = 0x100, BLOCK = 64, QUEUES_OF_PAGE = 16, THRESHOLD = 128, MAX_BLOCKS = 32768 };

static struct watched {
    const struct devmem *driver;
    volatile uint8_t *reg;  /* the device's, for us; NULL: free */
    volatile uint8_t *page; /* ours */
    size_t size;
    uint32_t number; /* of the device's page */
    uint64_t last[AREAS];
    uint32_t seen; /* st_queues_changed when the queues were looked up */
    unsigned queues;
    struct one {
        struct st_queue q;
        uint32_t index;           /* behind the last element that was rung */
        void *context, *record_context; /* of the GPU's memory that ring and doorbell record are in; NULL: the host's */
        bool read;                /* its elements can be read */
    } queue[QUEUES_OF_PAGE];
    void *stream;
    uint8_t *blocks; /* a copy of the ring that is being read */
} watched[WATCHED];
static unsigned used; /* none is in use from here on: the thread that looks goes over all before */
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int wanted; /* others wait for the lock, which the thread that looks would take again at once */
static pid_t watching; /* the process whose thread looks */

static uint64_t load(const volatile uint8_t *p) { return __atomic_load_n((const volatile uint64_t *)p, __ATOMIC_ACQUIRE); }

/* ---- memory of hosts and GPUs ------------------------------------------------------------------------------------------------------------- */

/* Copies up to two pieces, and waits for them. */
static bool fetch(const struct watched *w, void *context, void *const *to, const uint64_t *from, const size_t *n, unsigned pieces)
{
    bool ok = true;
    for (unsigned i = 0; i < pieces; i++)
        if (context)
            ok = w->driver->copy(context, w->stream, to[i], from[i], n[i]) && ok;
        else
            memcpy(to[i], (const void *)(uintptr_t)from[i], n[i]);
    return !context || (w->driver->wait(context, w->stream) && ok);
}

static void read_elements(struct watched *w, struct one *o, uint64_t now, uint32_t to)
{
    uint32_t n = to - o->index, at = o->index & (o->q.blocks - 1), first = n < o->q.blocks - at ? n : o->q.blocks - at;
    void *const targets[] = {w->blocks + (size_t)at * BLOCK, w->blocks};
    const uint64_t sources[] = {o->q.ring + (uint64_t)at * BLOCK, o->q.ring};
    const size_t sizes[] = {(size_t)first * BLOCK, (size_t)(n - first) * BLOCK};
    struct st_thread *t = st_enter(ST_LAYER_DOORBELL);
    if (!t)
        return;
    if (fetch(w, o->context, targets, sources, sizes, first < n ? 2 : 1))
        decode(t, now, &o->q, w->blocks, o->index, to);
    else
        st_missed(now, n);
    st_leave(t, ST_LAYER_DOORBELL);
}

static void tell(const struct one *o)
{
    struct st_thread *t = st_enter(ST_LAYER_DOORBELL);
    if (!t)
        return;
    st_def_doorbell_queue(o->q.object->id, o->q.ring, o->q.blocks, o->context != NULL, o->q.device);
    st_leave(t, ST_LAYER_DOORBELL);
}

/* The queues that are rung at this page, as far as they are known now. */
static void look_up(struct watched *w)
{
    struct st_queue found[QUEUES_OF_PAGE];
    struct one old[QUEUES_OF_PAGE];
    unsigned had = w->queues;
    memcpy(old, w->queue, sizeof old);
    w->seen = __atomic_load_n(&st_queues_changed, __ATOMIC_ACQUIRE);
    w->queues = st_queues_of(w->number, found, QUEUES_OF_PAGE);
    if (w->queues > QUEUES_OF_PAGE)
        w->queues = QUEUES_OF_PAGE;
    for (unsigned i = 0; i < w->queues; i++) {
        struct one *o = &w->queue[i];
        *o = (struct one){.q = found[i]};
        for (unsigned k = 0; k < had; k++)
            if (old[k].q.key == found[i].key && old[k].q.qpn == found[i].qpn) {
                o->index = old[k].index;
                o->read = old[k].read;
            }
        bool known = o->read;
        o->read = found[i].blocks <= MAX_BLOCKS && w->driver->context_of(found[i].ring, &o->context) && w->driver->context_of(found[i].record, &o->record_context);
        if (o->read && !known)
            tell(o);
    }
}

/* ---- a doorbell ------------------------------------------------------------------------------------------------------------------------------ */

/* A queue that went on by more than its ring holds: what was in it has been overwritten. */
static void passed_over(uint64_t now, uint16_t n)
{
    struct st_thread *t = st_enter(ST_LAYER_DOORBELL);
    if (!t)
        return;
    st_missed(now, n);
    st_leave(t, ST_LAYER_DOORBELL);
}

/* The queue is to go on up to an index: value is what rings for that. */
static void advance(struct watched *w, struct one *o, unsigned area, uint64_t value, uint64_t now, uint16_t index)
{
    uint16_t n = (uint16_t)(index - o->index);
    if (n >= 0x8000)
        return; /* an older one than its record told of: it has been rung for */
    bool read = o->read && n && n <= o->q.blocks, early = read && n > THRESHOLD;
    if (early)
        read_elements(w, o, now, o->index + n);
    __atomic_store_n((volatile uint64_t *)(w->reg + area * AREA), value, __ATOMIC_RELEASE);
    if (read && !early)
        read_elements(w, o, now, o->index + n);
    if (o->read && n > o->q.blocks)
        passed_over(now, n);
    o->index += n;
}

/* Several queues ring at one page, and a doorbell may have overwritten another's before we looked: their records say how far each is to go. */
static void advance_all(struct watched *w, uint64_t now)
{
    for (unsigned i = 0; i < w->queues; i++) {
        struct one *o = &w->queue[i];
        uint8_t record[4] = {0}, bell[8] = {0};
        void *const target[] = {record};
        const uint64_t source[] = {o->q.record + 4}; /* the first four bytes are the receive queue's */
        const size_t size[] = {sizeof record};
        uint64_t value;
        if (!o->q.record || !fetch(w, o->record_context, target, source, size, 1))
            continue;
        uint16_t index = (uint16_t)(record[2] << 8 | record[3]);
        if (index == (uint16_t)o->index)
            continue;
        bell[1] = record[2];
        bell[2] = record[3];
        bell[4] = (uint8_t)(o->q.qpn >> 16);
        bell[5] = (uint8_t)(o->q.qpn >> 8);
        bell[6] = (uint8_t)o->q.qpn;
        memcpy(&value, bell, sizeof value);
        advance(w, o, 0, value, now, index);
    }
}

static void rung(struct watched *w, unsigned area, uint64_t value)
{
    uint64_t now = st_clock();
    uint8_t b[8];
    struct one *o = NULL;
    memcpy(b, &value, sizeof b);
    w->last[area] = value;
    if (w->seen != __atomic_load_n(&st_queues_changed, __ATOMIC_ACQUIRE))
        look_up(w);
    /* the index behind the last element, or its control segment (BlueFlame) */
    unsigned segments = b[7] & 0x3f;
    uint32_t index = (uint32_t)b[1] << 8 | b[2], qpn = (uint32_t)b[4] << 16 | (uint32_t)b[5] << 8 | b[6];
    if (b[3] || segments)
        index += (segments * 16 + BLOCK - 1) / BLOCK;
    for (unsigned i = 0; i < w->queues && !o; i++)
        if (w->queue[i].q.qpn == qpn)
            o = &w->queue[i];
    if (o)
        advance(w, o, area, value, now, (uint16_t)index);
    else
        __atomic_store_n((volatile uint64_t *)(w->reg + area * AREA), value, __ATOMIC_RELEASE);
    if (w->queues > 1)
        advance_all(w, now);
}

static bool look_at(struct watched *w)
{
    bool any = false;
    for (unsigned a = 0; a < AREAS && a * AREA + 8 <= w->size; a++) {
        uint64_t v = load(w->page + a * AREA);
        if (v != w->last[a]) {
            rung(w, a, v);
            any = true;
        }
    }
    return any;
}

static void take(void)
{
    __atomic_fetch_add(&wanted, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_lock(&mu);
}

static void give(void)
{
    pthread_mutex_unlock(&mu);
    __atomic_fetch_sub(&wanted, 1, __ATOMIC_ACQ_REL);
}

/* Reads what was rung so far. */
static void settle(struct watched *w)
{
    look_at(w);
    if (w->seen != __atomic_load_n(&st_queues_changed, __ATOMIC_ACQUIRE))
        look_up(w);
    if (w->queues > 1)
        advance_all(w, st_clock());
}

static void queue_goes(uint32_t page)
{
    if (watching != getpid())
        return;
    take();
    for (unsigned i = 0; i < used; i++)
        if (watched[i].reg && watched[i].number == page)
            settle(&watched[i]);
    give();
}

__attribute__((destructor)) static void end(void)
{
    if (watching != getpid())
        return;
    take();
    for (unsigned i = 0; i < used; i++)
        if (watched[i].reg)
            settle(&watched[i]);
    give();
}

static void let_go(struct watched *w)
{
    munmap((void *)((uintptr_t)w->page & ~4095ul), 4096);
    if (w->blocks)
        munmap(w->blocks, (size_t)MAX_BLOCKS * BLOCK);
    memset(w, 0, sizeof *w);
}

static void *look(void *arg)
{
    pid_t me = getpid();
    unsigned idle = 0;
    (void)arg;
    while (__atomic_load_n(&watching, __ATOMIC_RELAXED) == me) {
        bool any = false;
        while (__atomic_load_n(&wanted, __ATOMIC_ACQUIRE))
            sched_yield();
        pthread_mutex_lock(&mu);
        for (unsigned i = 0; i < used; i++)
            any = (watched[i].reg && look_at(&watched[i])) || any;
        pthread_mutex_unlock(&mu);
        idle = any ? 0 : idle + 1;
        if (idle < 1000)
            st_pause();
        else
            sched_yield();
    }
    return NULL;
}

static bool start(void)
{
    pthread_t t;
    pthread_attr_t a;
    sigset_t all, old;
    if (watching == getpid())
        return true;
    sigfillset(&all);
    st_pthread_sigmask(SIG_SETMASK, &all, &old); /* the program's signals are for its own threads */
    pthread_attr_init(&a);
    pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
    watching = getpid();
    bool ok = !st_pthread_create(&t, &a, look, NULL);
    __atomic_store_n(&st_queue_goes, queue_goes, __ATOMIC_RELEASE);
    if (!ok)
        watching = 0;
    pthread_attr_destroy(&a);
    st_pthread_sigmask(SIG_SETMASK, &old, NULL);
    return ok;
}

/* ---- pages ------------------------------------------------------------------------------------------------------------------------------------ */

/* What a page needs; the stream is made now: a kernel that runs may keep the driver from making one. */
static bool make(struct watched *w, const struct devmem *driver, void *p, size_t size, uint32_t number, uint64_t *device)
{
    size_t offset = (uintptr_t)p & 4095;
    uint8_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *blocks = mmap(NULL, (size_t)MAX_BLOCKS * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (page != MAP_FAILED && blocks != MAP_FAILED && (w->stream = driver->open(NULL))) {
        if (driver->pin(page, 4096, device)) {
            *device += offset;
            w->driver = driver;
            w->page = page + offset;
            w->blocks = blocks;
            w->size = size;
            w->number = number;
            w->seen = __atomic_load_n(&st_queues_changed, __ATOMIC_ACQUIRE) - 1;
            for (unsigned a = 0; a < AREAS && a * AREA + 8 <= size; a++)
                w->last[a] = load(w->page + a * AREA);
            return true;
        }
        driver->close(NULL, w->stream);
    }
    if (page != MAP_FAILED)
        munmap(page, 4096);
    if (blocks != MAP_FAILED)
        munmap(blocks, (size_t)MAX_BLOCKS * BLOCK);
    return false;
}

bool doorbell_interpose(const struct devmem *driver, void *p, size_t size, uint64_t *device)
{
    struct st_queue q[2];
    struct st_page page;
    bool done = false;
    /* a later doorbell of another queue would overwrite one that was not seen yet */
    if (!driver->ready() || !st_page_of((uintptr_t)p, &page) || st_queues_of(page.number, q, 2) > 1)
        return false;
    struct st_thread *t = st_enter(ST_LAYER_DOORBELL);
    if (!t) /* nothing is recorded */
        return false;
    st_leave(t, ST_LAYER_DOORBELL);
    if (watching && watching != getpid()) { /* a forked child, without the thread that may have held the lock: its parent's pages are not its own */
        pthread_mutex_init(&mu, NULL);
        wanted = 0;
        memset(watched, 0, used * sizeof *watched);
        used = 0;
    }
    take();
    for (unsigned i = 0; i < WATCHED && !done; i++) {
        struct watched *w = &watched[i];
        if (w->reg)
            continue;
        memset(w, 0, sizeof *w);
        if (!start() || !make(w, driver, p, size < ST_DOORBELL_AREA ? size : ST_DOORBELL_AREA, page.number, device))
            break;
        w->reg = p;
        if (i >= used)
            used = i + 1;
        done = true;
    }
    give();
    return done;
}

void doorbell_release(void *p)
{
    if (watching != getpid())
        return;
    take();
    for (unsigned i = 0; i < used; i++)
        if (watched[i].reg == p) {
            settle(&watched[i]);
            watched[i].driver->unpin((void *)((uintptr_t)watched[i].page & ~4095ul));
            watched[i].driver->close(NULL, watched[i].stream);
            let_go(&watched[i]);
        }
    give();
}
