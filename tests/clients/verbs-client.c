/* verbs-client [-d DEVICE] [-g GID_INDEX] [-n COUNT] [-m MODE,...]: one process with two connected queue pairs, a and b, which
 * sends COUNT (default 40) requests of each kind from a to b, checks what arrives, and prints what it posted and polled.
 *
 * Modes, all of them without -m, each on queue pairs of its own:
 *   post        ibv_post_send, one request a call: every RC operation
 *   chain       lists of requests with two elements each, inline where small; only the last of a list is signaled
 *   wr          the same operations through ibv_wr_*, in batches; every other batch is built, aborted and built again
 *   ex          receives and completions polled through ibv_start_poll (left out where the device has no such CQ)
 *   srq         receives from a shared receive queue that two queue pairs use
 *   ud          sends with and without immediate data to an address handle
 *   event       completions awaited on a completion channel
 *   rejected    posts that must fail and so count for nothing: one alone, and one at the end of a list whose head is accepted
 */
#define _GNU_SOURCE
#include "rc.h"

#include <errno.h>

enum { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, ATOMIC, RECV, SRQ_RECV, CQE, OPS };
static struct tally did[OPS] = {
	[SEND] = { .name = "send" },	  [SEND_IMM] = { .name = "send_imm" }, [WRITE] = { .name = "write" },
	[WRITE_IMM] = { .name = "write_imm" }, [READ] = { .name = "read" },    [ATOMIC] = { .name = "atomic" },
	[RECV] = { .name = "recv" },	  [SRQ_RECV] = { .name = "srq_recv" }, [CQE] = { .name = "cqe" },
};

enum { SIZE = 4096, GRH = 40, DEPTH = 64 };
static const enum ibv_wr_opcode rc_ops[] = { IBV_WR_SEND,	IBV_WR_SEND_WITH_IMM,	     IBV_WR_RDMA_WRITE,
					     IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
					     IBV_WR_ATOMIC_CMP_AND_SWP };
enum { RC_OPS = sizeof rc_ops / sizeof *rc_ops };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_ah_attr self;
static struct ibv_mr *mr; /* from: source and results; to: what requests write, read, and count in; in: receives */
static uint8_t *from, *to, *in;
static uint64_t *word; /* target of the atomics, in `to` */
static int n_requests = 40;

static void count(int kind, uint64_t bytes)
{
	did[kind].count++;
	did[kind].bytes += bytes;
}

static int kind_of(enum ibv_wr_opcode op)
{
	switch (op) {
	case IBV_WR_SEND: return SEND;
	case IBV_WR_SEND_WITH_IMM: return SEND_IMM;
	case IBV_WR_RDMA_WRITE: return WRITE;
	case IBV_WR_RDMA_WRITE_WITH_IMM: return WRITE_IMM;
	case IBV_WR_RDMA_READ: return READ;
	default: return ATOMIC;
	}
}
static int takes_receive(enum ibv_wr_opcode op)
{
	return op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM;
}
static int is_atomic(enum ibv_wr_opcode op)
{
	return kind_of(op) == ATOMIC;
}
/* 1 to SIZE bytes, another number each time. */
static uint32_t length_of(enum ibv_wr_opcode op, int i)
{
	return is_atomic(op) ? 8 : 1 + (uint32_t)(i * 797 + op * 131) % SIZE;
}

/* ---- queue pairs ---- */

struct pair {
	struct ibv_cq *cq;
	struct ibv_cq_ex *cq_ex; /* instead of cq's poll, in mode ex */
	struct ibv_comp_channel *channel;
	struct ibv_srq *srq;
	struct ibv_qp *a, *b;
	int a_done, b_done; /* completions polled since the last wait */
};

static struct ibv_qp *make_qp(struct pair *p, enum ibv_qp_type type, int wr_interface)
{
	struct ibv_qp_init_attr_ex attr = { .send_cq = p->cq,
					    .recv_cq = p->cq,
					    .srq = p->srq,
					    .cap = { DEPTH, DEPTH, 2, 1, 32 },
					    .qp_type = type,
					    .comp_mask = IBV_QP_INIT_ATTR_PD,
					    .pd = pd };
	if (wr_interface) {
		attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
				      IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
				      IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	}
	struct ibv_qp *qp = ibv_create_qp_ex(ctx, &attr);
	CHECK(qp);
	return qp;
}

static void open_pair(struct pair *p, enum ibv_qp_type type, int wr_interface)
{
	if (!p->cq) {
		p->cq = ibv_create_cq(ctx, 4 * DEPTH, NULL, p->channel, 0);
		CHECK(p->cq);
	}
	p->a = make_qp(p, type, wr_interface);
	p->b = make_qp(p, type, 0);
	if (type == IBV_QPT_UD) {
		start_ud(p->a);
		start_ud(p->b);
	} else {
		connect_rc(p->a, p->b->qp_num, &self);
		connect_rc(p->b, p->a->qp_num, &self);
	}
}

static void close_qps(struct pair *p)
{
	CHECK(!ibv_destroy_qp(p->a) && !ibv_destroy_qp(p->b));
}
static void close_pair(struct pair *p)
{
	close_qps(p);
	if (p->srq)
		CHECK(!ibv_destroy_srq(p->srq));
	CHECK(!ibv_destroy_cq(p->cq));
	if (p->channel)
		CHECK(!ibv_destroy_comp_channel(p->channel));
}

/* ---- completions ---- */

static void completed(struct pair *p, enum ibv_wc_status status, uint32_t qp_num, enum ibv_wc_opcode op)
{
	if (status != IBV_WC_SUCCESS) {
		fprintf(stderr, "completion with error: %s\n", ibv_wc_status_str(status));
		exit(1);
	}
	count(CQE, 0);
	if (qp_num == p->a->qp_num && !(op & IBV_WC_RECV))
		p->a_done++;
	else
		p->b_done++;
}

static int poll_once(struct pair *p)
{
	if (p->cq_ex) {
		/* One completion a start: rdma-core 44's rxe gives stale ones when next_poll runs to the end. */
		struct ibv_poll_cq_attr attr = { 0 };
		int rc = ibv_start_poll(p->cq_ex, &attr);
		if (rc == ENOENT)
			return 0;
		CHECK(!rc);
		completed(p, p->cq_ex->status, ibv_wc_read_qp_num(p->cq_ex), ibv_wc_read_opcode(p->cq_ex));
		ibv_end_poll(p->cq_ex);
		return 1;
	}
	struct ibv_wc wc[8];
	int n = ibv_poll_cq(p->cq, 8, wc);
	CHECK(n >= 0);
	for (int i = 0; i < n; i++)
		completed(p, wc[i].status, wc[i].qp_num, wc[i].opcode);
	return n;
}

/* Polls until a has completed sends requests and b recvs receives since the last wait. */
static void await(struct pair *p, int sends, int recvs)
{
	while (p->a_done < sends || p->b_done < recvs) {
		if (poll_once(p) || !p->channel)
			continue;
		struct ibv_cq *cq;
		void *arg;
		CHECK(!ibv_req_notify_cq(p->cq, 0));
		if (poll_once(p))
			continue;
		CHECK(!ibv_get_cq_event(p->channel, &cq, &arg));
		ibv_ack_cq_events(cq, 1);
	}
	CHECK(p->a_done == sends && p->b_done == recvs);
	p->a_done = p->b_done = 0;
}

/* ---- requests ---- */

static void receive(struct pair *p)
{
	struct ibv_sge sg = { (uintptr_t)in, SIZE + GRH, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sg, .num_sge = 1 }, *bad;
	if (p->srq)
		CHECK(!ibv_post_srq_recv(p->srq, &wr, &bad));
	else
		CHECK(!ibv_post_recv(p->b, &wr, &bad));
	count(p->srq ? SRQ_RECV : RECV, sg.length);
}

static struct ibv_send_wr request(enum ibv_wr_opcode op, struct ibv_sge *sg, int n_sge)
{
	struct ibv_send_wr wr = { .opcode = op, .sg_list = sg, .num_sge = n_sge, .send_flags = IBV_SEND_SIGNALED };
	if (op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM)
		wr.imm_data = htobe32(7);
	if (is_atomic(op)) {
		wr.wr.atomic.remote_addr = (uintptr_t)word;
		wr.wr.atomic.rkey = mr->rkey;
		wr.wr.atomic.compare_add = op == IBV_WR_ATOMIC_FETCH_AND_ADD ? 1 : *word;
		wr.wr.atomic.swap = *word + 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)to;
		wr.wr.rdma.rkey = mr->rkey;
	}
	return wr;
}

/* Fills the source with bytes of their own for request i, so that check can tell that they arrived. */
static void prepare(int i, enum ibv_wr_opcode op)
{
	memset(op == IBV_WR_RDMA_READ ? to : from, i + 1, SIZE);
}
static void check(int i, enum ibv_wr_opcode op, uint32_t n, uint64_t word_before)
{
	const uint8_t *at = op == IBV_WR_RDMA_READ ? from : kind_of(op) == SEND || kind_of(op) == SEND_IMM ? in : to;
	if (is_atomic(op)) {
		CHECK(*word == word_before + 1);
		return;
	}
	CHECK(at[0] == (uint8_t)(i + 1) && at[n - 1] == (uint8_t)(i + 1));
}

static void mode_post(struct pair *p)
{
	for (int k = 0; k < RC_OPS; k++)
		for (int i = 0; i < n_requests; i++) {
			enum ibv_wr_opcode op = rc_ops[k];
			struct ibv_sge sg = { (uintptr_t)from, length_of(op, i), mr->lkey };
			uint64_t before = *word;
			prepare(i, op);
			struct ibv_send_wr wr = request(op, &sg, 1), *bad;
			if (takes_receive(op))
				receive(p);
			CHECK(!ibv_post_send(p->a, &wr, &bad));
			count(kind_of(op), sg.length);
			await(p, 1, takes_receive(op));
			check(i, op, sg.length, before);
		}
}

static void mode_chain(struct pair *p)
{
	enum { LIST = 5 };
	for (int k = 0; k < RC_OPS; k++) {
		enum ibv_wr_opcode op = rc_ops[k];
		if (is_atomic(op))
			continue;
		for (int i = 0; i < n_requests; i += LIST) {
			struct ibv_sge sg[LIST][2];
			struct ibv_send_wr wr[LIST], *bad;
			int n = n_requests - i < LIST ? n_requests - i : LIST;
			for (int j = 0; j < n; j++) {
				uint32_t len = j % 2 ? 16 : length_of(op, i + j);
				sg[j][0] = (struct ibv_sge){ (uintptr_t)from, len / 2, mr->lkey };
				sg[j][1] = (struct ibv_sge){ (uintptr_t)from + len / 2, len - len / 2, mr->lkey };
				wr[j] = request(op, sg[j], 2);
				wr[j].send_flags = j == n - 1 ? IBV_SEND_SIGNALED : 0;
				if (len <= 32 && op != IBV_WR_RDMA_READ)
					wr[j].send_flags |= IBV_SEND_INLINE;
				wr[j].next = j == n - 1 ? NULL : &wr[j + 1];
				if (takes_receive(op))
					receive(p);
				count(kind_of(op), len);
			}
			CHECK(!ibv_post_send(p->a, wr, &bad));
			await(p, 1, takes_receive(op) ? n : 0);
		}
	}
}

static void build(struct ibv_qp_ex *q, enum ibv_wr_opcode op, uint32_t len, int form)
{
	int can_inline = len <= 32 && op != IBV_WR_RDMA_READ && !is_atomic(op);
	/* Only rdma-core 44's rxe asks for the flag as well. */
	q->wr_flags = IBV_SEND_SIGNALED | (can_inline ? IBV_SEND_INLINE : 0);
	switch (op) {
	case IBV_WR_SEND: ibv_wr_send(q); break;
	case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(q, htobe32(7)); break;
	case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(q, mr->rkey, (uintptr_t)to); break;
	case IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_rdma_write_imm(q, mr->rkey, (uintptr_t)to, htobe32(7)); break;
	case IBV_WR_RDMA_READ: ibv_wr_rdma_read(q, mr->rkey, (uintptr_t)to); break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD: ibv_wr_atomic_fetch_add(q, mr->rkey, (uintptr_t)word, 1); break;
	default: ibv_wr_atomic_cmp_swp(q, mr->rkey, (uintptr_t)word, *word, *word + 1); break;
	}
	struct ibv_sge sg[2] = { { (uintptr_t)from, len / 2, mr->lkey }, { (uintptr_t)from + len / 2, len - len / 2, mr->lkey } };
	struct ibv_data_buf buf[2] = { { from, len / 2 }, { from + len / 2, len - len / 2 } };
	if (can_inline && form % 2)
		ibv_wr_set_inline_data(q, from, len);
	else if (can_inline)
		ibv_wr_set_inline_data_list(q, 2, buf);
	else if (form % 2 && !is_atomic(op))
		ibv_wr_set_sge_list(q, 2, sg);
	else
		ibv_wr_set_sge(q, mr->lkey, (uintptr_t)from, len);
}

static void mode_wr(struct pair *p)
{
	enum { BATCH = 6 };
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(p->a);
	CHECK(q);
	for (int k = 0; k < RC_OPS; k++) {
		enum ibv_wr_opcode op = rc_ops[k];
		for (int i = 0; i < n_requests; i += BATCH) {
			int n = n_requests - i < BATCH ? n_requests - i : BATCH;
			if (i / BATCH % 2) {
				ibv_wr_start(q);
				build(q, op, length_of(op, i), i);
				ibv_wr_abort(q);
			}
			for (int j = 0; takes_receive(op) && j < n; j++)
				receive(p);
			ibv_wr_start(q);
			for (int j = 0; j < n; j++) {
				uint32_t len = is_atomic(op) ? 8 : j % 3 ? length_of(op, i + j) : 20;
				build(q, op, len, i + j);
				count(kind_of(op), len);
			}
			CHECK(!ibv_wr_complete(q));
			await(p, n, takes_receive(op) ? n : 0);
		}
	}
}

static void mode_ud(struct pair *p)
{
	struct ibv_ah *ah = ibv_create_ah(pd, &self);
	CHECK(ah);
	for (int i = 0; i < n_requests; i++) {
		enum ibv_wr_opcode op = i % 2 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
		struct ibv_sge sg = { (uintptr_t)from, 1 + length_of(op, i) % 1000, mr->lkey };
		prepare(i, op);
		struct ibv_send_wr wr = request(op, &sg, 1), *bad;
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = p->b->qp_num;
		wr.wr.ud.remote_qkey = UD_QKEY;
		receive(p);
		CHECK(!ibv_post_send(p->a, &wr, &bad));
		count(kind_of(op), sg.length);
		await(p, 1, 1);
		CHECK(in[GRH] == (uint8_t)(i + 1));
	}
	CHECK(!ibv_destroy_ah(ah));
}

static void mode_rejected(struct pair *p)
{
	struct ibv_sge sg[3] = { { (uintptr_t)from, 8, mr->lkey }, { (uintptr_t)from, 8, mr->lkey }, { (uintptr_t)from, 8, mr->lkey } };
	struct ibv_send_wr good = request(IBV_WR_RDMA_WRITE, sg, 1), bad = request(IBV_WR_RDMA_WRITE, sg, 3), *at = NULL;
	CHECK(ibv_post_send(p->a, &bad, &at) && at == &bad); /* three elements, two are allowed */
	good.next = &bad;
	CHECK(ibv_post_send(p->a, &good, &at) && at == &bad);
	count(WRITE, 8);
	await(p, 1, 0);
}

static int chosen(const char *list, const char *mode)
{
	const char *p = strstr(list, mode);
	size_t n = strlen(mode);
	return !*list || (p && (p == list || p[-1] == ',') && (!p[n] || p[n] == ','));
}

int main(int argc, char **argv)
{
	const char *device = NULL, *modes = "";
	int gid_index = 0, opt, n;
	while ((opt = getopt(argc, argv, "d:g:n:m:")) != -1)
		switch (opt) {
		case 'd': device = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case 'n': n_requests = atoi(optarg); break;
		case 'm': modes = optarg; break;
		default: return 2;
		}
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list);
	ctx = ibv_open_device(find_device(list, device));
	CHECK(ctx);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
	size_t total = 4 * SIZE;
	CHECK(!posix_memalign((void **)&from, 4096, total));
	memset(from, 0, total);
	to = from + SIZE, in = from + 2 * SIZE, word = (uint64_t *)(to + SIZE - 8);
	mr = ibv_reg_mr(pd, from, total,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr);
	address_of(ctx, gid_index, &self);

	if (chosen(modes, "post")) {
		struct pair p = { 0 };
		open_pair(&p, IBV_QPT_RC, 0);
		mode_post(&p);
		close_pair(&p);
	}
	if (chosen(modes, "chain")) {
		struct pair p = { 0 };
		open_pair(&p, IBV_QPT_RC, 0);
		mode_chain(&p);
		close_pair(&p);
	}
	if (chosen(modes, "wr")) {
		struct pair p = { 0 };
		open_pair(&p, IBV_QPT_RC, 1);
		mode_wr(&p);
		close_pair(&p);
	}
	if (chosen(modes, "ex")) {
		struct ibv_cq_init_attr_ex attr = { .cqe = 4 * DEPTH, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM };
		struct pair p = { .cq_ex = ibv_create_cq_ex(ctx, &attr) };
		if (p.cq_ex && p.cq_ex->start_poll) {
			p.cq = ibv_cq_ex_to_cq(p.cq_ex);
			open_pair(&p, IBV_QPT_RC, 1);
			mode_post(&p);
			mode_wr(&p);
			close_pair(&p);
		} else {
			CHECK(*modes == 0); /* asked for by name, it must be there */
			fprintf(stderr, "verbs-client: mode ex left out: no extended CQ\n");
			if (p.cq_ex)
				CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(p.cq_ex)));
		}
	}
	if (chosen(modes, "srq")) {
		struct ibv_srq_init_attr attr = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
		struct pair p = { .srq = ibv_create_srq(pd, &attr) };
		CHECK(p.srq);
		open_pair(&p, IBV_QPT_RC, 0);
		mode_post(&p);
		struct pair second = p; /* the same CQ and SRQ */
		open_pair(&second, IBV_QPT_RC, 0);
		mode_post(&second);
		close_qps(&second);
		close_pair(&p);
	}
	if (chosen(modes, "ud")) {
		struct pair p = { 0 };
		open_pair(&p, IBV_QPT_UD, 0);
		mode_ud(&p);
		close_pair(&p);
	}
	if (chosen(modes, "event")) {
		struct pair p = { .channel = ibv_create_comp_channel(ctx) };
		CHECK(p.channel);
		open_pair(&p, IBV_QPT_RC, 0);
		mode_post(&p);
		close_pair(&p);
	}
	if (chosen(modes, "rejected")) {
		struct pair p = { 0 };
		open_pair(&p, IBV_QPT_RC, 0);
		mode_rejected(&p);
		close_pair(&p);
	}
	tally_report(did, OPS);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	return 0;
}
