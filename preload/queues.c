/* The map of queues that programs fill and ring by themselves: queues.h. */
#define _GNU_SOURCE
#include "queues.h"

enum { PAGES = 4096, MEMORIES = 8192, QUEUES = 8192 };

static struct st_mutex mu = ST_MUTEX;
static struct st_page pages[PAGES];
static struct st_queue queues[QUEUES];
static struct memory {
    const void *key;
    uint64_t number, address, size;
    bool of_gpu;
} memories[MEMORIES];
void (*_Atomic st_queue_changes)(uint32_t page, const void *key, enum st_queue_change change);
void (*_Atomic st_page_goes)(uint64_t reg, uint64_t size);

static void lock(void) { st_mutex_lock(&mu); }
static void unlock(void) { st_mutex_unlock(&mu); }

/* In the place of one with the same key, which a program may have left behind; else where there is room. */
#define PUT(table, count, value)                         \
    do {                                                 \
        unsigned at_ = (count);                          \
        lock();                                          \
        for (unsigned i_ = 0; i_ < (count); i_++) {      \
            if ((table)[i_].key == (value).key) {        \
                at_ = i_;                                \
                break;                                   \
            }                                            \
            if (!(table)[i_].key && at_ == (count))      \
                at_ = i_;                                \
        }                                                \
        if (at_ < (count))                               \
            (table)[at_] = (value);                      \
        unlock();                                        \
    } while (0)
#define DROP(table, count, gone)                                      \
    do {                                                              \
        lock();                                                       \
        for (unsigned i_ = 0; i_ < (count); i_++)                     \
            if ((table)[i_].key == (gone))                            \
                (table)[i_].key = NULL;                               \
        unlock();                                                     \
    } while (0)

bool st_page_add(const struct st_page *p)
{
    struct st_page added = *p;
    bool again = false;
    added.times = 1;
    lock();
    for (unsigned i = 0; i < PAGES && !again; i++)
        if (pages[i].key == p->key && pages[i].reg == p->reg && pages[i].number == p->number) {
            again = true;
            pages[i].times++;
        }
    unlock();
    if (!again)
        PUT(pages, PAGES, added);
    return !again;
}

bool st_page_gone(const void *key)
{
    void (*goes)(uint64_t, uint64_t) = __atomic_load_n(&st_page_goes, __ATOMIC_ACQUIRE);
    struct st_page p = {0};
    lock();
    for (unsigned i = 0; i < PAGES; i++)
        if (pages[i].key == key) {
            p = pages[i];
            pages[i].times -= p.times > 1;
        }
    unlock();
    if (p.times > 1)
        return false;
    if (goes && p.key)
        goes(p.reg, p.size);
    DROP(pages, PAGES, key);
    return true;
}

void st_memory_add(const void *key, uint64_t number, uint64_t address, uint64_t size, bool of_gpu)
{
    struct memory m = {key, number, address, size, of_gpu};
    PUT(memories, MEMORIES, m);
}

void st_memory_gone(const void *key) { DROP(memories, MEMORIES, key); }

bool st_queue_by(const void *key, struct st_queue *out)
{
    bool found = false;
    lock();
    for (unsigned i = 0; key && i < QUEUES && !found; i++)
        if (queues[i].key == key) {
            *out = queues[i];
            found = true;
        }
    unlock();
    return found;
}

static void tell(const void *key, enum st_queue_change change)
{
    void (*changes)(uint32_t, const void *, enum st_queue_change) = __atomic_load_n(&st_queue_changes, __ATOMIC_ACQUIRE);
    struct st_queue q;
    if (changes && st_queue_by(key, &q))
        changes(q.page, key, change);
}

void st_queue_add(const struct st_queue *q)
{
    PUT(queues, QUEUES, *q);
    tell(q->key, ST_QUEUE_COMES);
}

void st_queue_ends(const void *key) { tell(key, ST_QUEUE_GOES); }
void st_queue_stays(const void *key) { tell(key, ST_QUEUE_COMES); }

void st_queue_gone(const void *key)
{
    tell(key, ST_QUEUE_GOES);
    DROP(queues, QUEUES, key);
}

void st_queue_seen(const void *key, uint32_t index)
{
    lock();
    for (unsigned i = 0; i < QUEUES; i++)
        if (queues[i].key == key)
            queues[i].index = index;
    unlock();
}

void st_queue_reset(const void *key)
{
    tell(key, ST_QUEUE_GOES);
    st_queue_seen(key, 0);
    tell(key, ST_QUEUE_COMES);
}

uint64_t st_memory_at(uint64_t number, uint64_t offset, bool *of_gpu)
{
    uint64_t at = 0;
    lock();
    for (unsigned i = 0; i < MEMORIES && !at; i++)
        if (memories[i].key && memories[i].number == number && offset < memories[i].size) {
            at = memories[i].address + offset;
            *of_gpu = memories[i].of_gpu;
        }
    unlock();
    return at;
}

bool st_page_of(uint64_t address, struct st_page *out)
{
    bool found = false;
    lock();
    for (unsigned i = 0; i < PAGES && !found; i++)
        if (pages[i].key && address - pages[i].reg < pages[i].size) {
            *out = pages[i];
            found = true;
        }
    unlock();
    return found;
}

unsigned st_queues_of(uint32_t page, struct st_queue *out, unsigned n)
{
    unsigned found = 0;
    lock();
    for (unsigned i = 0; i < QUEUES; i++)
        if (queues[i].key && queues[i].page == page && found++ < n)
            out[found - 1] = queues[i];
    unlock();
    return found;
}
