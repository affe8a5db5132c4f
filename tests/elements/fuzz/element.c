/*
 * The decoders of work queue elements, over bytes that a GPU may have written: device, whether dynamically connected, size of the ring, from where to where,
 * then the ring. What is recorded of an element has to give its bytes again.
 */
#include "cuda.h"
#include "decode.h"

#include <stdlib.h>
#include <string.h>

#define MUST(x) \
    do {        \
        if (!(x)) \
            abort(); \
    } while (0)

/* The recorder, as far as decode.c calls it. */
static struct st_object unknown, some = {.id = 7};
static struct st_name *no_buckets[ST_BUCKETS];
static uint64_t missed, recorded, counted;
struct st_object *st_unknown = &unknown;
struct st_name **st_buckets = no_buckets;
_Atomic uint32_t st_mode;

struct st_object *st_object_new(enum st_kind kind, uint64_t key)
{
    (void)kind, (void)key;
    return &some;
}

void st_missed(uint64_t now, uint64_t requests)
{
    (void)now;
    missed += requests;
}

void st_count_slow(struct st_thread *t, struct st_object *o, unsigned event, uint64_t peer, uint64_t bytes, unsigned calls)
{
    (void)t, (void)o, (void)event, (void)peer, (void)bytes, (void)calls;
    counted++;
}

void st_record(struct st_thread *t, uint64_t now, unsigned event, struct st_object *o, const struct st_layout *l, const uint64_t *v)
{
    (void)t, (void)now, (void)event, (void)o;
    for (unsigned i = 0; i < l->fields; i++)
        if (l->raw >> i & 1)
            MUST(((const struct st_raw *)(uintptr_t)v[i])->size <= 256);
    recorded++;
}

uint64_t st_step(struct st_thread *t, uint64_t now)
{
    (void)t, (void)now;
    return 0;
}

void st_look(struct st_thread *t) { (void)t; }

struct st_definition st_define_begin(unsigned id, size_t size)
{
    (void)id, (void)size;
    return (struct st_definition){0};
}

void st_define_end(struct st_definition *d) { (void)d; }

/* One element alone, in just as many bytes as it takes; what was read of it, and where it differs, gives it again. */
static void again(const struct st_queue *q, uint32_t index, const uint8_t *ring, uint32_t there)
{
    const struct decoder *d = decoder_of(q);
    unsigned n = d->blocks(q, index, ring);
    if (!n || n > there)
        return;
    uint8_t *raw = malloc(n * ELEMENT_BLOCK), *built, rest[ELEMENT_REST];
    struct element e;
    MUST(raw);
    memcpy(raw, ring, n * ELEMENT_BLOCK);
    unsigned size = d->read(q, raw, n * ELEMENT_BLOCK, &e);
    MUST(size && size <= n * ELEMENT_BLOCK);
    built = calloc(1, size);
    MUST(built);
    d->build(q, index, &e, built, size);
    unsigned k = element_rest(raw, built, size, rest), at = 0;
    for (unsigned i = 0; k <= ELEMENT_REST && i < k;) {
        unsigned v[2] = {0, 0};
        for (int j = 0; j < 2; j++)
            for (unsigned shift = 0;; shift += 7) {
                v[j] |= (rest[i] & 0x7fu) << shift;
                if (!(rest[i++] & 0x80))
                    break;
            }
        at += v[0];
        MUST(at + v[1] <= size);
        memcpy(built + at, rest + i, v[1]);
        at += v[1];
        i += v[1];
    }
    MUST(k > ELEMENT_REST || !memcmp(raw, built, size));
    free(built);
    free(raw);
}

int LLVMFuzzerTestOneInput(const uint8_t *in, size_t size)
{
    static struct st_thread t;
    enum { HEAD = 4 };
    if (size < HEAD)
        return 0;
    struct st_queue q = {.object = &some, .device = in[0] & 1, .dynamic = in[0] >> 1 & 1, .qpn = 0x10203, .blocks = 1u << (in[0] >> 2 & 7)};
    uint32_t from = in[1] | (uint32_t)in[2] << 8, n = in[3] % (q.blocks + 1);
    uint8_t *ring = calloc(q.blocks, ELEMENT_BLOCK);
    MUST(ring);
    size -= HEAD;
    memcpy(ring, in + HEAD, size < (size_t)q.blocks * ELEMENT_BLOCK ? size : (size_t)q.blocks * ELEMENT_BLOCK);
    if (in[0] & 0x80) /* as a program does it: its index and queue first */
        for (uint32_t i = 0; i < q.blocks; i++) {
            uint8_t *p = ring + (size_t)((from + i) & (q.blocks - 1)) * ELEMENT_BLOCK;
            p[1] = (uint8_t)((from + i) >> 8);
            p[2] = (uint8_t)(from + i);
            p[4] = 1, p[5] = 2, p[6] = 3;
        }
    for (unsigned mode = ST_AGGREGATE; mode <= ST_FULL; mode++) {
        st_mode = mode;
        missed = recorded = counted = 0;
        decode(&t, 1, &q, ring, from, from + n);
        MUST(missed + counted <= n && (!n || missed + counted));
        MUST(mode != ST_FULL || recorded == counted);
    }
    uint32_t at = from & (q.blocks - 1);
    again(&q, from, ring + (size_t)at * ELEMENT_BLOCK, q.blocks - at);
    free(ring);
    return 0;
}
