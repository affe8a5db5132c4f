/*
 * A stand-in for CUPTI, NVIDIA's library for tools, for the stand-in driver: kernels' times, and numbers of the calls that launched them. Its clock is none of the
 * system's: it runs 40 ppm too fast, from a time of its own.
 *
 * STANDIN_CUPTI_VERSION is the version it claims (130000), STANDIN_CUPTI_BUSY=1 has somebody subscribed already, STANDIN_CUPTI_FIRST is the number of its first call,
 * STANDIN_CUPTI_SLOW the microseconds that subscribing takes.
 */
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, ERROR_INVALID = 1, ERROR_NO_MORE = 12, ERROR_MULTIPLE = 39 };
enum { CONCURRENT_KERNEL = 10, KINDS = 64, DRIVER_API = 1, FUNCTIONS = 1024, ENTER = 0, EXIT = 1 };

struct kernel {
	uint32_t kind;
	uint8_t configuration[2];
	uint16_t registers;
	uint32_t requested, executed;
	uint64_t start, end, completed;
	uint32_t device, context, stream;
	int32_t grid[3], block[3], static_shared, dynamic_shared;
	uint32_t local_of_thread, local, correlation;
	int64_t grid_number;
	const char *name;
	uint8_t more[112]; /* Kernel10's end */
};
/* CUpti_CallbackData */
struct call {
	int site;
	const char *function;
	const void *parameters;
	void *result;
	const char *symbol;
	CUcontext context;
	uint32_t of_context;
	uint64_t *data;
	uint32_t correlation;
};

typedef void (*request_fn)(uint8_t **buffer, size_t *size, size_t *most);
typedef void (*call_fn)(void *user, int domain, uint32_t function, const struct call *c);
typedef void (*complete_fn)(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

FREE_IN_CHILD(mu)

static request_fn request;
static complete_fn complete;
static uint8_t enabled[KINDS];
static struct buffer {
	uint8_t *p;
	size_t size, used;
} now_filled;
static size_t dropped;
static uint32_t calls;
static struct subscriber {
	call_fn call;
	void *user;
	uint8_t functions[FUNCTIONS]; /* that it is told the calls of */
} subscribed;

static const struct standin_observer observer;

static uint64_t clock_of(uint64_t monotonic)
{
	return 1234567890123ull + monotonic + monotonic / 25000;
}

int cuptiGetTimestamp(uint64_t *t)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	*t = clock_of((uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec);
	return SUCCESS;
}

int cuptiGetVersion(uint32_t *version)
{
	const char *e = getenv("STANDIN_CUPTI_VERSION");

	*version = e ? (uint32_t)atoi(e) : 130000;
	return SUCCESS;
}

int cuptiSubscribe(void **subscriber, call_fn call, void *user)
{
	const char *slow = getenv("STANDIN_CUPTI_SLOW");

	if (subscribed.call || getenv("STANDIN_CUPTI_BUSY"))
		return ERROR_MULTIPLE;
	subscribed = (struct subscriber){ .call = call, .user = user };
	if (slow)
		usleep((useconds_t)atoi(slow));
	*subscriber = &subscribed;
	return SUCCESS;
}

int cuptiSubscribe_v2(void **subscriber, call_fn call, void *user, void *parameters)
{
	(void)parameters;
	return cuptiSubscribe(subscriber, call, user);
}

int cuptiUnsubscribe(void *subscriber)
{
	if (subscriber != &subscribed || !subscribed.call)
		return ERROR_INVALID;
	subscribed = (struct subscriber){ 0 };
	return SUCCESS;
}

int cuptiEnableCallback(uint32_t enable, void *subscriber, int domain, uint32_t function)
{
	if (subscriber != &subscribed || domain != DRIVER_API || function >= FUNCTIONS)
		return ERROR_INVALID;
	subscribed.functions[function] = enable != 0;
	__atomic_store_n(&standin_observer, &observer, __ATOMIC_RELEASE);
	return SUCCESS;
}

/* Gives the buffer back; the lock is held, but not while the client looks at it. */
static void end_buffer(void)
{
	const struct buffer b = now_filled;
	const complete_fn whose = complete; /* whoever comes meanwhile has not given it */

	if (!b.p)
		return;
	now_filled = (struct buffer){ 0 };
	pthread_mutex_unlock(&mu);
	whose(NULL, 0, b.p, b.size, b.used);
	pthread_mutex_lock(&mu);
}

static void append(const void *record, size_t size)
{
	if (now_filled.p && now_filled.used + size > now_filled.size)
		end_buffer();
	if (!now_filled.p) {
		size_t most;

		request(&now_filled.p, &now_filled.size, &most);
	}
	if (!now_filled.p || now_filled.used + size > now_filled.size) {
		dropped++;
		return;
	}
	memcpy(now_filled.p + now_filled.used, record, size);
	now_filled.used += size;
}

static void tell(uint32_t function, uint32_t number, int site)
{
	const struct call c = { .site = site, .function = "", .symbol = "", .correlation = number };

	if (subscribed.call && subscribed.functions[function])
		subscribed.call(subscribed.user, DRIVER_API, function, &c);
}

static uint32_t begin_call(uint32_t function)
{
	const char *first = getenv("STANDIN_CUPTI_FIRST");
	const uint32_t number = (first ? (uint32_t)strtoul(first, NULL, 0) - 1 : 0) + __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);

	tell(function, number, ENTER);
	return number;
}

static void end_call(uint32_t function, uint32_t number)
{
	tell(function, number, EXIT);
}

static void ran(const struct standin_ran *r)
{
	struct kernel k = { .kind = CONCURRENT_KERNEL, .registers = 32, .device = r->device, .context = r->context, .stream = r->stream, .correlation = r->call, .name = r->name };

	k.start = clock_of(r->start);
	k.end = k.completed = clock_of(r->end);
	for (int i = 0; i < 3; i++) {
		k.grid[i] = (int32_t)r->grid[i];
		k.block[i] = (int32_t)r->block[i];
	}
	k.static_shared = 64;
	k.dynamic_shared = (int32_t)r->shared;
	memset(k.more, 0xa5, sizeof k.more);
	pthread_mutex_lock(&mu);
	if (enabled[CONCURRENT_KERNEL] && request)
		append(&k, sizeof k);
	pthread_mutex_unlock(&mu);
}

static const struct standin_observer observer = { begin_call, end_call, ran };

int cuptiActivityRegisterCallbacks(request_fn r, complete_fn c)
{
	pthread_mutex_lock(&mu);
	request = r;
	complete = c;
	pthread_mutex_unlock(&mu);
	return SUCCESS;
}

int cuptiActivityEnable(int kind)
{
	if (kind <= 0 || kind >= KINDS)
		return ERROR_INVALID;
	enabled[kind] = 1;
	__atomic_store_n(&standin_observer, &observer, __ATOMIC_RELEASE);
	return SUCCESS;
}

int cuptiActivityDisable(int kind)
{
	if (kind <= 0 || kind >= KINDS)
		return ERROR_INVALID;
	enabled[kind] = 0;
	return SUCCESS;
}

int cuptiActivityFlushAll(uint32_t flags)
{
	(void)flags;
	pthread_mutex_lock(&mu);
	end_buffer();
	pthread_mutex_unlock(&mu);
	return SUCCESS;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record)
{
	uint8_t *at = buffer;

	if (*record)
		at = (uint8_t *)*record + sizeof(struct kernel);
	if (at >= buffer + valid)
		return ERROR_NO_MORE;
	*record = at;
	return SUCCESS;
}

int cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *n)
{
	(void)context;
	(void)stream;
	pthread_mutex_lock(&mu);
	*n = dropped;
	dropped = 0;
	pthread_mutex_unlock(&mu);
	return SUCCESS;
}

int cuptiGetContextId(CUcontext c, uint32_t *id)
{
	*id = 1 + (uint32_t)c->device;
	return SUCCESS;
}

int cuptiGetStreamIdEx(CUcontext c, CUstream s, uint8_t of_thread, uint32_t *id)
{
	(void)c;
	*id = standin_number(of_thread ? standin_of_thread(s) : s);
	return SUCCESS;
}
