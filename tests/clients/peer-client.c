/* peer-client [-d DEVICE] [-g GID_INDEX] [-n COUNT] [-p PORT] [HOST]: two processes, on one machine or two. The one without HOST
 * waits at TCP port PORT (default 18600); they exchange addresses and connect one RC queue pair each. First the one with HOST,
 * then the other, posts COUNT (default 20, at most 64) requests of each kind: send, send and write with immediate data, write, read; only
 * the last of a kind asks for a completion. Each checks what arrived, immediate data and order included, and prints what it posted and polled.
 */
#define _GNU_SOURCE
#include "meet.h"
#include "rc.h"

#include <endian.h>
#include <sys/socket.h>

enum { SEND, SEND_IMM, WRITE_IMM, WRITE, READ, RECV, CQE, OPS };
static struct tally did[OPS] = {
	[SEND] = { .name = "send" }, [SEND_IMM] = { .name = "send_imm" }, [WRITE_IMM] = { .name = "write_imm" },
	[WRITE] = { .name = "write" }, [READ] = { .name = "read" }, [RECV] = { .name = "recv" }, [CQE] = { .name = "cqe" },
};
static const enum ibv_wr_opcode opcode[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE,
					     IBV_WR_RDMA_READ };
enum { KINDS = sizeof opcode / sizeof *opcode, MOST = 64, SLOT = 2048 };
enum { TAKE_RECEIVE = 3 }; /* the first kinds */

/* Registered memory. Each request has a slot of its own. */
static struct memory {
	uint8_t from[KINDS][MOST][SLOT];  /* what is sent and written */
	uint8_t in[TAKE_RECEIVE * MOST][SLOT]; /* receives, in order of their posting */
	uint8_t to[KINDS][MOST][SLOT];	  /* what the peer writes */
	uint8_t back[MOST][SLOT];	  /* what is read from the peer's `from` */
} *mine;

struct address {
	uint32_t qpn, rkey;
	uint64_t memory;
	union ibv_gid gid;
};

static int n_requests = 20, server;
static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct address peer;
static int sent, received; /* completions polled */

static void count(int kind, uint64_t bytes)
{
	did[kind].count++;
	did[kind].bytes += bytes;
}
static uint32_t length_of(int kind, int i)
{
	return 1 + (uint32_t)(i * 97 + kind * 131) % SLOT;
}
/* What fills a slot of the given side. */
static uint8_t pattern(int of_server, int kind, int i)
{
	return (uint8_t)(1 + of_server * 101 + kind * 17 + i);
}

/* ---- meeting ---- */

/* Both sides send n bytes and wait for the other's. */
static void exchange(int fd, const void *out, void *in, size_t n)
{
	CHECK(send(fd, out, n, 0) == (ssize_t)n && recv(fd, in, n, MSG_WAITALL) == (ssize_t)n);
}
static void barrier(int fd)
{
	char c = 0;
	exchange(fd, &c, &c, 1);
}

/* ---- requests and completions ---- */

static void post_receives(void)
{
	for (int i = 0; i < TAKE_RECEIVE * n_requests; i++) {
		struct ibv_sge sg = { (uintptr_t)mine->in[i], SLOT, mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = (uint64_t)i, .sg_list = &sg, .num_sge = 1 }, *bad;
		CHECK(!ibv_post_recv(qp, &wr, &bad));
		count(RECV, SLOT);
	}
}

/* The i-th receive is filled by the i-th request that takes one: they come in the order of their posting. */
static void check_receive(const struct ibv_wc *wc)
{
	int kind = received / n_requests, i = received % n_requests;
	CHECK(wc->wr_id == (uint64_t)received && wc->byte_len == length_of(kind, i));
	if (kind != SEND)
		CHECK(wc->wc_flags & IBV_WC_WITH_IMM && be32toh(wc->imm_data) == (uint32_t)(kind * 1000 + i));
	if (kind != WRITE_IMM)
		CHECK(mine->in[received][wc->byte_len - 1] == pattern(!server, kind, i));
	received++;
}

static void poll_until(int sends, int receives)
{
	while (sent < sends || received < receives) {
		struct ibv_wc wc[8];
		int n = ibv_poll_cq(cq, 8, wc);
		CHECK(n >= 0);
		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS) {
				fprintf(stderr, "completion with error: %s\n", ibv_wc_status_str(wc[i].status));
				exit(1);
			}
			count(CQE, 0);
			if (wc[i].opcode & IBV_WC_RECV)
				check_receive(&wc[i]);
			else
				sent++;
		}
	}
}

static void post(int kind, int i)
{
	struct ibv_sge sg = { (uintptr_t)mine->from[kind][i], length_of(kind, i), mr->lkey };
	struct memory *far = (struct memory *)(uintptr_t)peer.memory;
	struct ibv_send_wr wr = { .opcode = opcode[kind], .sg_list = &sg, .num_sge = 1, .imm_data = htobe32((uint32_t)(kind * 1000 + i)) }, *bad;
	wr.send_flags = i == n_requests - 1 ? IBV_SEND_SIGNALED : 0;
	wr.wr.rdma.rkey = peer.rkey;
	wr.wr.rdma.remote_addr = (uintptr_t)&far->to[kind][i];
	if (kind == READ) {
		sg.addr = (uintptr_t)mine->back[i];
		wr.wr.rdma.remote_addr = (uintptr_t)&far->from[READ][i];
	}
	CHECK(!ibv_post_send(qp, &wr, &bad));
	count(kind, sg.length);
}

/* One side posts, and checks what it read; the other waits for what takes its receives. */
static void turn(int mine_to_post)
{
	if (!mine_to_post) {
		poll_until(0, TAKE_RECEIVE * n_requests);
		return;
	}
	for (int kind = 0; kind < KINDS; kind++) {
		for (int i = 0; i < n_requests; i++)
			post(kind, i);
		poll_until(sent + 1, 0);
	}
	for (int i = 0; i < n_requests; i++)
		CHECK(mine->back[i][length_of(READ, i) - 1] == pattern(!server, READ, i));
}

int main(int argc, char **argv)
{
	const char *device = NULL, *port = "18600";
	int gid_index = 0, opt, n;
	while ((opt = getopt(argc, argv, "d:g:n:p:")) != -1)
		switch (opt) {
		case 'd': device = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case 'n': n_requests = atoi(optarg); break;
		case 'p': port = optarg; break;
		default: return 2;
		}
	CHECK(n_requests > 0 && n_requests <= MOST);
	const char *host = optind < argc ? argv[optind] : NULL;
	server = !host;

	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list);
	struct ibv_context *ctx = ibv_open_device(find_device(list, device));
	CHECK(ctx);
	ibv_free_device_list(list);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd && !posix_memalign((void **)&mine, 4096, sizeof *mine));
	memset(mine, 0, sizeof *mine);
	for (int kind = 0; kind < KINDS; kind++)
		for (int i = 0; i < n_requests; i++)
			memset(mine->from[kind][i], pattern(server, kind, i), SLOT);
	mr = ibv_reg_mr(pd, mine, sizeof *mine, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	cq = ibv_create_cq(ctx, (TAKE_RECEIVE + 1) * MOST, NULL, NULL, 0);
	CHECK(mr && cq);
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { MOST, TAKE_RECEIVE * MOST, 1, 1, 0 } };
	qp = ibv_create_qp(pd, &attr);
	CHECK(qp);

	struct ibv_ah_attr ah;
	address_of(ctx, gid_index, &ah);
	struct address own = { qp->qp_num, mr->rkey, (uintptr_t)mine, ah.grh.dgid };
	int fd = meet_host(host, port, 0);
	exchange(fd, &own, &peer, sizeof own);
	ah.grh.dgid = peer.gid;
	connect_rc(qp, peer.qpn, &ah);
	post_receives();
	barrier(fd);
	turn(!server);
	barrier(fd);
	turn(server);
	barrier(fd);
	for (int kind = WRITE_IMM; kind <= WRITE; kind++)
		for (int i = 0; i < n_requests; i++)
			CHECK(mine->to[kind][i][length_of(kind, i) - 1] == pattern(!server, kind, i));
	barrier(fd);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	tally_report(did, OPS);
	return 0;
}
