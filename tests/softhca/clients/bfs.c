/*
 * bfs: a level-synchronous breadth-first search over an R-MAT graph, as persistent kernels on one GPU a rank do it: vertices go to their owners by RDMA writes, and
 * ranks meet at barriers, by an atomic addition to a counter of every other one. Each rank comes to each barrier later than another by turns.
 *
 * Levels are compared with those of a plain search. Prints what the run must be found to have done: `search LEVELS VERTICES`, and for each barrier and rank
 * `barrier NUMBER RANK FROM TO`: its arrival was rung for not before FROM and not after TO, ns of CLOCK_REALTIME; and `sent RANK PEER ELEMENTS BYTES` of data.
 */
#include "../../standin/standin.h"
#include "check.h"
#include "devx.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 3, SCALE = 10, VERTICES = 1 << SCALE, EDGES = 8 * VERTICES, BARRIERS = 64, STEP_US = 25000 };

/* A rank's memory for the others. */
enum { COUNTER = 0, FOUND = 64, SIZES = 256, SCRATCH = 1024, OUTBOX = 1 << 16, INBOX = 1 << 17, BOX = VERTICES * 4, HEAP = 1 << 18 };

static struct shared {
	struct {
		int64_t from, to;
	} barrier[BARRIERS][RANKS];
	struct {
		unsigned elements, bytes;
	} sent[RANKS][RANKS];
	int level[VERTICES];
	unsigned barriers;
} *shared;

static uint32_t from[EDGES], to[EDGES];

/* Before the ranks are forked. */
__attribute__((constructor)) static void share(void)
{
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void make_graph(void)
{
	uint64_t x = 88172645463325252u;

	for (int e = 0; e < EDGES; e++) {
		uint32_t a = 0, b = 0;

		for (int i = 0; i < SCALE; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			const unsigned r = x % 100; /* quadrants of 57, 19, 19 and 5 in a hundred */

			a = a << 1 | (r >= 76);
			b = b << 1 | ((r >= 57 && r < 76) || r >= 95);
		}
		from[e] = a;
		to[e] = b;
	}
}

struct rank_state {
	struct queue q[RANKS];
	struct remote heap[RANKS];
	CUdeviceptr base;
	uint8_t *memory; /* as kernels reach it */
	uint32_t lkey;
	unsigned barriers;
	int level[VERTICES]; /* of our own vertices; -1: not found */
	unsigned wrong;
};

static int64_t wall(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static uint64_t word(const struct rank_state *s, size_t at)
{
	return __atomic_load_n((uint64_t *)(s->memory + at), __ATOMIC_ACQUIRE);
}

static struct remote at(const struct rank_state *s, int peer, uint64_t offset)
{
	struct remote r = s->heap[peer];

	r.addr += offset;
	return r;
}

static void sends(int peer, unsigned bytes)
{
	shared->sent[rank][peer].elements++;
	shared->sent[rank][peer].bytes += bytes;
}

static void barrier(struct rank_state *s)
{
	const unsigned n = s->barriers++;
	uint32_t last[RANKS];

	CHECK(n < BARRIERS, "too many levels");
	usleep(STEP_US * (n % 2 ? (rank + n) % RANKS : RANKS - 1 - (rank + n) % RANKS));
	shared->barrier[n][rank].from = wall();
	for (int p = 0; p < RANKS; p++) {
		if (p == rank)
			continue;
		const struct remote r = at(s, p, COUNTER);

		last[p] = put_fetch_add(&s->q[p], &r, 1, s->base + SCRATCH + 8 * p, s->lkey, true);
		ring(&s->q[p]);
	}
	for (int p = 0; p < RANKS; p++)
		s->wrong += p != rank && wait_for(&s->q[p], last[p]);
	shared->barrier[n][rank].to = wall();
	while (word(s, COUNTER) < (uint64_t)s->barriers * (RANKS - 1))
		usleep(200);
}

/* Tells every other rank a number. */
static void tell(struct rank_state *s, size_t where, const uint64_t number[RANKS])
{
	for (int p = 0; p < RANKS; p++) {
		const struct remote r = at(s, p, where + 8 * rank);

		if (p == rank)
			continue;
		const uint32_t last = put_inline(&s->q[p], &r, &number[p], 8, true);

		ring(&s->q[p]);
		sends(p, 8);
		s->wrong += wait_for(&s->q[p], last) != 0;
	}
}

static void reach(struct rank_state *s, uint32_t vertex, int level, uint64_t *found)
{
	if (s->level[vertex] < 0) {
		s->level[vertex] = level;
		++*found;
	}
}

static void search(void *argument)
{
	struct rank_state *s = argument;
	uint64_t total = 1;

	for (int v = 0; v < VERTICES; v++)
		s->level[v] = -1;
	if (rank == 0)
		s->level[0] = 0;
	for (int level = 1; total; level++) {
		uint64_t count[RANKS] = { 0 }, found = 0, same[RANKS];
		bool sent[VERTICES] = { false };

		for (int e = 0; e < EDGES; e++) {
			const uint32_t v = to[e], owner = v % RANKS;

			if (from[e] % RANKS != (unsigned)rank || s->level[from[e]] != level - 1 || sent[v])
				continue;
			sent[v] = true;
			if (owner == (unsigned)rank)
				reach(s, v, level, &found);
			else
				((uint32_t *)(s->memory + OUTBOX + owner * BOX))[count[owner]++] = v;
		}
		for (int p = 0; p < RANKS; p++) {
			const struct remote r = at(s, p, INBOX + rank * BOX);

			if (p != rank && count[p]) {
				put_write(&s->q[p], &r, s->base + OUTBOX + p * BOX, count[p] * 4, s->lkey, false); /* rung for with what follows */
				sends(p, count[p] * 4);
			}
		}
		tell(s, FOUND, count);
		barrier(s);
		for (int p = 0; p < RANKS; p++)
			for (uint64_t i = 0; p != rank && i < word(s, FOUND + 8 * p); i++)
				reach(s, ((uint32_t *)(s->memory + INBOX + p * BOX))[i], level, &found);
		for (int p = 0; p < RANKS; p++)
			same[p] = found;
		tell(s, SIZES, same);
		barrier(s);
		total = found;
		for (int p = 0; p < RANKS; p++)
			total += p == rank ? 0 : word(s, SIZES + 8 * p);
	}
}

static void *on_gpu(size_t n, void **usable)
{
	CUdeviceptr p;

	CHECK(!cuMemAlloc_v2(&p, n), "cuMemAlloc");
	*usable = standin_gpu(p);
	return (void *)(uintptr_t)p;
}

static void off_gpu(void *p)
{
	cuMemFree_v2((uintptr_t)p);
}

static const struct memory gpu_memory = { on_gpu, off_gpu };

static void bell_for_gpu(struct queue *q)
{
	CUdeviceptr d;

	CHECK(!cuMemHostRegister_v2(q->uar->reg_addr, 8, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY), "registering a doorbell");
	CHECK(!cuMemHostGetDevicePointer_v2(&d, q->uar->reg_addr, 0), "a doorbell's address");
	q->bell = (void *)(uintptr_t)d;
}

static void launch(CUstream stream, void (*f)(void *), void *argument)
{
	struct standin_kernel k = { f };
	void *arguments[] = { &argument };

	CHECK(!cuLaunchKernel(&k, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL) && !cuStreamSynchronize(stream), "kernel");
}

/* Prints what was found, and what the others are to find in the trace. */
static void tell_all(void)
{
	int expected[VERTICES], levels = 0, reached = 0;

	memset(expected, -1, sizeof expected);
	expected[0] = 0;
	for (bool more = true; more; levels++) {
		more = false;
		for (int e = 0; e < EDGES; e++)
			if (expected[from[e]] == levels && expected[to[e]] < 0) {
				expected[to[e]] = levels + 1;
				more = true;
			}
	}
	for (int v = 0; v < VERTICES; v++) {
		CHECK(shared->level[v] == expected[v], "vertex %d: level %d, not %d", v, shared->level[v], expected[v]);
		reached += expected[v] >= 0;
	}
	printf("search %d %d\n", levels, reached);
	for (unsigned n = 0; n < shared->barriers; n++)
		for (int r = 0; r < RANKS; r++)
			printf("barrier %u %d %lld %lld\n", n, r, (long long)shared->barrier[n][r].from, (long long)shared->barrier[n][r].to);
	for (int r = 0; r < RANKS; r++)
		for (int p = 0; p < RANKS; p++)
			if (r != p)
				printf("sent %d %d %u %u\n", r, p, shared->sent[r][p].elements, shared->sent[r][p].bytes);
	fflush(stdout);
}

static void bfs(void)
{
	static struct rank_state s;
	struct ibv_device **list = ibv_get_device_list(NULL);
	CUcontext c;
	CUstream stream;
	void *usable;

	make_graph();
	CHECK(!cuInit(0) && !cuDevicePrimaryCtxRetain(&c, rank) && !cuCtxSetCurrent(c) && !cuStreamCreate(&stream, 1), "GPU %d", rank);
	CHECK(list && list[0], "no device");
	struct ibv_context *ctx = ibv_open_device(list[0]);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	const uint32_t pdn = domain_number(pd);

	ibv_free_device_list(list);
	s.base = (uintptr_t)on_gpu(HEAP, &usable);
	s.memory = usable;
	memset(s.memory, 0, HEAP);
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, HEAP, s.base, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);

	CHECK(mr, "ibv_reg_dmabuf_mr: %s", strerror(errno));
	s.lkey = mr->lkey;
	board->note[rank].rkey = mr->rkey;
	board->note[rank].addr = s.base;
	for (int p = 0; p < RANKS; p++) {
		if (p == rank)
			continue;
		queue_open(&s.q[p], ctx, pdn, 6, QUEUE_RC, true, NULL, &gpu_memory);
		bell_for_gpu(&s.q[p]);
		board->note[rank].qpn[p] = s.q[p].qpn;
	}
	meet();
	for (int p = 0; p < RANKS; p++) {
		s.heap[p] = (struct remote){ .addr = board->note[p].addr, .key = board->note[p].rkey };
		if (p != rank)
			queue_connect(&s.q[p], board->note[p].qpn[rank]);
	}
	meet();
	launch(stream, search, &s);
	CHECK(!s.wrong, "%u elements failed", s.wrong);
	for (int v = rank; v < VERTICES; v += RANKS)
		shared->level[v] = s.level[v];
	shared->barriers = s.barriers;
	meet();
	if (rank == 0)
		tell_all();
	meet();
}

static const struct test tests[] = {
	{ .name = "bfs", .ranks = RANKS, .run = bfs },
	{ .name = NULL },
};

const struct test *const test_groups[] = { tests, NULL };
