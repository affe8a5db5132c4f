/* The extended way to post: wr_start, one builder per operation, wr_complete. */
#include "hca.h"

#include <errno.h>
#include <string.h>

static struct hca_qp *of(struct ibv_qp_ex *x)
{
	return (struct hca_qp *)x;
}

/* The next request of the batch; NULL once the batch has failed. */
static struct wqe *begin(struct ibv_qp_ex *x, enum ibv_wr_opcode op)
{
	struct hca_qp *q = of(x);
	struct wqe *w;

	if (q->build_error)
		return NULL;
	w = send_slot(q, q->building, &q->build_error);
	if (!w)
		return NULL;
	q->building++;
	w->opcode = op;
	w->wr_id = x->wr_id;
	w->flags = x->wr_flags & ~(unsigned)IBV_SEND_INLINE;
	return w;
}

static struct wqe *last(struct ibv_qp_ex *x)
{
	struct hca_qp *q = of(x);

	return q->build_error || !q->building ? NULL : send_slot_at(q, q->posted + q->building - 1);
}

static void wr_start(struct ibv_qp_ex *x)
{
	struct hca_qp *q = of(x);

	pthread_mutex_lock(&q->mu);
	q->building = 0;
	q->build_error = 0;
}

static int wr_complete(struct ibv_qp_ex *x)
{
	struct hca_qp *q = of(x);
	int rc = q->build_error;

	if (!rc && q->building)
		send_submit(q, q->building);
	q->building = 0;
	pthread_mutex_unlock(&q->mu);
	return rc;
}

static void wr_abort(struct ibv_qp_ex *x)
{
	of(x)->building = 0;
	pthread_mutex_unlock(&of(x)->mu);
}

static void wr_send(struct ibv_qp_ex *x)
{
	begin(x, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *x, __be32 imm)
{
	struct wqe *w = begin(x, IBV_WR_SEND_WITH_IMM);

	if (w)
		w->imm = imm;
}

static struct wqe *remote(struct ibv_qp_ex *x, enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr)
{
	struct wqe *w = begin(x, op);

	if (w) {
		w->rkey = rkey;
		w->remote_addr = addr;
	}
	return w;
}

static void wr_rdma_write(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr)
{
	remote(x, IBV_WR_RDMA_WRITE, rkey, addr);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct wqe *w = remote(x, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr);

	if (w)
		w->imm = imm;
}

static void wr_rdma_read(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr)
{
	remote(x, IBV_WR_RDMA_READ, rkey, addr);
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
	struct wqe *w = remote(x, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr);

	if (w) {
		set_atomic(w, compare, swap);
	}
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, uint64_t value)
{
	struct wqe *w = remote(x, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr);

	if (w)
		set_atomic(w, value, 0);
}

static void wr_set_ud_addr(struct ibv_qp_ex *x, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct wqe *w = last(x);

	if (!w)
		return;
	w->remote_qpn = qpn;
	w->remote_qkey = qkey;
	w->ah = ((struct hca_ah *)ah)->attr;
}

static void set_length(struct hca_qp *q, struct wqe *w, uint64_t length)
{
	if (length > (1u << 31) || (q->qp.qp_type == IBV_QPT_UD && length > HCA_MTU))
		q->build_error = EINVAL;
	w->length = length;
}

static void wr_set_sge_list(struct ibv_qp_ex *x, size_t n, const struct ibv_sge *sge)
{
	struct wqe *w = last(x);
	uint64_t length = 0;

	if (!w)
		return;
	if (n > of(x)->init.cap.max_send_sge) {
		of(x)->build_error = EINVAL;
		return;
	}
	for (size_t i = 0; i < n; i++) {
		w->sge[i] = sge[i];
		length += sge[i].length;
	}
	w->num_sge = n;
	set_length(of(x), w, length);
}

static void wr_set_sge(struct ibv_qp_ex *x, uint32_t lkey, uint64_t addr, uint32_t length)
{
	const struct ibv_sge s = { .addr = addr, .length = length, .lkey = lkey };

	wr_set_sge_list(x, 1, &s);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *x, size_t n, const struct ibv_data_buf *bufs)
{
	struct wqe *w = last(x);
	size_t length = 0;

	if (!w)
		return;
	for (size_t i = 0; i < n; i++) {
		if (bufs[i].length > of(x)->init.cap.max_inline_data - length) {
			of(x)->build_error = ENOMEM;
			return;
		}
		memcpy(wqe_inline(w) + length, bufs[i].addr, bufs[i].length);
		length += bufs[i].length;
	}
	w->num_sge = 0;
	w->flags |= IBV_SEND_INLINE;
	set_length(of(x), w, length);
}

static void wr_set_inline_data(struct ibv_qp_ex *x, void *addr, size_t length)
{
	const struct ibv_data_buf b = { .addr = addr, .length = length };

	wr_set_inline_data_list(x, 1, &b);
}

int wr_methods(struct hca_qp *q, uint64_t ops)
{
	const uint64_t ud = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	const uint64_t rc = ud | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	struct ibv_qp_ex *x = &q->ex;

	if (ops & ~(q->qp.qp_type == IBV_QPT_UD ? ud : rc))
		return EOPNOTSUPP;
	x->wr_start = wr_start;
	x->wr_complete = wr_complete;
	x->wr_abort = wr_abort;
	x->wr_set_sge = wr_set_sge;
	x->wr_set_sge_list = wr_set_sge_list;
	x->wr_set_inline_data = wr_set_inline_data;
	x->wr_set_inline_data_list = wr_set_inline_data_list;
	if (q->qp.qp_type == IBV_QPT_UD)
		x->wr_set_ud_addr = wr_set_ud_addr;
	if (ops & IBV_QP_EX_WITH_SEND)
		x->wr_send = wr_send;
	if (ops & IBV_QP_EX_WITH_SEND_WITH_IMM)
		x->wr_send_imm = wr_send_imm;
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE)
		x->wr_rdma_write = wr_rdma_write;
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
		x->wr_rdma_write_imm = wr_rdma_write_imm;
	if (ops & IBV_QP_EX_WITH_RDMA_READ)
		x->wr_rdma_read = wr_rdma_read;
	if (ops & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
		x->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	if (ops & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
		x->wr_atomic_fetch_add = wr_atomic_fetch_add;
	q->has_ex = true;
	return 0;
}
