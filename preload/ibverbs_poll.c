/* Completions: poll_cq through the context's table, start_poll and next_poll through the queue's own pointers; arming. */
#define _GNU_SOURCE
#include "ibverbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

/* Completions of receives; and those that move data to this side, the only ones whose byte_len every driver fills. */
static inline int is_receive(uint32_t opcode)
{
    return opcode == IBV_WC_RECV || opcode == IBV_WC_RECV_RDMA_WITH_IMM || opcode == IBV_WC_TM_RECV || opcode == IBV_WC_TM_NO_TAG;
}
static inline int says_bytes(uint32_t opcode)
{
    return is_receive(opcode) || opcode == IBV_WC_RDMA_READ || opcode == IBV_WC_COMP_SWAP || opcode == IBV_WC_FETCH_ADD;
}

/* A poll that found nothing. */
static void found_nothing(struct st_thread *t, struct ibv_cq *cq)
{
    st_polls_empty(t, cq_of(cq), st_clock());
}

/* Of a failed request only its id, status and queue pair are told; the rest is recorded as 0. What a send-side completion does not
 * say (lengths, flags, sources) may be anything, and is recorded as 0 too. */
static inline void completed(struct st_thread *t, uint64_t now, struct st_object *cq, struct st_object *qp, const struct ibv_wc *wc, unsigned call)
{
    uint32_t opcode = 0, bytes = 0, flags = 0, immediate = 0, source = 0;
    if (st_likely(wc->status == IBV_WC_SUCCESS)) {
        opcode = wc->opcode;
        if (says_bytes(opcode))
            bytes = wc->byte_len;
        if (is_receive(opcode)) {
            flags = wc->wc_flags;
            if (flags & IBV_WC_WITH_IMM || opcode == IBV_WC_RECV_RDMA_WITH_IMM)
                immediate = ntohl(wc->imm_data);
            else if (flags & IBV_WC_WITH_INV)
                immediate = (uint32_t)st_hash_key(wc->invalidated_rkey);
            if (qp->flags & QP_UNCONNECTED)
                source = wc->src_qp;
        }
    }
    if (st_mode == ST_FULL)
        st_rec_verbs_completion(t, now, ST_EV_VERBS_COMPLETION, qp, wc->wr_id, cq->id, wc->status, opcode, bytes, flags, immediate, source);
    st_count(t, qp, ST_EV_VERBS_COMPLETION, bytes, !call);
}

int hook_poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
    const struct context *c = context_of(cq->context);
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    int rc = c->poll_cq(cq, entries, wc);
    if (st_unlikely(!t))
        return rc;
    if (rc > 0) {
        struct st_object *o = cq_of(cq), *qp = st_unknown;
        uint64_t now = st_clock(), qpn = ~0ull;
        st_polls_end(t, o);
        for (int i = 0; i < rc; i++) {
            if (wc[i].qp_num != qpn) {
                qpn = wc[i].qp_num;
                qp = st_find(ST_KIND_QPN, (uint64_t)device_id(o) << 24 | qpn);
            }
            completed(t, now, o, qp, &wc[i], !!i);
        }
    } else if (rc == 0 && st_mode == ST_FULL && entries > 0) {
        found_nothing(t, cq);
    }
    st_leave(t, ST_LAYER_VERBS);
    return rc;
}

int hook_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    const struct context *c = context_of(cq->context);
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    uint64_t now = st_clock();
    int rc = c->req_notify_cq(cq, solicited_only);
    if (t) {
        if (rc == 0 && st_mode == ST_FULL) {
            struct st_object *o = cq_of(cq);
            st_polls_end(t, o); /* what follows is a wait, not a poll */
            st_rec_verbs_notify(t, now, ST_EV_VERBS_NOTIFY, o, !!solicited_only);
        }
        st_leave(t, ST_LAYER_VERBS);
    }
    return rc;
}

/* ---- extended completion queues ----------------------------------------------------------------------------------------------------- */

struct poll_table {
    int (*start_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
    int (*next_poll)(struct ibv_cq_ex *);
};
#define TABLES 64 /* drivers have variants by locking, stalling and CQE version */
static struct poll_table tables[TABLES];
static unsigned tables_used;

/* The completion that the queue stands on, read with its own accessors; those of fields that were not asked for are NULL. */
static void read_completion(struct ibv_cq_ex *cq, struct st_object *o, struct ibv_wc *wc, struct st_object **qp)
{
    uint64_t only = o->user[USER_ONLY_QP], qpn = only - 1;
    memset(wc, 0, sizeof *wc);
    wc->wr_id = cq->wr_id;
    wc->status = cq->status;
    int known = only && ~only;
    if (cq->read_qp_num) {
        qpn = cq->read_qp_num(cq);
        known = 1;
    }
    *qp = known ? st_find(ST_KIND_QPN, (uint64_t)device_id(o) << 24 | qpn) : st_unknown;
    if (wc->status != IBV_WC_SUCCESS || !cq->read_opcode)
        return;
    wc->opcode = cq->read_opcode(cq);
    if (says_bytes(wc->opcode) && cq->read_byte_len)
        wc->byte_len = cq->read_byte_len(cq);
    if (!is_receive(wc->opcode))
        return;
    if (cq->read_wc_flags)
        wc->wc_flags = cq->read_wc_flags(cq);
    if ((wc->wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV) || wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) && cq->read_imm_data)
        wc->imm_data = cq->read_imm_data(cq);
    if ((*qp)->flags & QP_UNCONNECTED && cq->read_src_qp)
        wc->src_qp = cq->read_src_qp(cq);
}

/* After start_poll or next_poll returned rc. first: of its poll. */
static void polled(struct st_thread *t, struct ibv_cq_ex *cq, int rc, int first)
{
    int saved = errno;
    if (rc == 0) {
        struct st_object *o = cq_of(ibv_cq_ex_to_cq(cq)), *qp;
        struct ibv_wc wc;
        uint64_t now = st_clock();
        st_polls_end(t, o);
        read_completion(cq, o, &wc, &qp);
        completed(t, now, o, qp, &wc, !first);
    } else if (rc == ENOENT && first && st_mode == ST_FULL) {
        found_nothing(t, ibv_cq_ex_to_cq(cq));
    }
    errno = saved;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
    const struct poll_table *real_poll = originals_of(cq);
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    int rc = real_poll->start_poll(cq, attr);
    if (t) {
        polled(t, cq, rc, 1);
        st_leave(t, ST_LAYER_VERBS);
    }
    return rc;
}

static int next_poll(struct ibv_cq_ex *cq)
{
    const struct poll_table *real_poll = originals_of(cq);
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    int rc = real_poll->next_poll(cq);
    if (t) {
        polled(t, cq, rc, 0);
        st_leave(t, ST_LAYER_VERBS);
    }
    return rc;
}

void patch_cq(struct ibv_cq_ex *cq)
{
    const struct poll_table *found = NULL;
    if (!cq->start_poll || !cq->next_poll || cq->start_poll == start_poll)
        return;
    registry_lock();
    for (unsigned i = 0; i < tables_used && !found; i++)
        if (tables[i].start_poll == cq->start_poll && tables[i].next_poll == cq->next_poll)
            found = &tables[i];
    if (!found && tables_used < TABLES) {
        tables[tables_used] = (struct poll_table){cq->start_poll, cq->next_poll};
        found = &tables[tables_used++];
    }
    registry_unlock();
    if (!found || !queue_patched(cq, found))
        return;
    cq->start_poll = start_poll;
    cq->next_poll = next_poll;
}
