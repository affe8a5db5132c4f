/* Objects, their names, and the aggregate entries that count what happened on them. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static const uint8_t class_of[ST_EVENT_IDS] = ST_EVENT_CLASSES;

/* An ended object waits at the end of the free list, so that a look-up racing with its end still finds sane memory. */
static struct st_object *object_get(struct st_process *p)
{
    struct st_object *o;
    if (p->objects_used < ST_OBJECTS && st_hold(p, sizeof *o, 1))
        return &p->objects[p->objects_used++];
    o = p->free_first;
    if (o)
        p->free_first = (struct st_object *)(uintptr_t)o->key;
    return o;
}

static void object_put(struct st_process *p, struct st_object *o)
{
    o->key = 0;
    if (p->free_first)
        p->free_last->key = (uint64_t)(uintptr_t)o;
    else
        p->free_first = o;
    p->free_last = o;
}

/* Takes a name away; only: where it is not NULL, the object that the name must stand for (its key may be another's by now). */
static void forget(struct st_process *p, uint64_t key, const struct st_object *only)
{
    struct st_name **at = &p->buckets[st_bucket(key)], *n;
    while ((n = *at) && n->key != key)
        at = &n->next;
    if (!n || (only && n->object != only))
        return;
    __atomic_store_n(at, n->next, __ATOMIC_RELEASE);
    /* n->next stays as it is until the name is used again: a reader standing on n goes on */
    n->object = st_unknown;
    if (p->free_names)
        p->free_names_last->key = (uint64_t)(uintptr_t)n;
    else
        p->free_names = n;
    p->free_names_last = n;
    n->key = 0;
}

static int name(struct st_process *p, struct st_object *o, uint64_t key)
{
    struct st_name *n;
    forget(p, key, NULL);
    if (p->names_used < ST_NAMES && st_hold(p, sizeof *n, 1)) {
        n = &p->names[p->names_used++];
    } else {
        n = p->free_names;
        if (!n)
            return -1;
        p->free_names = n == p->free_names_last ? NULL : (struct st_name *)(uintptr_t)n->key;
    }
    struct st_name **at = &p->buckets[st_bucket(key)];
    n->object = o;
    n->key = key;
    n->next = *at;
    __atomic_store_n(at, n, __ATOMIC_RELEASE);
    return 0;
}

/* Counts an object that has no place, once for its key. */
static void lost_object(struct st_process *p, uint64_t key)
{
    uint64_t bit = key * 0x9e3779b97f4a7c15ull >> 44;
    uint8_t mask = (uint8_t)(1u << bit % 8);
    p->header->lost_objects += !(p->lost_seen[bit / 8] & mask);
    p->lost_seen[bit / 8] |= mask;
}

struct st_object *st_object_new(enum st_kind kind, uint64_t key)
{
    struct st_process *p = st_process;
    if (!p || !p->ready)
        return st_unknown;
    st_lock();
    struct st_object *o = object_get(p);
    if (o) {
        memset(o, 0, sizeof *o);
        o->kind = (uint16_t)kind;
        o->key = st_name_key(kind, key);
        o->id = ++p->next_object;
        if (name(p, o, o->key)) {
            object_put(p, o);
            o = NULL;
        }
    }
    if (!o) {
        lost_object(p, st_name_key(kind, key));
        o = st_unknown;
    }
    st_unlock();
    return o;
}

void st_object_alias(struct st_object *o, enum st_kind kind, uint64_t key)
{
    struct st_process *p = st_process;
    if (!p || !p->ready || o == st_unknown)
        return;
    st_lock();
    if (name(p, o, st_name_key(kind, key)))
        p->header->lost_objects++;
    st_unlock();
}

void st_object_forget(enum st_kind kind, uint64_t key)
{
    struct st_process *p = st_process;
    if (!p || !p->ready)
        return;
    st_lock();
    forget(p, st_name_key(kind, key), NULL);
    st_unlock();
}

void st_object_end(struct st_object *o)
{
    struct st_process *p = st_process;
    if (!p || !p->ready || o == st_unknown || !o->id)
        return;
    st_def_object_end(o->id);
    st_lock();
    forget(p, o->key, o);
    object_put(p, o);
    st_unlock();
}

/* Sums what all threads have counted on an object: posted, received, completed. Other threads go on counting: what they add meanwhile
 * is in or not, as for any observer. */
__attribute__((no_sanitize("thread"))) void st_object_counters(struct st_object *o, uint64_t out[3])
{
    out[0] = out[1] = out[2] = 0;
    for (struct st_entry *e = __atomic_load_n(&o->entries, __ATOMIC_ACQUIRE); e; e = e->in_object) {
        unsigned c = class_of[e->aggregate->event % ST_EVENT_IDS];
        if (c)
            out[c - 1] += e->aggregate->count;
    }
}

static struct st_aggregate *aggregate_get(struct st_process *p)
{
    if (!p->aggregates_left) {
        uint64_t place;
        struct st_block *b = st_block_new(ST_BLOCK_AGGREGATES, 0, p->sequences[ST_BLOCK_AGGREGATES], st_clock(), 1, NULL, &place);
        if (!b)
            return NULL;
        __atomic_store_n(&p->sequences[ST_BLOCK_AGGREGATES], p->sequences[ST_BLOCK_AGGREGATES] + 1, __ATOMIC_RELAXED); /* read without the lock for epochs */
        p->aggregate = (struct st_aggregate *)b->payload;
        p->aggregates_left = (st_config.chunk - sizeof *b) / sizeof *p->aggregate;
        /* entries say for themselves whether they are in use */
        b->committed = p->aggregates_left * (uint32_t)sizeof *p->aggregate;
        st_block_publish(b);
        if (!p->spare) {
            p->spare = p->aggregate;
            p->spare_left = ST_SPARE;
            p->aggregate += ST_SPARE;
            p->aggregates_left -= ST_SPARE;
        }
    }
    p->aggregates_left--;
    return p->aggregate++;
}

static struct st_entry *entry_get(struct st_process *p)
{
    if (!p->arena_left) {
        size_t size = 65536;
        p->arena = st_hold(p, size, 1) ? st_wiped(size) : NULL;
        if (!p->arena)
            return NULL;
        p->arena_left = (uint32_t)(size / sizeof *p->arena);
    }
    p->arena_left--;
    return p->arena++;
}

static unsigned entry_bucket(uint32_t object, uint64_t owner, unsigned event, uint64_t peer)
{
    uint64_t h = ((uint64_t)object << 32 ^ (owner << 16 | owner >> 48) ^ owner >> 32) * 0x9e3779b97f4a7c15ull ^ (peer << 8 | event) * 0xff51afd7ed558ccdull;
    return (unsigned)(h >> 50) % ST_ENTRY_BUCKETS;
}

/* Counts what found no entry of its own in one of object 0 and thread 0, so that the totals hold all calls. With the lock held: that
 * entry is all threads'. */
static void count_unplaced(struct st_process *p, unsigned event, uint64_t bytes, unsigned calls)
{
    struct st_entry **bucket = &p->entries[entry_bucket(0, 0, event, 0)], *e;
    for (e = *bucket; e; e = e->in_bucket)
        if (!e->aggregate->object && !e->aggregate->thread && e->aggregate->event == event)
            break;
    if (!e && p->spare_left && (e = entry_get(p))) {
        p->spare_left--;
        e->aggregate = p->spare++;
        e->aggregate->first = st_clock();
        __atomic_store_n(&e->aggregate->event, (uint16_t)event, __ATOMIC_RELEASE);
        e->in_bucket = *bucket;
        __atomic_store_n(bucket, e, __ATOMIC_RELEASE);
    }
    if (!e) {
        p->header->lost_tables++;
        return;
    }
    struct st_aggregate *a = e->aggregate;
    p->header->unplaced++;
    a->count++;
    a->bytes += bytes;
    a->calls += calls;
    a->sizes[st_size_class(bytes)]++;
}

void st_count_slow(struct st_thread *t, struct st_object *o, unsigned event, uint64_t peer, uint64_t bytes, unsigned calls)
{
    struct st_process *p = st_process;
    uint64_t owner = st_owner(t);
    struct st_entry **bucket = &p->entries[entry_bucket(o->id, owner, event, peer)], *e;
    for (e = __atomic_load_n(bucket, __ATOMIC_ACQUIRE); e; e = e->in_bucket) {
        struct st_aggregate *a = e->aggregate;
        if (a->object == o->id && a->owner == owner && a->event == event && a->peer == peer)
            break;
    }
    if (!e) {
        int saved = errno;
        st_lock();
        struct st_aggregate *a = aggregate_get(p);
        if (a && (e = entry_get(p))) {
            a->object = o->id;
            a->owner = owner;
            a->peer = peer;
            a->first = st_clock();
            __atomic_store_n(&a->event, (uint16_t)event, __ATOMIC_RELEASE);
            e->aggregate = a;
            e->in_object = o->entries;
            __atomic_store_n(&o->entries, e, __ATOMIC_RELEASE);
            e->in_bucket = *bucket;
            __atomic_store_n(bucket, e, __ATOMIC_RELEASE);
        } else {
            count_unplaced(p, event, bytes, calls);
        }
        st_unlock();
        errno = saved;
        if (!e)
            return;
    }
    struct st_aggregate *a = e->aggregate;
    if (o->id) /* object 0 serves all layers: their event ids would meet in its slots */
        __atomic_store_n(&o->aggregate[event % ST_OBJECT_AGGREGATES], a, __ATOMIC_RELEASE);
    st_add(t, a, bytes, calls);
}
