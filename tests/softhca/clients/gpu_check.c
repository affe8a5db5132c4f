/* gpu_check: queues and data in the memory of GPUs, filled and rung by kernels of the stand-in CUDA driver. */
#include "gpu.h"

#include <errno.h>
#include <unistd.h>

enum { SIZE = END_SIZE, HALF = END_HALF };

struct work {
	struct queue *q;
	struct end *e;
	struct remote to;
	uint64_t *here, *there; /* usable by kernels; there: where it is ours */
	uint64_t bad;
};

static void puts_one_by_one(void *argument)
{
	struct work *w = argument;

	for (uint64_t i = 1; i <= 1000; i++) {
		*w->here = i;
		const uint32_t at = put_write(w->q, &w->to, w->e->buf, 64, w->e->mr->lkey, true);

		ring(w->q);
		w->bad += wait_for(w->q, at) || *w->there != i;
	}
}

static void one_by_one(void)
{
	struct queue q, peer;
	struct end e;

	open_end(&e, 0);
	queue_open(&q, e.ctx, e.pdn, 6, QUEUE_RC, true, NULL, &gpu_memory);
	queue_open(&peer, e.ctx, e.pdn, 4, QUEUE_RC, true, NULL, &gpu_memory);
	queue_connect(&q, peer.qpn);
	queue_connect(&peer, q.qpn);
	bell_for_gpu(&q);
	struct work w = { &q, &e, { .addr = e.buf + HALF, .key = e.mr->rkey }, standin_gpu(e.buf), standin_gpu(e.buf + HALF), 0 };

	launch(&e, puts_one_by_one, &w);
	CHECK(!w.bad, "%lu wrong", (unsigned long)w.bad);
	queue_close(&q);
	queue_close(&peer);
}

static void every_operation(void *argument)
{
	struct work *w = argument;
	const uint64_t from = w->e->buf;
	uint8_t *bytes = (uint8_t *)w->here;

	for (uint32_t n = 1; n <= HALF; n = n * 3 + 1) {
		fill(bytes, n, n);
		uint32_t at = put_write(w->q, &w->to, from, n, w->e->mr->lkey, false);

		put_read(w->q, &w->to, from + n, n < HALF - n ? n : HALF - n, w->e->mr->lkey, false);
		at = put_nop(w->q, true);
		ring(w->q);
		w->bad += wait_for(w->q, at) != 0;
		verify(bytes + n, n < HALF - n ? n : HALF - n, n, "read back");
	}
}

static void adds(void *argument)
{
	struct work *w = argument;

	for (int i = 0; i < 1000; i++) {
		const uint32_t at = put_fetch_add(w->q, &w->to, 3, w->e->buf, w->e->mr->lkey, true);

		ring(w->q);
		w->bad += wait_for(w->q, at) != 0;
	}
}

struct both {
	struct work first, second;
};

static void two_queues(void *argument)
{
	struct both *b = argument;

	for (uint32_t i = 0; i < 100000; i++) {
		const uint32_t x = put_inline(b->first.q, &b->first.to, &i, sizeof i, true);

		ring(b->first.q);
		const uint32_t y = put_inline(b->second.q, &b->second.to, &i, sizeof i, true);

		ring(b->second.q);
		if (i % 20 == 19)
			b->first.bad += wait_for(b->first.q, x) || wait_for(b->second.q, y);
	}
}

/* A second queue comes to a page after a kernel has got its address. */
static void shared_page(void)
{
	struct queue q, peer, later, its_peer;
	struct end e;

	open_end(&e, 0);
	queue_open(&q, e.ctx, e.pdn, 6, QUEUE_RC, true, NULL, &gpu_memory);
	bell_for_gpu(&q);
	queue_open(&later, e.ctx, e.pdn, 6, QUEUE_RC, true, q.uar, &gpu_memory);
	later.bell = q.bell;
	queue_open(&peer, e.ctx, e.pdn, 4, QUEUE_RC, true, NULL, &gpu_memory);
	queue_open(&its_peer, e.ctx, e.pdn, 4, QUEUE_RC, true, NULL, &gpu_memory);
	queue_connect(&q, peer.qpn);
	queue_connect(&peer, q.qpn);
	queue_connect(&later, its_peer.qpn);
	queue_connect(&its_peer, later.qpn);
	struct both b = {
		{ .q = &q, .e = &e, .to = { .addr = e.buf + HALF, .key = e.mr->rkey } },
		{ .q = &later, .e = &e, .to = { .addr = e.buf + HALF + 64, .key = e.mr->rkey } },
	};

	launch(&e, two_queues, &b);
	CHECK(!b.first.bad, "%lu wrong", (unsigned long)b.first.bad);
	CHECK(*(uint32_t *)standin_gpu(e.buf + HALF) == 99999 && *(uint32_t *)standin_gpu(e.buf + HALF + 64) == 99999, "last values");
	queue_close(&later);
	queue_close(&q);
	queue_close(&peer);
	queue_close(&its_peer);
}

/* Two processes with a GPU each. */
static void between(void)
{
	const int peer = 1 - rank;
	struct queue q, own, other;
	struct end e;

	open_end(&e, rank);
	queue_open(&q, e.ctx, e.pdn, 6, QUEUE_RC, true, NULL, &gpu_memory);
	bell_for_gpu(&q);
	board->note[rank].qpn[peer] = q.qpn;
	board->note[rank].rkey = e.mr->rkey;
	board->note[rank].addr = e.buf;
	meet();
	queue_connect(&q, board->note[peer].qpn[rank]);
	meet();
	struct work w = { &q, &e, { .addr = board->note[peer].addr + HALF, .key = board->note[peer].rkey }, standin_gpu(e.buf), NULL, 0 };

	launch(&e, every_operation, &w);
	CHECK(!w.bad, "%lu wrong", (unsigned long)w.bad);
	meet();
	if (rank == 0)
		*(uint64_t *)standin_gpu(e.buf + HALF) = 0;
	meet();
	/* both add to one word of the first GPU: one of them to its own */
	w.to = (struct remote){ .addr = board->note[0].addr + HALF, .key = board->note[0].rkey };
	if (rank == 0) {
		queue_open(&own, e.ctx, e.pdn, 6, QUEUE_RC, true, NULL, &gpu_memory);
		queue_open(&other, e.ctx, e.pdn, 4, QUEUE_RC, true, NULL, &gpu_memory);
		queue_connect(&own, other.qpn);
		queue_connect(&other, own.qpn);
		bell_for_gpu(&own);
		w.q = &own;
	}
	launch(&e, adds, &w);
	meet();
	CHECK(!w.bad && (rank || *(uint64_t *)standin_gpu(e.buf + HALF) == 6000), "sum");
	meet();
}

/* A processor posts, memory of GPUs and hosts in every combination, as with GPU Direct. */
static void posted(void)
{
	const int peer = 1 - rank;
	const uint32_t n = 1 << 20;
	struct end e;
	struct port p;

	open_end(&e, rank);
	open_port(&p, n, 64, false);
	struct ibv_mr *mr = ibv_reg_mr(p.pd, (void *)(uintptr_t)e.buf, SIZE, ACCESS);

	CHECK(mr, "ibv_reg_mr of a GPU's memory: %s", strerror(errno));
	struct ibv_qp *qp = connect_to(&p, peer, 16, 0);
	struct { uint64_t addr; uint32_t key; } mine[2] = { { (uintptr_t)p.buf, p.mr->rkey }, { e.buf, mr->rkey } };

	for (int from = 0; from < 2; from++)
		for (int to = 0; to < 2; to++) {
			struct ibv_sge sge = { mine[from].addr, n, mine[from].key };
			struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
			struct ibv_wc wc;
			uint8_t *source = from ? standin_gpu(e.buf) : p.buf, *target = to ? standin_gpu(e.buf) : p.buf;

			board->note[rank].addr = mine[to].addr;
			board->note[rank].rkey = mine[to].key;
			meet();
			if (rank == 0) {
				fill(source, n, from * 2 + to + 1);
				wr.wr.rdma.remote_addr = board->note[1].addr;
				wr.wr.rdma.rkey = board->note[1].rkey;
				send_ok(qp, &wr);
				expect(p.scq, &wc, IBV_WC_SUCCESS, 7);
			}
			meet();
			if (rank == 1)
				verify(target, n, from * 2 + to + 1, "written");
			meet();
		}
	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr), "destroy");
	close_port(&p);
}

/* Memory that comes and goes, often at an address that it had before: what others have mapped of it is never the old one. */
static void reallocated(void)
{
	const uint32_t n = 1 << 16;
	struct end e;
	struct port p;

	open_end(&e, rank);
	open_port(&p, n, 64, false);
	struct ibv_qp *qp = connect_to(&p, 1 - rank, 16, 0);

	for (int round = 0; round < 60; round++) {
		CUdeviceptr fresh = 0;
		struct ibv_mr *mr = NULL;

		if (rank == 1) {
			cuda(cuMemAlloc_v2(&fresh, n), "cuMemAlloc");
			mr = ibv_reg_mr(p.pd, (void *)(uintptr_t)fresh, n, ACCESS);
			CHECK(mr, "ibv_reg_mr: %s", strerror(errno));
			board->note[1].addr = fresh;
			board->note[1].rkey = mr->rkey;
			usleep(round % 3 * 1000); /* the other side has mapped it, or has not yet */
		}
		meet();
		if (rank == 0) {
			struct ibv_sge sge;
			struct ibv_send_wr wr = request(&p, &sge, IBV_WR_RDMA_WRITE, 0, n, round);
			struct ibv_wc wc;

			fill(p.buf, n, round);
			wr.wr.rdma.remote_addr = board->note[1].addr;
			wr.wr.rdma.rkey = board->note[1].rkey;
			send_ok(qp, &wr);
			expect(p.scq, &wc, IBV_WC_SUCCESS, round);
		}
		meet();
		if (rank == 1) {
			verify(standin_gpu(fresh), n, round, "written");
			CHECK(!ibv_dereg_mr(mr), "dereg_mr");
			cuda(cuMemFree_v2(fresh), "cuMemFree");
		}
	}
	CHECK(!ibv_destroy_qp(qp), "destroy");
	close_port(&p);
}

/* One process ends, its queue as it is, while the other writes to its GPU's memory: both end. */
static void leaves(void)
{
	const uint32_t n = 1 << 20;
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	struct end e;
	struct port p;

	open_end(&e, rank);
	open_port(&p, 64, 64, false);
	struct ibv_mr *mr = ibv_reg_mr(p.pd, (void *)(uintptr_t)e.buf, SIZE, ACCESS);

	CHECK(mr, "ibv_reg_mr of a GPU's memory: %s", strerror(errno));
	struct ibv_qp *qp = connect_to(&p, 1 - rank, 12, 0);
	struct ibv_sge sge = { e.buf, n, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };

	board->note[rank].addr = e.buf;
	board->note[rank].rkey = mr->rkey;
	meet();
	if (rank == 1) {
		usleep(20000);
		return;
	}
	wr.wr.rdma.remote_addr = board->note[1].addr;
	wr.wr.rdma.rkey = board->note[1].rkey;
	while (wc.status == IBV_WC_SUCCESS) {
		send_ok(qp, &wr);
		CHECK(wait_wc(p.scq, &wc, 30), "a write neither completes nor fails");
	}
}

static const struct test tests[] = {
	{ .name = "one_by_one", .ranks = 1, .run = one_by_one },
	{ .name = "shared_page", .ranks = 1, .run = shared_page },
	{ .name = "between", .ranks = 2, .run = between },
	{ .name = "posted", .ranks = 2, .run = posted },
	{ .name = "reallocated", .ranks = 2, .run = reallocated },
	{ .name = "leaves", .ranks = 2, .run = leaves },
	{ .name = NULL },
};

const struct test *const test_groups[] = { tests, NULL };
