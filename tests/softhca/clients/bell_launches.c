/* Cases of bell_check in which it matters when elements are copied: kernels that come, and queues that are filled. */
#include "bell.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Writes the whole queue before it rings. */
static void filling(void *argument)
{
	struct loop *l = argument;

	for (uint32_t i = 0; i < 1u << l->q.log; i++)
		put_number(l, i, true);
	ring(&l->q);
	l->bad += wait_for(&l->q, l->q.next - 1) != 0;
}

/* A part of the queue, and as soon as that has completed all of it, again and again. */
static void refilling(void *argument)
{
	struct loop *l = argument;

	for (uint32_t round = 0; round < l->total; round++) {
		for (uint32_t i = 0; i < how.batch; i++)
			put_number(l, i, true);
		ring(&l->q);
		l->bad += wait_for(&l->q, l->q.next - 1) != 0;
		filling(l);
	}
}

static void refill(void)
{
	struct loop l;
	struct end e;

	open_end(&e, 0);
	open_loop(&l, &e, how.log, NULL);
	bell_for_gpu(&l.q);
	launch(&e, refilling, &l);
	CHECK(!l.bad, "%lu wrong", (unsigned long)l.bad);
	close_loop(&l);
}

/* A kernel's last elements, and another kernel, the first of its kind, that overwrites them at once. */
static void next_kernel(void)
{
	struct standin_kernel first = { stream_of }, next = { filling };
	struct loop l;
	struct end e;

	open_end(&e, 0);
	open_loop(&l, &e, how.log, NULL);
	bell_for_gpu(&l.q);
	start_kernel(&e, &first, &l);
	cuda(cuStreamSynchronize(e.stream), "a kernel");
	start_kernel(&e, &next, &l);
	cuda(cuStreamSynchronize(e.stream), "the next kernel");
	CHECK(!l.bad, "%lu wrong", (unsigned long)l.bad);
	close_loop(&l);
}

static uint64_t microseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void nothing(void *argument)
{
	(void)argument;
}

static uint64_t launch_on(CUstream s, struct standin_kernel *k)
{
	const uint64_t begin = microseconds();

	cuda(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL), "cuLaunchKernel");
	return microseconds() - begin;
}

/* A new kernel, and others that were launched before, while another rings, whose doorbells wait for copies. Says how long launches took: of that, and in all of these. */
static void launches(void)
{
	enum { KNOWN = 1000, NEW = 3 };
	static _Atomic uint32_t progress;
	struct standin_kernel first = { stream_of }, *known[KNOWN], new[NEW];
	uint64_t again = 0, took = UINT64_MAX; /* the least: a busy machine may have any of them wait for a processor */
	struct loop l;
	CUstream s;
	struct end e;

	open_end(&e, 0);
	open_loop(&l, &e, how.log, NULL);
	l.progress = &progress;
	bell_for_gpu(&l.q);
	cuda(cuStreamCreate(&s, 1), "cuStreamCreate");
	for (uint32_t i = 0, more = 1; i < KNOWN; i++, more = more * 1103515245 + 12345) {
		known[i] = malloc(sizeof *known[i] + more % 4000); /* as far from each other as a driver's */
		CHECK(known[i], "no memory");
		known[i]->run = nothing;
		launch_on(s, known[i]);
	}
	start_kernel(&e, &first, &l);
	while (!atomic_load(&progress))
		usleep(100);
	usleep(20000);
	for (int i = 0; i < NEW; i++) {
		new[i] = (struct standin_kernel){ nothing };
		const uint64_t t = launch_on(s, &new[i]);

		took = t < took ? t : took;
	}
	usleep(50000);
	for (int i = 0; i < KNOWN; i++)
		again += launch_on(s, known[i]);
	printf("new %lu again %lu\n", (unsigned long)took, (unsigned long)again);
	fflush(stdout);
	cuda(cuStreamSynchronize(s), "new kernels");
	cuda(cuStreamSynchronize(e.stream), "the kernel that rings");
	CHECK(!l.bad, "%lu wrong", (unsigned long)l.bad);
	for (int i = 0; i < KNOWN; i++)
		free(known[i]);
	close_loop(&l);
}

/* One doorbell that nothing follows, whose element is copied all the same; then others, each when the one before has completed. Says how many copies there were. */
static void one_by_one(void)
{
	struct loop l;
	struct end e;

	open_end(&e, 0);
	open_loop(&l, &e, how.log, NULL);
	bell_for_gpu(&l.q);
	l.total = 1;
	launch(&e, stream_of, &l);
	for (int i = 0; i < 10000 && !standin_to_host(); i++)
		usleep(1000);
	CHECK(standin_to_host() == 1, "%lu copies of one element", standin_to_host());
	l.total = how.total;
	const uint64_t begin = microseconds();

	launch(&e, stream_of, &l);
	printf("copies %lu in %lu us\n", standin_to_host(), (unsigned long)(microseconds() - begin));
	fflush(stdout);
	CHECK(!l.bad, "%lu wrong", (unsigned long)l.bad);
	close_loop(&l);
}

const struct test launch_tests[] = {
	{ .name = "refill", .ranks = 1, .run = refill },
	{ .name = "next_kernel", .ranks = 1, .run = next_kernel },
	{ .name = "launches", .ranks = 1, .run = launches },
	{ .name = "one_by_one", .ranks = 1, .run = one_by_one, .on_request = true },
	{ .name = NULL },
};
