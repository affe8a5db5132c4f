/* Work queue elements of mlx5 (ConnectX Programmer's Reference Manual; struct mlx5_wqe_ctrl_seg and those behind it in mlx5dv.h). */
#include "cuda.h"

#include <string.h>

enum { BLOCK = 64, LONGEST = 1024 };
enum { SEND = 0x0a, SEND_IMM = 0x0b, WRITE = 0x08, WRITE_IMM = 0x09, READ = 0x10, SWAP = 0x11, ADD = 0x12, MASKED_SWAP = 0x14, MASKED_ADD = 0x15 };

static uint32_t get32(const uint8_t *p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }
static uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }

struct element {
    unsigned opcode, segments, event, sges;
    uint64_t bytes, local, remote;
    uint32_t local_key, remote_key, immediate;
};

static unsigned event_of(unsigned opcode)
{
    switch (opcode) {
    case SEND:
    case SEND_IMM: return ST_EV_DOORBELL_SEND;
    case WRITE: return ST_EV_DOORBELL_WRITE;
    case WRITE_IMM: return ST_EV_DOORBELL_WRITE_IMM;
    case READ: return ST_EV_DOORBELL_READ;
    case SWAP:
    case ADD:
    case MASKED_SWAP:
    case MASKED_ADD: return ST_EV_DOORBELL_ATOMIC;
    default: return ST_EV_DOORBELL_CONTROL; /* no-operation, wait, what is not known: the opcode is recorded */
    }
}

static void data(struct element *e, const uint8_t *p, const uint8_t *end)
{
    for (; p + 16 <= end; p += 16) {
        uint32_t n = get32(p);
        if (n >> 31) {
            n &= 0x3ff;
            p += (4 + n + 15) / 16 * 16 - 16;
        } else if (!e->sges++) {
            e->local_key = get32(p + 4);
            e->local = get64(p + 8);
        }
        e->bytes += n;
    }
}

static void read_element(struct element *e, const uint8_t *raw, bool dynamic)
{
    const uint8_t *p = raw + 16, *end = raw + e->segments * 16;
    unsigned wide = raw[0] != 8;
    if (e->event == ST_EV_DOORBELL_CONTROL)
        return;
    if (dynamic)
        p += p[8] & 0x80 ? 48 : 16; /* the address vector, whole or its first part */
    e->immediate = e->opcode == SEND_IMM || e->opcode == WRITE_IMM ? get32(raw + 12) : 0;
    if (e->event != ST_EV_DOORBELL_SEND) {
        e->remote = get64(p);
        e->remote_key = get32(p + 8);
        p += 16;
    }
    if (e->event != ST_EV_DOORBELL_ATOMIC) {
        data(e, p, end);
        return;
    }
    p += e->opcode == MASKED_SWAP && wide ? 32 : 16;
    e->bytes = (e->opcode == MASKED_SWAP || e->opcode == MASKED_ADD) && !wide ? 4 : 8;
    if (p + 16 <= end) {
        e->sges = 1;
        e->local_key = get32(p + 4);
        e->local = get64(p + 8);
    }
}

void decode(struct st_thread *t, uint64_t now, const struct st_queue *q, const uint8_t *blocks, uint32_t from, uint32_t to)
{
    struct st_object *o = q->object;
    uint64_t bytes = 0;
    unsigned requests = 0, first = 0;
    for (uint32_t i = from; i != to;) {
        uint8_t raw[LONGEST];
        const uint8_t *head = blocks + (size_t)(i & (q->blocks - 1)) * BLOCK;
        uint32_t index = (uint32_t)head[1] << 8 | head[2], qpn = (uint32_t)head[4] << 16 | (uint32_t)head[5] << 8 | head[6];
        struct element e = {.opcode = head[3], .segments = head[7] & 0x3f};
        uint32_t n = e.segments ? (e.segments * 16 + BLOCK - 1) / BLOCK : 1;
        if (index != (i & 0xffff) || qpn != q->qpn || n > to - i) { /* overwritten by a later one, or none: never taken for an element */
            st_missed(now, 1);
            i++;
            continue;
        }
        for (uint32_t k = 0; k < n; k++)
            memcpy(raw + k * BLOCK, blocks + (size_t)((i + k) & (q->blocks - 1)) * BLOCK, BLOCK);
        e.event = event_of(e.opcode);
        read_element(&e, raw, q->dynamic);
        if (st_mode == ST_FULL)
            st_rec_doorbell_request(t, now, e.event, o, e.bytes, e.opcode, (raw[11] & 0xc) == 8 ? ST_VERBS_SEND_FLAGS_SIGNALED : 0, i, e.sges, e.local, st_hash_key(e.local_key), e.remote,
                                    st_hash_key(e.remote_key), e.immediate, requests != 0);
        if (e.event != ST_EV_DOORBELL_CONTROL) {
            first = first ? first : e.event;
            bytes += e.bytes;
            st_count(t, o, e.event, e.bytes, !requests);
            requests++;
        }
        i += n;
    }
    if (st_mode == ST_SIMPLE && requests)
        st_rec_call(t, now, ST_EV_DOORBELL_CALL, o, first, requests, bytes, 0, 0);
}
