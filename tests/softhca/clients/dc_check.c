/*
 * dc_check: dynamically connected queues of three processes with a GPU's memory each, filled and rung by kernels of the stand-in CUDA driver. Each process says what it has sent to whom:
 * "sent PID PID WRITES BYTES ATOMICS STORES".
 */
#include "gpu.h"

#include <endian.h>
#include <errno.h>
#include <unistd.h>

enum { RANKS = 3, SIZE = 1 << 20, AREA = 4096, ROUNDS = 300, KEY = 0x5eed };

struct traffic {
	uint64_t writes, bytes, atomics, stores;
};

struct party {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	CUdeviceptr buf;
	CUstream stream;
	uint32_t pdn;
	struct queue q;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *dct;
	struct ibv_ah *handle;
	struct remote to[RANKS];
	struct traffic sent[RANKS];
	uint64_t bad;
};

static void open_party(struct party *p)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CUcontext c;

	cuda(cuInit(0), "cuInit");
	cuda(cuDevicePrimaryCtxRetain(&c, 0), "context");
	cuda(cuCtxSetCurrent(c), "context");
	cuda(cuStreamCreate(&p->stream, 1), "stream");
	CHECK(list && list[0], "no device");
	p->ctx = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	p->pd = ibv_alloc_pd(p->ctx);
	p->pdn = domain_number(p->pd);
	cuda(cuMemAlloc_v2(&p->buf, SIZE), "cuMemAlloc");
	p->mr = ibv_reg_dmabuf_mr(p->pd, 0, SIZE, p->buf, 0, ACCESS);
	CHECK(p->mr, "ibv_reg_dmabuf_mr: %s", strerror(errno));
}

/* What others send to: made by a verbs call, while what sends is made by commands. */
static void make_target(struct party *p)
{
	p->cq = ibv_create_cq(p->ctx, 16, NULL, NULL, 0);
	p->srq = ibv_create_srq(p->pd, &(struct ibv_srq_init_attr){ .attr = { .max_wr = 16, .max_sge = 1 } });
	struct ibv_qp_init_attr_ex a = { .qp_type = IBV_QPT_DRIVER, .send_cq = p->cq, .recv_cq = p->cq, .srq = p->srq, .pd = p->pd, .comp_mask = IBV_QP_INIT_ATTR_PD };
	struct mlx5dv_qp_init_attr m = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC, .dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = KEY } };

	p->dct = mlx5dv_create_qp(p->ctx, &a, &m);
	CHECK(p->cq && p->srq && p->dct, "%s", strerror(errno));
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC };

	CHECK(!ibv_modify_qp(p->dct, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "to INIT");
	to = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .min_rnr_timer = 1, .ah_attr = { .port_num = 1 } };
	CHECK(!ibv_modify_qp(p->dct, &to, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV), "to RTR");
	CHECK(p->dct->qp_num, "no number");
}

static void meet_the_others(struct party *p)
{
	static struct mlx5dv_ah ah;
	struct ibv_port_attr port;

	CHECK(!ibv_query_port(p->ctx, 1, &port), "port");
	p->handle = ibv_create_ah(p->pd, &(struct ibv_ah_attr){ .dlid = port.lid, .port_num = 1 });
	struct mlx5dv_obj o = { .ah = { p->handle, &ah } };

	CHECK(p->handle && !mlx5dv_init_obj(&o, MLX5DV_OBJ_AH), "address vector");
	board->note[rank].qpn[0] = p->dct->qp_num;
	board->note[rank].rkey = p->mr->rkey;
	board->note[rank].addr = p->buf;
	meet();
	/* the whole address vector for some; the short one has the local identifier alone */
	for (int i = 0; i < RANKS; i++)
		p->to[i] = (struct remote){ .addr = board->note[i].addr + (uint64_t)(1 + rank) * AREA, .key = board->note[i].rkey, .dct = board->note[i].qpn[0], .dc_key = KEY, .dlid = port.lid, .av = ah.av };
}

/* Requests to one and the other by turns on one queue, more to some than to others. */
static void mixed(void *argument)
{
	static const uint64_t store[4] = { 0x0123456789abcdef, 0, UINT64_MAX, 0 };
	struct party *p = argument;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint32_t last = 0;

		for (int to = 0; to < RANKS; to++) {
			if (to == rank || i % (uint32_t)(1 + to + rank))
				continue;
			struct traffic *t = &p->sent[to];
			const uint32_t n = 16 + 8 * (uint32_t)to;

			put_write(&p->q, &p->to[to], p->buf, n, p->mr->lkey, false);
			put_inline(&p->q, &p->to[to], &i, sizeof i, false);
			last = put_fetch_add(&p->q, &p->to[to], 1, p->buf + 64, p->mr->lkey, true);
			t->writes += 2;
			t->bytes += n + sizeof i;
			t->atomics++;
			if (i % 3 == 0) {
				last = put_masked_swap(&p->q, &p->to[to], 8, store, p->buf + 64, p->mr->lkey, true);
				t->stores++;
			}
		}
		if (!p->q.next)
			continue;
		ring(&p->q);
		p->bad += last && wait_for(&p->q, last);
	}
}

static void three(void)
{
	static struct party p;
	struct standin_kernel k = { mixed };
	void *arguments[] = { &(void *){ &p } };
	CUdeviceptr bell;

	open_party(&p);
	make_target(&p);
	queue_open(&p.q, p.ctx, p.pdn, 7, QUEUE_DCI, true, NULL, &gpu_memory);
	queue_connect(&p.q, 0);
	cuda(cuMemHostRegister_v2(p.q.uar->reg_addr, 8, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY), "registering a doorbell");
	cuda(cuMemHostGetDevicePointer_v2(&bell, p.q.uar->reg_addr, 0), "a doorbell's address");
	p.q.bell = (void *)(uintptr_t)bell;
	meet_the_others(&p);
	if (rank == RANKS - 1)
		for (int i = 0; i < RANKS; i++)
			p.to[i].av = NULL;
	cuda(cuLaunchKernel(&k, 1, 1, 1, 1, 1, 1, 0, p.stream, arguments, NULL), "cuLaunchKernel");
	cuda(cuStreamSynchronize(p.stream), "kernel");
	CHECK(!p.bad, "%lu wrong", (unsigned long)p.bad);
	meet();
	for (int i = 0; i < RANKS; i++)
		if (i != rank)
			CHECK(*(uint64_t *)standin_gpu(p.buf + (uint64_t)(1 + i) * AREA), "nothing came from rank %d", i);
	for (int i = 0; i < RANKS; i++)
		if (i != rank)
			printf("sent %d %d %lu %lu %lu %lu\n", (int)getpid(), board->pid[i], (unsigned long)p.sent[i].writes, (unsigned long)p.sent[i].bytes, (unsigned long)p.sent[i].atomics,
			       (unsigned long)p.sent[i].stores);
	fflush(stdout);
	meet();
	queue_close(&p.q);
	CHECK(!ibv_destroy_ah(p.handle) && !ibv_destroy_qp(p.dct) && !ibv_destroy_srq(p.srq) && !ibv_destroy_cq(p.cq), "destroy");
}

static const struct test tests[] = {
	{ .name = "three", .ranks = RANKS, .run = three },
	{ .name = NULL },
};

const struct test *const test_groups[] = { tests, NULL };
