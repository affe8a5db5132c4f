/* Of devx_check: rings in mlx5's layout of objects that verbs calls made, receives for queues made by DEVX, many processes, faults. */
#include "check.h"
#include "devx.h"

#include <endian.h>
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 1 << 16, HALF = SIZE / 2, SLOT = 64 };

static uint32_t be(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* A completion queue read in mlx5's layout. */
struct entries {
	struct mlx5dv_cq c;
	uint32_t next;
};

static void entries_of(struct entries *e, struct ibv_cq *cq)
{
	struct mlx5dv_obj o = { .cq = { cq, &e->c } };

	e->next = 0;
	CHECK(!mlx5dv_init_obj(&o, MLX5DV_OBJ_CQ), "the ring of a completion queue");
	CHECK(e->c.buf && e->c.dbrec && e->c.cq_uar && e->c.cqe_size == 64 && !(e->c.cqe_cnt & (e->c.cqe_cnt - 1)), "%u entries of %u", e->c.cqe_cnt, e->c.cqe_size);
}

/* The next entry, 64 bytes, as it lies in the ring; a minute at most. */
static const uint8_t *next_entry(struct entries *e)
{
	const uint8_t *at = (const uint8_t *)e->c.buf + (size_t)(e->next & (e->c.cqe_cnt - 1)) * 64;
	const unsigned turn = (e->next & e->c.cqe_cnt) != 0;
	const double end = now() + 60;

	for (;;) {
		const uint8_t own = __atomic_load_n(at + 63, __ATOMIC_ACQUIRE);

		if (own >> 4 != MLX5_CQE_INVALID && (own & 1) == turn)
			break;
		CHECK(now() < end, "no entry %u", e->next);
		sched_yield();
	}
	e->next++;
	__atomic_store_n(e->c.dbrec, htobe32(e->next & 0xffffff), __ATOMIC_RELEASE);
	return at;
}

static void put_receive(uint8_t *element, uint64_t addr, uint32_t len, uint32_t lkey)
{
	const uint32_t words[] = { htobe32(len), htobe32(lkey) };

	addr = htobe64(addr);
	memcpy(element, words, sizeof words);
	memcpy(element + 8, &addr, sizeof addr);
}

/* A queue made by DEVX that sends to a verbs queue pair of the same process. */
struct pair {
	struct port p;
	struct queue q;
	struct ibv_qp *qp;
};

static void open_pair(struct pair *x, unsigned rnr_retry)
{
	open_port(&x->p, SIZE, 512, false);
	queue_open(&x->q, x->p.ctx, domain_number(x->p.pd), 6, QUEUE_RC, true, NULL, &host_memory);
	x->q.rnr_retry = rnr_retry;
	x->qp = make_qp(&x->p, IBV_QPT_RC, 256, 0);
	queue_connect(&x->q, x->qp->qp_num);
	to_init(x->qp, ALL_ACCESS);
	to_rtr(x->qp, x->q.qpn);
	to_rts(x->qp, 7);
}

static void close_pair(struct pair *x)
{
	queue_close(&x->q);
	CHECK(!ibv_destroy_qp(x->qp), "destroy_qp");
	close_port(&x->p);
}

/* Bytes of the element and bytes of memory in one message, as UCX sends its headers. */
static void sends(void)
{
	struct pair x;
	struct ibv_wc wc;
	char head[61];

	open_pair(&x, 7);
	fill(x.p.buf, 1000, 5);
	for (int i = 0; i < 500; i++) {
		const uint32_t n = i % sizeof head, len = i % 3 * 400;

		memset(head, 'a' + i % 20, sizeof head);
		memset(x.p.buf + HALF, 0, 1100);
		post_recv(x.qp, &x.p, HALF, 2000, i);
		const uint32_t at = put_send(&x.q, head, n, (uintptr_t)x.p.buf, len, x.p.mr->lkey, true);

		ring(&x.q);
		CHECK(!wait_for(&x.q, at), "send %d", i);
		expect(x.p.rcq, &wc, IBV_WC_SUCCESS, i);
		CHECK(wc.byte_len == n + len, "%u bytes of %u", wc.byte_len, n + len);
		CHECK(!memcmp(x.p.buf + HALF, head, n), "the element's bytes of send %d", i);
		verify(x.p.buf + HALF + n, len, 5, "the memory's bytes");
	}
	close_pair(&x);
}

/* Without a receive: the element fails when the retries are over, and what is behind it is flushed. */
static void no_receive(void)
{
	struct pair x;

	open_pair(&x, 0);
	const uint32_t at = put_send(&x.q, "x", 1, 0, 0, 0, true);

	ring(&x.q);
	CHECK(wait_for(&x.q, at) == 0x16, "retries without a receive");
	const uint32_t behind = put_nop(&x.q, true);

	ring(&x.q);
	CHECK(wait_for(&x.q, behind) == 0x05, "behind it");
	close_pair(&x);
	/* and where they have no end, it waits for one */
	struct ibv_wc wc;

	open_pair(&x, 7);
	put_send(&x.q, "late", 4, 0, 0, 0, true);
	ring(&x.q);
	usleep(20000);
	CHECK(x.q.entries[63] == 0xff, "it completed without a receive");
	post_recv(x.qp, &x.p, HALF, 100, 9);
	CHECK(!wait_for(&x.q, 0), "with one");
	expect(x.p.rcq, &wc, IBV_WC_SUCCESS, 9);
	CHECK(!memcmp(x.p.buf + HALF, "late", 4), "its bytes");
	close_pair(&x);
}

/* A queue pair made by verbs, whose rings the program fills and reads by itself from then on; receives come from a shared queue. */
static void of_verbs(void)
{
	enum { ROUNDS = 1500, RECEIVES = 32 };
	struct port p;
	struct entries sent, received;
	struct mlx5dv_srq srq = { .comp_mask = MLX5DV_SRQ_MASK_SRQN };
	struct mlx5dv_qp rings;
	uint32_t posted = 0;

	open_port(&p, SIZE, 128, false);
	p.srq = ibv_create_srq(p.pd, &(struct ibv_srq_init_attr){ .attr = { .max_wr = RECEIVES, .max_sge = 1 } });
	CHECK(p.srq, "ibv_create_srq");
	struct ibv_qp *a = connect_to(&p, 1 - rank, 16, 0);
	struct mlx5dv_obj o = { .srq = { p.srq, &srq }, .qp = { a, &rings } };

	CHECK(!mlx5dv_init_obj(&o, MLX5DV_OBJ_SRQ | MLX5DV_OBJ_QP), "rings");
	CHECK(srq.stride == 32 && srq.head == 0 && srq.tail == RECEIVES - 1 && srq.srqn, "shared receives: stride %u, %u to %u", srq.stride, srq.head, srq.tail);
	CHECK(rings.sq.stride == 64 && rings.sq.wqe_cnt >= 16 && rings.bf.size == 256 && !rings.rq.wqe_cnt, "send queue");
	entries_of(&sent, p.scq);
	entries_of(&received, p.rcq);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;

	CHECK(ibv_post_send(a, &wr, &bad), "a verbs post into the program's own ring");
	/* what the driver of a processor writes, by the functions that GPU queues are filled by */
	struct queue q = { .log = 31 - __builtin_clz(rings.sq.wqe_cnt), .ring = rings.sq.buf, .record = rings.dbrec, .bell = rings.bf.reg, .qpn = a->qp_num };

	meet();
	for (uint32_t i = 0; i < ROUNDS; i++) {
		const uint8_t *e;

		/* one receive ahead at most: the other side often finds none and has to wait */
		put_receive((uint8_t *)srq.buf + posted % RECEIVES * 32 + 16, (uintptr_t)p.buf + HALF + posted % RECEIVES * SLOT, SLOT, p.mr->lkey);
		posted++;
		__atomic_store_n(srq.dbrec, htobe32(posted & 0xffff), __ATOMIC_RELEASE);
		const uint32_t at = put_send(&q, &i, sizeof i, 0, 0, 0, true);

		ring_control(&q, at);
		e = next_entry(&sent);
		CHECK(e[63] >> 4 == MLX5_CQE_REQ && (e[60] << 8 | e[61]) == (int)(at & 0xffff) && (be(e + 56) & 0xffffff) == a->qp_num && e[56] == MLX5_OPCODE_SEND, "completion of send %u", i);
		e = next_entry(&received);
		CHECK(e[63] >> 4 == MLX5_CQE_RESP_SEND && be(e + 44) == sizeof i && (be(e + 56) & 0xffffff) == a->qp_num, "completion of receive %u", i);
		CHECK((be(e + 24) & 0xffffff) == board->note[1 - rank].qpn[rank], "whose it is");
		CHECK((e[60] << 8 | e[61]) == (int)(i % RECEIVES), "its element");
		CHECK(*(uint32_t *)(void *)(p.buf + HALF + i % RECEIVES * SLOT) == i, "its bytes");
	}
	meet();
	CHECK(!ibv_destroy_qp(a), "destroy_qp");
	close_port(&p);
}

/* An event of a completion queue that is read in its ring. */
static void ring_event(void)
{
	struct pair x;
	struct entries received;
	struct ibv_cq *cq;
	void *context;

	open_port(&x.p, SIZE, 64, true);
	x.qp = make_qp(&x.p, IBV_QPT_RC, 16, 0);
	queue_open(&x.q, x.p.ctx, domain_number(x.p.pd), 6, QUEUE_RC, true, NULL, &host_memory);
	queue_connect(&x.q, x.qp->qp_num);
	to_init(x.qp, ALL_ACCESS);
	to_rtr(x.qp, x.q.qpn);
	to_rts(x.qp, 7);
	entries_of(&received, x.p.rcq);
	for (uint32_t i = 0; i < 20; i++) {
		const uint64_t word = htobe64((uint64_t)((i & 3) << 28 | received.next) << 32 | received.c.cqn);

		post_recv(x.qp, &x.p, HALF, 16, i);
		put_send(&x.q, "x", 1, 0, 0, 0, true);
		if (i & 1) /* asked for before there is something, or after */
			ring(&x.q);
		received.c.dbrec[1] = htobe32((i & 3) << 28 | received.next);
		__atomic_store_n((uint64_t *)((char *)received.c.cq_uar + 0x20), word, __ATOMIC_RELEASE);
		if (!(i & 1))
			ring(&x.q);
		CHECK(!ibv_get_cq_event(x.p.channel, &cq, &context) && cq == x.p.rcq, "event %u", i);
		ibv_ack_cq_events(cq, 1);
		next_entry(&received);
	}
	close_pair(&x);
}

/* Receives in memory that is the program's own, for queues of another process to take. */
static void receives_by_devx(void)
{
	enum { LOG = 4, ROUNDS = 600 };
	struct port p;
	struct queue q;
	struct entries received;
	uint8_t *memory = aligned_alloc(4096, 8192);
	uint32_t number, pdn;
	const int peer = 1 - rank;

	open_port(&p, SIZE, 128, false);
	memset(memory, 0, 8192);
	pdn = domain_number(p.pd);
	entries_of(&received, p.rcq);
	struct mlx5dv_devx_umem *elements = mlx5dv_devx_umem_reg(p.ctx, memory, 4096, IBV_ACCESS_LOCAL_WRITE), *record = mlx5dv_devx_umem_reg(p.ctx, memory + 4096, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct mlx5dv_devx_obj *rq = receives_open(p.ctx, pdn, LOG, elements, record, &number);

	queue_open_receiving(&q, p.ctx, pdn, 6, number, received.c.cqn);
	board->note[rank].qpn[peer] = q.qpn;
	meet();
	queue_connect(&q, board->note[peer].qpn[rank]);
	meet();
	for (uint32_t i = 0; i < ROUNDS; i++) {
		const uint32_t slot = i % (1u << LOG);

		put_receive(memory + slot * 32 + 16, (uintptr_t)p.buf + HALF + slot * SLOT, SLOT, p.mr->lkey);
		__atomic_store_n((uint32_t *)(void *)(memory + 4096), htobe32((i + 1) & 0xffff), __ATOMIC_RELEASE);
		const uint32_t at = put_send(&q, &i, sizeof i, 0, 0, 0, true);

		ring(&q);
		CHECK(!wait_for(&q, at), "send %u", i);
		const uint8_t *e = next_entry(&received);

		CHECK(e[63] >> 4 == MLX5_CQE_RESP_SEND && (e[60] << 8 | e[61]) == (int)i, "receive %u", i);
		CHECK(*(uint32_t *)(void *)(p.buf + HALF + slot * SLOT) == i, "bytes of receive %u", i);
	}
	meet();
	queue_close(&q);
	CHECK(!mlx5dv_devx_obj_destroy(rq), "destroy");
	mlx5dv_devx_umem_dereg(elements);
	mlx5dv_devx_umem_dereg(record);
	close_port(&p);
	free(memory);
}

/* Each with each, on several devices where there are, some with one page of doorbells for all their queues. */
static void all_to_all(void)
{
	enum { ROUNDS = 400 };
	struct ibv_device **list;
	int devices;
	struct queue q[MAX_RANKS];
	struct ibv_context *ctx;
	struct mlx5dv_devx_uar *page = NULL;

	list = ibv_get_device_list(&devices);
	ctx = ibv_open_device(list[rank % devices]);
	ibv_free_device_list(list);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	uint64_t *buf = calloc(SIZE, 1);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, SIZE, ALL_ACCESS);

	CHECK(mr, "ibv_reg_mr: %s", strerror(errno));
	board->note[rank].rkey = mr->rkey;
	board->note[rank].addr = (uintptr_t)buf;
	if (rank & 1)
		page = mlx5dv_devx_alloc_uar(ctx, OWN_PAGE);
	for (int i = 0; i < ranks; i++)
		if (i != rank) {
			queue_open(&q[i], ctx, domain_number(pd), 6, QUEUE_RC, true, page, &host_memory);
			board->note[rank].qpn[i] = q[i].qpn;
		}
	meet();
	for (int i = 0; i < ranks; i++)
		if (i != rank)
			queue_connect(&q[i], board->note[i].qpn[rank]);
	meet();
	for (uint64_t n = 1; n <= ROUNDS; n++) {
		uint32_t at[MAX_RANKS];

		for (int i = 0; i < ranks; i++) {
			if (i == rank)
				continue;
			struct remote slot = { .addr = board->note[i].addr + 8 * rank, .key = board->note[i].rkey };
			struct remote sum = { .addr = board->note[i].addr + 8 * MAX_RANKS, .key = board->note[i].rkey };

			put_inline(&q[i], &slot, &n, sizeof n, false);
			at[i] = put_fetch_add(&q[i], &sum, n, (uintptr_t)(buf + 100 + i), mr->lkey, true);
			ring(&q[i]);
		}
		for (int i = 0; i < ranks; i++)
			CHECK(i == rank || !wait_for(&q[i], at[i]), "round %lu to %d", (unsigned long)n, i);
	}
	meet();
	for (int i = 0; i < ranks; i++)
		CHECK(i == rank || buf[i] == ROUNDS, "the last of rank %d: %lu", i, (unsigned long)buf[i]);
	CHECK(buf[MAX_RANKS] == (uint64_t)(ranks - 1) * ROUNDS * (ROUNDS + 1) / 2, "sum of all: %lu", (unsigned long)buf[MAX_RANKS]);
	meet();
	for (int i = 0; i < ranks; i++)
		if (i != rank)
			queue_close(&q[i]);
	if (page)
		mlx5dv_devx_free_uar(page);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx), "close");
	free(buf);
}

/* With SOFTHCA_FAULT=rnr_every=3: what finds no receive is tried again, in order, and nothing is lost or doubled. */
static void late_receives(void)
{
	struct pair x;
	struct ibv_wc wc;

	open_pair(&x, 7);
	for (uint32_t i = 0; i < 40; i++)
		post_recv(x.qp, &x.p, HALF + i * SLOT, SLOT, i);
	for (uint32_t i = 0; i < 40; i++)
		put_send(&x.q, &i, sizeof i, 0, 0, 0, true);
	ring(&x.q);
	for (uint32_t i = 0; i < 40; i++) {
		CHECK(wait_wc(x.p.rcq, &wc, 60) && !wc.status && wc.wr_id == i, "receive %u", i);
		CHECK(*(uint32_t *)(void *)(x.p.buf + HALF + i * SLOT) == i, "its bytes");
	}
	CHECK(!wait_for(&x.q, 39), "the last");
	close_pair(&x);
}

/* With SOFTHCA_FAULT=delay_us=20000: no element completes sooner, and each has its own time. */
static void delays(void)
{
	struct pair x;

	open_pair(&x, 7);
	for (int i = 0; i < 3; i++) {
		const double begin = now();

		put_nop(&x.q, false);
		const uint32_t at = put_nop(&x.q, true);

		ring(&x.q);
		CHECK(!wait_for(&x.q, at), "element");
		CHECK(now() - begin >= 0.04, "two elements after %.6f s", now() - begin);
	}
	close_pair(&x);
}

const struct test ring_tests[] = {
	{ .name = "sends", .ranks = 1, .run = sends },
	{ .name = "no_receive", .ranks = 1, .run = no_receive },
	{ .name = "rings_of_verbs", .ranks = 2, .run = of_verbs },
	{ .name = "ring_event", .ranks = 1, .run = ring_event },
	{ .name = "receives_by_devx", .ranks = 2, .run = receives_by_devx },
	{ .name = "all_to_all", .ranks = 4, .run = all_to_all },
	{ .name = "late_receives", .ranks = 1, .run = late_receives, .on_request = true },
	{ .name = "delays", .ranks = 1, .run = delays, .on_request = true },
	{ .name = NULL },
};
