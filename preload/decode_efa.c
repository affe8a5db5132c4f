/* Work queue elements of EFA (struct efa_io_tx_wqe in the Linux kernel's efa_io_defs.h): one block each, little endian, rung for by a 32-bit count of them. An element
 * has neither index nor queue: a bit that changes with every round of the ring tells new ones. */
#include "decode.h"
#include "recorder.h"

#include <string.h>

enum { CTRL1 = 2, CTRL2 = 3, QPN = 4, LENGTH = 6, IMMEDIATE = 8, AH = 12, QKEY = 16, BODY = 32, ENTRY = 16, ENTRIES = 2 };
enum { OPERATION = 0xf, HAS_IMMEDIATE = 0x10, INLINE_MESSAGE = 0x20, IS_META = 0x80 };    /* of CTRL1 */
enum { PHASE = 1, FIRST = 4, LAST = 8, WANTS_COMPLETION = 0x10 };                         /* of CTRL2 */
enum { SEND = 0, READ = 1, WRITE = 2, FAST_REGISTER = 3, FAST_INVALIDATE = 4, EFA = 0x100 };
enum { IN_ENTRY_KEY = 4, IN_ENTRY_ADDRESS = 8, LKEY_MASK = 0xffffff };

static uint32_t get16(const uint8_t *p) { return (uint32_t)p[1] << 8 | p[0]; }
static uint32_t get32(const uint8_t *p) { return get16(p + 2) << 16 | get16(p); }
static uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p + 4) << 32 | get32(p); }

static void put(uint8_t *p, uint64_t v, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        p[i] = (uint8_t)v;
        v >>= 8;
    }
}

static uint32_t take_key(uint8_t *p)
{
    uint32_t key = get32(p);
    memset(p, 0, 4);
    return key;
}

static unsigned blocks(const struct st_queue *q, uint32_t index, const uint8_t *head)
{
    enum { WHOLE = FIRST | LAST };
    return head[CTRL1] & IS_META && (head[CTRL2] & WHOLE) == WHOLE && (head[CTRL2] & PHASE) == (index / q->blocks & 1);
}

static void entry(struct element *e, uint8_t *p)
{
    uint32_t key = take_key(p + IN_ENTRY_KEY) & LKEY_MASK;
    if (!e->sges++) {
        e->local_key = key;
        e->local = get64(p + IN_ENTRY_ADDRESS);
    }
    e->bytes += get32(p);
}

/* false: it says what cannot be. */
static bool body(struct element *e, uint8_t *raw, unsigned operation)
{
    unsigned n = get16(raw + LENGTH), most = operation == SEND ? ENTRIES : 1;
    uint8_t *p = raw + BODY;
    if (raw[CTRL1] & INLINE_MESSAGE) {
        if (operation != SEND || n > ELEMENT_BLOCK - BODY)
            return false;
        e->flags |= ST_VERBS_SEND_FLAGS_INLINE;
        e->bytes = n;
        return true;
    }
    if (n > most)
        return false;
    if (operation != SEND) {
        e->remote = get64(p + IN_ENTRY_ADDRESS);
        e->remote_key = take_key(p + IN_ENTRY_KEY);
        p += ENTRY;
    }
    for (unsigned i = 0; i < n; i++)
        entry(e, p + i * ENTRY);
    if (operation != SEND)
        e->bytes = get32(raw + BODY);
    return true;
}

static unsigned read_one(const struct st_queue *q, uint8_t *raw, unsigned n, struct element *e)
{
    unsigned operation = raw[CTRL1] & OPERATION;
    bool immediate = raw[CTRL1] & HAS_IMMEDIATE;
    uint8_t before[ELEMENT_BLOCK];
    (void)q;
    (void)n;
    *e = (struct element){.opcode = EFA | operation, .addressed = true, .qpn = get16(raw + QPN), .vector_size = ENTRY};
    e->flags = raw[CTRL2] & WANTS_COMPLETION ? ST_VERBS_SEND_FLAGS_SIGNALED : 0;
    e->form = (uint64_t)get32(raw) << 16 | get16(raw + LENGTH);
    e->immediate = immediate ? get32(raw + IMMEDIATE) : 0;
    e->access = take_key(raw + QKEY);
    memcpy(e->vector, raw + QPN, 2);
    memcpy(e->vector + 2, raw + AH, 2);
    memcpy(before, raw, sizeof before);
    switch (operation) {
    case SEND: e->event = ST_EV_DOORBELL_SEND; break;
    case READ: e->event = ST_EV_DOORBELL_READ; break;
    case WRITE: e->event = immediate ? ST_EV_DOORBELL_WRITE_IMM : ST_EV_DOORBELL_WRITE; break;
    case FAST_REGISTER:
    case FAST_INVALIDATE: /* both begin with a key */
        take_key(raw + BODY);
        e->event = ST_EV_DOORBELL_CONTROL;
        e->flags |= ST_VERBS_SEND_FLAGS_CONTROL;
        e->addressed = false;
        e->vector_size = 0;
        return ELEMENT_BLOCK;
    default: e->event = ST_EV_DOORBELL_UNKNOWN;
    }
    if (e->event == ST_EV_DOORBELL_UNKNOWN || !body(e, raw, operation)) { /* all of it is kept, as it is */
        *e = (struct element){.opcode = e->opcode, .event = ST_EV_DOORBELL_UNKNOWN, .form = e->form, .flags = e->flags & ST_VERBS_SEND_FLAGS_SIGNALED};
        memcpy(raw, before, sizeof before);
    }
    return ELEMENT_BLOCK;
}

static void build(const struct st_queue *q, uint32_t index, const struct element *e, uint8_t *raw, unsigned size)
{
    uint8_t *p = raw + BODY;
    (void)q;
    (void)index;
    (void)size;
    put(raw, e->form >> 16, 4);
    put(raw + LENGTH, e->form, 2);
    if (e->vector_size) {
        memcpy(raw + QPN, e->vector, 2);
        memcpy(raw + AH, e->vector + 2, 2);
    }
    put(raw + IMMEDIATE, e->immediate, 4);
    if (e->event == ST_EV_DOORBELL_UNKNOWN || e->event == ST_EV_DOORBELL_CONTROL || e->flags & ST_VERBS_SEND_FLAGS_INLINE)
        return;
    if (e->event != ST_EV_DOORBELL_SEND) {
        put(p, e->bytes, 4);
        put(p + IN_ENTRY_ADDRESS, e->remote, 8);
        p += ENTRY;
    }
    if (e->sges) {
        put(p, e->sges == 1 ? e->bytes : 0, 4);
        put(p + IN_ENTRY_ADDRESS, e->local, 8);
    }
}

const struct decoder decoder_efa = {blocks, read_one, build};
