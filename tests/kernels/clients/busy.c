/*
 * Becomes a client of CUPTI while its threads launch kernels, and holds that CUPTI is its own from then on.
 *
 * busy WAY LAUNCHES    WAY: fork (and a child that launches), cuptiSubscribe, cuptiSubscribe_v2, cuptiActivityRegisterCallbacks; when so many kernels have been launched, or, if 0, when the first may be about to be
 *
 * Prints: kernels ALL OWN, of which it was told itself; last: ok.
 */
#include "../../standin/standin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 2, BUFFER = 64 << 10, BUFFERS = 64, CONCURRENT_KERNEL = 10, AFTERWARDS = 2000 };

#define CHECK(x)                                                         \
	do {                                                             \
		if (!(x)) {                                              \
			printf("FAIL %s:%d %s\n", __FILE__, __LINE__, #x); \
			fflush(stdout);                                  \
			_exit(1);                                        \
		}                                                        \
	} while (0)

static struct {
	int (*cuptiSubscribe)(void **subscriber, void *callback, void *user);
	int (*cuptiSubscribe_v2)(void **subscriber, void *callback, void *user, void *parameters);
	int (*cuptiActivityRegisterCallbacks)(void *requested, void *completed);
	int (*cuptiActivityEnable)(int kind);
	int (*cuptiActivityFlushAll)(uint32_t flags);
	int (*cuptiActivityGetNextRecord)(uint8_t *buffer, size_t valid, void **record);
} cupti;

static _Atomic unsigned launched, own;
static atomic_bool over;
static uint8_t *buffers;
static _Atomic unsigned used;

static void requested(uint8_t **buffer, size_t *size, size_t *most)
{
	*buffer = buffers + (size_t)(used++ % BUFFERS) * BUFFER;
	*size = BUFFER;
	*most = 0;
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
	void *record = NULL;

	(void)context, (void)stream;
	CHECK(buffer >= buffers && buffer < buffers + (size_t)BUFFERS * BUFFER && size == BUFFER);
	while (!cupti.cuptiActivityGetNextRecord(buffer, valid, &record))
		own++;
}

static void nothing(void *argument)
{
	(void)argument;
}

static void *launches(void *context)
{
	static struct standin_kernel k = { nothing };
	CUstream s;

	CHECK(!cuCtxSetCurrent(context) && !cuStreamCreate(&s, 1));
	while (!over) {
		CHECK(!cuLaunchKernel(&k, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
		if (launched++ % 64 == 0)
			CHECK(!cuStreamSynchronize(s));
	}
	CHECK(!cuStreamSynchronize(s));
	return NULL;
}

/* Launches at once, whatever comes of it. */
static void child(void)
{
	static struct standin_kernel k = { nothing };
	const pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid) {
		struct rusage before, after;

		alarm(60);
		getrusage(RUSAGE_SELF, &before);
		cuLaunchKernel(&k, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
		getrusage(RUSAGE_SELF, &after);
		_exit(after.ru_nvcsw - before.ru_nvcsw > 1000); /* it did not nap until it gave up */
	}
	CHECK(waitpid(pid, &status, 0) == pid && !status);
}

static void find(void)
{
	void *lib = dlopen("libcupti.so.13", RTLD_NOW);

	CHECK(lib);
#define FIND(name) CHECK((*(void **)&cupti.name = dlsym(lib, #name)))
	FIND(cuptiSubscribe);
	FIND(cuptiSubscribe_v2);
	FIND(cuptiActivityRegisterCallbacks);
	FIND(cuptiActivityEnable);
	FIND(cuptiActivityFlushAll);
	FIND(cuptiActivityGetNextRecord);
}

int main(int argc, char **argv)
{
	void *subscriber = NULL;
	pthread_t t[THREADS];
	CUcontext context;

	CHECK(argc == 3);
	find();
	CHECK((buffers = malloc((size_t)BUFFERS * BUFFER)));
	CHECK(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxPushCurrent_v2(context));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&t[i], NULL, launches, context));
	if (!atoi(argv[2]))
		usleep(100000);
	while (launched < (unsigned)atoi(argv[2]))
		usleep(100);
	if (!strcmp(argv[1], "fork"))
		child();
	if (!strcmp(argv[1], "cuptiSubscribe"))
		CHECK(!cupti.cuptiSubscribe(&subscriber, (void *)nothing, NULL));
	else if (!strcmp(argv[1], "cuptiSubscribe_v2"))
		CHECK(!cupti.cuptiSubscribe_v2(&subscriber, (void *)nothing, NULL, NULL));
	CHECK(!cupti.cuptiActivityRegisterCallbacks((void *)requested, (void *)completed));
	CHECK(!cupti.cuptiActivityEnable(CONCURRENT_KERNEL));
	for (const unsigned now = launched; launched < now + AFTERWARDS;)
		usleep(1000);
	over = true;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(t[i], NULL));
	CHECK(!cupti.cuptiActivityFlushAll(0));
	CHECK(own >= AFTERWARDS / 2);
	printf("kernels %u %u\nok\n", launched, own);
	return 0;
}
