/* fault-client ucp|verbs: does what it reads on standard input, one command a line, and answers each with one line on standard output,
 * which is the same whatever happens to a trace of it. So a test may bring a fault about between two commands.
 *
 *     post N          N writes (puts) of 64 bytes to itself
 *     polls N         N polls that find nothing
 *     threads T N     T threads at once, each with a queue pair (worker) of its own, N writes each
 *     churn T N       T threads, eight at a time, each ending after N writes on one of eight queue pairs
 *     qps N M         N more queue pairs, M writes on each
 *     cqs N M         N more completion queues with a queue pair each, polled in turn M times, then one write on each
 *     mrs N           N memory regions registered and deregistered, one after the other
 *     keep N          N memory regions registered and kept
 *     eps N           N more endpoints of the worker to itself, one put on each
 *     fork N          a child that does nothing of its own, and N writes of the parent
 *     chroot DIR      chroot(2) and chdir(2)
 *     setuid UID      setgid(2) and setuid(2)
 *     eat MIB         touches so much memory and keeps it
 *     total           all writes and completions so far: the program's own tally
 *
 * At the end of its input it prints the tally and exits with 0.
 */
#define _GNU_SOURCE
#include "../../clients/rc.h"

#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>

enum { SIZE = 64, BATCH = 16, LANES = 8 };
static uint64_t writes, completions, regions;
static int verbs;

/* ---- verbs: a queue pair that is connected to itself, and its completion queue ---------------------------------------------------- */

struct path {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	uint64_t writes, completions;
};
static struct ibv_context *device;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_ah_attr self;
static uint8_t memory[2 * SIZE];
static struct path main_path;

static void path_open(struct path *p, struct ibv_cq *cq)
{
	p->cq = cq ? cq : ibv_create_cq(device, 2 * BATCH, NULL, NULL, 0);
	CHECK(p->cq);
	struct ibv_qp_init_attr init = { .send_cq = p->cq, .recv_cq = p->cq, .cap = { BATCH, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	p->qp = ibv_create_qp(pd, &init);
	CHECK(p->qp);
	connect_rc(p->qp, p->qp->qp_num, &self);
}

/* Writes on a queue pair; every BATCH-th and the last ask for a completion, and are waited for. */
static void path_post(struct path *p, uint64_t n)
{
	for (uint64_t i = 1; i <= n; i++) {
		struct ibv_sge sg = { (uintptr_t)memory, SIZE, mr->lkey };
		struct ibv_send_wr wr = { .wr_id = i, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sg, .num_sge = 1 }, *bad;
		int last = i % BATCH == 0 || i == n;
		wr.send_flags = last ? IBV_SEND_SIGNALED : 0;
		wr.wr.rdma.remote_addr = (uintptr_t)memory + SIZE;
		wr.wr.rdma.rkey = mr->rkey;
		CHECK(!ibv_post_send(p->qp, &wr, &bad));
		p->writes++;
		struct ibv_wc wc;
		int got = 0;
		while (last && !got) {
			got = ibv_poll_cq(p->cq, 1, &wc);
			CHECK(got >= 0 && (!got || wc.status == IBV_WC_SUCCESS));
			p->completions += (unsigned)got;
		}
	}
}

static void verbs_start(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list);
	device = ibv_open_device(find_device(list, NULL));
	CHECK(device);
	pd = ibv_alloc_pd(device);
	CHECK(pd);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	address_of(device, 0, &self);
	path_open(&main_path, NULL);
}

/* ---- UCP: a worker with an endpoint to itself ---------------------------------------------------------------------------------------- */

struct line {
	ucp_worker_h worker;
	ucp_ep_h ep;
	ucp_rkey_h rkey;
	ucp_address_t *address;
	uint64_t writes;
};
static ucp_context_h context;
static ucp_mem_h mapped;
static struct line main_line;

static ucp_ep_h line_endpoint(struct line *l)
{
	ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = l->address };
	ucp_ep_h ep;
	CHECK(ucp_ep_create(l->worker, &params, &ep) == UCS_OK);
	return ep;
}

static void line_open(struct line *l)
{
	ucp_worker_params_t params = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE };
	void *key;
	size_t n;
	CHECK(ucp_worker_create(context, &params, &l->worker) == UCS_OK);
	CHECK(ucp_worker_get_address(l->worker, &l->address, &n) == UCS_OK);
	l->ep = line_endpoint(l);
	CHECK(ucp_rkey_pack(context, mapped, &key, &n) == UCS_OK && ucp_ep_rkey_unpack(l->ep, key, &l->rkey) == UCS_OK);
}

static void line_put(struct line *l, ucp_ep_h ep, ucp_rkey_h rkey)
{
	const ucp_request_param_t plain = { 0 };
	ucs_status_ptr_t r = ucp_put_nbx(ep, memory, SIZE, (uintptr_t)memory + SIZE, rkey, &plain);
	CHECK(!UCS_PTR_IS_ERR(r));
	l->writes++;
	while (r && ucp_request_check_status(r) == UCS_INPROGRESS)
		ucp_worker_progress(l->worker);
	if (r)
		ucp_request_free(r);
}

static void ucp_start(void)
{
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED, .features = UCP_FEATURE_RMA, .mt_workers_shared = 1 };
	CHECK(ucp_init(&params, NULL, &context) == UCS_OK);
	ucp_mem_map_params_t map = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH, .address = memory, .length = sizeof memory };
	CHECK(ucp_mem_map(context, &map, &mapped) == UCS_OK);
	line_open(&main_line);
}

/* ---- the commands ---------------------------------------------------------------------------------------------------------------------- */

static void post(uint64_t n)
{
	if (verbs)
		path_post(&main_path, n);
	else
		for (uint64_t i = 0; i < n; i++)
			line_put(&main_line, main_line.ep, main_line.rkey);
}

static pthread_barrier_t gate;
struct work {
	pthread_t thread;
	struct path path;
	struct line line;
	struct path *on; /* the queue pair to use; NULL: its own */
	uint64_t n;
};

static void *at_once(void *arg)
{
	struct work *w = arg;
	if (verbs)
		path_open(&w->path, NULL);
	else
		line_open(&w->line);
	pthread_barrier_wait(&gate);
	if (verbs)
		path_post(&w->path, w->n);
	else
		for (uint64_t i = 0; i < w->n; i++)
			line_put(&w->line, w->line.ep, w->line.rkey);
	return NULL;
}

static void *short_lived(void *arg)
{
	struct work *w = arg;
	path_post(w->on, w->n);
	return NULL;
}

static void count(const struct path *p, const struct line *l)
{
	writes += p->writes + l->writes;
	completions += p->completions;
}

static void threads(uint64_t t, uint64_t n)
{
	struct work *w = calloc(t, sizeof *w);
	pthread_attr_t small;
	CHECK(w && !pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, 256 << 10) && !pthread_barrier_init(&gate, NULL, (unsigned)t));
	for (uint64_t i = 0; i < t; i++) {
		w[i].n = n;
		errno = pthread_create(&w[i].thread, &small, at_once, &w[i]);
		CHECK(!errno);
	}
	for (uint64_t i = 0; i < t; i++) {
		pthread_join(w[i].thread, NULL);
		count(&w[i].path, &w[i].line);
	}
	free(w);
}

static void churn(uint64_t t, uint64_t n)
{
	static struct path lanes[LANES];
	struct work w[LANES] = { 0 };
	CHECK(verbs && t % LANES == 0);
	for (int i = 0; i < LANES; i++) {
		if (!lanes[i].qp)
			path_open(&lanes[i], NULL);
		w[i] = (struct work){ .on = &lanes[i], .n = n };
	}
	for (uint64_t k = 0; k < t; k += LANES) {
		for (int i = 0; i < LANES; i++) {
			errno = pthread_create(&w[i].thread, NULL, short_lived, &w[i]);
			CHECK(!errno);
		}
		for (int i = 0; i < LANES; i++)
			pthread_join(w[i].thread, NULL);
	}
	for (int i = 0; i < LANES; i++) {
		count(&lanes[i], &(struct line){ 0 });
		lanes[i].writes = lanes[i].completions = 0;
	}
}

static void queue_pairs(uint64_t n, uint64_t m)
{
	CHECK(verbs);
	for (uint64_t i = 0; i < n; i++) {
		struct path p = { 0 };
		path_open(&p, main_path.cq);
		path_post(&p, m);
		count(&p, &(struct line){ 0 });
	}
}

static void completion_queues(uint64_t n, uint64_t m)
{
	struct path *p = calloc(n, sizeof *p);
	struct ibv_wc wc;
	CHECK(verbs && p);
	for (uint64_t i = 0; i < n; i++)
		path_open(&p[i], NULL);
	for (uint64_t k = 0; k < m; k++)
		for (uint64_t i = 0; i < n; i++)
			CHECK(!ibv_poll_cq(p[i].cq, 1, &wc));
	for (uint64_t i = 0; i < n; i++) {
		path_post(&p[i], 1);
		count(&p[i], &(struct line){ 0 });
	}
	free(p);
}

static void memory_regions(uint64_t n, int keep)
{
	for (uint64_t i = 0; i < n; i++) {
		struct ibv_mr *m = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
		CHECK(m && (keep || !ibv_dereg_mr(m)));
		regions++;
	}
}

static void endpoints(uint64_t n)
{
	CHECK(!verbs);
	for (uint64_t i = 0; i < n; i++) {
		ucp_ep_h ep = line_endpoint(&main_line);
		ucp_rkey_h rkey;
		void *key;
		size_t size;
		CHECK(ucp_rkey_pack(context, mapped, &key, &size) == UCS_OK && ucp_ep_rkey_unpack(ep, key, &rkey) == UCS_OK);
		ucp_rkey_buffer_release(key);
		line_put(&main_line, ep, rkey);
		ucp_rkey_destroy(rkey);
	}
}

static void with_child(uint64_t n)
{
	int status;
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		_exit(0);
	post(n);
	CHECK(waitpid(pid, &status, 0) == pid && !status);
}

static void tally(void)
{
	uint64_t w = writes + main_path.writes + main_line.writes;
	printf("%lu writes of %lu bytes, %lu completions, %lu regions\n", w, w * SIZE, completions + main_path.completions, regions);
}

static void command(char *line)
{
	char word[16] = "", rest[4096] = "";
	uint64_t n = 0, m = 0;
	sscanf(line, "%15s %4095[^\n]", word, rest);
	sscanf(rest, "%lu %lu", &n, &m);
	if (!strcmp(word, "post"))
		post(n);
	else if (!strcmp(word, "polls"))
		for (struct ibv_wc wc; n; n--)
			CHECK(!ibv_poll_cq(main_path.cq, 1, &wc));
	else if (!strcmp(word, "threads"))
		threads(n, m);
	else if (!strcmp(word, "churn"))
		churn(n, m);
	else if (!strcmp(word, "qps"))
		queue_pairs(n, m);
	else if (!strcmp(word, "cqs"))
		completion_queues(n, m);
	else if (!strcmp(word, "mrs") || !strcmp(word, "keep"))
		memory_regions(n, *word == 'k');
	else if (!strcmp(word, "eps"))
		endpoints(n);
	else if (!strcmp(word, "fork"))
		with_child(n);
	else if (!strcmp(word, "chroot"))
		CHECK(!chroot(rest) && !chdir("/"));
	else if (!strcmp(word, "setuid"))
		CHECK(!setgid((gid_t)n) && !setuid((uid_t)n));
	else if (!strcmp(word, "eat")) {
		char *p = malloc(n << 20);
		CHECK(p);
		memset(p, 1, n << 20);
		__asm__ volatile("" : : "r"(p) : "memory");
	} else
		CHECK(!strcmp(word, "total"));
	tally();
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char line[4096];
	if (argc != 2 || (strcmp(argv[1], "ucp") && strcmp(argv[1], "verbs"))) {
		fprintf(stderr, "usage: fault-client ucp|verbs\n");
		return 2;
	}
	verbs = *argv[1] == 'v';
	while (fgets(line, sizeof line, stdin)) {
		if (!main_path.qp && !main_line.ep) { /* the first traced calls: a test may want a fault before them */
			if (verbs)
				verbs_start();
			else
				ucp_start();
		}
		command(line);
	}
	tally();
	return 0;
}
