/* end_check: how programs part with queues that kernels rang: memory before its queues, a page before the last queue on it, or not at all. */
#include "gpu.h"

#include <sys/mman.h>
#include <unistd.h>

enum { TIMES = 100, RING_LOG = 6, RING_BLOCKS = 1 << RING_LOG, RING_SIZE = 64 * RING_BLOCKS };

/* Two queues at one page, the second made after a kernel has the page's address, as NCCL's are. */
struct pair {
	struct end e;
	struct queue q[2], peer[2];
	struct remote to;
	uint64_t bad;
};

static void puts_in_turn(void *argument)
{
	struct pair *p = argument;

	for (uint32_t i = 0; i < TIMES; i++)
		for (int k = 0; k < 2; k++) {
			const uint32_t at = put_inline(&p->q[k], &p->to, &i, sizeof i, true);

			ring(&p->q[k]);
			p->bad += wait_for(&p->q[k], at) != 0;
		}
}

/* An address that is registered already will do. */
static void bell(struct queue *q)
{
	const CUresult rc = cuMemHostRegister_v2(q->uar->reg_addr, 8, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY);
	CUdeviceptr d;

	CHECK(!rc || rc == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "registering a doorbell: CUDA error %d", rc);
	cuda(cuMemHostGetDevicePointer_v2(&d, q->uar->reg_addr, 0), "a doorbell's address");
	q->bell = (void *)(uintptr_t)d;
}

static void open_empty(struct pair *p)
{
	alarm(60);
	memset(p, 0, sizeof *p);
	open_end(&p->e, 0);
	p->to = (struct remote){ .addr = p->e.buf + END_HALF, .key = p->e.mr->rkey };
}

static void open_queue(struct pair *p, int k, struct mlx5dv_devx_uar *uar, const struct memory *memory)
{
	queue_open(&p->q[k], p->e.ctx, p->e.pdn, RING_LOG, QUEUE_RC, true, uar, memory);
	queue_open(&p->peer[k], p->e.ctx, p->e.pdn, 2, QUEUE_RC, true, NULL, &host_memory);
	queue_connect(&p->q[k], p->peer[k].qpn);
	queue_connect(&p->peer[k], p->q[k].qpn);
}

static void open_pair(struct pair *p, const struct memory *memory, int queues)
{
	open_empty(p);
	for (int k = 0; k < queues; k++) {
		open_queue(p, k, k ? p->q[0].uar : NULL, memory);
		if (!k)
			bell(&p->q[0]);
		p->q[k].bell = p->q[0].bell;
	}
}

static void use(struct pair *p, const struct memory *memory)
{
	open_pair(p, memory, 2);
	launch(&p->e, puts_in_turn, p);
	CHECK(!p->bad, "%lu wrong", (unsigned long)p->bad);
}

static void forget_memory(struct queue *q)
{
	for (int i = 0; i < 3; i++)
		q->memory->put(q->address[i]);
}

static void forget_objects(struct queue *q)
{
	mlx5dv_devx_obj_destroy(q->qp);
	mlx5dv_devx_obj_destroy(q->cq);
	for (int i = 0; i < 3; i++)
		mlx5dv_devx_umem_dereg(q->umem[i]);
}

static void part_with(struct pair *p)
{
	for (int k = 0; k < 2; k++)
		forget_memory(&p->q[k]);
	for (int k = 1; k >= 0; k--)
		forget_objects(&p->q[k]);
	cuMemHostUnregister(p->q[0].uar->reg_addr);
	mlx5dv_devx_free_uar(p->q[0].uar);
}

static void memory_first(void)
{
	struct pair p;

	use(&p, &gpu_memory);
	part_with(&p);
}

/* Memory that goes back to the system at once. */
static void *mapped(size_t n, void **usable)
{
	(void)n;
	*usable = mmap(NULL, RING_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return *usable == MAP_FAILED ? NULL : *usable;
}

static void unmapped(void *p)
{
	munmap(p, RING_SIZE);
}

static const struct memory mapped_memory = { mapped, unmapped };

/* As of a pool of CUDA's, whose memory is unmapped. */
static void off_map(void *p)
{
	uint64_t base, size;

	cuda(cuMemGetAddressRange_v2(&base, &size, (uintptr_t)p), "cuMemGetAddressRange");
	cuda(cuMemUnmap((uintptr_t)p, size), "cuMemUnmap");
}

static void mapping_first(void)
{
	struct memory memory = gpu_memory;
	struct pair p;

	memory.put = off_map;
	use(&p, &memory);
	part_with(&p);
}

static void host_memory_first(void)
{
	struct pair p;

	use(&p, &mapped_memory);
	part_with(&p);
}

/* A queue is made empty when its memory is gone, which has it looked at anew. */
static void reset_last(void)
{
	enum { COMMAND = 0x50a };
	struct pair p;

	use(&p, &gpu_memory);
	for (int k = 0; k < 2; k++)
		forget_memory(&p.q[k]);
	for (int k = 0; k < 2; k++) {
		uint8_t in[16] = { COMMAND >> 8, COMMAND & 0xff }, out[16];

		in[9] = (uint8_t)(p.q[k].qpn >> 16);
		in[10] = (uint8_t)(p.q[k].qpn >> 8);
		in[11] = (uint8_t)p.q[k].qpn;
		mlx5dv_devx_obj_modify(p.q[k].qp, in, sizeof in, out, sizeof out);
	}
	for (int k = 0; k < 2; k++)
		forget_objects(&p.q[k]);
}

/* As NCCL does: the page stays registered, and is given back with the first of its queues. The next page has its address. */
static void page_first(void)
{
	const void *address = NULL;

	for (int i = 0; i < 2; i++) {
		struct pair p;

		use(&p, &gpu_memory);
		CHECK(!address || address == p.q[0].uar->reg_addr, "another address");
		address = p.q[0].uar->reg_addr;
		for (int k = 0; k < 2; k++) {
			forget_objects(&p.q[k]);
			forget_memory(&p.q[k]);
			if (!k)
				mlx5dv_devx_free_uar(p.q[0].uar);
		}
		for (int k = 0; k < 2; k++)
			queue_close(&p.peer[k]);
	}
}

static void puts_at_once(void *argument)
{
	struct pair *p = argument;
	uint32_t at = 0;

	for (uint32_t i = 0; i < RING_BLOCKS / 4; i++) {
		at = put_inline(&p->q[0], &p->to, &i, sizeof i, true);
		ring(&p->q[0]);
	}
	p->bad += wait_for(&p->q[0], at) != 0;
}

/* A queue is there until the process is none, whose driver ends before; what was rung was copied by nobody yet where the driver is slow. */
static void not_at_all(void)
{
	static struct pair p;

	open_pair(&p, &gpu_memory, 1);
	launch(&p.e, puts_at_once, &p);
	CHECK(!p.bad, "%lu wrong", (unsigned long)p.bad);
	fflush(NULL);
	exit(0);
}

static void puts_of_one(void *argument)
{
	struct pair *p = argument;
	struct queue *q = p->q[0].qp ? &p->q[0] : &p->q[1];

	for (uint32_t i = 0; i < TIMES; i++) {
		const uint32_t at = put_inline(q, &p->to, &i, sizeof i, true);

		ring(q);
		p->bad += wait_for(q, at) != 0;
	}
}

/* A queue for each of the two registers that libmlx5 has for BlueFlame on a page: both are made with the page's number. The one of `first` goes first. */
static void registers_of_page(int first)
{
	struct mlx5dv_devx_uar *uar[2];
	struct pair p;

	open_empty(&p);
	for (int k = 0; k < 2; k++) {
		void *there;

		uar[k] = p.q[k].uar = mlx5dv_devx_alloc_uar(p.e.ctx, MLX5DV_UAR_ALLOC_TYPE_BF);
		CHECK(uar[k] && uar[k]->page_id == uar[0]->page_id, "a register");
		bell(&p.q[k]);
		there = p.q[k].bell;
		open_queue(&p, k, uar[k], &gpu_memory);
		p.q[k].bell = there;
	}
	CHECK(uar[0]->reg_addr != uar[1]->reg_addr, "one register");
	launch(&p.e, puts_in_turn, &p);
	cuda(cuMemHostUnregister(uar[first]->reg_addr), "unregistering");
	queue_close(&p.q[first]);
	p.q[first].qp = NULL;
	mlx5dv_devx_free_uar(uar[first]);
	launch(&p.e, puts_of_one, &p);
	cuda(cuMemHostUnregister(uar[!first]->reg_addr), "unregistering");
	queue_close(&p.q[!first]);
	mlx5dv_devx_free_uar(uar[!first]);
	CHECK(!p.bad, "%lu wrong", (unsigned long)p.bad);
}

static void first_register_first(void)
{
	registers_of_page(0);
}

static void second_register_first(void)
{
	registers_of_page(1);
}

/* libmlx5 has one page without BlueFlame in a context, and gives it to all who ask: one of them gives it back, and the other rings on. */
static void page_of_all(void)
{
	struct mlx5dv_devx_uar *uar, *same;
	struct pair p;

	open_empty(&p);
	uar = mlx5dv_devx_alloc_uar(p.e.ctx, MLX5DV_UAR_ALLOC_TYPE_NC);
	same = mlx5dv_devx_alloc_uar(p.e.ctx, MLX5DV_UAR_ALLOC_TYPE_NC);
	CHECK(uar && uar == same, "two pages");
	open_queue(&p, 0, uar, &gpu_memory);
	bell(&p.q[0]);
	launch(&p.e, puts_of_one, &p);
	mlx5dv_devx_free_uar(same);
	launch(&p.e, puts_of_one, &p);
	cuda(cuMemHostUnregister(uar->reg_addr), "unregistering");
	queue_close(&p.q[0]);
	mlx5dv_devx_free_uar(uar);
	CHECK(!p.bad, "%lu wrong", (unsigned long)p.bad);
}

static const struct test tests[] = {
	{ .name = "first_register_first", .ranks = 1, .run = first_register_first },
	{ .name = "second_register_first", .ranks = 1, .run = second_register_first },
	{ .name = "page_of_all", .ranks = 1, .run = page_of_all },
	{ .name = "memory_first", .ranks = 1, .run = memory_first },
	{ .name = "mapping_first", .ranks = 1, .run = mapping_first },
	{ .name = "host_memory_first", .ranks = 1, .run = host_memory_first },
	{ .name = "reset_last", .ranks = 1, .run = reset_last },
	{ .name = "page_first", .ranks = 1, .run = page_first },
	{ .name = "not_at_all", .ranks = 1, .run = not_at_all },
	{ .name = NULL },
};

const struct test *const test_groups[] = { tests, NULL };
