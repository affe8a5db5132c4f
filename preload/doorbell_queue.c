/* Pages of doorbells and the queues that are rung there: what they need, and what of it is a driver's. All of it is made by the program's own threads, since a driver that makes
 * something may wait for kernels. */
#define _GNU_SOURCE
#include "doorbell.h"

#include <string.h>
#include <sys/mman.h>

/* Shared with a forked child: a page that only the parent writes to would be another one, which a GPU knows nothing of, after the parent has written to it. */
static void *map(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* The page's stream in a context; NULL: none could be made. */
static void *stream_in(struct bell_page *w, void *context)
{
    for (unsigned i = 0; i < BELL_STREAMS; i++) {
        if (w->streams[i].stream && w->streams[i].context == context)
            return w->streams[i].stream;
        if (!w->streams[i].stream) {
            w->streams[i].context = context;
            return w->streams[i].stream = w->driver->open(context);
        }
    }
    return NULL;
}

/* Where the memory at an address is reached: context and stream are NULL for the host's. false: it is not. A driver knows no memory of GPUs that was given back, as it knows none
 * of the host's: of_gpu is what it was registered as. */
static bool reach(struct bell_page *w, uint64_t address, bool of_gpu, void **context, void **stream)
{
    *stream = NULL;
    if (!w->driver->context_of(address, context))
        return false;
    return *context ? (*stream = stream_in(w, *context)) != NULL : !of_gpu;
}

static struct bell_queue *make(struct bell_page *w, uint32_t blocks, bool pin)
{
    for (struct bell_queue **at = &w->spare; *at; at = &(*at)->next)
        if ((*at)->q.blocks == blocks) {
            struct bell_queue *o = *at, old = *o;
            *at = o->next;
            memset(o, 0, sizeof *o);
            o->blocks = old.blocks;
            o->rungs = old.rungs;
            o->size = old.size;
            o->pinned = old.pinned;
            return o;
        }
    size_t head = (sizeof(struct bell_queue) + 63) & ~(size_t)63, before = (head + blocks * sizeof(struct rung) + 4095) & ~(size_t)4095;
    uint8_t *p = map(before + (size_t)blocks * BELL_BLOCK);
    struct bell_queue *o = (struct bell_queue *)(void *)p;
    if (!p)
        return NULL;
    o->size = before + (size_t)blocks * BELL_BLOCK;
    o->rungs = (struct rung *)(void *)(p + head);
    o->blocks = p + before;
    o->pinned = pin && w->driver->pin(o->blocks, (size_t)blocks * BELL_BLOCK, NULL);
    return o;
}

static void tell(const struct bell_queue *o)
{
    struct st_thread *t = st_enter(ST_LAYER_DOORBELL);
    if (!t)
        return;
    st_def_doorbell_queue(o->q.object->id, o->q.ring, o->q.blocks, o->context != NULL, o->q.device, o->threshold);
    st_leave(t, ST_LAYER_DOORBELL);
}

/* More than half of a ring would be gone over before it is copied by a program that fills the other half at once. pin: nothing of the program's waits for this call but what waits for drivers' anyway. */
void bell_queue_add(struct bell_page *w, const struct st_queue *q, bool pin)
{
    void *context = NULL, *stream = NULL;
    bool read = q->ring && q->blocks && q->blocks <= BELL_MAX_BLOCKS && reach(w, q->ring, q->ring_of_gpu, &context, &stream);
    struct bell_queue *o = make(w, read ? q->blocks : 1, pin && context);
    if (!o)
        return;
    o->q = *q;
    o->q.blocks = read ? q->blocks : 1;
    o->read = read;
    o->context = context;
    o->stream = stream;
    o->record_known = q->record && reach(w, q->record, q->record_of_gpu, &o->record_context, &o->record_stream);
    o->threshold = bell_profile.threshold < q->blocks / 2 ? bell_profile.threshold : q->blocks / 2;
    o->index = q->index;
    if (read)
        tell(o);
    bell_take();
    o->next = w->queues;
    BELL_SET(w->queues, o);
    bell_give();
}

static struct bell_queue *left;

void bell_queue_lost(struct bell_queue *o)
{
    uint64_t n = __atomic_exchange_n(&o->skipped, 0, __ATOMIC_RELAXED);
    for (; o->rungs_out != o->rungs_in; o->rungs_out++)
        n += o->rungs[o->rungs_out & (o->q.blocks - 1)].to - o->rungs[o->rungs_out & (o->q.blocks - 1)].from;
    struct st_thread *t = n ? st_enter(ST_LAYER_DOORBELL) : NULL;
    if (!t)
        return;
    st_missed(st_clock(), n);
    st_leave(t, ST_LAYER_DOORBELL);
}

void bell_left_lost(void)
{
    for (struct bell_queue *o = __atomic_exchange_n(&left, NULL, __ATOMIC_ACQ_REL); o; o = o->next_left)
        bell_queue_lost(o);
}

/* Whether a driver writes to what was begun to be copied. */
static bool is_copied(const struct bell_page *w, const struct bell_queue *o)
{
    return o->context && o->started != o->rungs_out && !BELL_GET(bell_over) && !w->driver->done(o->context, o->stream);
}

static void drop(struct bell_page *w, const void *key, bool alive)
{
    struct bell_queue *gone = NULL;
    bell_take();
    for (struct bell_queue **at = &w->queues; *at; at = &(*at)->next)
        if ((*at)->q.key == key) {
            gone = *at;
            BELL_SET(*at, gone->next);
            break;
        }
    bell_give();
    if (gone)
        st_queue_seen(key, gone->index);
    if (!gone)
        return;
    if (!copier_passed() || (alive && is_copied(w, gone))) { /* then it stays as it is: a driver that keeps the thread waiting, or copies, may use it later */
        gone->next_left = __atomic_load_n(&left, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(&left, &gone->next_left, gone, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            ;
        return;
    }
    bell_queue_lost(gone);
    gone->next = w->spare;
    w->spare = gone;
}

void bell_queue_drop(struct bell_page *w, const void *key) { drop(w, key, true); }

bool bell_page_open(struct bell_page *w, const struct devmem *driver, void *p, size_t size, uint32_t number, uint64_t *device)
{
    size_t offset = (uintptr_t)p & 4095;
    uint8_t *page = map(4096);
    if (!page)
        return false;
    memset(w, 0, sizeof *w);
    w->driver = driver;
    w->streams[0].context = driver->current();
    w->streams[0].stream = driver->open(NULL);
    if (w->streams[0].stream && driver->pin(page, 4096, device)) {
        *device += offset;
        w->page = page + offset;
        w->size = size;
        w->number = number;
        w->taken = true;
        return true;
    }
    bell_page_close(w, true);
    munmap(page, 4096);
    return false;
}

/* alive: else handles of the driver's stand for nothing, and are not to be used. */
void bell_page_close(struct bell_page *w, bool alive)
{
    void *page = w->page ? (void *)((uintptr_t)w->page & ~4095ul) : NULL;
    while (w->queues)
        drop(w, w->queues->q.key, alive);
    for (struct bell_queue *o = w->spare, *next; o; o = next) {
        next = o->next;
        if (o->pinned && alive)
            w->driver->unpin(o->blocks);
        munmap(o, o->size);
    }
    for (unsigned i = 0; i < BELL_STREAMS; i++)
        if (w->streams[i].stream && alive)
            w->driver->close(w->streams[i].context, w->streams[i].stream);
    if (page && alive)
        w->driver->unpin(page);
    if (page)
        munmap(page, 4096);
    memset(w, 0, sizeof *w);
}
