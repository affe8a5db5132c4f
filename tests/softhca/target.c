/* What a request does where it is addressed to: finds the queue pair, takes a receive, moves the data, writes the completion there. */
#include "devx.h"
#include "exec.h"
#include "fault.h"

#include <errno.h>
#include <string.h>

void rx_complete(struct shm_qp *t, uint64_t wr_id, enum ibv_wc_status status)
{
	const struct shm_cqe e = {
		.wr_id = wr_id,
		.qpn = t->qpn,
		.is_recv = 1,
		.status = status,
		.opcode = IBV_WC_RECV,
	};

	cq_push(t->rcq, &e);
	t->receiving = 0;
}

void rx_lock(struct shm_qp *t)
{
	if (shm_lock_stolen(hca.shm, &t->rx) && t->receiving && atomic_load(&t->life) == SHM_LIVE) {
		rx_complete(t, t->receiving_wr_id, IBV_WC_WR_FLUSH_ERR);
		rx_error(t);
	}
}

void rx_error(struct shm_qp *t)
{
	union taken_recv taken;

	if (atomic_exchange(&t->state, IBV_QPS_ERR) != IBV_QPS_ERR) {
		if (t->has_srq)
			atomic_fetch_or(&t->events, SHM_QP_LAST_WQE);
		shm_wake(hca.shm, t->proc);
	}
	if (!t->has_srq && t->rq)
		while (rq_take(&hca.shm->rq[t->rq], &taken.r, false))
			rx_complete(t, taken.r.wr_id, IBV_WC_WR_FLUSH_ERR);
}

static bool takes_receive(const struct wqe *w)
{
	return w->opcode == IBV_WR_SEND || w->opcode == IBV_WR_SEND_WITH_IMM || w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool has_imm(const struct wqe *w)
{
	return w->opcode == IBV_WR_SEND_WITH_IMM || w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static struct shm_cqe arrival(const struct source *from, const struct shm_qp *t, const struct wqe *w, uint64_t wr_id)
{
	return (struct shm_cqe){
		.wr_id = wr_id,
		.qpn = t->qpn,
		.is_recv = 1,
		.opcode = w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
		.byte_len = w->length,
		.imm = w->imm,
		.flags = has_imm(w) ? IBV_WC_WITH_IMM : 0,
		.src_qp = from->qpn,
		.slid = from->lid,
		.solicited = (w->flags & IBV_SEND_SOLICITED) != 0,
	};
}

/* Whether `t` takes what comes from there; rx lock held. */
static bool connected(const struct source *from, const struct shm_qp *t, uint32_t qpn, uint64_t dc_key)
{
	const uint32_t state = atomic_load(&t->state);

	if (from->type == HCA_QPT_DCI)
		return atomic_load(&t->life) == SHM_LIVE && t->qpn == qpn && t->type == HCA_QPT_DCT && t->dc_key == dc_key && state == IBV_QPS_RTR;
	return atomic_load(&t->life) == SHM_LIVE && t->qpn == qpn && t->type == from->type &&
	       (state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD) &&
	       (t->type == IBV_QPT_UD || t->dest_qpn == from->qpn);
}

/* Receive elements as spans, as far as `need` bytes go. Returns their number,
 * -1 when a key does not allow it, -2 when they are too short. */
static int scatter(const struct shm_qp *t, const struct shm_recv *r, uint64_t need, struct span *out)
{
	const uint32_t pdn = hca.shm->rq[t->rq].pdn;
	int n = 0;

	for (uint32_t i = 0; i < r->num_sge && need; i++) {
		uint32_t len = r->sge[i].length < need ? r->sge[i].length : need;

		if (!len)
			continue;
		if (mem_resolve(t->proc, pdn, r->sge[i].lkey, r->sge[i].addr, len, IBV_ACCESS_LOCAL_WRITE, &out[n]))
			return -1;
		need -= len;
		n++;
	}
	return need ? -2 : n;
}

/* What a failed copy means to the initiator. */
static enum ibv_wc_status copy_status(int error)
{
	return !error ? IBV_WC_SUCCESS : error == ESRCH ? IBV_WC_RETRY_EXC_ERR : IBV_WC_REM_OP_ERR;
}

static enum ibv_wc_status deliver(const struct source *from, struct shm_qp *t, const struct wqe *w, const struct span *src, int nsrc, const struct shm_recv *r)
{
	struct span dst[HCA_MAX_SGE];
	int n = scatter(t, r, w->length, dst), error;
	struct shm_cqe e;

	if (n < 0) {
		rx_complete(t, r->wr_id, n == -1 ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_LEN_ERR);
		rx_error(t);
		return n == -1 ? IBV_WC_REM_OP_ERR : IBV_WC_REM_INV_REQ_ERR;
	}
	error = mem_copy(dst, n, src, nsrc);
	if (error) {
		rx_complete(t, r->wr_id, IBV_WC_LOC_PROT_ERR);
		rx_error(t);
		return copy_status(error);
	}
	e = arrival(from, t, w, r->wr_id);
	cq_push(t->rcq, &e);
	t->receiving = 0;
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_status one_sided(struct shm_qp *t, const struct wqe *w, const struct span *loc, int nloc)
{
	static const uint32_t right[] = {
		[IBV_WR_RDMA_WRITE] = IBV_ACCESS_REMOTE_WRITE,
		[IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_ACCESS_REMOTE_WRITE,
		[IBV_WR_RDMA_READ] = IBV_ACCESS_REMOTE_READ,
		[IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_ACCESS_REMOTE_ATOMIC,
		[IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_ACCESS_REMOTE_ATOMIC,
		[HCA_WR_MASKED_CAS] = IBV_ACCESS_REMOTE_ATOMIC,
		[HCA_WR_MASKED_FA] = IBV_ACCESS_REMOTE_ATOMIC,
	};
	const bool atomic = wqe_is_atomic(w);
	const uint32_t len = atomic ? w->atomic.size : w->length;
	struct span rem, result;
	uint64_t old = 0;
	int error;

	if (atomic && (w->remote_addr & (len - 1)))
		return IBV_WC_REM_INV_REQ_ERR;
	if (!(t->access & right[w->opcode]))
		return IBV_WC_REM_ACCESS_ERR;
	if (!len)
		return IBV_WC_SUCCESS;
	if (mem_resolve(t->proc, t->pdn, w->rkey, w->remote_addr, len, right[w->opcode], &rem))
		return IBV_WC_REM_ACCESS_ERR;
	if (!atomic)
		return copy_status(w->opcode == IBV_WR_RDMA_READ ? mem_copy(loc, nloc, &rem, 1) : mem_copy(&rem, 1, loc, nloc));
	error = mem_update(&rem, &w->atomic, &old);
	if (error || !nloc)
		return copy_status(error);
	if (w->atomic.big_endian_result)
		old = htobe32((uint32_t)old);
	result = (struct span){ .addr = (uintptr_t)&old, .len = len, .proc = hca.slot };
	return copy_status(mem_copy(loc, nloc, &result, 1));
}

enum outcome target_rc(struct source *from, uint32_t dest, const struct wqe *w, const struct span *loc, int nloc, enum ibv_wc_status *status)
{
	union taken_recv taken;
	struct shm_qp *t = shm_find_qp(hca.shm, dest);

	if (!t)
		return UNREACHABLE;
	rx_lock(t);
	if (!connected(from, t, dest, w->dc_key)) {
		shm_unlock(&t->rx);
		return UNREACHABLE;
	}
	*status = IBV_WC_SUCCESS;
	if (takes_receive(w)) {
		if (!t->rq || fault(FAULT_RNR) || !rq_take(&hca.shm->rq[t->rq], &taken.r, true)) {
			from->rnr_timer = t->min_rnr_timer;
			shm_unlock(&t->rx);
			return RNR;
		}
		t->receiving_wr_id = taken.r.wr_id;
		t->receiving = 1;
	}
	if (w->opcode == IBV_WR_SEND || w->opcode == IBV_WR_SEND_WITH_IMM) {
		*status = deliver(from, t, w, loc, nloc, &taken.r);
	} else {
		*status = one_sided(t, w, loc, nloc);
		if (w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM && *status == IBV_WC_SUCCESS) {
			struct shm_cqe e = arrival(from, t, w, taken.r.wr_id);

			cq_push(t->rcq, &e);
			t->receiving = 0;
		}
		if (*status != IBV_WC_SUCCESS && *status != IBV_WC_RETRY_EXC_ERR) {
			if (t->receiving)
				rx_complete(t, t->receiving_wr_id, IBV_WC_WR_FLUSH_ERR);
			rx_error(t);
		}
	}
	shm_unlock(&t->rx);
	return DONE;
}

void target_ud(const struct source *from, const struct wqe *w, const struct span *src, int nsrc)
{
	union taken_recv taken;
	struct span dst[HCA_MAX_SGE];
	struct shm_qp *t = shm_find_qp(hca.shm, w->remote_qpn);
	struct shm_cqe e;
	int ndst;

	if (!t)
		return;
	rx_lock(t);
	if (connected(from, t, w->remote_qpn, 0) && t->qkey == w->remote_qkey && rq_take(&hca.shm->rq[t->rq], &taken.r, false)) {
		t->receiving_wr_id = taken.r.wr_id;
		t->receiving = 1;
		ndst = scatter(t, &taken.r, HCA_GRH + w->length, dst);
		if (ndst < 0) {
			rx_complete(t, taken.r.wr_id, ndst == -1 ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_LEN_ERR);
			rx_error(t);
		} else if (!mem_copy(dst, ndst, src, nsrc)) {
			e = arrival(from, t, w, taken.r.wr_id);
			e.byte_len += HCA_GRH;
			e.sl = w->ah.sl;
			if (w->ah.is_global)
				e.flags |= IBV_WC_GRH;
			cq_push(t->rcq, &e);
			t->receiving = 0;
		} else {
			rx_complete(t, taken.r.wr_id, IBV_WC_LOC_PROT_ERR);
			rx_error(t);
		}
	}
	shm_unlock(&t->rx);
}
