/* burst-client -l ucp|verbs -f FILE [-t SECONDS] [-n COUNT] [-d DEVICE] [-g GID_INDEX] [-m COUNT] [-p] [-w MICROSECONDS]: posts 64-byte puts or writes to itself without a pause
 * and publishes, after each accepted one, how many there have been: a 64-bit number at the start of FILE, shared memory.
 *
 * -m marks the epoch "rest" after COUNT requests, by sigmatrace.h. -p puts each 100 requests into a phase "block", the last 10 of them also
 * into a phase "inner" in it. -w waits so long before each request.
 *
 * It is made to be killed with SIGKILL; left alone it stops after SECONDS (default 20) or COUNT requests and exits with 0.
 */
#define _GNU_SOURCE
#include "../../preload/sigmatrace.h"
#include "rc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <ucp/api/ucp.h>

enum { SIZE = 64, OUTSTANDING = 32 };
static uint64_t *published, limit = UINT64_MAX, mark_at;
static int phases, pause_us;
static time_t end;

static uint64_t publish(void)
{
	uint64_t n = *published + 1;
	__atomic_store_n(published, n, __ATOMIC_RELEASE);
	return n;
}
/* Before each request, with how many there have been; after the last one with a multiple of 100. */
static void say(uint64_t n)
{
	if (mark_at && n == mark_at)
		sigmatrace_mark("rest");
	if (phases && n && n % 100 == 0) {
		sigmatrace_phase_end();
		sigmatrace_phase_end();
	}
	if (phases && n % 100 == 0 && n < limit)
		sigmatrace_phase_begin("block");
	if (phases && n % 100 == 90)
		sigmatrace_phase_begin("inner");
}
static int go_on(uint64_t n)
{
	say(n);
	if (pause_us)
		usleep(pause_us);
	return n < limit && (n % 1024 || time(NULL) < end);
}

static void burst_ucp(void)
{
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA };
	ucp_worker_params_t wp = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_context_h ctx;
	ucp_worker_h worker;
	ucp_ep_h ep;
	ucp_mem_h mem;
	ucp_rkey_h rkey;
	ucp_address_t *addr;
	void *key;
	size_t n;
	static uint8_t from[SIZE];
	uint8_t *to = malloc(SIZE);
	CHECK(ucp_init(&params, NULL, &ctx) == UCS_OK && ucp_worker_create(ctx, &wp, &worker) == UCS_OK);
	ucp_mem_map_params_t mp = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
				    .address = to,
				    .length = SIZE };
	CHECK(ucp_mem_map(ctx, &mp, &mem) == UCS_OK && ucp_rkey_pack(ctx, mem, &key, &n) == UCS_OK);
	CHECK(ucp_worker_get_address(worker, &addr, &n) == UCS_OK);
	ucp_ep_params_t ep_params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = addr };
	CHECK(ucp_ep_create(worker, &ep_params, &ep) == UCS_OK && ucp_ep_rkey_unpack(ep, key, &rkey) == UCS_OK);
	const ucp_request_param_t plain = { 0 };
	uint64_t posted = 0;
	say(0);
	do {
		ucs_status_ptr_t r = ucp_put_nbx(ep, from, SIZE, (uintptr_t)to, rkey, &plain);
		CHECK(!UCS_PTR_IS_ERR(r));
		posted = publish();
		while (r && ucp_request_check_status(r) == UCS_INPROGRESS)
			ucp_worker_progress(worker);
		if (r)
			ucp_request_free(r);
	} while (go_on(posted));
}

static void burst_verbs(const char *device, int gid_index)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list);
	struct ibv_context *ctx = ibv_open_device(find_device(list, device));
	CHECK(ctx);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	static uint8_t buf[2 * SIZE];
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_cq *cq = ibv_create_cq(ctx, 2 * OUTSTANDING, NULL, NULL, 0);
	CHECK(pd && mr && cq);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { OUTSTANDING, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	struct ibv_ah_attr self;
	address_of(ctx, gid_index, &self);
	connect_rc(qp, qp->qp_num, &self);
	uint64_t posted = 0, done = 0;
	say(0);
	do {
		struct ibv_sge sg = { (uintptr_t)buf, SIZE, mr->lkey };
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sg, .num_sge = 1 };
		struct ibv_send_wr *bad;
		wr.wr.rdma.remote_addr = (uintptr_t)buf + SIZE;
		wr.wr.rdma.rkey = mr->rkey;
		CHECK(!ibv_post_send(qp, &wr, &bad));
		posted = publish();
		while (posted - done >= OUTSTANDING) {
			struct ibv_wc wc[OUTSTANDING];
			n = ibv_poll_cq(cq, OUTSTANDING, wc);
			CHECK(n >= 0);
			for (int i = 0; i < n; i++)
				CHECK(wc[i].status == IBV_WC_SUCCESS);
			done += n;
		}
	} while (go_on(posted));
}

int main(int argc, char **argv)
{
	const char *layer = "", *file = NULL, *device = NULL;
	int seconds = 20, gid_index = 0, opt;
	while ((opt = getopt(argc, argv, "l:f:t:n:d:g:m:pw:")) != -1)
		switch (opt) {
		case 'l': layer = optarg; break;
		case 'f': file = optarg; break;
		case 't': seconds = atoi(optarg); break;
		case 'n': limit = strtoull(optarg, NULL, 0); break;
		case 'd': device = optarg; break;
		case 'm': mark_at = strtoull(optarg, NULL, 0); break;
		case 'w': pause_us = atoi(optarg); break;
		case 'p': phases = 1; break;
		case 'g': gid_index = atoi(optarg); break;
		default: return 2;
		}
	if (!file || (strcmp(layer, "ucp") && strcmp(layer, "verbs"))) {
		fprintf(stderr, "usage: burst-client -l ucp|verbs -f FILE [-t SECONDS] [-n COUNT] [-d DEVICE] [-g GID_INDEX] [-m COUNT] [-p] [-w MICROSECONDS]\n");
		return 2;
	}
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0 && !ftruncate(fd, sizeof *published));
	published = mmap(NULL, sizeof *published, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(published != MAP_FAILED);
	end = time(NULL) + seconds;
	if (*layer == 'u')
		burst_ucp();
	else
		burst_verbs(device, gid_index);
	return 0;
}
