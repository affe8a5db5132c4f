#include "work.h"

#include "../../../clients/rc.h"

struct work {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	uint8_t buf[128];
};

struct work *work_open(void)
{
	struct work *w = calloc(1, sizeof *w);
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(w && list);
	CHECK((w->ctx = ibv_open_device(find_device(list, NULL))));
	ibv_free_device_list(list);
	CHECK((w->pd = ibv_alloc_pd(w->ctx)));
	CHECK((w->mr = ibv_reg_mr(w->pd, w->buf, sizeof w->buf, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	CHECK((w->cq = ibv_create_cq(w->ctx, 16, NULL, NULL, 0)));
	struct ibv_qp_init_attr init = { .send_cq = w->cq, .recv_cq = w->cq, .cap = { 8, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	CHECK((w->qp = ibv_create_qp(w->pd, &init)));
	struct ibv_ah_attr self;
	address_of(w->ctx, 0, &self);
	connect_rc(w->qp, w->qp->qp_num, &self);
	return w;
}

int work_try(struct work *w)
{
	struct ibv_sge sg = { (uintptr_t)w->buf, 64, w->mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sg, .num_sge = 1 }, *bad;
	struct ibv_wc wc;
	int got;
	wr.wr.rdma.remote_addr = (uintptr_t)w->buf + 64;
	wr.wr.rdma.rkey = w->mr->rkey;
	if (ibv_post_send(w->qp, &wr, &bad))
		return 0;
	while (!(got = ibv_poll_cq(w->cq, 1, &wc)))
		;
	return got == 1 && wc.status == IBV_WC_SUCCESS;
}

void work_post(struct work *w, int n)
{
	for (; n > 0; n--)
		CHECK(work_try(w));
}

void work_close(struct work *w)
{
	CHECK(!ibv_destroy_qp(w->qp) && !ibv_destroy_cq(w->cq) && !ibv_dereg_mr(w->mr) && !ibv_dealloc_pd(w->pd) && !ibv_close_device(w->ctx));
	free(w);
}
