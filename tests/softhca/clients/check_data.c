/* Data arrives where it should, in order, with the right completions. */
#include "check.h"

#include <endian.h>
#include <unistd.h>

static const uint64_t RC_OPS = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
			       IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			       IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

/* Sends of many sizes, from two pieces into two pieces. */
static void rc_send(void)
{
	static const uint32_t sizes[] = { 0, 1, 7, 64, 4096, 65537, 1 << 20 };
	const size_t half = 2 << 20;
	struct port p;
	struct ibv_wc wc;

	open_port(&p, 2 * half, 64, false);
	struct ibv_qp *qp = connect_to(&p, 1 - rank, 16, 0);

	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		const uint32_t n = sizes[i], a = n / 3;

		if (rank == 1) {
			struct ibv_sge s[2] = {
				{ (uintptr_t)p.buf, n / 2, p.mr->lkey },
				{ (uintptr_t)p.buf + half, n - n / 2 + 8, p.mr->lkey },
			};
			struct ibv_recv_wr wr = { .wr_id = 100 + i, .sg_list = s, .num_sge = 2 }, *bad;

			memset(p.buf, 0, p.size);
			CHECK(!ibv_post_recv(qp, &wr, &bad), "post_recv");
			meet();
			expect(p.rcq, &wc, IBV_WC_SUCCESS, 100 + i);
			CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == n && wc.qp_num == qp->qp_num && !(wc.wc_flags & IBV_WC_WITH_IMM), "completion fields");
			memmove(p.buf + n / 2, p.buf + half, n - n / 2);
			verify(p.buf, n, i, "send");
		} else {
			struct ibv_sge s[2] = {
				{ (uintptr_t)p.buf, a, p.mr->lkey },
				{ (uintptr_t)p.buf + half, n - a, p.mr->lkey },
			};
			struct ibv_send_wr wr = { .wr_id = i, .sg_list = s, .num_sge = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };

			fill(p.buf, n, i);
			memcpy(p.buf + half, p.buf + a, n - a);
			meet();
			send_ok(qp, &wr);
			expect(p.scq, &wc, IBV_WC_SUCCESS, i);
			CHECK(wc.opcode == IBV_WC_SEND, "opcode");
		}
		meet();
	}
	ibv_destroy_qp(qp);
	close_port(&p);
}

/* Requests without a receive wait and keep their order. */
static void rnr_keeps_order(void)
{
	enum { N = 40 };
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;

	open_port(&p, N * 64, 128, false);
	struct ibv_qp *qp = connect_to(&p, 1 - rank, 64, 0);

	if (rank == 0) {
		for (int i = 0; i < N; i++) {
			struct ibv_send_wr wr = request(&p, &s, i % 2 ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM, i * 64, 64, i);

			wr.imm_data = htobe32(i);
			fill(p.buf + i * 64, 64, i);
			send_ok(qp, &wr);
		}
		CHECK(!ibv_poll_cq(p.scq, 1, &wc), "completed without a receive");
		meet();
		for (int i = 0; i < N; i++)
			expect(p.scq, &wc, IBV_WC_SUCCESS, i);
	} else {
		meet();
		usleep(100000);
		for (int i = 0; i < N; i++) {
			post_recv(qp, &p, i * 64, 64, i);
			if (i % 10 == 9)
				usleep(20000);
		}
		for (int i = 0; i < N; i++) {
			expect(p.rcq, &wc, IBV_WC_SUCCESS, i);
			CHECK(i % 2 || (wc.imm_data == htobe32(i) && (wc.wc_flags & IBV_WC_WITH_IMM)), "immediate data");
			verify(p.buf + i * 64, 64, i, "late receive");
		}
	}
	meet();
	ibv_destroy_qp(qp);
	close_port(&p);
}

/* Write, write with immediate data, read, inline, through the classic way. */
static void rc_one_sided(void)
{
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;

	open_port(&p, 1 << 20, 64, false);
	struct ibv_qp *qp = connect_to(&p, 1 - rank, 16, 0);
	const struct note *peer = &board->note[1 - rank];

	if (rank == 0) {
		fill(p.buf, 300000, 1);
		struct ibv_send_wr wr = request(&p, &s, IBV_WR_RDMA_WRITE, 0, 300000, 1);

		wr.wr.rdma.remote_addr = peer->addr + 1000;
		wr.wr.rdma.rkey = peer->rkey;
		send_ok(qp, &wr);
		expect(p.scq, &wc, IBV_WC_SUCCESS, 1);
		CHECK(wc.opcode == IBV_WC_RDMA_WRITE, "opcode");

		uint8_t local[100]; /* not registered: inline needs no key */

		fill(local, sizeof local, 2);
		s = (struct ibv_sge){ (uintptr_t)local, sizeof local, 0 };
		wr.send_flags |= IBV_SEND_INLINE;
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = htobe32(0xabcdef01);
		wr.wr.rdma.remote_addr = peer->addr + 400000;
		meet();
		send_ok(qp, &wr);
		memset(local, 0, sizeof local);
		expect(p.scq, &wc, IBV_WC_SUCCESS, 1);

		wr = request(&p, &s, IBV_WR_RDMA_READ, 500000, 300000, 3);
		wr.wr.rdma.remote_addr = peer->addr + 1000;
		wr.wr.rdma.rkey = peer->rkey;
		send_ok(qp, &wr);
		expect(p.scq, &wc, IBV_WC_SUCCESS, 3);
		CHECK(wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == 300000, "read's completion");
		verify(p.buf + 500000, 300000, 1, "read");
	} else {
		post_recv(qp, &p, 900000, 16, 77);
		meet();
		expect(p.rcq, &wc, IBV_WC_SUCCESS, 77);
		CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htobe32(0xabcdef01) && wc.byte_len == 100, "write with immediate data");
		verify(p.buf + 1000, 300000, 1, "write");
		verify(p.buf + 400000, 100, 2, "inline write");
	}
	meet();
	ibv_destroy_qp(qp);
	close_port(&p);
}

/* The same operations through ibv_wr_*; an aborted batch leaves nothing. */
static void wr_interface(void)
{
	struct port p;
	struct ibv_wc wc;

	open_port(&p, 1 << 20, 64, false);
	struct ibv_qp *qp = connect_to(&p, 1 - rank, 16, RC_OPS);
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(qp);
	const struct note *peer = &board->note[1 - rank];
	uint64_t *words = (uint64_t *)(p.buf + 8192);

	CHECK(x, "qp_to_qp_ex");
	if (rank == 1) {
		for (int i = 0; i < 3; i++)
			post_recv(qp, &p, 100000 + i * 1000, 1000, i);
		words[0] = 40;
	}
	meet();
	if (rank == 0) {
		struct ibv_data_buf parts[2] = { { p.buf, 10 }, { p.buf + 10, 20 } };
		struct ibv_sge list[2] = {
			{ (uintptr_t)p.buf, 100, p.mr->lkey },
			{ (uintptr_t)p.buf + 100, 200, p.mr->lkey },
		};

		fill(p.buf, 1000, 5);
		ibv_wr_start(x);
		x->wr_id = 99;
		x->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(x);
		ibv_wr_set_sge(x, p.mr->lkey, (uintptr_t)p.buf, 10);
		ibv_wr_abort(x);

		ibv_wr_start(x);
		x->wr_id = 1;
		x->wr_flags = 0;
		ibv_wr_rdma_write(x, peer->rkey, peer->addr);
		ibv_wr_set_sge_list(x, 2, list);
		x->wr_id = 2;
		ibv_wr_send(x);
		ibv_wr_set_inline_data_list(x, 2, parts);
		x->wr_id = 3;
		ibv_wr_send_imm(x, htobe32(33));
		ibv_wr_set_inline_data(x, p.buf, 40);
		x->wr_id = 4;
		ibv_wr_rdma_write_imm(x, peer->rkey, peer->addr + 2000, htobe32(44));
		ibv_wr_set_sge(x, p.mr->lkey, (uintptr_t)p.buf, 1000);
		x->wr_id = 5;
		ibv_wr_atomic_fetch_add(x, peer->rkey, peer->addr + 8192, 2);
		ibv_wr_set_sge(x, p.mr->lkey, (uintptr_t)&words[1], 8);
		x->wr_id = 6;
		ibv_wr_atomic_cmp_swp(x, peer->rkey, peer->addr + 8192, 42, 1000);
		ibv_wr_set_sge(x, p.mr->lkey, (uintptr_t)&words[2], 8);
		x->wr_id = 7;
		x->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_read(x, peer->rkey, peer->addr + 8192);
		ibv_wr_set_sge(x, p.mr->lkey, (uintptr_t)&words[3], 8);
		CHECK(!ibv_wr_complete(x), "wr_complete");
		expect(p.scq, &wc, IBV_WC_SUCCESS, 7);
		CHECK(!ibv_poll_cq(p.scq, 1, &wc), "an unsignalled request completed");
		CHECK(words[1] == 40 && words[2] == 42 && words[3] == 1000, "atomics: %lu %lu %lu", (unsigned long)words[1], (unsigned long)words[2], (unsigned long)words[3]);
	} else {
		expect(p.rcq, &wc, IBV_WC_SUCCESS, 0);
		CHECK(wc.byte_len == 30, "length");
		verify(p.buf + 100000, 30, 5, "wr_send");
		expect(p.rcq, &wc, IBV_WC_SUCCESS, 1);
		CHECK(wc.byte_len == 40 && wc.imm_data == htobe32(33), "wr_send_imm");
		verify(p.buf + 101000, 40, 5, "wr_send_imm");
		expect(p.rcq, &wc, IBV_WC_SUCCESS, 2);
		CHECK(wc.byte_len == 1000 && wc.imm_data == htobe32(44) && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM, "wr_rdma_write_imm");
		verify(p.buf, 300, 5, "wr_rdma_write");
		verify(p.buf + 2000, 1000, 5, "wr_rdma_write_imm");
	}
	meet();
	ibv_destroy_qp(qp);
	close_port(&p);
}

/* Datagrams: immediate data, route header, and what is dropped. */
static void ud_datagrams(void)
{
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;
	struct ibv_send_wr *bad;

	open_port(&p, 1 << 16, 64, false);
	struct ibv_qp *qp = make_qp(&p, IBV_QPT_UD, 16, 0);

	board->note[rank].qpn[0] = qp->qp_num;
	to_init(qp, 0);
	if (rank == 1)
		post_recv(qp, &p, 0, 2000, 1), post_recv(qp, &p, 4000, 4136, 2);
	to_rtr(qp, 0);
	to_rts(qp, 0);
	meet();
	if (rank == 0) {
		struct ibv_ah_attr a = { .dlid = 1, .port_num = 1, .sl = 3 };
		struct ibv_ah *plain = ibv_create_ah(p.pd, &a), *routed;

		a.is_global = 1;
		a.grh.hop_limit = 9;
		ibv_query_gid(p.ctx, 1, 0, &a.grh.dgid);
		routed = ibv_create_ah(p.pd, &a);
		fill(p.buf, 4096, 6);
		struct ibv_send_wr wr = request(&p, &s, IBV_WR_SEND_WITH_IMM, 0, 1000, 1);

		wr.imm_data = htobe32(7);
		wr.wr.ud.ah = plain;
		wr.wr.ud.remote_qpn = board->note[1].qpn[0];
		wr.wr.ud.remote_qkey = 0x9999; /* wrong: dropped */
		send_ok(qp, &wr);
		expect(p.scq, &wc, IBV_WC_SUCCESS, 1);
		wr.wr.ud.remote_qkey = 0x1234;
		send_ok(qp, &wr);
		expect(p.scq, &wc, IBV_WC_SUCCESS, 1);
		wr = request(&p, &s, IBV_WR_SEND, 0, 4096, 2);
		wr.wr.ud.ah = routed;
		wr.wr.ud.remote_qpn = board->note[1].qpn[0];
		wr.wr.ud.remote_qkey = 0x1234;
		send_ok(qp, &wr);
		expect(p.scq, &wc, IBV_WC_SUCCESS, 2);
		send_ok(qp, &wr); /* no receive left: dropped */
		expect(p.scq, &wc, IBV_WC_SUCCESS, 2);
		s.length = 4097;
		CHECK(ibv_post_send(qp, &wr, &bad) && bad == &wr, "more than the MTU was taken");
		meet();
		ibv_destroy_ah(plain);
		ibv_destroy_ah(routed);
	} else {
		union ibv_gid gid;

		meet();
		expect(p.rcq, &wc, IBV_WC_SUCCESS, 1);
		CHECK(wc.byte_len == 1040 && wc.imm_data == htobe32(7) && wc.src_qp == board->note[0].qpn[0] && wc.sl == 3 && wc.slid == 1 && !(wc.wc_flags & IBV_WC_GRH), "completion");
		verify(p.buf + 40, 1000, 6, "datagram");
		expect(p.rcq, &wc, IBV_WC_SUCCESS, 2);
		CHECK(wc.byte_len == 4136 && (wc.wc_flags & IBV_WC_GRH) && !(wc.wc_flags & IBV_WC_WITH_IMM), "completion");
		verify(p.buf + 4040, 4096, 6, "datagram with route");
		ibv_query_gid(p.ctx, 1, 0, &gid);
		CHECK(!memcmp(p.buf + 4008, &gid, 16) && !memcmp(p.buf + 4024, &gid, 16) && p.buf[4000] >> 4 == 6 && p.buf[4007] == 9, "route header");
		CHECK(!wait_wc(p.rcq, &wc, 0.1), "a dropped datagram arrived");
	}
	meet();
	ibv_destroy_qp(qp);
	close_port(&p);
}

/* Datagrams through ibv_wr_*, to two destinations in one batch. */
static void ud_wr_interface(void)
{
	struct port p;
	struct ibv_wc wc;
	struct ibv_ah_attr a = { .dlid = 1, .port_num = 1 };

	open_port(&p, 1 << 16, 64, false);
	struct ibv_qp *qp = make_qp(&p, IBV_QPT_UD, 16, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(qp);
	struct ibv_ah *ah = ibv_create_ah(p.pd, &a);

	board->note[rank].qpn[0] = qp->qp_num;
	to_init(qp, 0);
	post_recv(qp, &p, 4096, 1000, 1);
	to_rtr(qp, 0);
	to_rts(qp, 0);
	meet();
	if (rank == 0) {
		ibv_wr_start(x);
		for (int i = 1; i < ranks; i++) {
			fill(p.buf + i * 100, 100, i);
			x->wr_id = i;
			x->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_send_imm(x, htobe32(i));
			ibv_wr_set_ud_addr(x, ah, board->note[i].qpn[0], 0x1234);
			if (i == 1)
				ibv_wr_set_inline_data(x, p.buf + i * 100, 100);
			else
				ibv_wr_set_sge(x, p.mr->lkey, (uintptr_t)p.buf + i * 100, 100);
		}
		CHECK(!ibv_wr_complete(x), "wr_complete");
		for (int i = 1; i < ranks; i++)
			expect(p.scq, &wc, IBV_WC_SUCCESS, i);
	} else {
		expect(p.rcq, &wc, IBV_WC_SUCCESS, 1);
		CHECK(wc.imm_data == htobe32(rank) && wc.byte_len == 140, "completion");
		verify(p.buf + 4136, 100, rank, "datagram");
	}
	meet();
	ibv_destroy_ah(ah);
	ibv_destroy_qp(qp);
	close_port(&p);
}

/* Two queue pairs on one shared receive queue. */
static void shared_receive_queue(void)
{
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;
	struct ibv_qp *qp[2];

	open_port(&p, 1 << 16, 64, false);
	if (rank == 0) {
		struct ibv_srq_init_attr a = { .attr = { .max_wr = 32, .max_sge = 2 } };

		p.srq = ibv_create_srq(p.pd, &a);
		CHECK(p.srq, "create_srq");
		for (int i = 0; i < 20; i++)
			post_recv(NULL, &p, i * 64, 64, i);
	}
	for (int i = 1; i < ranks; i++)
		if (rank == 0 || rank == i)
			qp[i - 1] = connect_to(&p, rank == 0 ? i : 0, 32, 0);
		else
			meet(), meet();
	if (rank) {
		for (int i = 0; i < 10; i++) {
			struct ibv_send_wr wr = request(&p, &s, IBV_WR_SEND_WITH_IMM, i * 64, 64, i);

			fill(p.buf + i * 64, 64, rank * 100 + i);
			wr.imm_data = htobe32(i);
			send_ok(qp[rank - 1], &wr);
			expect(p.scq, &wc, IBV_WC_SUCCESS, i);
		}
	} else {
		uint32_t next[2] = { 0, 0 };

		for (int i = 0; i < 20; i++) {
			CHECK(wait_wc(p.rcq, &wc, 10) && !wc.status, "receive");
			const int from = wc.qp_num == qp[0]->qp_num ? 1 : 2;

			CHECK(wc.qp_num == qp[from - 1]->qp_num && be32toh(wc.imm_data) == next[from - 1], "order from %d", from);
			verify(p.buf + wc.wr_id * 64, 64, from * 100 + next[from - 1]++, "shared receive");
		}
	}
	meet();
	for (int i = 1; i < ranks; i++)
		if (rank == 0 || rank == i)
			ibv_destroy_qp(qp[i - 1]);
	close_port(&p);
}

/* 16 processes: each writes to each, and all add to one counter. */
static void sixteen_processes(void)
{
	enum { ADDS = 200, BLOCK = 3000 };
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;
	struct ibv_qp *qp[MAX_RANKS] = { 0 };

	open_port(&p, 1 << 17, 64, false);
	for (int i = 0; i < ranks; i++)
		if (i != rank) {
			qp[i] = make_qp(&p, IBV_QPT_RC, 16, 0);
			board->note[rank].qpn[i] = qp[i]->qp_num;
		}
	meet();
	for (int i = 0; i < ranks; i++)
		if (i != rank) {
			to_init(qp[i], ALL_ACCESS);
			to_rtr(qp[i], board->note[i].qpn[rank]);
			to_rts(qp[i], 7);
		}
	meet();
	for (int i = 0; i < ranks; i++)
		if (i != rank) {
			struct ibv_send_wr wr = request(&p, &s, IBV_WR_RDMA_WRITE, 1 << 16, BLOCK, i);

			fill(p.buf + (1 << 16), BLOCK, rank * 16 + i);
			wr.wr.rdma.remote_addr = board->note[i].addr + 64 + rank * BLOCK;
			wr.wr.rdma.rkey = board->note[i].rkey;
			send_ok(qp[i], &wr);
			expect(p.scq, &wc, IBV_WC_SUCCESS, i);
		}
	for (int k = 0; rank && k < ADDS; k++) {
		struct ibv_send_wr wr = request(&p, &s, IBV_WR_ATOMIC_FETCH_AND_ADD, 1 << 16, 8, k);

		wr.wr.atomic.remote_addr = board->note[0].addr;
		wr.wr.atomic.rkey = board->note[0].rkey;
		wr.wr.atomic.compare_add = rank;
		send_ok(qp[0], &wr);
		expect(p.scq, &wc, IBV_WC_SUCCESS, k);
	}
	meet();
	for (int i = 0; i < ranks; i++)
		if (i != rank)
			verify(p.buf + 64 + i * BLOCK, BLOCK, i * 16 + rank, "all to all");
	if (rank == 0) {
		const uint64_t sum = *(uint64_t *)p.buf, want = (uint64_t)ADDS * ranks * (ranks - 1) / 2;

		CHECK(sum == want, "counter is %lu, not %lu", (unsigned long)sum, (unsigned long)want);
	}
	meet();
	for (int i = 0; i < ranks; i++)
		if (i != rank)
			ibv_destroy_qp(qp[i]);
	close_port(&p);
}

/* A queue pair connected to itself, within one process. */
static void loopback(void)
{
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;

	open_port(&p, 1 << 16, 64, false);
	struct ibv_qp *qp = connect_to(&p, 0, 8, 0);

	post_recv(qp, &p, 4096, 4096, 1);
	fill(p.buf, 4096, 9);
	struct ibv_send_wr wr = request(&p, &s, IBV_WR_SEND, 0, 4096, 2);

	send_ok(qp, &wr);
	expect(p.rcq, &wc, IBV_WC_SUCCESS, 1);
	expect(p.scq, &wc, IBV_WC_SUCCESS, 2);
	verify(p.buf + 4096, 4096, 9, "loopback");
	ibv_destroy_qp(qp);
	close_port(&p);
}

const struct test data_tests[] = {
	{ "rc_send", 2, rc_send, 0, false },
	{ "rnr_keeps_order", 2, rnr_keeps_order, 0, false },
	{ "rc_one_sided", 2, rc_one_sided, 0, false },
	{ "wr_interface", 2, wr_interface, 0, false },
	{ "ud_datagrams", 2, ud_datagrams, 0, false },
	{ "ud_wr_interface", 3, ud_wr_interface, 0, false },
	{ "shared_receive_queue", 3, shared_receive_queue, 0, false },
	{ "sixteen_processes", 16, sixteen_processes, 0, false },
	{ "loopback", 1, loopback, 0, false },
	{ NULL, 0, NULL, 0, false },
};
