/* Streams, events and kernels of the stand-in CUDA driver: a thread and a queue for each stream. */
#include "cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { COPY, KERNEL, EVENT, SLEEP, END };

static _Atomic int kernels; /* that run */

struct task {
	struct task *next;
	enum kind kind;
	uint64_t dst, src;
	struct block *held[2];
	size_t n;
	struct standin_kernel *kernel;
	void *argument;
	CUevent event;
	struct launch launch;
};

struct stream {
	pthread_t thread;
	pthread_mutex_t mu;
	pthread_cond_t changed;
	struct task *first, **last;
	struct task *spare; /* used again: nothing is allocated for copies, also when a program forks meanwhile */
	uint64_t given, done;
	uint32_t number;
	int device;
};

struct event {
	pthread_mutex_t mu;
	pthread_cond_t changed;
	uint64_t recorded, reached;
};

const struct standin_observer *standin_observer;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void run_kernel(CUstream s, const struct task *t)
{
	const struct standin_observer *o = __atomic_load_n(&standin_observer, __ATOMIC_ACQUIRE);
	struct standin_ran r = { .start = now(), .device = (uint32_t)s->device, .context = 1 + (uint32_t)s->device, .stream = s->number, .call = t->launch.call, .shared = t->launch.shared };

	t->kernel->run(t->argument);
	r.end = now();
	if (!o || !t->launch.call)
		return;
	memcpy(r.grid, t->launch.grid, sizeof r.grid);
	memcpy(r.block, t->launch.block, sizeof r.block);
	cuFuncGetName(&r.name, t->kernel);
	o->ran(&r);
}

static __attribute__((noinline)) void copy_memory(const struct task *t)
{
	struct iovec to = { (void *)(uintptr_t)t->dst, t->n }, from = { (void *)(uintptr_t)t->src, t->n };

	/* by the kernel: an address of what was given back is no reason to die, here as with the real one */
	process_vm_readv(getpid(), &to, 1, &from, 1, 0);
	standin_let_go(t->held[0]);
	standin_let_go(t->held[1]);
}

static void *run(void *arg)
{
	CUstream s = arg;

	for (;;) {
		struct task *t;

		pthread_mutex_lock(&s->mu);
		while (!s->first)
			pthread_cond_wait(&s->changed, &s->mu);
		t = s->first;
		s->first = t->next;
		if (!s->first)
			s->last = &s->first;
		pthread_mutex_unlock(&s->mu);
		if (t->kind == END) {
			free(t);
			while ((t = s->spare)) {
				s->spare = t->next;
				free(t);
			}
			return NULL;
		}
		if (t->kind == COPY) {
			copy_memory(t);
		} else if (t->kind == KERNEL) {
			atomic_fetch_add(&kernels, 1);
			run_kernel(s, t);
			atomic_fetch_sub(&kernels, 1);
		} else if (t->kind == SLEEP) {
			usleep(t->n);
		} else {
			pthread_mutex_lock(&t->event->mu);
			t->event->reached++;
			pthread_cond_broadcast(&t->event->changed);
			pthread_mutex_unlock(&t->event->mu);
		}
		pthread_mutex_lock(&s->mu);
		t->next = s->spare;
		s->spare = t;
		s->done++;
		pthread_cond_broadcast(&s->changed);
		pthread_mutex_unlock(&s->mu);
	}
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
	CUstream s = calloc(1, sizeof *s);

	(void)flags;
	(void)priority;
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	static uint32_t numbers = 6;

	s->number = __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED);
	cuCtxGetDevice(&s->device);
	pthread_mutex_init(&s->mu, NULL);
	pthread_cond_init(&s->changed, NULL);
	s->last = &s->first;
	if (pthread_create(&s->thread, NULL, run, s)) {
		free(s);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = s;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *s, unsigned flags)
{
	return cuStreamCreateWithPriority(s, flags, 0);
}

static CUstream default_stream;

static void make_default(void)
{
	if (cuStreamCreate(&default_stream, 0))
		abort();
}

/* The stream that NULL, 1 (legacy) and 2 (that of the thread) stand for. */
static CUstream real(CUstream s)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (s == (CUstream)2)
		return standin_of_thread(NULL);
	if (s > (CUstream)2)
		return s;
	pthread_once(&once, make_default);
	return default_stream;
}

static CUresult give(CUstream s, const struct task *what)
{
	struct task *t;

	s = real(s);
	pthread_mutex_lock(&s->mu);
	t = s->spare;
	if (t)
		s->spare = t->next;
	else
		t = malloc(sizeof *t);
	if (!t) {
		pthread_mutex_unlock(&s->mu);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*t = *what;
	t->next = NULL;
	*s->last = t;
	s->last = &t->next;
	s->given++;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->mu);
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream s)
{
	const CUresult rc = give(s, &(struct task){ .kind = END });

	if (rc)
		return rc;
	pthread_join(s->thread, NULL);
	free(s);
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream s)
{
	uint64_t until;

	s = real(s);
	pthread_mutex_lock(&s->mu);
	until = s->given;
	while (s->done < until)
		pthread_cond_wait(&s->changed, &s->mu);
	pthread_mutex_unlock(&s->mu);
	return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream s)
{
	bool idle;

	s = real(s);
	pthread_mutex_lock(&s->mu);
	idle = s->done == s->given;
	pthread_mutex_unlock(&s->mu);
	return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	static _Thread_local int now;
	const int old = now;

	now = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

/* of_gpu: the source has to be. */
static CUresult copy(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s, bool of_gpu)
{
	struct task t = { .kind = COPY, .n = n };
	CUresult rc;

	t.held[0] = standin_hold(dst, &t.dst);
	t.held[1] = standin_hold(src, &t.src);
	rc = of_gpu && !t.held[1] ? CUDA_ERROR_INVALID_VALUE : give(s, &t);
	if (rc) {
		standin_let_go(t.held[0]);
		standin_let_go(t.held[1]);
	}
	return rc;
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s)
{
	return copy(dst, src, n, s, false);
}

static __attribute__((noinline)) void go_deep(void)
{
	volatile char room[192 << 10];

	for (size_t i = 0; i < sizeof room; i += 1024)
		room[i] = 1;
}

/* As STANDIN_TO_HOST has it, the driver is slow, lets its callers wait, takes much of their stacks, or fails. */
static CUresult hinder(CUstream s)
{
	const char *how = getenv("STANDIN_TO_HOST");
	const uint64_t us = how ? strtoull(how, NULL, 10) : 0;

	if (us)
		return give(s, &(struct task){ .kind = SLEEP, .n = us });
	if (how && !strcmp(how, "deep"))
		go_deep();
	if (how && !strcmp(how, "waits"))
		while (atomic_load(&kernels))
			usleep(100);
	return how && !strcmp(how, "fails") ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static _Atomic unsigned long to_host;

unsigned long standin_to_host(void)
{
	return atomic_load(&to_host);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, CUstream s)
{
	atomic_fetch_add(&to_host, 1);
	const CUresult rc = standin_over ? CUDA_ERROR_DEINITIALIZED : standin_gpu(src) == (void *)(uintptr_t)src ? CUDA_ERROR_INVALID_VALUE : hinder(s);

	return rc ? rc : copy((uintptr_t)dst, src, n, s, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, CUstream s)
{
	return cuMemcpyAsync(dst, (uintptr_t)src, n, s);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n)
{
	const CUresult rc = cuMemcpyAsync((uintptr_t)dst, src, n, NULL);

	return rc ? rc : cuStreamSynchronize(NULL);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n)
{
	const CUresult rc = cuMemcpyAsync(dst, (uintptr_t)src, n, NULL);

	return rc ? rc : cuStreamSynchronize(NULL);
}

CUresult cuEventCreate(CUevent *out, unsigned flags)
{
	CUevent e = calloc(1, sizeof *e);

	(void)flags;
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_init(&e->mu, NULL);
	pthread_cond_init(&e->changed, NULL);
	*out = e;
	return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent e)
{
	pthread_mutex_lock(&e->mu);
	while (e->reached < e->recorded)
		pthread_cond_wait(&e->changed, &e->mu);
	pthread_mutex_unlock(&e->mu);
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent e)
{
	cuEventSynchronize(e);
	free(e);
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent e, CUstream s)
{
	pthread_mutex_lock(&e->mu);
	e->recorded++;
	pthread_mutex_unlock(&e->mu);
	return give(s, &(struct task){ .kind = EVENT, .event = e });
}

CUresult cuEventQuery(CUevent e)
{
	bool reached;

	pthread_mutex_lock(&e->mu);
	reached = e->reached >= e->recorded;
	pthread_mutex_unlock(&e->mu);
	return reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult standin_launch(const struct launch *l)
{
	return give(l->stream, &(struct task){ .kind = KERNEL, .kernel = l->kernel, .argument = l->argument, .launch = *l });
}

CUstream standin_of_thread(CUstream s)
{
	static _Thread_local CUstream own;

	if (s)
		return s;
	if (!own && cuStreamCreate(&own, 0))
		abort();
	return own;
}

uint32_t standin_number(CUstream s)
{
	return real(s)->number;
}
