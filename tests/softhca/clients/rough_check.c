/*
 * rough_check: programs that end, or come to the end of something, while their doorbells are watched: memory, contexts, threads and rights go before the queues that need them.
 * Each does without the recorder what it does here.
 */
#include "gpu.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOG = 6, ELEMENTS = 500, WINDOW = 16 };

/* What is put back is gone, other than what malloc keeps. */
static void *mapped(size_t n, void **usable)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED, "mmap: %s", strerror(errno));
	return *usable = p;
}

static void kept(void *p)
{
	(void)p;
}

static const struct memory mapped_memory = { mapped, kept };

static void *on_gpu(size_t n, void **usable)
{
	return gpu_memory.get(n, usable);
}

static uint8_t *pool;

static void *out_of_pool(size_t n, void **usable)
{
	*usable = pool;
	pool += n;
	return *usable;
}

static const struct memory pool_memory = { out_of_pool, kept };
static const struct memory kept_gpu_memory = { on_gpu, kept };

struct pair {
	struct end e;
	struct queue q, peer, second; /* the second is on the first one's page, where there is one */
	struct remote to;
	uint64_t bad;
	uint32_t total;
};

static void open_one(struct pair *p, struct queue *q, struct mlx5dv_devx_uar *uar, const struct memory *memory)
{
	queue_open(q, p->e.ctx, p->e.pdn, LOG, QUEUE_RC, true, uar, memory);
}

static void join(struct queue *a, struct queue *b)
{
	queue_connect(a, b->qpn);
	queue_connect(b, a->qpn);
}

static void open_pair(struct pair *p, const struct memory *memory)
{
	alarm(60);
	memset(p, 0, sizeof *p);
	open_end(&p->e, 0);
	open_one(p, &p->q, NULL, memory);
	open_one(p, &p->peer, NULL, memory);
	join(&p->q, &p->peer);
	p->to = (struct remote){ .addr = p->e.buf + END_HALF, .key = p->e.mr->rkey };
	p->total = ELEMENTS;
}

/* A second queue comes to the page that a kernel has; its peer is itself. */
static void open_second(struct pair *p, const struct memory *memory)
{
	open_one(p, &p->second, p->q.uar, memory);
	queue_connect(&p->second, p->second.qpn);
	p->second.bell = p->q.bell;
}

static void close_pair(struct pair *p)
{
	if (p->second.qp)
		queue_close(&p->second);
	queue_close(&p->q);
	queue_close(&p->peer);
}

static void run_queue(struct pair *p, struct queue *q)
{
	for (uint32_t i = 0; i < p->total; i++) {
		const uint32_t at = put_inline(q, &p->to, &i, sizeof i, true);

		ring(q);
		if (i % WINDOW == WINDOW - 1)
			p->bad += wait_for(q, at) != 0;
	}
	p->bad += wait_for(q, q->next - 1) != 0;
}

static void rings(void *argument)
{
	struct pair *p = argument;

	run_queue(p, &p->q);
	if (p->second.qp)
		run_queue(p, &p->second);
}

static void run(struct pair *p)
{
	launch(&p->e, rings, p);
	CHECK(!p->bad, "%lu wrong", (unsigned long)p->bad);
}

static void unmap(struct queue *q)
{
	for (int i = 0; i < 3; i++)
		munmap(q->address[i], i < 2 ? 64u << q->log : 4096);
}

/* The adapter has the pages pinned, so that a program may unmap them whenever it wants nothing more of the queues. */
static void open_gone(struct pair *p)
{
	open_pair(p, &mapped_memory);
	bell_for_gpu(&p->q);
	open_second(p, &mapped_memory);
	run(p);
	unmap(&p->q);
	unmap(&p->second);
}

static void memory_gone(void)
{
	struct pair p;

	open_gone(&p);
	close_pair(&p);
}

static void memory_gone_at_exit(void)
{
	static struct pair p;

	open_gone(&p);
}

/* The second queue's memory goes, and the first one is still rung. */
static void memory_of_one_gone(void)
{
	struct pair p;

	open_pair(&p, &mapped_memory);
	bell_for_gpu(&p.q);
	open_second(&p, &kept_gpu_memory);
	run(&p);
	for (int i = 0; i < 3; i++)
		gpu_memory.put(p.second.address[i]);
	close_pair(&p);
}

/* What the driver refuses to unregister stays registered. */
static void refused(void)
{
	struct pair p;
	CUcontext c;

	open_pair(&p, &gpu_memory);
	bell_for_gpu(&p.q);
	cuda(cuCtxGetCurrent(&c), "context");
	cuda(cuCtxSetCurrent(NULL), "no context");
	CHECK(cuMemHostUnregister(p.q.uar->reg_addr) == CUDA_ERROR_INVALID_CONTEXT, "unregistering without a context");
	cuda(cuCtxSetCurrent(c), "context");
	run(&p);
	cuda(cuMemHostUnregister(p.q.uar->reg_addr), "unregistering");
	close_pair(&p);
}

/* What the adapter refuses to destroy goes on (SOFTHCA_FAULT=busy_every=1, and nothing can be). */
static void busy(void)
{
	struct pair p;

	open_pair(&p, &gpu_memory);
	bell_for_gpu(&p.q);
	run(&p);
	CHECK(mlx5dv_devx_obj_destroy(p.q.qp) && errno == EBUSY, "a queue was destroyed, or refused with error %d", errno);
	run(&p);
	CHECK(mlx5dv_devx_obj_destroy(p.q.qp), "a queue was destroyed");
	run(&p);
}

/* With the device's context goes all that was registered in it; the page is registered again in the next one. */
static void reset(void)
{
	CUdeviceptr d;
	struct pair p;

	for (int i = 0; i < 3; i++) {
		open_pair(&p, &mapped_memory);
		bell_for_gpu(&p.q);
		run(&p);
		cuda(cuDevicePrimaryCtxReset_v2(0), "reset");
		bell_for_gpu(&p.q);
		CHECK(!cuMemHostGetDevicePointer_v2(&d, p.q.bell, 0), "a kernel rings where the driver has nothing");
		run(&p);
		cuda(cuMemHostUnregister(p.q.uar->reg_addr), "unregistering");
		close_pair(&p);
	}
}

static void set_context(void)
{
	CUcontext c;

	cuda(cuDevicePrimaryCtxRetain(&c, 0), "context");
	cuda(cuCtxSetCurrent(c), "context");
}

static void *unregisters(void *argument)
{
	struct pair *p = argument;

	set_context();
	pthread_cancel(pthread_self());
	cuda(cuMemHostUnregister(p->q.uar->reg_addr), "unregistering");
	p->total = 0; /* it has come back */
	pthread_testcancel();
	return NULL;
}

/* No call of the driver's or of libmlx5's ends a thread that is to end. */
static void cancelled(void)
{
	struct pair p;
	pthread_t t;
	void *result;

	open_pair(&p, &gpu_memory);
	bell_for_gpu(&p.q);
	open_second(&p, &gpu_memory);
	run(&p);
	CHECK(!pthread_create(&t, NULL, unregisters, &p) && !pthread_join(t, &result) && result == PTHREAD_CANCELED, "a thread");
	CHECK(!p.total, "the thread ended within the driver");
	bell_for_gpu(&p.q);
	close_pair(&p);
}

static _Atomic bool enough;

static void *comes_and_goes(void *argument)
{
	struct pair *p = argument;

	set_context();
	while (!enough) {
		bell_for_gpu(&p->q);
		cuda(cuMemHostUnregister(p->q.uar->reg_addr), "unregistering");
	}
	return NULL;
}

/* Children of a program of which a thread is asking for pages. */
static void forked_meanwhile(void)
{
	struct pair p;
	pthread_t t;

	open_pair(&p, &mapped_memory);
	CHECK(!pthread_create(&t, NULL, comes_and_goes, &p), "a thread");
	for (int i = 0; i < 200; i++) {
		const pid_t pid = fork();
		int status;

		CHECK(pid >= 0, "fork: %s", strerror(errno));
		if (!pid) {
			alarm(30);
			cuCtxSetCurrent(NULL);
			cuMemHostUnregister(&p); /* as a library's handler of exit may: the driver refuses it */
			_exit(0);
		}
		waitpid(pid, &status, 0);
		CHECK(!status, "child %d ended with status %#x", i, (unsigned)status);
	}
	enough = true;
	pthread_join(t, NULL);
	close_pair(&p);
}

static unsigned long address_space(void)
{
	unsigned long n = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	CHECK(f && fscanf(f, "%lu", &n) == 1, "statm");
	fclose(f);
	return n * 4096;
}

/* There is no room for threads, or for queues: kernels ring at the device. */
static void no_room(void)
{
	struct rlimit all, some;
	struct pair p;

	for (unsigned room = 0; room < 24; room++) {
		void *unused;
		pool = mapped(1 << 16, &unused);
		open_pair(&p, &gpu_memory);
		getrlimit(RLIMIT_AS, &all);
		some = all;
		some.rlim_cur = address_space() + ((unsigned long)room << 17 << room / 4);
		setrlimit(RLIMIT_AS, &some);
		bell_for_gpu(&p.q);
		setrlimit(RLIMIT_AS, &all);
		run(&p);
		setrlimit(RLIMIT_AS, &some);
		open_second(&p, &pool_memory);
		setrlimit(RLIMIT_AS, &all);
		run(&p);
		cuda(cuMemHostUnregister(p.q.uar->reg_addr), "unregistering");
		close_pair(&p);
	}
}

static void *exits(void *argument)
{
	(void)argument;
	printf("ok exit_in_thread\n");
	exit(0);
}

static void for_long(void *argument)
{
	struct pair *p = argument;

	p->total = 1000000000;
	run_queue(p, &p->q);
}

/* The program ends by a thread, with a kernel that rings. */
static void exit_in_thread(void)
{
	static struct standin_kernel k = { for_long };
	static struct pair p;
	pthread_t t;

	open_pair(&p, &gpu_memory);
	bell_for_gpu(&p.q);
	start_kernel(&p.e, &k, &p);
	while (__atomic_load_n(&p.q.next, __ATOMIC_RELAXED) <= WINDOW) /* some have been rung for */
		usleep(100);
	CHECK(!pthread_create(&t, NULL, exits, NULL), "a thread");
	pause();
}

static void until_enough(void *argument)
{
	struct pair *p = argument;

	for (p->total = WINDOW; !enough;)
		run_queue(p, &p->q);
}

/* A page and its queue go while the driver keeps whoever calls it (STANDIN_TO_HOST=waits), since another kernel runs. */
static void gone_meanwhile(void)
{
	struct standin_kernel k = { until_enough };
	struct pair p, other;

	open_pair(&p, &gpu_memory);
	bell_for_gpu(&p.q);
	start_kernel(&p.e, &k, &p);
	open_pair(&other, &gpu_memory);
	for (int i = 0; i < 2; i++) {
		bell_for_gpu(&other.q);
		run(&other);
		cuda(cuMemHostUnregister(other.q.uar->reg_addr), "unregistering");
	}
	close_pair(&other);
	enough = true;
	cuda(cuStreamSynchronize(p.e.stream), "kernel");
	CHECK(!p.bad, "%lu wrong", (unsigned long)p.bad);
	close_pair(&p);
}

static struct pair left; /* of a program that a signal ends */

static void close_left(void)
{
	close_pair(&left);
}

static void exits_now(int signal)
{
	(void)signal;
	exit(0);
}

static pthread_t main_thread;

static void *signals_soon(void *argument)
{
	usleep(5000);
	pthread_kill(main_thread, SIGUSR1);
	return argument;
}

/* A signal's handler ends the program within a call of the driver's, in which the recorder waits for a copy (STANDIN_TO_HOST=20000). Handlers of exit that were there before close what is left. */
static void exit_in_handler(void)
{
	pthread_t t;

	atexit(close_left);
	open_pair(&left, &gpu_memory);
	bell_for_gpu(&left.q);
	run(&left);
	alarm(20);
	signal(SIGUSR1, exits_now);
	main_thread = pthread_self();
	CHECK(!pthread_create(&t, NULL, signals_soon, NULL), "a thread");
	cuda(cuMemHostUnregister(left.q.uar->reg_addr), "unregistering");
	pause();
}

static void plain(void)
{
	struct pair p;

	open_pair(&p, &gpu_memory);
	bell_for_gpu(&p.q);
	run(&p);
	close_pair(&p);
}

static const struct test tests[] = {
	{ .name = "plain", .ranks = 1, .run = plain },
	{ .name = "memory_gone", .ranks = 1, .run = memory_gone },
	{ .name = "memory_gone_at_exit", .ranks = 1, .run = memory_gone_at_exit },
	{ .name = "memory_of_one_gone", .ranks = 1, .run = memory_of_one_gone },
	{ .name = "refused", .ranks = 1, .run = refused },
	{ .name = "busy", .ranks = 1, .run = busy, .on_request = true },
	{ .name = "reset", .ranks = 1, .run = reset },
	{ .name = "cancelled", .ranks = 1, .run = cancelled },
	{ .name = "forked_meanwhile", .ranks = 1, .run = forked_meanwhile },
	{ .name = "no_room", .ranks = 1, .run = no_room },
	{ .name = "exit_in_thread", .ranks = 1, .run = exit_in_thread },
	{ .name = "gone_meanwhile", .ranks = 1, .run = gone_meanwhile },
	{ .name = "exit_in_handler", .ranks = 1, .run = exit_in_handler },
	{ .name = NULL },
};

const struct test *const test_groups[] = { tests, NULL };
