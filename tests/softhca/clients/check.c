/*
 * What the checking programs share.
 * usage: PROGRAM [NAME...]; prints `ok NAME` or `FAIL NAME`, exit 1 on FAIL.
 */
#include "check.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct board *board;
int rank, ranks;

double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

void meet(void)
{
	const int g = atomic_load(&board->generation);

	if (atomic_fetch_add(&board->arrived, 1) + 1 == ranks) {
		atomic_store(&board->arrived, 0);
		atomic_fetch_add(&board->generation, 1);
		return;
	}
	while (atomic_load(&board->generation) == g)
		usleep(200);
}

void open_port(struct port *p, size_t size, int cq_depth, bool channel)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	memset(p, 0, sizeof *p);
	CHECK(list && list[0], "no device");
	p->ctx = ibv_open_device(list[0]);
	CHECK(p->ctx, "ibv_open_device: %s", strerror(errno));
	ibv_free_device_list(list);
	p->pd = ibv_alloc_pd(p->ctx);
	if (channel)
		p->channel = ibv_create_comp_channel(p->ctx);
	p->scq = ibv_create_cq(p->ctx, cq_depth, NULL, NULL, 0);
	p->rcq = ibv_create_cq(p->ctx, cq_depth, p, p->channel, 0);
	CHECK(p->scq && p->rcq, "ibv_create_cq: %s", strerror(errno));
	p->size = size;
	p->buf = aligned_alloc(4096, (size + 4095) & ~(size_t)4095);
	memset(p->buf, 0, size);
	p->mr = ibv_reg_mr(p->pd, p->buf, size, ALL_ACCESS);
	CHECK(p->mr, "ibv_reg_mr: %s", strerror(errno));
	board->note[rank].rkey = p->mr->rkey;
	board->note[rank].addr = (uintptr_t)p->buf;
}

void close_port(struct port *p)
{
	CHECK(!ibv_dereg_mr(p->mr), "dereg_mr");
	if (p->srq)
		CHECK(!ibv_destroy_srq(p->srq), "destroy_srq");
	CHECK(!ibv_destroy_cq(p->scq) && !ibv_destroy_cq(p->rcq), "destroy_cq");
	if (p->channel)
		CHECK(!ibv_destroy_comp_channel(p->channel), "destroy_comp_channel");
	CHECK(!ibv_dealloc_pd(p->pd), "dealloc_pd");
	CHECK(!ibv_close_device(p->ctx), "close_device");
	free(p->buf);
}

struct ibv_qp *make_qp(struct port *p, enum ibv_qp_type type, int depth, uint64_t send_ops)
{
	struct ibv_qp_init_attr_ex a = {
		.send_cq = p->scq,
		.recv_cq = p->rcq,
		.srq = p->srq,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 128 },
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (send_ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.pd = p->pd,
		.send_ops_flags = send_ops,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(p->ctx, &a);

	CHECK(qp, "ibv_create_qp_ex: %s", strerror(errno));
	return qp;
}

void to_init(struct ibv_qp *qp, int access)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access, .qkey = 0x1234 };
	int rc = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (qp->qp_type == IBV_QPT_RC ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY));

	CHECK(!rc, "to INIT: %s", strerror(rc));
}

void to_rtr(struct ibv_qp *qp, uint32_t dest)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = dest,
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = 12,
		.ah_attr = { .dlid = 1, .port_num = 1 },
	};
	int mask = IBV_QP_STATE;
	int rc;

	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	rc = ibv_modify_qp(qp, &a, mask);
	CHECK(!rc, "to RTR: %s", strerror(rc));
}

void to_rts(struct ibv_qp *qp, int rnr_retry)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = rnr_retry, .max_rd_atomic = 16 };
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	int rc;

	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	rc = ibv_modify_qp(qp, &a, mask);
	CHECK(!rc, "to RTS: %s", strerror(rc));
}

struct ibv_qp *connect_to(struct port *p, int peer, int depth, uint64_t send_ops)
{
	struct ibv_qp *qp = make_qp(p, IBV_QPT_RC, depth, send_ops);

	board->note[rank].qpn[peer] = qp->qp_num;
	meet();
	to_init(qp, ALL_ACCESS);
	to_rtr(qp, board->note[peer].qpn[rank]);
	to_rts(qp, 7);
	meet();
	return qp;
}

void post_recv(struct ibv_qp *qp, struct port *p, size_t offset, uint32_t len, uint64_t id)
{
	struct ibv_sge s = { .addr = (uintptr_t)p->buf + offset, .length = len, .lkey = p->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &s, .num_sge = 1 }, *bad;
	int rc = p->srq ? ibv_post_srq_recv(p->srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);

	CHECK(!rc, "post_recv: %s", strerror(rc));
}

struct ibv_send_wr request(struct port *p, struct ibv_sge *sge, enum ibv_wr_opcode op, size_t offset, uint32_t len, uint64_t id)
{
	*sge = (struct ibv_sge){ .addr = (uintptr_t)p->buf + offset, .length = len, .lkey = p->mr->lkey };
	return (struct ibv_send_wr){ .wr_id = id, .sg_list = sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED };
}

void send_ok(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	int rc = ibv_post_send(qp, wr, &bad);

	CHECK(!rc, "post_send: %s", strerror(rc));
}

bool wait_wc(struct ibv_cq *cq, struct ibv_wc *wc, double seconds)
{
	const double end = now() + seconds;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, wc)))
		if (now() > end)
			return false;
	CHECK(n == 1, "poll_cq gave %d", n);
	return true;
}

void expect(struct ibv_cq *cq, struct ibv_wc *wc, enum ibv_wc_status status, uint64_t id)
{
	CHECK(wait_wc(cq, wc, 10), "no completion for request %lu", (unsigned long)id);
	CHECK(wc->status == status && wc->wr_id == id, "got request %lu with %s, not %lu with %s", (unsigned long)wc->wr_id,
	      ibv_wc_status_str(wc->status), (unsigned long)id, ibv_wc_status_str(status));
}

static uint8_t pattern(unsigned seed, size_t i)
{
	return (uint8_t)(seed * 37 + i * 5 + (i >> 8) + 1);
}

void fill(uint8_t *b, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		b[i] = pattern(seed, i);
}

void verify(const uint8_t *b, size_t n, unsigned seed, const char *what)
{
	for (size_t i = 0; i < n; i++)
		CHECK(b[i] == pattern(seed, i), "%s: byte %zu of %zu is wrong", what, i, n);
}

static bool run(const struct test *t)
{
	int pid[MAX_RANKS];
	bool good = true;

	memset(board, 0, sizeof *board);
	ranks = t->ranks;
	fflush(stdout);
	for (int i = 0; i < ranks; i++) {
		pid[i] = fork();
		if (!pid[i]) {
			rank = i;
			board->pid[i] = getpid();
			alarm(60);
			t->run();
			exit(0);
		}
	}
	for (int i = 0; i < ranks; i++) {
		int status;

		waitpid(pid[i], &status, 0);
		if (t->dies == i + 1 ? !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) : status != 0) {
			fprintf(stderr, "%s: %s: rank %d ended with status %#x\n", program_invocation_short_name, t->name, i, (unsigned)status);
			good = false;
			for (int k = i + 1; k < ranks; k++)
				kill(pid[k], SIGKILL);
		}
	}
	printf("%s %s\n", good ? "ok" : "FAIL", t->name);
	return good;
}

int main(int argc, char **argv)
{
	int failed = 0, found = 0;

	board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (const struct test *const *g = test_groups; *g; g++)
		for (const struct test *t = *g; t->name; t++) {
			bool wanted = argc == 1 && !t->on_request;

			for (int i = 1; i < argc; i++)
				wanted |= !strcmp(argv[i], t->name);
			if (!wanted)
				continue;
			found++;
			failed += !run(t);
		}
	if (!found)
		fprintf(stderr, "%s: no such test\n", program_invocation_short_name);
	return failed || !found;
}
