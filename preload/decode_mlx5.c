/* Work queue elements of mlx5 (ConnectX Programmer's Reference Manual; struct mlx5_wqe_ctrl_seg and those behind it in mlx5dv.h): segments of 16 bytes, big endian. */
#include "decode.h"
#include "recorder.h"

#include <string.h>

enum { SEGMENT = 16, INLINE_BIT = 0x80, EXTENDED_BIT = 0x80, FOUR_BYTES = 8 };
enum { CE_MASK = 0xc, CE_ALWAYS = 8, SOLICITED = 2, FENCE = 0x80 };
enum { UMR_HEAD = 3 + 4 }; /* segments of control and of the key's context before what the key is made of */
enum { AV_QPN = 8, AV_LID = 14, AV_GRH = 28, AV_GID = 32, AV_GRH_BIT = 0x40 };

static uint32_t get16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static uint32_t get24(const uint8_t *p) { return get16(p) << 8 | p[2]; }
static uint32_t get32(const uint8_t *p) { return get24(p) << 8 | p[3]; }
static uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }

static void put(uint8_t *p, uint64_t v, unsigned n)
{
    while (n--) {
        p[n] = (uint8_t)v;
        v >>= 8;
    }
}

static uint32_t take_key(uint8_t *p)
{
    uint32_t key = get32(p);
    memset(p, 0, 4);
    return key;
}

static unsigned event_of(unsigned opcode)
{
    switch (opcode) {
    case ST_ELEMENT_OPCODE_SEND:
    case ST_ELEMENT_OPCODE_SEND_IMM:
    case ST_ELEMENT_OPCODE_SEND_INVALIDATE: return ST_EV_DOORBELL_SEND;
    case ST_ELEMENT_OPCODE_RDMA_WRITE: return ST_EV_DOORBELL_WRITE;
    case ST_ELEMENT_OPCODE_RDMA_WRITE_IMM: return ST_EV_DOORBELL_WRITE_IMM;
    case ST_ELEMENT_OPCODE_RDMA_READ: return ST_EV_DOORBELL_READ;
    case ST_ELEMENT_OPCODE_COMPARE_SWAP:
    case ST_ELEMENT_OPCODE_FETCH_ADD:
    case ST_ELEMENT_OPCODE_MASKED_COMPARE_SWAP:
    case ST_ELEMENT_OPCODE_MASKED_FETCH_ADD: return ST_EV_DOORBELL_ATOMIC;
    case ST_ELEMENT_OPCODE_NOP:
    case ST_ELEMENT_OPCODE_WAIT:
    case ST_ELEMENT_OPCODE_FAST_REGISTER:
    case ST_ELEMENT_OPCODE_LOCAL_INVALIDATE:
    case ST_ELEMENT_OPCODE_CONFIG_COMMAND:
    case ST_ELEMENT_OPCODE_SET_PSV:
    case ST_ELEMENT_OPCODE_DUMP:
    case ST_ELEMENT_OPCODE_UMR:
    case ST_ELEMENT_OPCODE_TAG_MATCHING:
    case ST_ELEMENT_OPCODE_FLOW_TABLE_ACCESS:
    case ST_ELEMENT_OPCODE_MMO: return ST_EV_DOORBELL_CONTROL;
    default: return ST_EV_DOORBELL_UNKNOWN;
    }
}

static bool is_atomic(unsigned event) { return event == ST_EV_DOORBELL_ATOMIC || event == ST_EV_DOORBELL_SIGNAL; }
static bool moves(unsigned event) { return event != ST_EV_DOORBELL_CONTROL && event != ST_EV_DOORBELL_UNKNOWN; }

static unsigned segments_of(const uint8_t *raw) { return raw[7] & 0x3f; }

/* Segments of an atomic's operands. */
static unsigned operands(unsigned opcode, unsigned four) { return opcode == ST_ELEMENT_OPCODE_MASKED_COMPARE_SWAP && !four ? 2 : 1; }

/* A masked swap that compares no bit and swaps all. */
static bool stores(unsigned opcode, const uint8_t *p, bool four)
{
    if (opcode != ST_ELEMENT_OPCODE_MASKED_COMPARE_SWAP)
        return false;
    return four ? get32(p + 8) == UINT32_MAX && !get32(p + 12) : get64(p + 16) == UINT64_MAX && !get64(p + 24);
}

static unsigned blocks(const struct st_queue *q, uint32_t index, const uint8_t *head)
{
    unsigned n = (segments_of(head) * SEGMENT + ELEMENT_BLOCK - 1) / ELEMENT_BLOCK;
    if (get16(head + 1) != (index & 0xffff) || get24(head + 4) != q->qpn)
        return 0;
    return n ? n : 1;
}

/* What is moved: scatter/gather entries, and bytes that lie in the element. false: it ends before they do. */
static bool data(struct element *e, uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        uint32_t n = get32(p);
        if (p[0] & INLINE_BIT) {
            n &= ~((uint32_t)INLINE_BIT << 24);
            if (n > (size_t)(end - p - 4))
                return false;
            e->flags |= ST_VERBS_SEND_FLAGS_INLINE;
            e->bytes += n;
            p += (4 + n + SEGMENT - 1) / SEGMENT * SEGMENT;
            continue;
        }
        uint32_t key = take_key(p + 4);
        if (!e->sges++) {
            e->local_key = key;
            e->local = get64(p + 8);
        }
        e->bytes += n;
        p += SEGMENT;
    }
    return true;
}

static void address(struct element *e, uint8_t *p)
{
    e->addressed = true;
    e->vector_size = p[AV_QPN] & EXTENDED_BIT ? ELEMENT_VECTOR : SEGMENT;
    e->access = get64(p);
    memset(p, 0, 8);
    e->qpn = get24(p + AV_QPN + 1);
    e->lid = get16(p + AV_LID);
    memcpy(e->vector, p, e->vector_size);
    if (e->vector_size == ELEMENT_VECTOR) {
        e->gid = AV_GID;
        /* on Ethernet there is always a route, and the bit may be left out */
        e->global = p[AV_GRH] & AV_GRH_BIT || (!e->lid && get64(p + AV_GID) | get64(p + AV_GID + 8));
    }
}

/* The segments behind that of control. false: the element is too short for what it says. */
static bool body(const struct st_queue *q, struct element *e, uint8_t *raw, unsigned size)
{
    uint8_t *p = raw + SEGMENT, *end = raw + size;
    if (q->dynamic) {
        if (size < 2 * SEGMENT || (p[AV_QPN] & EXTENDED_BIT && size < SEGMENT + ELEMENT_VECTOR))
            return false;
        address(e, p);
        p += e->vector_size;
    }
    if (e->event != ST_EV_DOORBELL_SEND) {
        if (end - p < SEGMENT)
            return false;
        e->remote = get64(p);
        e->remote_key = take_key(p + 8);
        p += SEGMENT;
    }
    if (is_atomic(e->event)) {
        bool four = raw[0] == FOUR_BYTES;
        unsigned n = operands(e->opcode, four) * SEGMENT;
        if (end - p < (long)n)
            return false;
        if (stores(e->opcode, p, four))
            e->event = ST_EV_DOORBELL_SIGNAL;
        p += n;
        if (!data(e, p, end))
            return false;
        e->bytes = four ? 4 : 8;
        return true;
    }
    return data(e, p, end);
}

/* Of what is not read further: the keys of memory that is made, where their places are known. */
static void blank(unsigned opcode, uint8_t *raw, unsigned size)
{
    if (opcode == ST_ELEMENT_OPCODE_UMR)
        for (unsigned at = (1 + UMR_HEAD) * SEGMENT; at + SEGMENT <= size; at += SEGMENT)
            memset(raw + at + 4, 0, 4);
}

static unsigned read_one(const struct st_queue *q, uint8_t *raw, unsigned n, struct element *e)
{
    unsigned size = segments_of(raw) * SEGMENT;
    uint8_t before[ELEMENT_MOST];
    *e = (struct element){.opcode = raw[3], .event = event_of(raw[3])};
    if (!size || size > n) {
        e->event = ST_EV_DOORBELL_UNKNOWN;
        size = n;
    }
    e->form = (uint64_t)raw[0] << 40 | (uint64_t)raw[7] << 32 | get32(raw + 8);
    e->flags = ((raw[11] & CE_MASK) == CE_ALWAYS ? ST_VERBS_SEND_FLAGS_SIGNALED : 0) | (raw[11] & SOLICITED ? ST_VERBS_SEND_FLAGS_SOLICITED : 0) |
               (raw[11] & FENCE ? ST_VERBS_SEND_FLAGS_FENCE : 0);
    switch (e->opcode) {
    case ST_ELEMENT_OPCODE_SEND_IMM:
    case ST_ELEMENT_OPCODE_RDMA_WRITE_IMM: e->immediate = get32(raw + 12); break;
    case ST_ELEMENT_OPCODE_SEND_INVALIDATE:
    case ST_ELEMENT_OPCODE_LOCAL_INVALIDATE:
    case ST_ELEMENT_OPCODE_UMR: e->immediate = (uint32_t)st_hash_key(take_key(raw + 12)); break;
    }
    memcpy(before, raw, size);
    if (moves(e->event) && !body(q, e, raw, size)) { /* all of it is kept, as it is */
        struct element short_one = {.opcode = e->opcode, .event = ST_EV_DOORBELL_UNKNOWN, .form = e->form, .flags = e->flags & ~ST_VERBS_SEND_FLAGS_INLINE, .immediate = e->immediate};
        *e = short_one;
        memcpy(raw, before, size);
    } else if (!moves(e->event)) {
        blank(e->opcode, raw, size);
    }
    if (is_atomic(e->event) || e->event == ST_EV_DOORBELL_CONTROL)
        e->flags |= ST_VERBS_SEND_FLAGS_CONTROL;
    return size;
}

static void build(const struct st_queue *q, uint32_t index, const struct element *e, uint8_t *raw, unsigned size)
{
    uint8_t *p = raw + SEGMENT;
    raw[0] = (uint8_t)(e->form >> 40);
    put(raw + 1, index, 2);
    raw[3] = (uint8_t)e->opcode;
    put(raw + 4, q->qpn, 3);
    raw[7] = (uint8_t)(e->form >> 32);
    put(raw + 8, e->form, 4);
    if (e->opcode == ST_ELEMENT_OPCODE_SEND_IMM || e->opcode == ST_ELEMENT_OPCODE_RDMA_WRITE_IMM)
        put(raw + 12, e->immediate, 4);
    if (!moves(e->event))
        return;
    memcpy(p, e->vector, e->vector_size);
    p += e->vector_size;
    if (e->event != ST_EV_DOORBELL_SEND) {
        put(p, e->remote, 8);
        p += SEGMENT;
    }
    if (is_atomic(e->event))
        p += operands(e->opcode, raw[0] == FOUR_BYTES) * SEGMENT;
    if (p + SEGMENT > raw + size)
        return;
    if (e->flags & ST_VERBS_SEND_FLAGS_INLINE) {
        put(p, e->bytes, 4);
        p[0] |= INLINE_BIT;
    } else if (e->sges) {
        put(p, e->sges == 1 ? e->bytes : 0, 4);
        put(p + 8, e->local, 8);
    }
}

const struct decoder decoder_mlx5 = {blocks, read_one, build};
