/*
 * Executing send requests. The initiator does everything: it finds the target
 * queue pair, takes the receive, moves the data and writes the completions on
 * both sides. The target's process need not run for that.
 */
#include "devx.h"
#include "exec.h"
#include "fault.h"
#include "stats.h"

#include <errno.h>
#include <string.h>

static const uint8_t wc_opcode[] = {
	[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
	[IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
	[IBV_WR_SEND] = IBV_WC_SEND,
	[IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
	[IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
	[IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
};

static int local_spans(const struct hca_qp *q, struct wqe *w, uint32_t access, struct span *out)
{
	int n = 0;

	if ((w->flags & IBV_SEND_INLINE) && !q->devx) {
		out[0] = (struct span){ .addr = (uintptr_t)wqe_inline(w), .len = w->length, .proc = hca.slot };
		return w->length ? 1 : 0;
	}
	for (uint32_t i = 0; i < w->num_sge; i++) {
		const struct ibv_sge *s = &w->sge[i];

		if (!s->length)
			continue;
		if (n == HCA_MAX_SGE)
			return -1;
		if (w->pieces >> i & 1)
			out[n] = (struct span){ .addr = s->addr, .len = s->length, .proc = hca.slot };
		else if (mem_resolve(hca.slot, q->sh->pdn, s->lkey, s->addr, s->length, access, &out[n]))
			return -1;
		n++;
	}
	return n;
}

static uint32_t target_of(const struct hca_qp *q, const struct wqe *w)
{
	return q->sh->type == HCA_QPT_DCI ? w->dc_target : q->sh->dest_qpn;
}

static struct source source_of(const struct hca_qp *q)
{
	return (struct source){ .type = q->sh->type, .qpn = q->qp.qp_num, .lid = device_lid(q->qp.context) };
}

static enum outcome exec_rc(struct hca_qp *q, struct wqe *w, enum ibv_wc_status *status)
{
	const bool writes_here = w->opcode == IBV_WR_RDMA_READ || wqe_is_atomic(w);
	const uint32_t dest = target_of(q, w);
	struct source from = source_of(q);
	struct span loc[HCA_MAX_SGE];
	enum outcome o;
	int nloc;

	nloc = local_spans(q, w, writes_here ? IBV_ACCESS_LOCAL_WRITE : 0, loc);
	if (nloc < 0) {
		*status = IBV_WC_LOC_PROT_ERR;
		return DONE;
	}
	if (wqe_is_atomic(w) && w->length != w->atomic.size) {
		*status = IBV_WC_LOC_LEN_ERR;
		return DONE;
	}
	o = tcp_is_far(dest) ? tcp_rc(&from, dest, w, loc, nloc, status) : target_rc(&from, dest, w, loc, nloc, status);
	if (o == RNR)
		q->peer_rnr_timer = from.rnr_timer;
	return o;
}

/* The 40 bytes before a datagram that came with a global route. */
static void make_grh(const struct hca_qp *q, const struct wqe *w, uint8_t *grh)
{
	const struct ibv_global_route *g = &w->ah.grh;
	const uint16_t payload = w->length;
	union ibv_gid source;

	memset(grh, 0, HCA_GRH);
	grh[0] = 0x60 | g->traffic_class >> 4;
	grh[1] = (uint8_t)(g->traffic_class << 4 | (g->flow_label >> 16 & 0xf));
	grh[2] = g->flow_label >> 8;
	grh[3] = g->flow_label;
	grh[4] = payload >> 8;
	grh[5] = payload;
	grh[6] = 0x1b;
	grh[7] = g->hop_limit;
	device_gid(q->qp.context, &source, g->sgid_index);
	memcpy(grh + 8, source.raw, 16);
	memcpy(grh + 24, g->dgid.raw, 16);
}

/* Datagrams: whatever keeps one from arriving, the sender's request is done. */
static enum outcome exec_ud(struct hca_qp *q, struct wqe *w, enum ibv_wc_status *status)
{
	const struct source from = source_of(q);
	struct span src[HCA_MAX_SGE + 1];
	uint8_t grh[HCA_GRH];
	const int nsrc = local_spans(q, w, 0, src + 1);

	*status = nsrc < 0 ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS;
	if (nsrc < 0)
		return DONE;
	if (w->remote_qkey & 0x80000000u)
		w->remote_qkey = q->sh->qkey;
	make_grh(q, w, grh);
	src[0] = (struct span){ .addr = (uintptr_t)grh, .len = HCA_GRH, .proc = hca.slot };
	if (tcp_is_far(w->remote_qpn))
		tcp_ud(&from, w, src, nsrc + 1);
	else
		target_ud(&from, w, src, nsrc + 1);
	return DONE;
}

/* Error state on the receive side, and what the rest of the queue gets. */
static void receive_side_error(struct hca_qp *q)
{
	rx_lock(q->sh);
	rx_error(q->sh);
	shm_unlock(&q->sh->rx);
	q->qp.state = IBV_QPS_ERR;
}

static void complete(struct hca_qp *q, const struct wqe *w, enum ibv_wc_status status)
{
	if (status == IBV_WC_WR_FLUSH_ERR)
		stats_flushed();
	q->waiting_since_ns = 0;
	const uint32_t slots = !q->devx ? 1 : w->blocks < q->posted - q->executed ? w->blocks : q->posted - q->executed;

	if (q->devx)
		q->devx->decoded = false;
	if (q->devx && q->devx->cq) {
		devx_complete(q, w, status);
	} else if (status || (w->flags & IBV_SEND_SIGNALED)) {
		const struct shm_cqe e = {
			.wr_id = w->wr_id,
			.qpn = q->qp.qp_num,
			.sq_end = q->executed + slots,
			.status = status,
			.opcode = w->opcode < sizeof wc_opcode ? wc_opcode[w->opcode] : 0,
			.byte_len = w->length,
		};

		cq_push(q->sh->scq, &e);
	}
	q->executed += slots;
}

/* Whether to give up a request that waits, and with which status. Counted
 * generously: the other side may be waiting for a core. */
static bool overdue(struct hca_qp *q, uint32_t dest, enum outcome why, enum ibv_wc_status *status)
{
	/* units of 10 us; the encoding of the InfiniBand specification */
	static const uint32_t rnr_timer[32] = { 65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152 };
	const uint64_t least_ns = 1000000000;
	const uint64_t waited = now_ns() - q->waiting_since_ns;
	const struct shm_qp *t = shm_find_qp(hca.shm, dest);
	uint64_t limit;

	if (t && (t->life == SHM_DEAD || !shm_alive(hca.shm, t->proc))) {
		*status = IBV_WC_RETRY_EXC_ERR;
		return true;
	}
	if (why == RNR) {
		*status = IBV_WC_RNR_RETRY_EXC_ERR;
		if (q->attr.rnr_retry == 7)
			return false;
		limit = (q->attr.rnr_retry + 1) * rnr_timer[q->peer_rnr_timer & 31] * 10000ull;
	} else {
		*status = IBV_WC_RETRY_EXC_ERR;
		if (!q->attr.timeout)
			return false;
		limit = (q->attr.retry_cnt + 1) * (4096ull << q->attr.timeout);
	}
	return waited > (limit > least_ns ? limit : least_ns);
}

static enum outcome execute(struct hca_qp *q, struct wqe *w, enum ibv_wc_status *status)
{
	fault_delay();
	if (fault(FAULT_ERROR)) {
		*status = IBV_WC_REM_OP_ERR;
		return DONE;
	}
	if (w->opcode < HCA_WR_NOP)
		return q->qp.qp_type == IBV_QPT_UD ? exec_ud(q, w, status) : exec_rc(q, w, status);
	if (w->opcode == HCA_WR_WAIT && !devx_wait_over(w))
		return HELD;
	*status = w->opcode == HCA_WR_UNKNOWN ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_SUCCESS;
	return DONE;
}

void exec_queue(struct hca_qp *q, bool patient)
{
	while (q->executed != q->posted) {
		struct wqe *w = q->devx ? devx_next(q) : send_slot_at(q, q->executed);
		const uint32_t state = atomic_load(&q->sh->state);
		enum ibv_wc_status status = IBV_WC_WR_FLUSH_ERR;
		enum outcome o;

		if (state == IBV_QPS_ERR) {
			complete(q, w, IBV_WC_WR_FLUSH_ERR);
			continue;
		}
		if (state != IBV_QPS_RTS)
			break;
		o = execute(q, w, &status);
		if (o == HELD)
			break;
		if (o != DONE) {
			if (!q->waiting_since_ns)
				q->waiting_since_ns = now_ns();
			if (!patient || !overdue(q, target_of(q, w), o, &status))
				break;
		}
		complete(q, w, status);
		if (status != IBV_WC_SUCCESS)
			receive_side_error(q);
	}
	if (q->executed != q->posted && !q->listed) {
		pthread_mutex_lock(&hca.qps_mu);
		q->listed = true;
		q->next_pending = hca.pending;
		hca.pending = q;
		atomic_fetch_add(&hca.pending_count, 1);
		pthread_mutex_unlock(&hca.qps_mu);
		shm_wake(hca.shm, hca.slot); /* the engine watches over it now */
	}
}

void exec_pending(bool patient)
{
	/* Order of locks elsewhere: q->mu, then qps_mu; so only tries here. */
	if (patient)
		pthread_mutex_lock(&hca.qps_mu);
	else if (pthread_mutex_trylock(&hca.qps_mu))
		return;
	for (struct hca_qp **p = &hca.pending; *p && hca.ready;) {
		struct hca_qp *q = *p;

		if (!pthread_mutex_trylock(&q->mu)) {
			exec_queue(q, patient);
			if (q->executed == q->posted) {
				*p = q->next_pending;
				q->listed = false;
				atomic_fetch_sub(&hca.pending_count, 1);
				pthread_mutex_unlock(&q->mu);
				continue;
			}
			pthread_mutex_unlock(&q->mu);
		}
		p = &q->next_pending;
	}
	pthread_mutex_unlock(&hca.qps_mu);
}

void exec_enter_error(struct hca_qp *q)
{
	receive_side_error(q);
	exec_queue(q, false);
}
