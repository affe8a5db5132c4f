/* Posting send requests: from the caller's list into the send queue. */
#include "hca.h"
#include "stats.h"

#include <errno.h>
#include <string.h>

struct wqe *send_slot_at(struct hca_qp *q, uint32_t index)
{
	return (struct wqe *)(q->sq + (size_t)(index & (q->depth - 1)) * q->stride);
}

struct wqe *send_slot(struct hca_qp *q, uint32_t ahead, int *why)
{
	uint32_t state = atomic_load_explicit(&q->sh->state, memory_order_relaxed);
	struct wqe *w;

	if (q->epoch != hca.epoch || q->devx || (state != IBV_QPS_RTS && state != IBV_QPS_SQD && state != IBV_QPS_ERR)) {
		*why = EINVAL;
		return NULL;
	}
	if (q->posted + ahead - atomic_load_explicit(&q->retired, memory_order_acquire) >= q->depth) {
		*why = ENOMEM;
		return NULL;
	}
	w = send_slot_at(q, q->posted + ahead);
	memset(w, 0, offsetof(struct wqe, sge));
	return w;
}

void send_submit(struct hca_qp *q, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct wqe *w = send_slot_at(q, q->posted + i);

		if (q->sig_all)
			w->flags |= IBV_SEND_SIGNALED;
		stats_posted(q, w);
	}
	q->posted += n;
	exec_queue(q, false);
}

void set_atomic(struct wqe *w, uint64_t compare_add, uint64_t swap)
{
	if (w->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		w->atomic = (struct mem_atomic){ .add = true, .size = 8, .operand = compare_add };
	else
		w->atomic = (struct mem_atomic){ .size = 8, .operand = swap, .operand_mask = UINT64_MAX, .compare = compare_add, .compare_mask = UINT64_MAX };
}

static int fill(struct hca_qp *q, struct wqe *w, const struct ibv_send_wr *wr)
{
	const bool ud = q->qp.qp_type == IBV_QPT_UD;
	uint64_t length = 0;

	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->init.cap.max_send_sge)
		return EINVAL;
	w->wr_id = wr->wr_id;
	w->opcode = wr->opcode;
	w->flags = wr->send_flags;
	switch (wr->opcode) {
	case IBV_WR_SEND_WITH_IMM:
		w->imm = wr->imm_data;
		break;
	case IBV_WR_SEND:
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		w->imm = wr->imm_data;
		/* fall through */
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_READ:
		w->remote_addr = wr->wr.rdma.remote_addr;
		w->rkey = wr->wr.rdma.rkey;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		w->remote_addr = wr->wr.atomic.remote_addr;
		w->rkey = wr->wr.atomic.rkey;
		set_atomic(w, wr->wr.atomic.compare_add, wr->wr.atomic.swap);
		break;
	default:
		return EOPNOTSUPP;
	}
	if (ud) {
		if (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM)
			return EINVAL;
		w->remote_qpn = wr->wr.ud.remote_qpn;
		w->remote_qkey = wr->wr.ud.remote_qkey;
		w->ah = ((struct hca_ah *)wr->wr.ud.ah)->attr;
	}
	for (int i = 0; i < wr->num_sge; i++) {
		const struct ibv_sge *s = &wr->sg_list[i];

		if (wr->send_flags & IBV_SEND_INLINE) {
			if (length + s->length > q->init.cap.max_inline_data)
				return ENOMEM;
			memcpy(wqe_inline(w) + length, (const void *)(uintptr_t)s->addr, s->length);
		} else {
			w->sge[i] = *s;
		}
		length += s->length;
	}
	if (length > (1u << 31) || (ud && length > HCA_MTU))
		return EINVAL;
	if ((wr->send_flags & IBV_SEND_INLINE) &&
	    (wr->opcode == IBV_WR_RDMA_READ || wr->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP))
		return EINVAL;
	w->num_sge = wr->send_flags & IBV_SEND_INLINE ? 0 : wr->num_sge;
	w->length = length;
	return 0;
}

int op_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct hca_qp *q = to_qp(qp);
	uint32_t n = 0;
	int rc = 0;

	if (q->epoch != hca.epoch) {
		*bad = wr;
		return EINVAL;
	}
	pthread_mutex_lock(&q->mu);
	for (; wr; wr = wr->next, n++) {
		struct wqe *w = send_slot(q, n, &rc);

		if (w)
			rc = fill(q, w, wr);
		if (rc) {
			*bad = wr;
			break;
		}
	}
	if (n)
		send_submit(q, n);
	pthread_mutex_unlock(&q->mu);
	return rc;
}
