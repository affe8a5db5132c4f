/*
 * Every operation of RC between two processes that share nothing but a network, bytes and statuses checked on both sides.
 * usage: host_check [ADDRESS]: the first of the two without an address
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 19321, SIZE = 1 << 22, PART = SIZE / 4, RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

static bool first;
static int sock;
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint8_t *buf;

static struct card {
	uint32_t qpn, rkey, lid;
	uint64_t addr;
	union ibv_gid gid;
} mine, peer;

__attribute__((format(printf, 2, 3))) static void check(bool good, const char *what, ...)
{
	va_list v;

	if (good)
		return;
	fprintf(stderr, "host_check: %s: ", first ? "first" : "second");
	va_start(v, what);
	vfprintf(stderr, what, v);
	va_end(v);
	fputc('\n', stderr);
	_Exit(1);
}

static void meet(void)
{
	char c = 'x';

	check(write(sock, &c, 1) == 1 && read(sock, &c, 1) == 1, "the other is gone");
}

static void connect_socket(const char *to)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int s = socket(AF_INET, SOCK_STREAM, 0);

	if (to) {
		inet_pton(AF_INET, to, &a.sin_addr);
		check(!connect(s, (struct sockaddr *)&a, sizeof a), "connect: %s", strerror(errno));
		sock = s;
		return;
	}
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
	check(!bind(s, (struct sockaddr *)&a, sizeof a) && !listen(s, 1), "listen: %s", strerror(errno));
	sock = accept(s, NULL, NULL);
	close(s);
}

static void make_qp(int rnr_retry)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 } };
	struct ibv_qp_attr m = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = RIGHTS };
	struct ibv_port_attr port;

	qp = ibv_create_qp(pd, &a);
	check(qp && !ibv_query_port(ctx, 1, &port) && !ibv_query_gid(ctx, 1, 0, &mine.gid), "queue pair");
	mine.qpn = qp->qp_num;
	mine.rkey = mr->rkey;
	mine.addr = (uintptr_t)buf;
	mine.lid = port.lid;
	check(write(sock, &mine, sizeof mine) == sizeof mine && recv(sock, &peer, sizeof peer, MSG_WAITALL) == sizeof peer, "cards");
	check(mine.qpn != peer.qpn && memcmp(&mine.gid, &peer.gid, 16) && mine.lid != peer.lid, "hosts are told apart");
	check(!ibv_modify_qp(qp, &m, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	m = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer.qpn, .max_dest_rd_atomic = 1, .min_rnr_timer = 1, .ah_attr = { .dlid = peer.lid, .port_num = 1 } };
	check(!ibv_modify_qp(qp, &m, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	m = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 1, .rnr_retry = rnr_retry, .max_rd_atomic = 1 };
	check(!ibv_modify_qp(qp, &m, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
	meet();
}

static struct ibv_wc wait_wc(const char *what)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 30;

	while (!ibv_poll_cq(cq, 1, &wc))
		check(time(NULL) < end, "%s: no completion", what);
	return wc;
}

static void done(enum ibv_wc_status status, const char *what)
{
	const struct ibv_wc wc = wait_wc(what);

	check(wc.status == status, "%s: %s, not %s", what, ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
}

static void post(enum ibv_wr_opcode op, size_t from, uint32_t len, size_t to, uint64_t add, uint64_t swap, uint32_t rkey)
{
	struct ibv_sge s = { .addr = (uintptr_t)buf + from, .length = len, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &s, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(77) }, *bad;

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = peer.addr + to;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = add;
		wr.wr.atomic.swap = swap;
	} else {
		wr.wr.rdma.remote_addr = peer.addr + to;
		wr.wr.rdma.rkey = rkey;
	}
	check(!ibv_post_send(qp, &wr, &bad), "post_send");
}

static void receive(size_t at, uint32_t len)
{
	struct ibv_sge s = { .addr = (uintptr_t)buf + at, .length = len, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &s, .num_sge = 1 }, *bad;

	check(!ibv_post_recv(qp, &wr, &bad), "post_recv");
}

static uint8_t pattern(unsigned seed, size_t i)
{
	return (uint8_t)(i * 31 + (i >> 9) + seed);
}

static void fill(size_t at, uint32_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		buf[at + i] = pattern(seed, i);
}

static void verify(size_t at, uint32_t len, unsigned seed, const char *what)
{
	for (size_t i = 0; i < len; i++)
		check(buf[at + i] == pattern(seed, i), "%s: byte %zu of %u is wrong", what, i, len);
}

static void one_sided(void)
{
	static const uint32_t lengths[] = { 1, 7, 4096, 65537, PART };
	uint64_t *words = (uint64_t *)(void *)(buf + 3 * PART);

	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		fill(0, lengths[i], first ? 1 : 2);
		post(IBV_WR_RDMA_WRITE, 0, lengths[i], PART, 0, 0, peer.rkey);
		done(IBV_WC_SUCCESS, "write");
		meet();
		verify(PART, lengths[i], first ? 2 : 1, "what was written here");
		memset(buf + 2 * PART, 0, lengths[i]);
		post(IBV_WR_RDMA_READ, 2 * PART, lengths[i], 0, 0, 0, peer.rkey);
		done(IBV_WC_SUCCESS, "read");
		verify(2 * PART, lengths[i], first ? 2 : 1, "what was read there");
		meet();
	}
	/* both add to a word of the first's, and each to its own over the wire */
	memset(words, 0, 64);
	meet();
	for (uint64_t i = 0; i < 100; i++) {
		post(IBV_WR_ATOMIC_FETCH_AND_ADD, 3 * PART + 32, 8, 3 * PART, 3, 0, peer.rkey);
		done(IBV_WC_SUCCESS, "fetch and add");
		check(words[4] == 3 * i, "the old value %lu", (unsigned long)words[4]);
	}
	meet();
	check(words[0] == 300, "the sum %lu", (unsigned long)words[0]);
	meet();
	post(IBV_WR_ATOMIC_CMP_AND_SWP, 3 * PART + 32, 8, 3 * PART, 300, 9, peer.rkey);
	done(IBV_WC_SUCCESS, "compare and swap");
	meet();
	check(words[4] == 300 && words[0] == 9, "swapped: %lu, %lu", (unsigned long)words[4], (unsigned long)words[0]);
}

static void messages(void)
{
	for (uint32_t i = 0; i < 200; i++) {
		const uint32_t len = 1 + i * 977 % 70000;
		struct ibv_wc wc;

		if (first == (i % 2 == 0)) {
			fill(0, len, i);
			/* often before the receive is there */
			post(i % 3 ? IBV_WR_SEND : i % 5 ? IBV_WR_SEND_WITH_IMM : IBV_WR_RDMA_WRITE_WITH_IMM, 0, len, PART, 0, 0, peer.rkey);
			done(IBV_WC_SUCCESS, "send");
		} else {
			receive(PART, 70000);
			wc = wait_wc("receive");
			check(!wc.status && wc.byte_len == len && wc.qp_num == qp->qp_num && wc.src_qp == peer.qpn, "message %u of %u: status %u, %u bytes from %#x", i, len, wc.status, wc.byte_len, wc.src_qp);
			check(!(wc.wc_flags & IBV_WC_WITH_IMM) == (i % 3 != 0) && (i % 3 || wc.imm_data == htonl(77)), "immediate data of %u", i);
			verify(PART, len, i, "message");
		}
	}
	meet();
}

/* A new connection for each error, since it ends one. */
static void errors(void)
{
	check(!ibv_destroy_qp(qp), "destroy");
	meet();
	make_qp(7);
	if (first) {
		post(IBV_WR_RDMA_WRITE, 0, 8, 0, 0, 0, peer.rkey ^ 0x100);
		done(IBV_WC_REM_ACCESS_ERR, "a wrong key");
		post(IBV_WR_RDMA_WRITE, 0, 8, 0, 0, 0, peer.rkey);
		done(IBV_WC_WR_FLUSH_ERR, "behind it");
	}
	meet();
	check(!ibv_destroy_qp(qp), "destroy");
	meet();
	make_qp(0);
	if (first) {
		post(IBV_WR_SEND, 0, 8, 0, 0, 0, 0);
		done(IBV_WC_RNR_RETRY_EXC_ERR, "no receive");
	}
	meet();
	check(!ibv_destroy_qp(qp), "destroy");
	meet();
	make_qp(7);
	if (!first)
		_Exit(0); /* without a word */
	char c;

	check(read(sock, &c, 1) == 0, "the second goes");
	post(IBV_WR_RDMA_WRITE, 0, 8, 0, 0, 0, peer.rkey);
	done(IBV_WC_RETRY_EXC_ERR, "the other is gone");
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	first = argc < 2;
	connect_socket(argv[1]);
	check(list && list[0], "no device");
	ctx = ibv_open_device(list[0]);
	check(ctx != NULL, "ibv_open_device: %s", strerror(errno));
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	buf = aligned_alloc(4096, SIZE);
	mr = ibv_reg_mr(pd, buf, SIZE, RIGHTS);
	check(pd && cq && mr, "objects");
	make_qp(7);
	one_sided();
	messages();
	errors();
	printf("host_check: all right\n");
	return 0;
}
