/* Event chunks, and the slow half of the encoder: all records that are not what their template expected. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <string.h>

#define CLOCK_PAIR_NS 5000000000u

/* Other threads set it as well: to NULL, when a window opens. */
static void set_limit(struct st_thread *t, uint8_t *limit) { __atomic_store_n(&t->limit, limit, __ATOMIC_RELAXED); }

static void chunk_close(struct st_thread *t)
{
    struct st_block *b = t->block;
    b->last = t->highest > t->last ? t->highest : t->last;
    b->earliest = t->lowered;
    b->crc = st_crc32c(b->payload, b->committed);
    __atomic_store_n(&b->flags, b->flags | ST_BLOCK_CLOSED | ST_BLOCK_CRC, __ATOMIC_RELEASE);
}

void st_chunk_write(struct st_thread *t)
{
    if (st_process->written && st_write(t->block, st_config.chunk, t->place))
        st_lost_chunk(t->block);
}

void st_chunk_end(struct st_thread *t)
{
    if (!t->block)
        return;
    chunk_close(t);
    st_chunk_write(t);
    t->block = NULL;
    t->cur = t->base = NULL;
    set_limit(t, NULL);
}

/* Makes more of the chunk ready to be written to, until it has room for need bytes. Not all at once, which would be a pause of up to a
 * millisecond, and pages for nothing in threads that record little. False: there is not so much left. */
static int chunk_extend(struct st_thread *t, uint8_t *limit, size_t need)
{
    uint8_t *end = (uint8_t *)t->block + st_config.chunk;
    while (limit < end && limit < t->cur + need)
        limit = st_block_populate(t->block, limit);
    set_limit(t, limit);
    return limit >= t->cur + need;
}

static int chunk_next(struct st_thread *t, uint64_t now)
{
    struct st_process *p = st_process;
    void *memory = NULL;
    uint64_t clock = st_monotonic();
    if (t->block) {
        chunk_close(t);
        if (p->written) {
            st_lock();
            st_chunk_write(t);
            st_unlock();
            memory = t->block;
        } else {
            st_block_release(t->block);
        }
    }
    if (clock - t->opened > CLOCK_PAIR_NS / 16 || !t->opened) {
        st_clock_pair();
        t->opened = clock;
    }
    st_lock();
    struct st_block *b = st_block_new(ST_BLOCK_EVENTS, t->index, t->sequence, now, 0, memory, &t->place);
    if (p->written && st_flush_due(p, clock))
        st_flush_again();
    st_unlock();
    t->block = b;
    t->cur = t->base = NULL;
    set_limit(t, NULL);
    if (!b)
        return -1;
    t->sequence++;
    t->base = t->cur = b->payload;
    t->generation = __atomic_load_n(&p->watch.generation, __ATOMIC_RELAXED);
    chunk_extend(t, (uint8_t *)b, 1);
    t->last = now;
    t->highest = now;
    t->lowered = 0;
    for (unsigned i = 1; i <= t->slots_used; i++)
        t->slots[i].used = 0;
    t->slots_used = 0;
    memset(t->slot_of, 0, sizeof t->slot_of);
    memset(t->seen, 0, sizeof t->seen);
    st_block_publish(b);
    return 0;
}

static uint64_t zigzag(uint64_t v) { return v << 1 ^ -(v >> 63); }

static uint8_t *put_always(uint8_t *p, const struct st_layout *l, const uint64_t *v)
{
    for (unsigned i = 0; i < l->fields; i++) {
        if (!(l->always >> i & 1))
            continue;
        if (l->raw >> i & 1) {
            const struct st_raw *r = (const struct st_raw *)(uintptr_t)v[i];
            p = st_bytes(p, r->data, r->size > 256 ? 256 : r->size);
        } else {
            p = st_varint(p, v[i]);
        }
    }
    return p;
}

/* The counters that let a reader start at this chunk (FORMAT.md, `counters`). */
static uint8_t *put_counters(uint8_t *p, struct st_thread *t, struct st_object *o)
{
    uint32_t *seen = &t->seen[o->id % ST_SEEN];
    if (*seen == o->id + 1)
        return p;
    *seen = o->id + 1;
    uint64_t n[3];
    st_object_counters(o, n);
    *p++ = 63;
    p = st_varint(p, o->id);
    for (int i = 0; i < 3; i++)
        p = st_varint(p, n[i]);
    return p;
}

static uint8_t *put_new(uint8_t *p, struct st_thread *t, uint64_t dt, unsigned event, unsigned way, const struct st_layout *l, const uint64_t *v)
{
    unsigned n = t->slots_used < ST_SLOTS ? ++t->slots_used : ++t->evict % ST_SLOTS + 1;
    struct st_slot *s = &t->slots[n];
    if (s->used) /* taken from another event: the fast path does not look whose template it is */
        for (unsigned w = 0; w < ST_WAYS; w++)
            if (t->slot_of[s->event][w] == n)
                t->slot_of[s->event][w] = 0;
    memset(s, 0, sizeof *s);
    s->event = event;
    s->used = 1;
    t->slot_of[event][way] = (uint8_t)n;
    st_layout_used(event, l);
    uint32_t word = 61u | (uint32_t)dt << 8;
    memcpy(p, &word, 4);
    p[4] = (uint8_t)n;
    memcpy(p + 5, &(uint16_t){(uint16_t)event}, 2);
    p += 7;
    for (unsigned i = 0; i < l->fields; i++) {
        if (l->always >> i & 1)
            continue;
        p = st_varint(p, l->is_signed >> i & 1 ? zigzag(v[i]) : v[i]);
        s->next[i] = v[i];
    }
    return p;
}

static uint8_t *put_changed(uint8_t *p, struct st_slot *s, unsigned slot, uint64_t dt, const struct st_layout *l, const uint64_t *v)
{
    uint32_t wide = dt > 0xffff, mask = 0, word = (2 + wide) << 6 | slot | (uint32_t)dt << 8;
    memcpy(p, &word, 4);
    p += 3 + wide;
    uint8_t *at = p;
    p += l->predicted > 8 ? 2 : 1;
    for (unsigned i = 0, bit = 0; i < l->fields; i++) {
        if (l->always >> i & 1)
            continue;
        uint64_t last = s->next[i] - s->stride[i], d = v[i] - last;
        if (v[i] != s->next[i]) {
            mask |= 1u << bit;
            p = st_varint(p, zigzag(d));
            if (l->stride >> i & 1) {
                if (d == s->candidate[i])
                    s->stride[i] = d;
                else
                    s->candidate[i] = d;
            }
        }
        s->next[i] = v[i] + s->stride[i];
        bit++;
    }
    at[0] = (uint8_t)mask;
    if (l->predicted > 8)
        at[1] = (uint8_t)(mask >> 8);
    return p;
}

/* Makes `now` the time that the next record's is counted from. */
static uint8_t *put_time(uint8_t *p, struct st_thread *t, uint64_t now)
{
    if (t->last > t->highest)
        t->highest = t->last;
    if ((int64_t)(t->block->first - now) > 0) {
        uint64_t low = t->block->first - now;
        t->lowered = low > 0xfffffffe ? 0xffffffff : low > t->lowered ? (uint32_t)low : t->lowered;
    }
    *p++ = 62;
    p = st_varint(p, zigzag(now - t->last));
    t->last = now;
    return p;
}

uint64_t st_step(struct st_thread *t, uint64_t now)
{
    uint8_t *limit = st_limit(t);
    enum { ROOM = 80 + 16 * 10 + 2 * 256 + 16 }; /* for the time and any record of up to two raw fields behind it: it must not begin another chunk */
    if (!now || !limit || !t->block || (size_t)(limit - t->cur) < ROOM)
        return now - t->last;
    t->cur = put_time(t->cur, t, now);
    return 0;
}

void st_record(struct st_thread *t, uint64_t now, unsigned event, struct st_object *o, const struct st_layout *l, const uint64_t *v)
{
    size_t need = 80 + 10u * l->fields;
    if (st_unlikely(!now))
        return;
    for (unsigned i = 0; i < l->fields; i++)
        if (l->raw >> i & 1)
            need += 256;
    uint8_t *limit = st_limit(t);
    int stale = t->generation != __atomic_load_n(&st_process->watch.generation, __ATOMIC_RELAXED);
    if (st_unlikely(!t->block || !limit || stale || (size_t)(limit - t->cur) < need)) {
        int saved = errno;
        int fits = t->block && limit && !stale && chunk_extend(t, limit, need);
        int none = fits ? 0 : (st_process->stopped && !t->block) || chunk_next(t, now);
        errno = saved;
        if (none) {
            st_lost(now, 1, l->bytes ? v[l->bytes] : 0);
            return;
        }
    }
    uint8_t *p = put_counters(t->cur, t, o);
    uint64_t dt = now - t->last;
    if (dt >> 24) {
        p = put_time(p, t, now);
        dt = 0;
    }
    unsigned way = st_way(o, l->apart ? v[l->apart] : 0), n = t->slot_of[event][way];
    struct st_slot *s = &t->slots[n];
    if (n)
        p = put_changed(p, s, n, dt, l, v);
    else
        p = put_new(p, t, dt, event, way, l, v);
    p = put_always(p, l, v);
    t->cur = p;
    t->last = now;
    t->records++;
    __atomic_store_n(&t->block->committed, (uint32_t)(p - t->base), __ATOMIC_RELEASE);
}

void st_polls_flush(struct st_thread *t, struct st_polls *run)
{
    uint64_t n = run->count;
    run->count = 0;
    /* the queue may have ended, and its object be another's by now */
    struct st_object *o = run->queue->id == run->id ? run->queue : st_unknown;
    if (o->kind == ST_KIND_OFI_CQ || o->kind == ST_KIND_OFI_COUNTER)
        st_rec_ofi_empty_polls(t, run->first, ST_EV_OFI_EMPTY_POLLS, o, n, run->last - run->first);
    else
        st_rec_verbs_empty_polls(t, run->first, ST_EV_VERBS_EMPTY_POLLS, o, n, run->last - run->first);
}
