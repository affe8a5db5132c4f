/* What must fail fails, with the status of the specification. */
#include "check.h"

#include <errno.h>
#include <unistd.h>

/* The sender's request fails with `want` and the rest is flushed; the queue
 * pair is then in the error state. */
static void fails(struct ibv_qp *qp, struct port *p, struct ibv_send_wr *wr, enum ibv_wc_status want)
{
	struct ibv_wc wc;
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;

	send_ok(qp, wr);
	expect(p->scq, &wc, want, wr->wr_id);
	CHECK(!ibv_query_qp(qp, &a, IBV_QP_STATE, &init) && a.qp_state == IBV_QPS_ERR, "state %d", a.qp_state);
	wr->wr_id++;
	wr->send_flags &= ~(unsigned)IBV_SEND_SIGNALED; /* flushed all the same */
	send_ok(qp, wr);
	expect(p->scq, &wc, IBV_WC_WR_FLUSH_ERR, wr->wr_id);
}

enum wrong { WRONG_RKEY, WRONG_BOUND, WRONG_WRAP, WRONG_RIGHT, WRONG_QP_RIGHT, WRONG_LKEY, WRONG_LOCAL_BOUND, WRONG_LOCAL_RIGHT, WRONG_ALIGN, WRONG_STALE, WRONGS };

static void keys_and_bounds(void)
{
	static const enum ibv_wc_status want[WRONGS] = {
		[WRONG_RKEY] = IBV_WC_REM_ACCESS_ERR, [WRONG_BOUND] = IBV_WC_REM_ACCESS_ERR, [WRONG_WRAP] = IBV_WC_REM_ACCESS_ERR,
		[WRONG_RIGHT] = IBV_WC_REM_ACCESS_ERR, [WRONG_QP_RIGHT] = IBV_WC_REM_ACCESS_ERR, [WRONG_LKEY] = IBV_WC_LOC_PROT_ERR,
		[WRONG_LOCAL_BOUND] = IBV_WC_LOC_PROT_ERR, [WRONG_LOCAL_RIGHT] = IBV_WC_LOC_PROT_ERR,
		[WRONG_ALIGN] = IBV_WC_REM_INV_REQ_ERR, [WRONG_STALE] = IBV_WC_REM_ACCESS_ERR,
	};
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;

	open_port(&p, 8192, 64, false);
	struct ibv_mr *weak = ibv_reg_mr(p.pd, p.buf, p.size, 0), *gone = ibv_reg_mr(p.pd, p.buf, p.size, ALL_ACCESS);
	const uint32_t stale = gone->rkey;

	ibv_dereg_mr(gone);
	board->word[2 * rank] = weak->rkey;
	board->word[2 * rank + 1] = stale;
	for (int w = 0; w < WRONGS; w++) {
		struct ibv_qp *qp = make_qp(&p, IBV_QPT_RC, 8, 0);
		const struct note *peer = &board->note[1 - rank];

		board->note[rank].qpn[1 - rank] = qp->qp_num;
		meet();
		to_init(qp, w == WRONG_QP_RIGHT ? 0 : ALL_ACCESS);
		if (rank == 1)
			post_recv(qp, &p, 0, 100, 55);
		to_rtr(qp, peer->qpn[rank]);
		to_rts(qp, 7);
		memset(p.buf, 0x11, p.size);
		meet();
		if (rank == 0) {
			struct ibv_send_wr wr = request(&p, &s, IBV_WR_RDMA_WRITE, 0, 64, w * 10);

			memset(p.buf, 0x22, p.size);
			wr.wr.rdma.remote_addr = peer->addr;
			wr.wr.rdma.rkey = peer->rkey;
			switch (w) {
			case WRONG_RKEY: wr.wr.rdma.rkey ^= 1; break;
			case WRONG_BOUND: wr.wr.rdma.remote_addr += 8192 - 63; break;
			case WRONG_WRAP: wr.wr.rdma.remote_addr = -8; break;
			case WRONG_RIGHT: wr.wr.rdma.rkey = board->word[2]; break;
			case WRONG_STALE: wr.wr.rdma.rkey = board->word[3]; break;
			case WRONG_LKEY: s.lkey ^= 1; break;
			case WRONG_LOCAL_BOUND: s.addr += 8192 - 63; break;
			case WRONG_LOCAL_RIGHT:
				wr.opcode = IBV_WR_RDMA_READ;
				s.lkey = weak->lkey;
				break;
			case WRONG_ALIGN:
				wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
				s.length = 8;
				wr.wr.atomic.remote_addr = peer->addr + 4;
				wr.wr.atomic.rkey = peer->rkey;
				break;
			}
			fails(qp, &p, &wr, want[w]);
		}
		meet();
		if (rank == 1) {
			const bool responder = want[w] != IBV_WC_LOC_PROT_ERR;

			for (size_t i = 0; i < p.size; i++)
				CHECK(p.buf[i] == 0x11, "case %d wrote at %zu", w, i);
			if (responder) { /* it went to the error state too */
				expect(p.rcq, &wc, IBV_WC_WR_FLUSH_ERR, 55);
			} else {
				CHECK(!ibv_poll_cq(p.rcq, 1, &wc), "flushed without an error here");
			}
		}
		ibv_destroy_qp(qp);
		meet();
	}
	ibv_dereg_mr(weak);
	close_port(&p);
}

static void receive_too_short(void)
{
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;

	open_port(&p, 8192, 64, false);
	struct ibv_qp *qp = connect_to(&p, 1 - rank, 8, 0);

	if (rank == 1)
		post_recv(qp, &p, 0, 99, 7), post_recv(qp, &p, 0, 99, 8);
	meet();
	if (rank == 0) {
		struct ibv_send_wr wr = request(&p, &s, IBV_WR_SEND, 0, 100, 1);

		fails(qp, &p, &wr, IBV_WC_REM_INV_REQ_ERR);
	} else {
		expect(p.rcq, &wc, IBV_WC_LOC_LEN_ERR, 7);
		expect(p.rcq, &wc, IBV_WC_WR_FLUSH_ERR, 8);
	}
	meet();
	ibv_destroy_qp(qp);
	close_port(&p);
}

static void modify_to_error_flushes(void)
{
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

	open_port(&p, 8192, 64, false);
	struct ibv_qp *qp = connect_to(&p, 1 - rank, 8, 0);

	for (int i = 0; i < 3; i++)
		if (rank == 0) { /* no receive there: they wait */
			struct ibv_send_wr wr = request(&p, &s, IBV_WR_SEND, 0, 8, i);

			wr.send_flags = 0;
			send_ok(qp, &wr);
		}
	if (rank == 0)
		for (int i = 0; i < 3; i++)
			post_recv(qp, &p, 0, 8, 10 + i);
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE), "to ERR");
	for (int i = 0; rank == 0 && i < 3; i++) {
		expect(p.scq, &wc, IBV_WC_WR_FLUSH_ERR, i);
		expect(p.rcq, &wc, IBV_WC_WR_FLUSH_ERR, 10 + i);
	}
	if (rank == 0) {
		post_recv(qp, &p, 0, 8, 20);
		expect(p.rcq, &wc, IBV_WC_WR_FLUSH_ERR, 20);
		a.qp_state = IBV_QPS_RESET; /* and it can be used again */
		CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE), "to RESET");
		to_init(qp, ALL_ACCESS);
	}
	meet();
	ibv_destroy_qp(qp);
	close_port(&p);
}

static void retries_run_out(void)
{
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;

	open_port(&p, 8192, 64, false);
	for (int round = 0; round < 2; round++) {
		struct ibv_qp *qp = make_qp(&p, IBV_QPT_RC, 8, 0);

		board->note[rank].qpn[1 - rank] = qp->qp_num;
		meet();
		to_init(qp, ALL_ACCESS);
		if (rank == 0 || round == 0)
			to_rtr(qp, board->note[1 - rank].qpn[rank]);
		if (rank == 0)
			to_rts(qp, 0);
		meet();
		if (rank == 0) {
			const double start = now();
			struct ibv_send_wr wr = request(&p, &s, IBV_WR_SEND, 0, 8, round);

			send_ok(qp, &wr);
			/* no receive; then: a peer that never gets ready */
			expect(p.scq, &wc, round == 0 ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_RETRY_EXC_ERR, round);
			CHECK(now() - start > 0.3, "gave up after %g s", now() - start);
		}
		meet();
		ibv_destroy_qp(qp);
	}
	close_port(&p);
}

static void queues_fill_up(void)
{
	enum { DEPTH = 8 };
	struct port p;
	struct ibv_wc wc[DEPTH];
	struct ibv_sge s;
	struct ibv_send_wr *bad;
	struct ibv_recv_wr rwr = { .wr_id = 1 }, *rbad;

	open_port(&p, 8192, 64, false);
	struct ibv_qp *qp = make_qp(&p, IBV_QPT_RC, DEPTH, 0);
	struct ibv_send_wr wr = request(&p, &s, IBV_WR_RDMA_WRITE, 0, 64, 1);

	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr, "posted in RESET");
	CHECK(ibv_post_recv(qp, &rwr, &rbad) == EINVAL, "receive posted in RESET");
	to_init(qp, ALL_ACCESS);
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL, "posted in INIT");
	to_rtr(qp, qp->qp_num);
	to_rts(qp, 7);
	wr.wr.rdma.remote_addr = (uintptr_t)p.buf + 4096;
	wr.wr.rdma.rkey = p.mr->rkey;
	/* slots come back when a completion is polled, not before; one signalled
	 * in DEPTH gives exactly one completion and returns all of them */
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < DEPTH; i++) {
			wr.send_flags = i == DEPTH - 1 ? IBV_SEND_SIGNALED : 0;
			wr.wr_id = round * DEPTH + i;
			send_ok(qp, &wr);
		}
		CHECK(ibv_post_send(qp, &wr, &bad) == ENOMEM && bad == &wr, "send queue took more than its depth");
		CHECK(ibv_poll_cq(p.scq, DEPTH, wc) == 1 && wc[0].wr_id == (uint64_t)round * DEPTH + DEPTH - 1, "moderated completion");
	}
	for (int i = 0; i < DEPTH; i++)
		CHECK(!ibv_post_recv(qp, &rwr, &rbad), "post_recv");
	CHECK(ibv_post_recv(qp, &rwr, &rbad) == ENOMEM && rbad == &rwr, "receive queue took more than its depth");
	wr.num_sge = 5;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL, "five elements where four are allowed");
	ibv_destroy_qp(qp);
	close_port(&p);
}

static void bad_arguments(void)
{
	struct port p;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RAW_PACKET };

	open_port(&p, 8192, 64, false);
	struct ibv_qp *qp = make_qp(&p, IBV_QPT_RC, 8, 0);

	CHECK(ibv_modify_qp(qp, &a, IBV_QP_STATE) == EINVAL, "RESET to RTS");
	to_init(qp, ALL_ACCESS);
	a.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &a, IBV_QP_STATE) == EINVAL, "RTR without attributes");
	CHECK(ibv_destroy_cq(p.scq) == EBUSY, "a used completion queue went");
	CHECK(ibv_dealloc_pd(p.pd) == EBUSY, "a used domain went");
	CHECK(!ibv_reg_mr(p.pd, (void *)4096, 4096, 0) && errno == EFAULT, "unmapped memory registered");
	CHECK(!ibv_reg_mr(p.pd, p.buf, 4096, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL, "remote write without local write");
	init.send_cq = p.scq;
	init.recv_cq = p.rcq;
	CHECK(!ibv_create_qp(p.pd, &init) && errno == EOPNOTSUPP, "raw packets");
	CHECK(!ibv_qp_to_qp_ex(qp), "extended interface without asking");
	ibv_destroy_qp(qp);
	close_port(&p);
}

const struct test error_tests[] = {
	{ "keys_and_bounds", 2, keys_and_bounds, 0, false },
	{ "receive_too_short", 2, receive_too_short, 0, false },
	{ "modify_to_error_flushes", 2, modify_to_error_flushes, 0, false },
	{ "retries_run_out", 2, retries_run_out, 0, false },
	{ "queues_fill_up", 1, queues_fill_up, 0, false },
	{ "bad_arguments", 1, bad_arguments, 0, false },
	{ NULL, 0, NULL, 0, false },
};
