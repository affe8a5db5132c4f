/*
 * bell_check: doorbells by kernels of the stand-in CUDA driver, as many and as fast as asked for. BELL=TOTAL,LOG,BATCH,WINDOW[,host]: so many elements, in queues of 2^LOG blocks,
 * BATCH to a doorbell, at most WINDOW not completed; host: queues in the host's memory.
 */
#include "bell.h"

#include <endian.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void stream(void)
{
	struct loop l;
	struct end e;

	open_end(&e, 0);
	open_loop(&l, &e, how.log, NULL);
	bell_for_gpu(&l.q);
	launch(&e, stream_of, &l);
	CHECK(!l.bad && *(uint32_t *)standin_gpu(e.buf + END_HALF) == l.q.next - 1, "%lu wrong", (unsigned long)l.bad);
	close_loop(&l);
}

/* Goes round a ring of 64 and 16 further, and rings once: the first 16 are nowhere any longer. The adapter takes none: what is at its index is another. */
static void overtaking(void *argument)
{
	struct loop *l = argument;

	for (uint32_t i = 0; i < 80; i++)
		put_number(l, i, true);
	ring(&l->q);
}

static void overtaken(void)
{
	struct loop l;
	struct end e;

	open_end(&e, 0);
	open_loop(&l, &e, 6, NULL);
	bell_for_gpu(&l.q);
	launch(&e, overtaking, &l);
	close_loop(&l);
}

struct both {
	struct loop first, second;
};

static void interleaved(void *argument)
{
	struct both *b = argument;

	for (uint32_t i = 0; i < b->first.total; i++) {
		const uint32_t x = put_number(&b->first, i, true);

		ring(&b->first.q);
		const uint32_t y = put_number(&b->second, i, true);

		ring(&b->second.q);
		if (i % how.window == how.window - 1)
			b->first.bad += wait_for(&b->first.q, x) || wait_for(&b->second.q, y);
	}
	b->first.bad += wait_for(&b->first.q, b->first.q.next - 1) || wait_for(&b->second.q, b->second.q.next - 1);
}

/* A second queue comes to a page whose address a kernel has. */
static void pair(void)
{
	struct both b;
	struct end e;

	open_end(&e, 0);
	open_loop(&b.first, &e, how.log, NULL);
	bell_for_gpu(&b.first.q);
	open_loop(&b.second, &e, how.log, b.first.q.uar);
	b.second.q.bell = b.first.q.bell;
	b.second.to.addr += 64;
	launch(&e, interleaved, &b);
	CHECK(!b.first.bad, "%lu wrong", (unsigned long)b.first.bad);
	CHECK(*(uint32_t *)standin_gpu(e.buf + END_HALF) == how.total - 1 && *(uint32_t *)standin_gpu(e.buf + END_HALF + 64) == how.total - 1, "last values");
	close_loop(&b.second);
	close_loop(&b.first);
}

/* Two queues are on the page when its address is asked for: it is the device's own. */
static void shared_before(void)
{
	struct both b;
	struct end e;

	open_end(&e, 0);
	open_loop(&b.first, &e, how.log, NULL);
	open_loop(&b.second, &e, how.log, b.first.q.uar);
	bell_for_gpu(&b.first.q);
	CHECK(b.first.q.bell == b.first.q.uar->reg_addr, "a page that two queues share is not the device's");
	b.second.q.bell = b.first.q.bell;
	launch(&e, interleaved, &b);
	CHECK(!b.first.bad, "%lu wrong", (unsigned long)b.first.bad);
	close_loop(&b.second);
	close_loop(&b.first);
}

/* Two GPUs, a context and a kernel on each at the same time. */
static void two_gpus(void)
{
	struct standin_kernel k = { stream_of };
	struct loop l[2];
	struct end e[2];

	for (int i = 0; i < 2; i++) {
		open_end(&e[i], i);
		open_loop(&l[i], &e[i], how.log, NULL);
		cuda(cuCtxSetCurrent(NULL), "no context"); /* as threads have it that ask for pages alone */
		bell_for_gpu(&l[i].q);
	}
	for (int i = 0; i < 2; i++)
		start_kernel(&e[i], &k, &l[i]);
	for (int i = 0; i < 2; i++) {
		cuda(cuStreamSynchronize(e[i].stream), "kernel");
		CHECK(!l[i].bad, "GPU %d: %lu wrong", i, (unsigned long)l[i].bad);
		close_loop(&l[i]);
	}
}

/* Killed while a kernel rings; what had completed by then is told. */
static void killed(void)
{
	struct standin_kernel k = { stream_of };
	static _Atomic uint32_t progress;
	struct loop l;
	struct end e;

	open_end(&e, 0);
	open_loop(&l, &e, how.log, NULL);
	bell_for_gpu(&l.q);
	l.progress = &progress;
	start_kernel(&e, &k, &l);
	while (atomic_load(&progress) < how.total / 2)
		usleep(100);
	printf("completed %u\n", atomic_load(&progress));
	fflush(stdout);
	kill(getpid(), SIGKILL);
}

/* Pages come and go while another is rung. */
static void unregistered(void)
{
	struct standin_kernel k = { stream_of };
	struct loop l, other;
	struct end e;

	open_end(&e, 0);
	open_loop(&l, &e, how.log, NULL);
	open_loop(&other, &e, 6, NULL);
	bell_for_gpu(&l.q);
	start_kernel(&e, &k, &l);
	for (uint32_t i = 0; i < 100; i++) {
		bell_for_gpu(&other.q);
		const uint32_t at = put_number(&other, i, true);

		ring(&other.q);
		if (i % 2)
			other.bad += wait_for(&other.q, at) != 0;
		cuda(cuMemHostUnregister(other.q.uar->reg_addr), "unregistering a doorbell");
		other.bad += wait_for(&other.q, at) != 0; /* what was rung before has been passed on */
	}
	cuda(cuStreamSynchronize(e.stream), "kernel");
	CHECK(!l.bad && !other.bad, "%lu and %lu wrong", (unsigned long)l.bad, (unsigned long)other.bad);
	close_loop(&l);
	close_loop(&other);
}

static void child_rings(void)
{
	struct loop l;
	struct end e;

	open_end(&e, 0);
	open_loop(&l, &e, 6, NULL);
	l.total = 100;
	how.batch = 1;
	how.window = 8;
	bell_for_gpu(&l.q);
	launch(&e, stream_of, &l);
	CHECK(!l.bad, "%lu wrong in a child", (unsigned long)l.bad);
	close_loop(&l);
}

/* Children while a kernel rings: some end at once, some ring by themselves. */
static void forked(void)
{
	static _Atomic uint32_t progress;
	struct standin_kernel k = { stream_of };
	struct loop l;
	struct end e;

	open_end(&e, 0);
	open_loop(&l, &e, how.log, NULL);
	l.progress = &progress;
	bell_for_gpu(&l.q);
	start_kernel(&e, &k, &l);
	/* A thread that starts has a lock of the address sanitizer's, which a child would find taken for ever. */
	while (atomic_load(&progress) < how.total / 10)
		usleep(100);
	for (int i = 0; i < 6; i++) {
		const pid_t pid = fork();
		int status;

		CHECK(pid >= 0, "fork: %s", strerror(errno));
		if (!pid) {
			if (i % 2)
				child_rings();
			exit(0);
		}
		waitpid(pid, &status, 0);
		CHECK(!status, "child %d ended with status %#x", i, (unsigned)status);
	}
	cuda(cuStreamSynchronize(e.stream), "kernel");
	CHECK(!l.bad, "%lu wrong", (unsigned long)l.bad);
	close_loop(&l);
}

/* The processor time of the recorder's threads, in ticks. */
static unsigned long spent(void)
{
	unsigned long sum = 0;
	char line[512];
	FILE *f = popen("cat /proc/$PPID/task/*/stat", "r");

	CHECK(f, "popen");
	while (fgets(line, sizeof line, f)) {
		unsigned long user, system;

		if (strstr(line, "(sgm-") && sscanf(strrchr(line, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) == 2)
			sum += user + system;
	}
	pclose(f);
	return sum;
}

/* A page that nobody rings. After a second it costs next to nothing. */
static void silent(void)
{
	struct loop l;
	struct end e;

	open_end(&e, 0);
	open_loop(&l, &e, 6, NULL);
	bell_for_gpu(&l.q);
	double share = 1;

	for (int i = 0; i < 20 && share >= 0.25; i++) { /* threads that never nap take as much for ever */
		const unsigned long before = spent();
		const double begin = now();

		usleep(1500000);
		share = (double)(spent() - before) / (double)sysconf(_SC_CLK_TCK) / (now() - begin);
	}
	CHECK(share < 0.25, "the threads take %.2f of a core", share);
	l.total = 100;
	launch(&e, stream_of, &l); /* and it is still seen */
	CHECK(!l.bad, "%lu wrong", (unsigned long)l.bad);
	close_loop(&l);
}

/* Numbers of queues come back at once (SOFTHCA_FAULT=reuse_numbers=1). */
static void reused(void)
{
	uint32_t first = 0, same = 0;
	struct loop l;
	struct end e;

	open_end(&e, 0);
	for (int i = 0; i < 50; i++) {
		open_loop(&l, &e, 6, NULL);
		same += l.q.qpn == first;
		first = first ? first : l.q.qpn;
		bell_for_gpu(&l.q);
		l.total = 100;
		launch(&e, stream_of, &l);
		CHECK(!l.bad, "%lu wrong", (unsigned long)l.bad);
		cuda(cuMemHostUnregister(l.q.uar->reg_addr), "unregistering a doorbell");
		close_loop(&l);
	}
	CHECK(same > 10, "no number came back");
}

/* Queues come and go at a page that stays; each begins at its first element. */
static void follow(void)
{
	struct mlx5dv_devx_uar *uar;
	struct loop l;
	struct end e;
	void *bell;

	open_end(&e, 0);
	open_loop(&l, &e, 6, NULL);
	bell_for_gpu(&l.q);
	uar = l.q.uar;
	bell = l.q.bell;
	l.q.own_uar = false;
	for (int i = 0; i < 20; i++) {
		l.q.bell = bell;
		l.total = 10 + i;
		launch(&e, stream_of, &l);
		CHECK(!l.bad, "%lu wrong", (unsigned long)l.bad);
		close_loop(&l);
		open_loop(&l, &e, 6, uar);
	}
	close_loop(&l);
	cuda(cuMemHostUnregister(uar->reg_addr), "unregistering a doorbell");
	mlx5dv_devx_free_uar(uar);
}

enum { MANY = 48 };

static void in_turn(void *argument)
{
	struct loop *l = argument;

	for (uint32_t i = 0; i < l[0].total; i++)
		for (int k = 0; k < MANY; k++) {
			if (i >= 8)
				l[k].bad += wait_for(&l[k].q, i - 8) != 0;
			put_number(&l[k], i, true);
			ring(&l[k].q);
		}
	for (int k = 0; k < MANY; k++)
		l[0].bad += l[k].bad + (wait_for(&l[k].q, l[k].q.next - 1) != 0);
}

/* One thread looks at many pages. */
static void many(void)
{
	static struct loop l[MANY];
	struct end e;

	open_end(&e, 0);
	for (int k = 0; k < MANY; k++) {
		open_loop(&l[k], &e, 6, NULL);
		l[k].total = how.total / MANY;
		bell_for_gpu(&l[k].q);
	}
	launch(&e, in_turn, l);
	CHECK(!l[0].bad, "%lu wrong", (unsigned long)l[0].bad);
	for (int k = 0; k < MANY; k++)
		close_loop(&l[k]);
}

static bool completed_within(struct queue *q, uint32_t index, double seconds)
{
	for (const double end = now() + seconds; now() < end; usleep(100)) {
		const uint8_t *e = q->entries;
		const uint32_t last = be32toh(__atomic_load_n((const uint32_t *)(const void *)(e + 60), __ATOMIC_ACQUIRE));

		if ((last & 0xf0) != 0xf0 && (int16_t)((last >> 16) - index) >= 0)
			return true;
	}
	return false;
}

/* The adapter loses doorbells (SOFTHCA_FAULT=lost_doorbell_every=N): the next one leads to the element. */
static void ringing_again(void *argument)
{
	struct loop *l = argument;

	for (uint32_t i = 0; i < 50; i++) {
		uint32_t at = put_number(l, i, true);

		ring(&l->q);
		for (int again = 0; !completed_within(&l->q, at, 0.05) && again < 200; again++) {
			at = put_nop(&l->q, true);
			ring(&l->q);
			l->again++;
		}
	}
}

static void lost_doorbells(void)
{
	struct loop l;
	struct end e;

	open_end(&e, 0);
	open_loop(&l, &e, 8, NULL);
	bell_for_gpu(&l.q);
	launch(&e, ringing_again, &l);
	CHECK(l.again, "no doorbell was lost");
	CHECK(*(uint32_t *)standin_gpu(e.buf + END_HALF) == 49, "last value");
	close_loop(&l);
}

/* The adapter fails a request (SOFTHCA_FAULT=error_every=N): the queue takes no more, and its doorbells lead nowhere. */
static void until_error(void *argument)
{
	struct loop *l = argument;

	for (uint32_t i = 0; i < l->total && !l->bad; i++) {
		const uint32_t at = put_number(l, i, true);

		ring(&l->q);
		l->bad = (uint64_t)wait_for(&l->q, at);
	}
	for (uint32_t i = 0; i < 20; i++) {
		put_number(l, i, true);
		ring(&l->q);
	}
}

static void error(void)
{
	struct loop l;
	struct end e;

	open_end(&e, 0);
	open_loop(&l, &e, 8, NULL);
	bell_for_gpu(&l.q);
	launch(&e, until_error, &l);
	CHECK(l.bad, "no request failed");
	printf("rung %u\n", l.q.next);
	fflush(stdout);
	close_loop(&l);
}

static const struct test tests[] = {
	{ .name = "stream", .ranks = 1, .run = stream },
	{ .name = "overtaken", .ranks = 1, .run = overtaken },
	{ .name = "pair", .ranks = 1, .run = pair },
	{ .name = "shared_before", .ranks = 1, .run = shared_before },
	{ .name = "two_gpus", .ranks = 1, .run = two_gpus },
	{ .name = "killed", .ranks = 1, .run = killed, .dies = 1 },
	{ .name = "unregistered", .ranks = 1, .run = unregistered },
	{ .name = "forked", .ranks = 1, .run = forked },
	{ .name = "silent", .ranks = 1, .run = silent },
	{ .name = "follow", .ranks = 1, .run = follow },
	{ .name = "many", .ranks = 1, .run = many },
	{ .name = "reused", .ranks = 1, .run = reused, .on_request = true },
	{ .name = "lost_doorbells", .ranks = 1, .run = lost_doorbells, .on_request = true },
	{ .name = "error", .ranks = 1, .run = error, .on_request = true },
	{ .name = NULL },
};

const struct test *const test_groups[] = { tests, launch_tests, NULL };
