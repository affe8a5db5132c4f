/*
 * Two processes that do what NCCL does around its profiler plugin, with RDMA writes by proxy threads on queue pairs of their own for each channel and direction: nccl-client NEWEST CASE.
 * NEWEST: the newest version that this NCCL knows. The id of each request says what it is for: collective's number << 16 | channel << 1 | direction; that of a point-to-point operation has bit 40.
 * Each process prints a JSON line with what it has done.
 */
#include "../../clients/rc.h"
#include "client.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { CHANNELS = 3, CONNECTIONS = CHANNELS + 1 /* that of point-to-point operations */, COMMUNICATORS = 2, STEPS = 4, CHUNK = 4096, READY = 16, ROUNDS = 10 };

static struct board {
	int arrived, generation;
	uint32_t qpn[2][COMMUNICATORS][CONNECTIONS][2];
	uint64_t address[2];
	uint32_t rkey[2];
} *board;
static int rank, peer;

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char *buffer;

struct communicator {
	void *context;
	struct ibv_cq *cq;
	struct ibv_qp *qp[CONNECTIONS][2]; /* [1]: what it sends on; [0]: what it receives on, and tells the sender by that it is ready */
	uint64_t sequence;
} communicators[COMMUNICATORS];

static uint64_t posts, bytes, collectives, p2ps;
static bool elsewhere; /* the proxy works for another process */

static void meet(void)
{
	int g = __atomic_load_n(&board->generation, __ATOMIC_ACQUIRE);
	if (__atomic_add_fetch(&board->arrived, 1, __ATOMIC_ACQ_REL) == 2) {
		__atomic_store_n(&board->arrived, 0, __ATOMIC_RELAXED);
		__atomic_add_fetch(&board->generation, 1, __ATOMIC_RELEASE);
	}
	while (__atomic_load_n(&board->generation, __ATOMIC_ACQUIRE) == g)
		usleep(100);
}

static void make_queues(struct communicator *c)
{
	int n = (int)(c - communicators);
	struct ibv_ah_attr ah;
	CHECK(c->cq = ibv_create_cq(ctx, 256, NULL, NULL, 0));
	for (int k = 0; k < CONNECTIONS; k++)
		for (int d = 0; d < 2; d++) {
			struct ibv_qp_init_attr a = { .send_cq = c->cq, .recv_cq = c->cq, .qp_type = IBV_QPT_RC,
				.cap = { .max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = READY } };
			CHECK(c->qp[k][d] = ibv_create_qp(pd, &a));
			board->qpn[rank][n][k][d] = c->qp[k][d]->qp_num;
		}
	meet();
	address_of(ctx, 0, &ah);
	for (int k = 0; k < CONNECTIONS; k++)
		for (int d = 0; d < 2; d++)
			connect_rc(c->qp[k][d], board->qpn[peer][n][k][!d], &ah);
	meet();
}

static void post(struct communicator *c, int connection, int send, uint64_t id)
{
	uint32_t n = send ? CHUNK : READY;
	struct ibv_sge s = { (uintptr_t)buffer, n, mr->lkey };
	struct ibv_send_wr *bad, w = { .wr_id = id << 16 | (uint64_t)connection << 1 | (uint64_t)send, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED | (send ? 0 : IBV_SEND_INLINE), .wr.rdma = { board->address[peer], board->rkey[peer] } };
	struct ibv_wc wc;
	CHECK(!ibv_post_send(c->qp[connection][send], &w, &bad));
	while (ibv_poll_cq(c->cq, 1, &wc) == 0)
		;
	CHECK(wc.status == IBV_WC_SUCCESS);
	__atomic_fetch_add(&posts, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&bytes, n, __ATOMIC_RELAXED);
}

/* What one task has its proxy do on one connection in one direction. */
struct operation {
	struct communicator *c;
	void *task, *handle;
	uint64_t id;
	int connection, channel, send, step;
	size_t moved;
};

static void op_begin(struct operation *o)
{
	o->handle = begin_op(o->c->context, o->task, elsewhere ? getppid() : getpid(), rank, o->channel, peer, STEPS, CHUNK, o->send);
}

static void op_progress(struct operation *o)
{
	if (profiler.version >= 4)
		state(o->handle, 19, 0, 0);
	else
		state(o->handle, o->send ? 0 : 4, 0, 0);
}

/* One step: NCCL says that it waits before it posts, and that it has posted just after. */
static void op_step(struct operation *o)
{
	bool old = profiler.version < 4;
	void *step = begin_step(o->c->context, o->handle, rank, o->step++);
	if (!old)
		state(step, o->send ? 8 : 12, 77, 0);
	post(o->c, o->connection, o->send, o->id);
	o->moved += o->send ? CHUNK : 0;
	if (old)
		state(o->handle, o->send ? 2 : 4, o->moved, o->step);
	else
		state(step, o->send ? 9 : 10, o->send ? CHUNK : 77, 0);
	end(step);
}

static void work(struct operation *o, int n)
{
	for (int i = 0; i < n; i++)
		op_begin(&o[i]);
	for (int i = 0; i < n; i++)
		op_progress(&o[i]);
	for (int s = 0; s < STEPS; s++)
		for (int i = 0; i < n; i++)
			op_step(&o[i]);
	for (int i = 0; i < n; i++)
		end(o[i].handle);
}

/* A collective's operations, both directions of each channel; or those of a send and a receive. Returns how many. */
static int operations(struct operation *o, struct communicator *c, void *task, bool collective, uint64_t id)
{
	int n = 0;
	for (int k = collective ? 0 : CHANNELS; k < (collective ? CHANNELS : CONNECTIONS); k++)
		for (int d = 0; d < 2; d++)
			o[n++] = (struct operation){ .c = c, .task = task, .id = collective ? id : id | 1 << 24, .connection = k, .channel = collective ? k : 0, .send = d };
	return n;
}

/* What the program's thread tells of a task, which its group and the call that it came by end after. */
static void *tell(struct communicator *c, bool collective, uint64_t *id)
{
	void *api = begin_api(c->context, NULL), *group = begin_group(c->context), *task;
	*id = collective ? c->sequence++ : 0;
	task = begin_task(c->context, group, api, collective, *id, CHUNK / 4, rank, peer, CHANNELS);
	end(task);
	end(group);
	end(api);
	__atomic_fetch_add(collective ? &collectives : &p2ps, 1, __ATOMIC_RELAXED);
	return task;
}

struct request {
	struct operation list[4 * CONNECTIONS];
	int n;
};

static void *proxy(void *p)
{
	struct request *r = p;
	void *ctrl = begin_ctrl(r->list[0].c->context);
	end(ctrl);
	work(r->list, r->n);
	return NULL;
}

static void hand_over(struct request *r, int n)
{
	pthread_t t[COMMUNICATORS];
	for (int i = 0; i < n; i++)
		CHECK(!pthread_create(&t[i], NULL, proxy, &r[i]));
	for (int i = 0; i < n; i++)
		CHECK(!pthread_join(t[i], NULL));
}

static void round_of(const char *what)
{
	struct request r[COMMUNICATORS] = { 0 };
	struct communicator *a = &communicators[0], *b = &communicators[1];
	uint64_t id;
	if (!strcmp(what, "overlap")) { /* one thread works for two communicators at once */
		void *task = tell(a, true, &id);
		r->n = operations(r->list, a, task, true, id);
		task = tell(b, true, &id);
		r->n += operations(r->list + r->n, b, task, true, id);
		hand_over(r, 1);
	} else if (!strcmp(what, "threads")) {
		for (int i = 0; i < COMMUNICATORS; i++) {
			void *task = tell(&communicators[i], true, &id);
			r[i].n = operations(r[i].list, &communicators[i], task, true, id);
		}
		hand_over(r, COMMUNICATORS);
	} else { /* in turn: collectives, then what is sent and received */
		void *task = tell(a, true, &id);
		r->n = operations(r->list, a, task, true, id);
		hand_over(r, 1);
		task = tell(a, false, &id);
		r->n = operations(r->list, a, task, false, id);
		hand_over(r, 1);
	}
}

/* More tasks at a time than are remembered: none ends before the last has begun. */
static void many(void)
{
	enum { MANY = 70000 };
	void **tasks = calloc(MANY, sizeof *tasks);
	for (int i = 0; i < MANY; i++)
		tasks[i] = begin_task(communicators[0].context, NULL, NULL, true, (uint64_t)i, 1, rank, 0, 1);
	for (int i = 0; i < MANY; i++)
		end(tasks[i]);
	free(tasks);
	collectives += MANY;
}

/* A child of a process that has a communicator makes one of its own. */
static void fork_one(void)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		struct communicator own = { 0 };
		uint64_t id;
		begin(&own.context, 0xfeed, "child's", rank);
		for (int i = 0; i < ROUNDS; i++)
			tell(&own, true, &id);
		_exit(own.context && profiler.plugin->finalize(own.context));
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
}

static int run(int newest, const char *what)
{
	int used = !strcmp(what, "overlap") || !strcmp(what, "threads") ? COMMUNICATORS : 1, result = 0, n;
	struct ibv_device **list = ibv_get_device_list(&n);
	peer = !rank;
	CHECK(ctx = ibv_open_device(find_device(list, NULL)));
	CHECK(pd = ibv_alloc_pd(ctx));
	CHECK(buffer = aligned_alloc(4096, CHUNK));
	CHECK(mr = ibv_reg_mr(pd, buffer, CHUNK, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	board->address[rank] = (uintptr_t)buffer;
	board->rkey[rank] = mr->rkey;
	load(newest);
	for (int i = 0; i < used; i++) {
		make_queues(&communicators[i]);
		result |= begin(&communicators[i].context, 0xfeed + (uint64_t)i * (profiler.plugin && strcmp(profiler.plugin->name, "other") ? 1 : 0), i ? "second" : "world", rank);
	}
	elsewhere = !strcmp(what, "elsewhere");
	if (!strcmp(what, "many"))
		many();
	else
		for (int i = 0; i < ROUNDS; i++)
			round_of(what);
	if (!strcmp(what, "fork"))
		fork_one();
	meet();
	for (int i = 0; i < used; i++)
		if (communicators[i].context) /* NCCL ends none that has no context */
			result |= profiler.plugin->finalize(communicators[i].context);
	printf("{\"rank\": %d, \"plugin\": \"%s\", \"version\": %d, \"mask\": %d, \"result\": %d, \"collectives\": %lu, \"p2p\": %lu, \"posts\": %lu, \"bytes\": %lu}\n", rank,
	       profiler.plugin ? profiler.plugin->name : "", profiler.plugin ? profiler.version : 0, profiler.mask, result, collectives, p2ps, posts, bytes);
	fflush(stdout);
	return 0;
}

int main(int argc, char **argv)
{
	int status = 0;
	CHECK(argc == 3);
	CHECK((board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED);
	pid_t child = fork();
	CHECK(child >= 0);
	rank = !child;
	run(atoi(argv[1]), argv[2]);
	if (!child)
		exit(0);
	CHECK(waitpid(child, &status, 0) == child);
	return status != 0;
}
