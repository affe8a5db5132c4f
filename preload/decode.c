/* What elements of queues that were rung become: counts, and records. */
#include "cuda.h"
#include "decode.h"

#include <string.h>

/* ---- whom elements go to -------------------------------------------------------------------------------------------------------------------- */

enum { TARGETS = 4096, PROBES = 64 };

static struct target {
    uint64_t access;
    unsigned size; /* 0: free */
    uint8_t vector[ELEMENT_VECTOR];
} targets[TARGETS];

/* Elements name their receiver, each one of a few. A forked child finds its parent's vectors, and makes objects of its own for them. One without room is known by
 * its number alone. */
static const struct st_object *target_of(const struct element *e)
{
    uint64_t h = e->access;
    for (unsigned i = 0; i < e->vector_size; i += 8) {
        uint64_t word;
        memcpy(&word, e->vector + i, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 32;
    }
    for (unsigned n = 0; n < PROBES; n++) {
        struct target *t = &targets[(h + n) % TARGETS];
        if (t->size && (t->access != e->access || t->size != e->vector_size || memcmp(t->vector, e->vector, t->size)))
            continue;
        struct st_object *o = st_find(ST_KIND_AH, (uintptr_t)t);
        if (o->id)
            return o;
        o = st_object_new(ST_KIND_AH, (uintptr_t)t);
        if (!o->id)
            return o;
        *t = (struct target){.access = e->access, .size = e->vector_size};
        memcpy(t->vector, e->vector, e->vector_size);
        st_def_doorbell_target(o->id, e->qpn, e->lid, e->vector + e->gid, e->global ? 16 : 0, e->global, e->access ? st_hash_key(e->access) : 0, e->vector, e->vector_size);
        return o;
    }
    return st_unknown;
}

/* ---- elements ----------------------------------------------------------------------------------------------------------------------------------- */

const struct decoder *decoder_of(const struct st_queue *q)
{
    static const struct decoder *const table[] = {[ST_ELEMENT_DEVICE_MLX5] = &decoder_mlx5, [ST_ELEMENT_DEVICE_EFA] = &decoder_efa};
    return table[q->device];
}

static unsigned varint(uint8_t *p, unsigned v)
{
    unsigned n = 0;
    for (; v >> 7; v >>= 7)
        p[n++] = (uint8_t)(v | 0x80);
    p[n++] = (uint8_t)v;
    return n;
}

unsigned element_rest(const uint8_t *raw, const uint8_t *built, unsigned size, uint8_t rest[ELEMENT_REST])
{
    enum { APART = 2 }; /* what a run costs beyond its bytes: equal ones between two that are nearer go along */
    uint8_t all[3 * ELEMENT_MOST];
    unsigned n = 0, last = 0;
    for (unsigned i = 0; i < size;) {
        if (raw[i] == built[i]) {
            i++;
            continue;
        }
        unsigned end = i + 1;
        for (unsigned k = end; k < size && k <= end + APART; k++)
            if (raw[k] != built[k])
                end = k + 1;
        n += varint(all + n, i - last);
        n += varint(all + n, end - i);
        memcpy(all + n, raw + i, end - i);
        n += end - i;
        i = last = end;
    }
    memcpy(rest, all, n < ELEMENT_REST ? n : ELEMENT_REST);
    return n;
}

struct sum {
    uint64_t bytes;
    unsigned first, requests;
    uint64_t peer;
};

static void add(struct sum *s, const struct element *e, uint64_t peer)
{
    s->peer = !s->requests || s->peer == peer ? peer : 0;
    s->first = s->requests ? s->first : e->event;
    s->bytes += e->bytes;
    s->requests++;
}

static void record(struct st_thread *t, uint64_t now, const struct st_queue *q, uint32_t index, struct element *e, const uint8_t *raw, unsigned size, const struct st_object *target, bool first)
{
    enum { CUT = 48 }; /* bit of form */
    uint8_t built[ELEMENT_MOST], rest[ELEMENT_REST];
    if (!target->id)
        e->vector_size = 0; /* the reader will not have it */
    memset(built, 0, size);
    decoder_of(q)->build(q, index, e, built, size);
    unsigned n = element_rest(raw, built, size, rest);
    if (n > ELEMENT_REST) {
        n = ELEMENT_REST;
        e->form |= 1ull << CUT;
    }
    st_rec_doorbell_request(t, now, e->event, q->object, e->bytes, e->opcode, e->flags, index, e->sges, e->local, e->local_key ? st_hash_key(e->local_key) : 0, e->remote,
                            e->remote_key ? st_hash_key(e->remote_key) : 0, e->immediate, !first, target->id, e->form, rest, n);
}

uint32_t decode(struct st_thread *t, uint64_t now, const struct st_queue *q, const uint8_t *ring, uint32_t from, uint32_t to)
{
    const struct decoder *d = decoder_of(q);
    struct sum sums[2] = {{0}, {0}}; /* data, control */
    uint32_t missed = 0;
    bool first = true;
    for (uint32_t i = from; i != to;) {
        uint8_t raw[ELEMENT_MOST];
        struct element e;
        uint32_t n = d->blocks(q, i, ring + (size_t)(i & (q->blocks - 1)) * ELEMENT_BLOCK);
        if (!n || n > to - i) { /* overwritten by a later one, or none: never taken for an element */
            missed++;
            i++;
            continue;
        }
        for (uint32_t k = 0; k < n; k++)
            memcpy(raw + k * ELEMENT_BLOCK, ring + (size_t)((i + k) & (q->blocks - 1)) * ELEMENT_BLOCK, ELEMENT_BLOCK);
        unsigned size = d->read(q, raw, n * ELEMENT_BLOCK, &e);
        const struct st_object *target = e.addressed ? target_of(&e) : st_unknown;
        uint64_t peer = e.addressed ? (uint64_t)target->id << 24 | e.qpn : 0;
        if (st_mode == ST_FULL)
            record(t, now, q, i, &e, raw, size, target, first);
        st_count_peer(t, q->object, e.event, peer, e.bytes, first);
        add(&sums[!!(e.flags & ST_VERBS_SEND_FLAGS_CONTROL)], &e, peer);
        first = false;
        i += n;
    }
    if (missed)
        st_missed(now, missed);
    for (int control = 0; control < 2 && st_mode == ST_SIMPLE; control++)
        if (sums[control].requests)
            st_rec_call(t, now, control ? ST_EV_DOORBELL_CONTROL_CALL : ST_EV_DOORBELL_CALL, q->object, sums[control].first, sums[control].requests, sums[control].bytes,
                        sums[control].peer & 0xffffff, 0);
    return missed;
}
