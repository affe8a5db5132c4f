/* A send-queue request between the call that builds it and the call that posts it, and how it is recorded. */
#ifndef ST_IBVERBS_REQUEST_H
#define ST_IBVERBS_REQUEST_H

#include "ibverbs.h"

#include <arpa/inet.h>

#define OPCODE_FLUSH 14 /* IBV_WR_FLUSH of later headers */
#define OPCODES 16

struct request {
    uint64_t wr_id, bytes, local_address, remote_address, compare_add, swap;
    const struct ibv_ah *ah;
    uint32_t local_key, remote_key, immediate, remote_qpn, sges;
    uint32_t more; /* index in batch.sges of the second and further entries, where they are kept */
    uint8_t opcode, flags;
    uint8_t unread; /* has more entries than its queue takes: to be refused, so that the list may be anything */
    const struct ibv_qp *qp;
    const struct ibv_send_wr *wr; /* post_send */
};

/* The calling thread's requests that are built but not posted: a list on its way through post_send, and open ibv_wr_* batches, of
 * several queue pairs if the program likes. Grows by mmap, never shrinks until the thread ends. */
struct batch {
    struct request *requests;
    struct ibv_sge *sges;
    uint32_t used, room, sges_used, sges_room;
};
extern __thread struct batch batch __attribute__((visibility("hidden")));

/* A new request at the end of the batch, zeroed; never NULL, but when there is no memory it is one that is not in the batch. */
struct request *batch_request(const struct ibv_qp *qp, unsigned opcode);
/* Reads a request's entries into it: the first, the sum of lengths, and the further ones for full mode. */
void batch_list(struct request *r, const struct ibv_sge *list, int n);
/* Takes away the requests of qp from index `from` on. */
void batch_drop(const struct ibv_qp *qp, uint32_t from);
/* Records the first `accepted` of the batch's requests of qp from index `from` on. begin: when the posting call was entered. */
void batch_posted(struct st_thread *t, uint64_t begin, struct ibv_qp *qp, uint32_t from, uint32_t accepted);

/* by opcode */
enum { HAS_REMOTE = 1, HAS_IMMEDIATE = 2, HAS_KEY = 4, HAS_OPERANDS = 8 };
static const struct {
    uint8_t event, has;
} opcodes[OPCODES] = {
    [IBV_WR_RDMA_WRITE] = {ST_EV_VERBS_WRITE, HAS_REMOTE},
    [IBV_WR_RDMA_WRITE_WITH_IMM] = {ST_EV_VERBS_WRITE_IMM, HAS_REMOTE | HAS_IMMEDIATE},
    [IBV_WR_SEND] = {ST_EV_VERBS_SEND, 0},
    [IBV_WR_SEND_WITH_IMM] = {ST_EV_VERBS_SEND, HAS_IMMEDIATE},
    [IBV_WR_RDMA_READ] = {ST_EV_VERBS_READ, HAS_REMOTE},
    [IBV_WR_ATOMIC_CMP_AND_SWP] = {ST_EV_VERBS_ATOMIC, HAS_OPERANDS},
    [IBV_WR_ATOMIC_FETCH_AND_ADD] = {ST_EV_VERBS_ATOMIC, HAS_OPERANDS},
    [IBV_WR_LOCAL_INV] = {ST_EV_VERBS_CONTROL, HAS_KEY},
    [IBV_WR_BIND_MW] = {ST_EV_VERBS_CONTROL, 0},
    [IBV_WR_SEND_WITH_INV] = {ST_EV_VERBS_SEND, HAS_KEY},
    [IBV_WR_TSO] = {ST_EV_VERBS_SEND, 0},
    [IBV_WR_DRIVER1] = {ST_EV_VERBS_CONTROL, 0},
    [12] = {ST_EV_VERBS_CONTROL, 0},
    [13] = {ST_EV_VERBS_CONTROL, 0},
    [OPCODE_FLUSH] = {ST_EV_VERBS_CONTROL, HAS_REMOTE},
    [IBV_WR_ATOMIC_WRITE] = {ST_EV_VERBS_WRITE, HAS_REMOTE},
};

static inline uint64_t peer_of(const struct request *r) { return (uint64_t)st_find(ST_KIND_AH, (uintptr_t)r->ah)->id << 24 | (r->remote_qpn & 0xffffff); }

/* Everything but the plain request of a connected queue pair. */
void record_unusual(struct st_thread *t, uint64_t now, struct st_object *o, const struct request *r, unsigned event, unsigned call);

/* Records one accepted request: its event in full mode, and counts it. call: 0 for the first of its posting call, else 1. */
static inline void record_request(struct st_thread *t, uint64_t now, struct st_object *o, const struct request *r, unsigned event, unsigned call)
{
    if (st_unlikely(r->ah || event == ST_EV_VERBS_ATOMIC || r->sges > 1)) {
        record_unusual(t, now, o, r, event, call);
        return;
    }
    if (st_mode == ST_FULL)
        st_rec_verbs_request(t, now, event, o, r->wr_id, r->bytes, r->opcode, r->flags | (o->flags & QP_SIGNAL_ALL), r->sges, r->local_address,
                             stored_key(&o->user[USER_LOCAL_KEY], r->local_key), r->remote_address, stored_key(&o->user[USER_REMOTE_KEY], r->remote_key), r->immediate, call);
    st_count(t, o, event, r->bytes, !call);
}

#endif
