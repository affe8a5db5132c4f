/* Events, extended polling, threads, fork, and peers that are killed. */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void await_event(struct port *p, struct ibv_cq *want)
{
	struct pollfd f = { .fd = p->channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *context;

	CHECK(poll(&f, 1, 10000) == 1, "no event");
	CHECK(!ibv_get_cq_event(p->channel, &cq, &context), "get_cq_event");
	CHECK(cq == want && context == p, "event of another queue");
	ibv_ack_cq_events(cq, 1);
}

static bool event_waits(struct port *p, int ms)
{
	struct pollfd f = { .fd = p->channel->fd, .events = POLLIN };

	return poll(&f, 1, ms) == 1;
}

/* Armed once, one event; not armed, none; solicited only; non-blocking. */
static void completion_events(void)
{
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;
	struct ibv_cq *cq;
	void *context;

	open_port(&p, 8192, 64, true);
	struct ibv_qp *qp = connect_to(&p, 1 - rank, 16, 0);
	struct ibv_send_wr wr = request(&p, &s, IBV_WR_SEND, 0, 8, 1);

	if (rank == 1) {
		for (int i = 0; i < 6; i++)
			post_recv(qp, &p, 0, 8, i);
		CHECK(!ibv_req_notify_cq(p.rcq, 0), "req_notify");
	}
	meet();
	if (rank == 0)
		send_ok(qp, &wr), send_ok(qp, &wr);
	else
		await_event(&p, p.rcq);
	meet();
	if (rank == 1) {
		CHECK(!event_waits(&p, 100), "two events for one request");
		expect(p.rcq, &wc, IBV_WC_SUCCESS, 0);
		expect(p.rcq, &wc, IBV_WC_SUCCESS, 1);
		CHECK(!ibv_req_notify_cq(p.rcq, 1), "req_notify");
		fcntl(p.channel->fd, F_SETFL, O_NONBLOCK);
		CHECK(ibv_get_cq_event(p.channel, &cq, &context) == -1 && errno == EAGAIN, "event from nothing");
	}
	meet();
	if (rank == 0)
		send_ok(qp, &wr);
	meet();
	if (rank == 1)
		CHECK(!event_waits(&p, 100), "event for an unsolicited completion");
	meet();
	if (rank == 0) {
		wr.send_flags |= IBV_SEND_SOLICITED;
		send_ok(qp, &wr);
	} else {
		await_event(&p, p.rcq);
		expect(p.rcq, &wc, IBV_WC_SUCCESS, 2);
		expect(p.rcq, &wc, IBV_WC_SUCCESS, 3);
	}
	meet();
	ibv_destroy_qp(qp);
	close_port(&p);
}

/* start_poll, next_poll until ENOENT, end_poll; time stamps. */
static void extended_polling(void)
{
	enum { N = 10 };
	struct port p;
	struct ibv_sge s;

	open_port(&p, 8192, 64, false);
	struct ibv_cq_init_attr_ex a = { .cqe = 32, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_cq_ex *x = ibv_create_cq_ex(p.ctx, &a);
	struct ibv_cq *plain = p.scq;
	uint64_t last = 0;

	CHECK(x, "create_cq_ex");
	p.scq = ibv_cq_ex_to_cq(x);
	struct ibv_qp *qp = connect_to(&p, 0, 16, 0);

	CHECK(ibv_start_poll(x, &none) == ENOENT, "completion from nothing");
	for (int i = 0; i < N; i++) {
		struct ibv_send_wr wr = request(&p, &s, IBV_WR_RDMA_READ, 0, 8, 1000 + i);

		wr.wr.rdma.remote_addr = (uintptr_t)p.buf + 4096;
		wr.wr.rdma.rkey = p.mr->rkey;
		send_ok(qp, &wr);
	}
	CHECK(!ibv_start_poll(x, &none), "start_poll");
	for (int i = 0; i < N; i++) {
		CHECK(x->wr_id == (uint64_t)1000 + i && x->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(x) == IBV_WC_RDMA_READ && ibv_wc_read_qp_num(x) == qp->qp_num, "entry %d", i);
		CHECK(ibv_wc_read_completion_ts(x) >= last, "time goes back");
		last = ibv_wc_read_completion_ts(x);
		CHECK(ibv_next_poll(x) == (i < N - 1 ? 0 : ENOENT), "next_poll after %d", i);
	}
	ibv_end_poll(x);
	CHECK(last != 0, "no time stamp");
	CHECK(ibv_start_poll(x, &none) == ENOENT, "completion twice");
	ibv_destroy_qp(qp);
	ibv_destroy_cq(p.scq);
	p.scq = plain;
	close_port(&p);
}

static struct {
	struct port *p;
	struct ibv_qp *qp;
	_Atomic int completed;
} shared;

enum { THREADS = 4, EACH = 500, WINDOW = 8 };

static void *post_and_poll(void *arg)
{
	const int id = (int)(intptr_t)arg;
	struct ibv_sge s;
	struct ibv_wc wc[4];
	struct ibv_send_wr wr = request(shared.p, &s, IBV_WR_ATOMIC_FETCH_AND_ADD, 64 + id * 8, 8, id), *bad;

	wr.wr.atomic.remote_addr = board->note[1].addr;
	wr.wr.atomic.rkey = board->note[1].rkey;
	wr.wr.atomic.compare_add = 1;
	for (int sent = 0; sent < EACH || atomic_load(&shared.completed) < THREADS * EACH;) {
		int n = sent < EACH ? ibv_post_send(shared.qp, &wr, &bad) : ENOMEM;

		CHECK(!n || n == ENOMEM, "post_send: %s", strerror(n));
		sent += !n;
		n = ibv_poll_cq(shared.p->scq, 4, wc);
		for (int i = 0; i < n; i++)
			CHECK(!wc[i].status, "%s", ibv_wc_status_str(wc[i].status));
		atomic_fetch_add(&shared.completed, n);
	}
	return NULL;
}

/* Threads share a queue pair and a completion queue. */
static void threads(void)
{
	struct port p;
	pthread_t t[THREADS];

	open_port(&p, 8192, 64, false);
	struct ibv_qp *qp = connect_to(&p, 1 - rank, WINDOW, 0);

	shared.p = &p;
	shared.qp = qp;
	for (int i = 0; rank == 0 && i < THREADS; i++)
		pthread_create(&t[i], NULL, post_and_poll, (void *)(intptr_t)i);
	for (int i = 0; rank == 0 && i < THREADS; i++)
		pthread_join(t[i], NULL);
	meet();
	if (rank == 1)
		CHECK(*(uint64_t *)p.buf == THREADS * EACH, "%lu additions", (unsigned long)*(uint64_t *)p.buf);
	ibv_destroy_qp(qp);
	close_port(&p);
}

/* A child cannot use what it inherited, can use its own, harms nobody. */
static void fork_child(void)
{
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;

	open_port(&p, 8192, 64, false);
	struct ibv_qp *qp = connect_to(&p, 0, 16, 0);
	struct ibv_send_wr wr = request(&p, &s, IBV_WR_RDMA_WRITE, 0, 64, 5), *bad;
	int status;

	wr.wr.rdma.remote_addr = (uintptr_t)p.buf + 4096;
	wr.wr.rdma.rkey = p.mr->rkey;
	fill(p.buf, 64, 3);
	board->word[0] = p.mr->rkey;
	fflush(NULL);
	pid_t child = fork();

	if (!child) {
		struct port own;

		CHECK(ibv_post_send(qp, &wr, &bad), "the child posted on its parent's queue pair");
		CHECK(ibv_poll_cq(p.scq, 1, &wc) < 0, "the child polled its parent's queue");
		ibv_destroy_qp(qp);
		close_port(&p);
		open_port(&own, 8192, 64, false);
		struct ibv_qp *mine = make_qp(&own, IBV_QPT_RC, 8, 0);

		to_init(mine, ALL_ACCESS);
		to_rtr(mine, mine->qp_num);
		to_rts(mine, 7);
		fill(own.buf, 64, 4);
		wr = request(&own, &s, IBV_WR_RDMA_WRITE, 0, 64, 6);
		wr.wr.rdma.remote_addr = (uintptr_t)own.buf + 4096;
		wr.wr.rdma.rkey = own.mr->rkey;
		CHECK(own.mr->rkey != board->word[0], "the child got its parent's key");
		send_ok(mine, &wr);
		expect(own.scq, &wc, IBV_WC_SUCCESS, 6);
		verify(own.buf + 4096, 64, 4, "child's write");
		ibv_destroy_qp(mine);
		close_port(&own);
		exit(0);
	}
	waitpid(child, &status, 0);
	CHECK(status == 0, "child ended with %#x", (unsigned)status);
	send_ok(qp, &wr);
	expect(p.scq, &wc, IBV_WC_SUCCESS, 5);
	verify(p.buf + 4096, 64, 3, "parent's write after fork");
	ibv_destroy_qp(qp);
	close_port(&p);
}

/* The peer is killed while both send as fast as they can. */
static void peer_killed_while_sending(void)
{
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;
	const double start = now();

	open_port(&p, 1 << 21, 256, false);
	struct ibv_qp *qp = connect_to(&p, 1 - rank, 64, 0);

	for (int i = 0; i < 64; i++)
		post_recv(qp, &p, 1 << 20, 1 << 16, i);
	meet();
	for (uint64_t n = 0;; n++) {
		struct ibv_send_wr wr = request(&p, &s, n % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, 0, 1 << 16, n);

		CHECK(now() - start < 30, "no error after the peer was killed");
		wr.wr.rdma.remote_addr = board->note[1 - rank].addr;
		wr.wr.rdma.rkey = board->note[1 - rank].rkey;
		send_ok(qp, &wr);
		while (!wait_wc(p.scq, &wc, 0.01) && now() - start < 30)
			;
		if (rank == 0 && n == 200)
			kill(board->pid[1], SIGKILL);
		if (wc.status)
			break;
		while (ibv_poll_cq(p.rcq, 1, &wc) == 1)
			if (!wc.status)
				post_recv(qp, &p, 1 << 20, 1 << 16, 0);
	}
	CHECK(rank == 0, "the killed one goes on");
	CHECK(wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR, "%s", ibv_wc_status_str(wc.status));
	ibv_destroy_qp(qp);
	close_port(&p);
}

/* Only waiting for a message of the killed peer ends as well, and so does a
 * send that waits for a receive. The waiting itself must not cost a core. */
static void wait_for_the_killed(bool sending)
{
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;
	struct rusage before, after;

	open_port(&p, 8192, 64, true);
	struct ibv_qp *qp = connect_to(&p, 1 - rank, 16, 0);

	if (rank == 1) {
		meet();
		for (;;)
			pause();
	}
	struct ibv_send_wr wr = request(&p, &s, IBV_WR_SEND, 0, 8, 2);

	post_recv(qp, &p, 0, 8, 1);
	if (sending)
		send_ok(qp, &wr);
	ibv_req_notify_cq(p.rcq, 0);
	meet();
	const double begin = now();

	getrusage(RUSAGE_SELF, &before);
	usleep(500000);
	getrusage(RUSAGE_SELF, &after);
	const double elapsed = now() - begin;

	const long us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000L +
			after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec;

	CHECK((double)us < 0.1e6 * elapsed, "%ld us of processor time in %g s of waiting", us, elapsed);
	kill(board->pid[1], SIGKILL);
	await_event(&p, p.rcq);
	expect(p.rcq, &wc, IBV_WC_WR_FLUSH_ERR, 1);
	if (sending)
		CHECK(wait_wc(p.scq, &wc, 5) && wc.status && wc.wr_id == 2, "the waiting send");
	ibv_destroy_qp(qp);
	close_port(&p);
}

static void peer_killed_while_receiving(void)
{
	wait_for_the_killed(false);
}

static void peer_killed_while_waiting(void)
{
	wait_for_the_killed(true);
}

/* Destroying things in order while the peer sends to them. */
static void destroyed_under_traffic(void)
{
	struct port p;
	struct ibv_wc wc;
	struct ibv_sge s;

	open_port(&p, 1 << 20, 256, false);
	for (int round = 0; round < 20; round++) {
		struct ibv_qp *qp = connect_to(&p, 1 - rank, 16, 0);

		if (rank == 1) {
			/* deregistered memory must not change afterwards */
			struct ibv_mr *mr = ibv_reg_mr(p.pd, p.buf, 1 << 19, ALL_ACCESS);

			board->word[0] = mr->rkey;
			meet();
			usleep(500 + round * 100);
			ibv_dereg_mr(mr);
			memset(p.buf, 0xee, 1 << 19);
			usleep(1000);
			for (size_t i = 0; i < 1 << 19; i++)
				CHECK(p.buf[i] == 0xee, "written after deregistration");
		} else {
			meet();
			memset(p.buf, round, 1 << 19);
			do {
				struct ibv_send_wr wr = request(&p, &s, IBV_WR_RDMA_WRITE, 0, 1 << 19, round);

				wr.wr.rdma.remote_addr = board->note[1].addr;
				wr.wr.rdma.rkey = board->word[0];
				send_ok(qp, &wr);
				CHECK(wait_wc(p.scq, &wc, 10), "completion");
			} while (!wc.status);
			CHECK(wc.status == IBV_WC_REM_ACCESS_ERR, "%s", ibv_wc_status_str(wc.status));
		}
		meet();
		ibv_destroy_qp(qp);
	}
	close_port(&p);
}

/* A shared receive queue's owner hears of the end of its queue pair. */
static void last_wqe_event(void)
{
	struct port p;
	struct ibv_async_event e;
	struct ibv_srq_init_attr a = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };

	open_port(&p, 8192, 64, false);
	p.srq = ibv_create_srq(p.pd, &a);
	struct ibv_qp *qp = connect_to(&p, 0, 8, 0);
	struct pollfd f = { .fd = p.ctx->async_fd, .events = POLLIN };

	CHECK(poll(&f, 1, 100) == 0, "event from nothing");
	CHECK(!ibv_modify_qp(qp, &err, IBV_QP_STATE), "to ERR");
	CHECK(poll(&f, 1, 5000) == 1 && !ibv_get_async_event(p.ctx, &e), "no event");
	CHECK(e.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && e.element.qp == qp, "event %d", e.event_type);
	ibv_ack_async_event(&e);
	ibv_destroy_qp(qp);
	close_port(&p);
}

const struct test process_tests[] = {
	{ "completion_events", 2, completion_events, 0, false },
	{ "extended_polling", 1, extended_polling, 0, false },
	{ "threads", 2, threads, 0, false },
	{ "fork_child", 1, fork_child, 0, false },
	{ "peer_killed_while_sending", 2, peer_killed_while_sending, 2, false },
	{ "peer_killed_while_receiving", 2, peer_killed_while_receiving, 2, false },
	{ "peer_killed_while_waiting", 2, peer_killed_while_waiting, 2, false },
	{ "destroyed_under_traffic", 2, destroyed_under_traffic, 0, false },
	{ "last_wqe_event", 1, last_wqe_event, 0, false },
	{ NULL, 0, NULL, 0, false },
};

extern const struct test data_tests[], error_tests[];

const struct test *const test_groups[] = { data_tests, error_tests, process_tests, NULL };
