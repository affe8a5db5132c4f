/* calls SCENARIO N: calls ucp_put_nbi of the libucp.so.0 that it finds N times, found in one of the ways that programs have. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <ucp/api/ucp.h>

typedef ucs_status_t (*put_t)(ucp_ep_h, const void *, size_t, uint64_t, ucp_rkey_h);
#define FATAL(cond) \
	do { \
		if (cond) { \
			fprintf(stderr, "%s: %s\n", #cond, dlerror()); \
			exit(1); \
		} \
	} while (0)

static char memory[64];
static put_t put;
static void call(unsigned long n)
{
	for (; n > 0; n--)
		put((ucp_ep_h)memory, memory, 8, 0, NULL);
}

/* Loaded, used and closed again and again, at ever another address. */
static int reloaded(unsigned long n)
{
	for (int round = 0; round < 10; round++) {
		void *h = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
		FATAL(!h);
		put = (put_t)dlsym(h, "ucp_put_nbi");
		FATAL(!put);
		call(n);
		FATAL(dlclose(h));
		FATAL(mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
	}
	puts("closed");
	return 0;
}

static volatile unsigned long in_handlers;
static void on_signal(int sig)
{
	(void)sig;
	call(1);
	in_handlers++;
}

/* Two timers at 10 kHz, whose handler calls what it interrupts, for so many seconds, or longer where the machine lets few signals come; how often goes to a file. */
static int storm(unsigned long seconds, const char *file)
{
	struct sigaction a = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	struct itimerval every = { { 0, 100 }, { 0, 100 } };
	unsigned long n = 0;
	sigfillset(&a.sa_mask);
	sigaction(SIGALRM, &a, NULL);
	sigaction(SIGPROF, &a, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
	setitimer(ITIMER_PROF, &every, NULL);
	for (time_t end = time(NULL) + (time_t)seconds, last = end + 60; time(NULL) < end || (in_handlers <= 100 * seconds && time(NULL) < last); n += 1000)
		call(1000);
	setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
	setitimer(ITIMER_PROF, &(struct itimerval){ 0 }, NULL);
	FILE *f = fopen(file, "w");
	FATAL(!f);
	fprintf(f, "%lu %lu\n", n, in_handlers);
	fclose(f);
	puts(in_handlers > 100 * seconds ? "stormed" : "hardly any signal came");
	return 0;
}

static int may_call;
static void *cancelled_thread(void *n)
{
	while (!__atomic_load_n(&may_call, __ATOMIC_ACQUIRE))
		;
	call((unsigned long)n);
	pthread_testcancel(); /* the only one that there is without us */
	puts("not cancelled");
	return NULL;
}

/* Threads that are to be cancelled before they call: they call all the same, and end then. */
static void cancelled(unsigned long threads, unsigned long n)
{
	for (unsigned long i = 0; i < threads; i++) {
		pthread_t t;
		void *end;
		may_call = 0;
		FATAL(pthread_create(&t, NULL, cancelled_thread, (void *)n));
		pthread_cancel(t);
		__atomic_store_n(&may_call, 1, __ATOMIC_RELEASE);
		pthread_join(t, &end);
		FATAL(end != PTHREAD_CANCELED);
	}
}

static unsigned long went_through;
static void *write_on(void *stop)
{
	while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED))
		went_through += write(1, "nobody reads this", 17) >= 0;
	return NULL;
}

/* Standard output is closed, and another thread writes to it while the first one calls. */
static int closed(unsigned long n)
{
	pthread_t t;
	int stop = 0;
	close(1);
	FATAL(pthread_create(&t, NULL, write_on, &stop));
	for (unsigned long i = 0; i < n; i++)
		put((ucp_ep_h)memory, memory, 8 + i * 7919 % 100000, i * 77777, NULL);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
	fprintf(stderr, "%lu writes went through\n", went_through);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned long n = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
	void *h = NULL;
	if (argc < 3)
		return 2;
	if (!strcmp(argv[1], "reloaded"))
		return reloaded(n);
#ifdef LINKED
	put = ucp_put_nbi;
#else
	h = dlopen("libucp.so.0", RTLD_NOW | (strstr(argv[1], "global") ? RTLD_GLOBAL : RTLD_LOCAL));
	FATAL(!h);
	put = (put_t)dlsym(strstr(argv[1], "global") ? RTLD_DEFAULT : h, "ucp_put_nbi");
#endif
	FATAL(!put);
	if (!strcmp(argv[1], "closed"))
		return closed(n);
	if (!strcmp(argv[1], "storm"))
		return storm(n, argv[3]);
	if (!strcmp(argv[1], "cancelled"))
		cancelled(10, n / 10);
	else
		call(n);
	unsigned long *seen = dlsym(h ? h : RTLD_DEFAULT, "fake_calls");
	FATAL(!seen);
	printf("%lu called, %lu arrived\n", n, *seen);
	return 0;
}
