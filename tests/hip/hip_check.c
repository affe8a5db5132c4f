/* hip_check: queues that kernels of the stand-in HIP fill and ring, with doorbells from HIP and from HSA. */
#include "../softhca/clients/check.h"
#include "../softhca/clients/devx.h"
#include "../standin/standin.h"
#include "hip.h"

#include <dlfcn.h>
#include <errno.h>

enum { SIZE = 1 << 20, HALF = SIZE / 2, BLUEFLAME = 256, PUTS = 2000 };
enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	void *buf;
	hipStream_t stream;
	uint32_t pdn;
};

static void hip(hipError_t rc, const char *what)
{
	CHECK(!rc, "%s: HIP error %d", what, rc);
}

static void *on_gpu(size_t n, void **usable)
{
	void *p;

	hip(hipMalloc(&p, n), "hipMalloc");
	*usable = standin_gpu((uintptr_t)p);
	return p;
}

static void off_gpu(void *p)
{
	hip(hipFree(p), "hipFree");
}

/* As rocSHMEM's queues lie. */
static void *on_host(size_t n, void **usable)
{
	hip(hipHostMalloc(usable, n, 0), "hipHostMalloc");
	return *usable;
}

static void off_host(void *p)
{
	hip(hipHostFree(p), "hipHostFree");
}

static const struct memory of_gpu = { on_gpu, off_gpu }, of_host = { on_host, off_host };

static void open_end(struct end *e)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	hip(hipInit(0), "hipInit");
	hip(hipSetDevice(1), "device");
	hip(hipStreamCreateWithFlags(&e->stream, hipStreamNonBlocking), "stream");
	CHECK(list && list[0], "no device");
	e->ctx = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	e->pd = ibv_alloc_pd(e->ctx);
	e->pdn = domain_number(e->pd);
	hip(hipMalloc(&e->buf, SIZE), "hipMalloc");
	e->mr = ibv_reg_mr(e->pd, e->buf, SIZE, ACCESS);
	CHECK(e->mr, "ibv_reg_mr of a GPU's memory: %s", strerror(errno));
}

/* Ways to a doorbell's address for kernels. */
static void *linked(void *reg)
{
	void *d;

	hip(hipHostRegister(reg, 8, hipHostRegisterPortable | hipHostRegisterMapped | hipHostRegisterIoMemory), "registering a doorbell");
	hip(hipHostGetDevicePointer(&d, reg, 0), "a doorbell's address");
	return d;
}

static void *asked(void *reg)
{
	hipError_t (*get)(const char *, void **, int, uint64_t, int *);
	hipError_t (*lock)(void *, size_t, unsigned);
	hipError_t (*address)(void **, void *, unsigned);
	void *h = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL), *d;
	int status = -1;

	CHECK(h && (*(void **)&get = dlsym(h, "hipGetProcAddress")), "hipGetProcAddress");
	hip(get("hipHostRegister", (void **)&lock, 60400, 0, &status), "asking for hipHostRegister");
	CHECK(!status, "status %d", status);
	CHECK(*(void **)&address = dlvsym(h, "hipHostGetDevicePointer", "hip_4.2"), "hipHostGetDevicePointer");
	CHECK(get("hipNone", &d, 60400, 0, &status) && status == 1 && hipGetLastError(), "a function that is not there");
	hip(lock(reg, BLUEFLAME, hipHostRegisterMapped), "registering a doorbell");
	hip(address(&d, reg, 0), "a doorbell's address");
	return d;
}

/* As rocSHMEM does it. */
static void *locked(void *reg)
{
	hsa_agent_t agent = { 1 };
	void *d;

	CHECK(!hsa_init() && !hsa_amd_memory_lock_to_pool(reg, BLUEFLAME, &agent, 1, (hsa_amd_memory_pool_t){ 1 }, 0, &d), "locking a doorbell");
	return d;
}

struct work {
	struct queue *q;
	struct end *e;
	struct remote to;
	uint64_t *here, *there;
	uint64_t bad;
};

static void puts_one_by_one(void *argument)
{
	struct work *w = argument;

	for (uint64_t i = 1; i <= PUTS; i++) {
		*w->here = i;
		uint32_t at = put_write(w->q, &w->to, (uintptr_t)w->e->buf, 64, w->e->mr->lkey, i % 10 == 0);

		if (i % 100 == 0)
			at = put_fetch_add(w->q, &w->to, 1, (uintptr_t)w->e->buf + 64, w->e->mr->lkey, true);
		ring(w->q);
		if (i % 10 == 0)
			w->bad += wait_for(w->q, at) || *w->there != i + (i % 100 == 0);
	}
}

enum how { LAUNCH, EXT, MODULE };

static void launch(struct end *e, enum how how, void (*f)(void *), void *argument)
{
	struct standin_kernel k = { f };
	void *arguments[] = { &argument };
	const dim3 one = { 1, 1, 1 };

	switch (how) {
	case LAUNCH: hip(hipLaunchKernel(&k, one, one, arguments, 0, e->stream), "hipLaunchKernel"); break;
	case EXT: hip(hipExtLaunchKernel(&k, one, one, arguments, 0, e->stream, NULL, NULL, 0), "hipExtLaunchKernel"); break;
	case MODULE: hip(hipModuleLaunchKernel(&k, 1, 1, 1, 1, 1, 1, 0, e->stream, arguments, NULL), "hipModuleLaunchKernel"); break;
	}
	hip(hipStreamSynchronize(e->stream), "kernel");
}

static void nothing(void *argument)
{
	(void)argument;
}

/* What a program is told of its own launches, refused ones too, is as without the recorder. */
static void launches(void)
{
	hipError_t (*get)(const char *, void **, int, uint64_t, int *) = hipGetProcAddress;
	hipError_t (*found)(const void *, dim3, dim3, void **, size_t, hipStream_t, void *, void *, int);
	struct end e;
	const dim3 one = { 1, 1, 1 }, none = { 0, 1, 1 };
	struct standin_kernel k = { nothing };

	open_end(&e);
	(void)hipGetLastError();
	for (int i = 0; i < 5; i++)
		launch(&e, LAUNCH, nothing, NULL);
	for (int i = 0; i < 3; i++)
		launch(&e, MODULE, nothing, NULL);
	hip(get("hipExtLaunchKernel", (void **)&found, 60400, 0, NULL), "asking for hipExtLaunchKernel");
	hip(found(&k, (dim3){ 2, 3, 4 }, (dim3){ 5, 6, 7 }, NULL, 8, NULL, NULL, NULL, 0), "hipExtLaunchKernel");
	CHECK(hipLaunchKernel(&k, none, one, NULL, 0, e.stream) == hipErrorInvalidValue, "a grid of nothing");
	CHECK(hipGetLastError() == hipErrorInvalidValue && hipGetLastError() == hipSuccess, "the last error");
	hip(hipStreamSynchronize(NULL), "default stream");
}

static void kept(void *p)
{
	(void)p;
}

/* A program has not asked for its last error yet, and frees a queue's memory before the queue. */
static void memory_goes(struct queue *q)
{
	static const struct memory gone = { on_gpu, kept };
	const dim3 none = { 0, 1, 1 };
	struct standin_kernel k = { nothing };

	CHECK(hipLaunchKernel(&k, none, none, NULL, 0, NULL) == hipErrorInvalidValue, "a grid of nothing");
	for (int i = 0; i < 3; i++)
		q->memory->put(q->address[i]);
	q->memory = &gone;
}

static bool memory_first;

static void rings(const struct memory *memory, void *(*bell)(void *), enum how how)
{
	struct queue q, peer;
	struct end e;
	int device = -1;

	open_end(&e);
	/* a page of its own for each queue, as rocSHMEM asks for */
	queue_open(&q, e.ctx, e.pdn, 6, QUEUE_RC, true, NULL, memory);
	queue_open(&peer, e.ctx, e.pdn, 4, QUEUE_RC, true, NULL, memory);
	queue_connect(&q, peer.qpn);
	queue_connect(&peer, q.qpn);
	(void)hipGetLastError(); /* the adapter has asked of whom the host's memory is */
	q.bell = bell(q.uar->reg_addr);
	CHECK(hipPeekAtLastError() == hipSuccess, "an error that the program did not make: %d", hipPeekAtLastError());
	CHECK(!hipGetDevice(&device) && device == 1, "the program's device became %d", device);
	struct work w = { &q, &e, { .addr = (uintptr_t)e.buf + HALF, .key = e.mr->rkey }, standin_gpu((uintptr_t)e.buf), standin_gpu((uintptr_t)e.buf + HALF), 0 };

	launch(&e, how, puts_one_by_one, &w);
	CHECK(!w.bad, "%lu wrong", (unsigned long)w.bad);
	if (memory_first)
		memory_goes(&q);
	if (bell == locked)
		CHECK(!hsa_amd_memory_unlock(q.uar->reg_addr), "unlocking a doorbell");
	else
		hip(hipHostUnregister(q.uar->reg_addr), "unregistering a doorbell");
	queue_close(&q);
	queue_close(&peer);
}

static void linked_gpu(void)
{
	rings(&of_gpu, linked, LAUNCH);
}

static void memory_first_gpu(void)
{
	memory_first = true;
	rings(&of_gpu, linked, LAUNCH);
}

static void asked_gpu(void)
{
	rings(&of_gpu, asked, EXT);
}

static void rocshmem(void)
{
	rings(&of_host, locked, MODULE);
}

static const struct test tests[] = {
	{ .name = "linked", .ranks = 1, .run = linked_gpu },
	{ .name = "memory_first", .ranks = 1, .run = memory_first_gpu },
	{ .name = "asked", .ranks = 1, .run = asked_gpu },
	{ .name = "launches", .ranks = 1, .run = launches },
	{ .name = "rocshmem", .ranks = 1, .run = rocshmem },
	{ .name = NULL },
};

const struct test *const test_groups[] = { tests, NULL };
