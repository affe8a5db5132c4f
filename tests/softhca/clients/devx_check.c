/* devx_check: queues of programs' own, rung through pages of doorbells. */
#include "check.h"
#include "devx.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 1 << 16, HALF = SIZE / 2 };

struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	uint8_t *buf;
	uint32_t pdn;
};

static void open_end(struct end *e)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0], "no device");
	CHECK(mlx5dv_is_supported(list[0]), "SOFTHCA_DEVX=1 is not set");
	e->ctx = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	e->pd = ibv_alloc_pd(e->ctx);
	e->pdn = domain_number(e->pd);
	e->buf = aligned_alloc(4096, SIZE);
	memset(e->buf, 0, SIZE);
	e->mr = ibv_reg_mr(e->pd, e->buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(e->mr, "ibv_reg_mr: %s", strerror(errno));
}

static void close_end(struct end *e)
{
	CHECK(!ibv_dereg_mr(e->mr), "dereg_mr");
	CHECK(!ibv_dealloc_pd(e->pd), "dealloc_pd");
	CHECK(!ibv_close_device(e->ctx), "close_device");
	free(e->buf);
}

/* A queue connected to another of this process; source and target are the halves of one buffer. */
struct loop {
	struct end e;
	struct queue q, peer;
	struct remote to;
	uint64_t from;
};

static void open_loop(struct loop *l, unsigned log, bool collapsed)
{
	open_end(&l->e);
	queue_open(&l->q, l->e.ctx, l->e.pdn, log, QUEUE_RC, collapsed, NULL, &host_memory);
	queue_open(&l->peer, l->e.ctx, l->e.pdn, 4, QUEUE_RC, true, NULL, &host_memory);
	queue_connect(&l->q, l->peer.qpn);
	queue_connect(&l->peer, l->q.qpn);
	l->from = (uintptr_t)l->e.buf;
	l->to = (struct remote){ .addr = (uintptr_t)l->e.buf + HALF, .key = l->e.mr->rkey };
}

static void close_loop(struct loop *l)
{
	queue_close(&l->q);
	queue_close(&l->peer);
	close_end(&l->e);
}

static uint64_t *word(struct loop *l, bool target)
{
	return (uint64_t *)(void *)(l->e.buf + (target ? HALF : 0));
}

static void one_by_one(void)
{
	struct loop l;

	open_loop(&l, 10, true);
	for (uint64_t i = 1; i <= 20000; i++) {
		*word(&l, false) = i;
		const uint32_t at = put_write(&l.q, &l.to, l.from, 64, l.e.mr->lkey, true);

		ring(&l.q);
		CHECK(!wait_for(&l.q, at), "write %lu", (unsigned long)i);
		CHECK(*word(&l, true) == i, "write %lu", (unsigned long)i);
	}
	close_loop(&l);
}

/* One doorbell for many elements, one completion for many requests, a ring gone round many times. */
static void batches(void)
{
	struct loop l;

	open_loop(&l, 8, true);
	for (uint32_t round = 0; round < 2000; round++) {
		uint32_t last = 0;

		for (uint32_t i = 0; i < 200; i++) {
			const uint32_t value = round * 200 + i;
			struct remote to = l.to;

			to.addr += i * 4;
			last = put_inline(&l.q, &to, &value, sizeof value, i == 199);
		}
		ring(&l.q);
		CHECK(!wait_for(&l.q, last), "round %u", round);
		for (uint32_t i = 0; i < 200; i++)
			CHECK(((uint32_t *)word(&l, true))[i] == round * 200 + i, "round %u word %u", round, i);
	}
	close_loop(&l);
}

/* Inline bytes of every length, in elements of one block to sixteen, some over the end of the ring. */
static void inline_lengths(void)
{
	struct loop l;
	uint8_t bytes[900];

	open_loop(&l, 5, true);
	for (uint32_t n = 1; n <= sizeof bytes; n += 7) {
		fill(bytes, n, n);
		const uint32_t at = put_inline(&l.q, &l.to, bytes, n, true);

		ring(&l.q);
		CHECK(!wait_for(&l.q, at), "%u bytes", n);
		verify(l.e.buf + HALF, n, n, "inline");
	}
	close_loop(&l);
}

static void reads(void)
{
	struct loop l;

	open_loop(&l, 6, false);
	fill(l.e.buf + HALF, 5000, 3);
	const uint32_t at = put_read(&l.q, &l.to, l.from, 5000, l.e.mr->lkey, true);

	ring(&l.q);
	CHECK(!wait_for(&l.q, at), "read");
	verify(l.e.buf, 5000, 3, "read");
	close_loop(&l);
}

static uint64_t atomic_result(struct loop *l, uint32_t index)
{
	ring(&l->q);
	CHECK(!wait_for(&l->q, index), "atomic");
	return *word(l, false);
}

static void atomics(void)
{
	const uint64_t eight[4] = { 0xaaaaaaaabbbbbbbb, 0x2200, 0xffff0000ffff0000, 0xff00 }; /* swap, compare, their masks */
	const uint64_t four[4] = { 0x11223344, 0x55667788, 0xffffffff, 0xffffffff };
	struct loop l;

	open_loop(&l, 6, true);
	*word(&l, true) = 40;
	CHECK(atomic_result(&l, put_fetch_add(&l.q, &l.to, 2, l.from, l.e.mr->lkey, true)) == 40 && *word(&l, true) == 42, "fetch and add");
	CHECK(atomic_result(&l, put_compare_swap(&l.q, &l.to, 41, 7, l.from, l.e.mr->lkey, true)) == 42 && *word(&l, true) == 42, "not equal");
	CHECK(atomic_result(&l, put_compare_swap(&l.q, &l.to, 42, 7, l.from, l.e.mr->lkey, true)) == 42 && *word(&l, true) == 7, "equal");
	*word(&l, true) = 0x1122334455660011;
	*word(&l, true) |= 0x2200;
	const uint64_t before = *word(&l, true);

	CHECK(atomic_result(&l, put_masked_swap(&l.q, &l.to, 8, eight, l.from, l.e.mr->lkey, true)) == before, "masked swap: old value");
	CHECK(*word(&l, true) == ((before & 0x0000ffff0000ffff) | 0xaaaa0000bbbb0000), "masked swap: %lx", (unsigned long)*word(&l, true));
	/* two fields of 32 bits: the carry of the lower one is lost */
	*word(&l, true) = 0x00000001ffffffff;
	atomic_result(&l, put_masked_add(&l.q, &l.to, 8, 0x0000000100000001, 0x8000000080000000, l.from, l.e.mr->lkey, true));
	CHECK(*word(&l, true) == 0x0000000200000000, "fields: %lx", (unsigned long)*word(&l, true));
	/* four bytes leave the next four alone; their old value comes in network order */
	*word(&l, true) = 0xdeadbeef55667788;
	CHECK(be32toh((uint32_t)atomic_result(&l, put_masked_swap(&l.q, &l.to, 4, four, l.from, l.e.mr->lkey, true))) == 0x55667788, "four bytes: old value");
	CHECK(*word(&l, true) == 0xdeadbeef11223344, "four bytes: %lx", (unsigned long)*word(&l, true));
	close_loop(&l);
}

/* Completion entries one by one, each in its place, told from the round before by their owner bit. */
static void every_completion(void)
{
	struct loop l;

	open_loop(&l, 4, false);
	for (uint32_t i = 0; i < 100000; i++) {
		const uint32_t at = put_nop(&l.q, true);

		ring(&l.q);
		CHECK(!wait_for(&l.q, at), "element %u", i);
	}
	close_loop(&l);
}

static void control_doorbells(void)
{
	struct loop l;

	open_loop(&l, 6, true);
	for (uint64_t i = 1; i <= 5000; i++) {
		*word(&l, false) = i;
		uint32_t at = put_write(&l.q, &l.to, l.from, 8, l.e.mr->lkey, true);

		if (i % 3 == 0)
			at = put_inline(&l.q, &l.to, &i, sizeof i, true);
		ring_control(&l.q, at);
		CHECK(!wait_for(&l.q, at) && *word(&l, true) == i, "doorbell %lu", (unsigned long)i);
	}
	close_loop(&l);
}

/* Two queues on one page: a doorbell may overwrite the other queue's before anybody has seen it. */
static void shared_page(void)
{
	struct loop l;
	struct queue second, peer;
	uint32_t first_at = 0, second_at = 0;

	open_loop(&l, 7, true);
	queue_open(&second, l.e.ctx, l.e.pdn, 7, QUEUE_RC, true, l.q.uar, &host_memory);
	queue_open(&peer, l.e.ctx, l.e.pdn, 4, QUEUE_RC, true, NULL, &host_memory);
	queue_connect(&second, peer.qpn);
	queue_connect(&peer, second.qpn);
	for (uint32_t i = 0; i < 300000; i++) {
		struct remote to = l.to;

		first_at = put_inline(&l.q, &to, &i, sizeof i, true);
		ring(&l.q);
		to.addr += 64;
		second_at = put_inline(&second, &to, &i, sizeof i, true);
		ring(&second);
		if (i % 100 == 99)
			CHECK(!wait_for(&l.q, first_at) && !wait_for(&second, second_at), "pair %u", i);
	}
	CHECK(*(uint32_t *)(l.e.buf + HALF) == 299999 && *(uint32_t *)(l.e.buf + HALF + 64) == 299999, "last values");
	queue_close(&second);
	queue_close(&peer);
	close_loop(&l);
}

/* A companion queue that waits for completions of the first, as counters of NCCL's device interface do. */
static void waits(void)
{
	struct loop l;
	struct queue companion, peer;
	uint64_t count = 0;

	open_loop(&l, 6, false);
	queue_open(&companion, l.e.ctx, l.e.pdn, 6, QUEUE_RC, true, l.q.uar, &host_memory);
	queue_open(&peer, l.e.ctx, l.e.pdn, 4, QUEUE_RC, true, NULL, &host_memory);
	queue_connect(&companion, peer.qpn);
	queue_connect(&peer, companion.qpn);
	for (uint32_t i = 0; i < 2000; i++) {
		struct remote counter = l.to;

		counter.addr += 128;
		put_wait(&companion, l.q.cqn, i, false);
		const uint32_t added = put_fetch_add(&companion, &counter, 1, l.from + 256, l.e.mr->lkey, true);

		ring(&companion);
		if (i % 50 == 0) {
			usleep(300);
			CHECK(*(volatile uint64_t *)(l.e.buf + HALF + 128) == count, "the companion did not wait");
		}
		const uint32_t at = put_write(&l.q, &l.to, l.from, 8, l.e.mr->lkey, true);

		ring(&l.q);
		CHECK(!wait_for(&l.q, at) && !wait_for(&companion, added), "wait %u", i);
		count++;
		CHECK(*(uint64_t *)(l.e.buf + HALF + 128) == count, "count %u", i);
	}
	queue_close(&companion);
	queue_close(&peer);
	close_loop(&l);
}

static void dynamic(void)
{
	struct end e;
	struct queue q;
	uint32_t value = 17;

	open_end(&e);
	struct ibv_cq *cq = ibv_create_cq(e.ctx, 16, NULL, NULL, 0);
	struct ibv_srq *srq = ibv_create_srq(e.pd, &(struct ibv_srq_init_attr){ .attr = { .max_wr = 16, .max_sge = 1 } });
	struct ibv_qp_init_attr_ex a = { .qp_type = IBV_QPT_DRIVER, .send_cq = cq, .recv_cq = cq, .srq = srq, .pd = e.pd, .comp_mask = IBV_QP_INIT_ATTR_PD };
	struct mlx5dv_qp_init_attr m = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC, .dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = 0xabcdef } };
	struct ibv_qp *dct = mlx5dv_create_qp(e.ctx, &a, &m);

	CHECK(cq && srq && dct, "%s", strerror(errno));
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	CHECK(!ibv_modify_qp(dct, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "to INIT");
	to = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .min_rnr_timer = 1, .ah_attr = { .port_num = 1 } };
	CHECK(!ibv_modify_qp(dct, &to, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV), "to RTR");
	queue_open(&q, e.ctx, e.pdn, 6, QUEUE_DCI, true, NULL, &host_memory);
	queue_connect(&q, 0);

	struct mlx5dv_ah ah = { 0 };
	struct ibv_ah *handle = ibv_create_ah(e.pd, &(struct ibv_ah_attr){ .dlid = 1, .port_num = 1 });
	struct mlx5dv_obj o = { .ah = { handle, &ah } };

	CHECK(handle && !mlx5dv_init_obj(&o, MLX5DV_OBJ_AH) && be16toh(ah.av->rlid) == 1, "address vector");
	struct remote r = { .addr = (uintptr_t)e.buf + HALF, .key = e.mr->rkey, .dct = dct->qp_num, .dc_key = 0xabcdef };
	uint32_t at = put_inline(&q, &r, &value, sizeof value, true); /* the short form */

	ring(&q);
	CHECK(!wait_for(&q, at) && *(uint32_t *)(e.buf + HALF) == 17, "short address vector");
	r.av = ah.av;
	value = 18;
	at = put_inline(&q, &r, &value, sizeof value, true);
	ring(&q);
	CHECK(!wait_for(&q, at) && *(uint32_t *)(e.buf + HALF) == 18, "whole address vector");
	queue_close(&q);
	CHECK(!ibv_destroy_ah(handle) && !ibv_destroy_qp(dct) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq), "destroy");
	close_end(&e);
}

/* Each error with its syndrome, and what is behind it flushed. */
static void errors(void)
{
	for (int kind = 0; kind < 3; kind++) {
		static const int syndromes[] = { 0x13, 0x04, 0x02 };
		struct loop l;
		uint32_t at;

		open_loop(&l, 6, false);
		struct remote wrong = l.to;

		wrong.key ^= 0x100000;
		if (kind == 0)
			at = put_write(&l.q, &wrong, l.from, 8, l.e.mr->lkey, true);
		else if (kind == 1)
			at = put_write(&l.q, &l.to, l.from, 8, l.e.mr->lkey ^ 0x100000, true);
		else
			at = put_raw(&l.q, 0x3e, true);
		const uint32_t behind = put_nop(&l.q, true);

		ring(&l.q);
		const int got = wait_for(&l.q, at);

		CHECK(got == syndromes[kind], "kind %d: syndrome %#x", kind, got);
		CHECK(wait_for(&l.q, behind) == 0x05, "what is behind it");
		close_loop(&l);
	}
}

/* Between processes, both ways at once. */
static void between(void)
{
	struct end e;
	struct queue q;
	const int peer = 1 - rank;

	open_end(&e);
	queue_open(&q, e.ctx, e.pdn, 6, QUEUE_RC, true, NULL, &host_memory);
	board->note[rank].qpn[peer] = q.qpn;
	board->note[rank].rkey = e.mr->rkey;
	board->note[rank].addr = (uintptr_t)e.buf;
	meet();
	queue_connect(&q, board->note[peer].qpn[rank]);
	meet();
	struct remote to = { .addr = board->note[peer].addr + HALF, .key = board->note[peer].rkey };
	struct remote counter = { .addr = board->note[0].addr + 128, .key = board->note[0].rkey };

	for (uint64_t i = 1; i <= 5000; i++) {
		put_inline(&q, &to, &i, sizeof i, false);
		const uint32_t at = put_fetch_add(&q, &to, 0, (uintptr_t)e.buf + 64, e.mr->lkey, true);

		ring(&q);
		CHECK(!wait_for(&q, at), "request %lu", (unsigned long)i);
		CHECK(*(uint64_t *)(e.buf + 64) == i, "request %lu", (unsigned long)i);
	}
	if (rank == 1) {
		const uint32_t at = put_fetch_add(&q, &counter, 5, (uintptr_t)e.buf + 64, e.mr->lkey, true);

		ring(&q);
		CHECK(!wait_for(&q, at), "counter");
	}
	meet();
	CHECK(*(uint64_t *)(e.buf + HALF) == 5000, "the peer's last value");
	CHECK(rank == 1 || *(uint64_t *)(e.buf + 128) == 5, "counter");
	meet();
	queue_close(&q);
	close_end(&e);
}

/* With SOFTHCA_FAULT=error_every=5,lost_doorbell_every=3,reuse_numbers=1. */
static void faults(void)
{
	uint32_t number = 0;

	for (int round = 0; round < 2; round++) {
		struct loop l;
		uint32_t at[5];
		int seen = 0;

		open_loop(&l, 6, false);
		CHECK(!number || number == l.q.qpn, "queue pair %#x after %#x", l.q.qpn, number);
		number = l.q.qpn;
		for (int i = 0; i < 5; i++) {
			at[i] = put_nop(&l.q, true);
			ring(&l.q);
			/* each doorbell is seen by itself: one that is lost, whose element the next one covers, is taken back */
			if ((5 * round + i) % 3 == 2) {
				while (__atomic_load_n((uint64_t *)l.q.bell, __ATOMIC_ACQUIRE))
					usleep(100);
				CHECK(round || l.q.entries[2 * 64 + 63] == 0xff, "the third doorbell was seen");
				continue;
			}
			for (; seen <= i; seen++)
				CHECK(wait_for(&l.q, at[seen]) == (seen == 4 ? 0x14 : 0), "element %d", seen);
		}
		CHECK(seen == 5, "%d elements", seen);
		close_loop(&l);
	}
}

static const struct test tests[] = {
	{ .name = "one_by_one", .ranks = 1, .run = one_by_one },
	{ .name = "batches", .ranks = 1, .run = batches },
	{ .name = "inline_lengths", .ranks = 1, .run = inline_lengths },
	{ .name = "reads", .ranks = 1, .run = reads },
	{ .name = "atomics", .ranks = 1, .run = atomics },
	{ .name = "every_completion", .ranks = 1, .run = every_completion },
	{ .name = "control_doorbells", .ranks = 1, .run = control_doorbells },
	{ .name = "shared_page", .ranks = 1, .run = shared_page },
	{ .name = "waits", .ranks = 1, .run = waits },
	{ .name = "dynamic", .ranks = 1, .run = dynamic },
	{ .name = "errors", .ranks = 1, .run = errors },
	{ .name = "between", .ranks = 2, .run = between },
	{ .name = "faults", .ranks = 1, .run = faults, .on_request = true },
	{ .name = NULL },
};

extern const struct test ring_tests[];

const struct test *const test_groups[] = { tests, ring_tests, NULL };
