#include "devx.h"

#include <endian.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK = 64, CREATE_IN = 272, CQC = 0x10, QPC = 0x18 };

static void set32(uint8_t *p, uint32_t v)
{
	v = htobe32(v);
	memcpy(p, &v, sizeof v);
}

static void set64(uint8_t *p, uint64_t v)
{
	v = htobe64(v);
	memcpy(p, &v, sizeof v);
}

static void set24(uint8_t *p, uint32_t v)
{
	p[0] = v >> 16;
	p[1] = v >> 8;
	p[2] = v;
}

static void command(uint8_t *in, uint16_t op)
{
	memset(in, 0, CREATE_IN);
	in[0] = op >> 8;
	in[1] = op;
}

static void need(const void *object, const char *what)
{
	if (!object) {
		perror(what);
		exit(1);
	}
}

static void *pages(size_t n, void **usable)
{
	return *usable = aligned_alloc(4096, (n + 4095) & ~(size_t)4095);
}

const struct memory host_memory = { pages, free };

uint32_t domain_number(struct ibv_pd *pd)
{
	struct mlx5dv_pd d = { 0 };
	struct mlx5dv_obj o = { .pd = { pd, &d } };

	if (mlx5dv_init_obj(&o, MLX5DV_OBJ_PD)) {
		fprintf(stderr, "mlx5dv_init_obj refuses a protection domain\n");
		exit(1);
	}
	return d.pdn;
}

static void open_queue(struct queue *q, struct ibv_context *ctx, uint32_t pdn, unsigned log, int service, bool collapsed, struct mlx5dv_devx_uar *uar, const struct memory *memory, uint32_t srqn, uint32_t receive_cqn)
{
	const size_t size = (size_t)BLOCK << log;
	uint8_t in[CREATE_IN], out[16];
	uint32_t eqn = 0;

	*q = (struct queue){ .ctx = ctx, .log = log, .uar = uar, .own_uar = !uar, .collapsed = collapsed, .memory = memory, .rnr_retry = 7 };
	void *usable[3];
	const size_t sizes[] = { size, size, 4096 };

	for (int i = 0; i < 3; i++)
		need(q->address[i] = memory->get(sizes[i], &usable[i]), "memory of a queue");
	q->ring = usable[0];
	q->entries = usable[1];
	q->record = usable[2];
	memset(q->ring, 0, size);
	memset(q->entries, 0xff, size);
	memset(q->record, 0, 4096);
	if (!uar)
		q->uar = mlx5dv_devx_alloc_uar(ctx, OWN_PAGE);
	need(q->uar, "mlx5dv_devx_alloc_uar");
	q->bell = q->uar->reg_addr;
	for (int i = 0; i < 3; i++)
		need(q->umem[i] = mlx5dv_devx_umem_reg(ctx, q->address[i], sizes[i], IBV_ACCESS_LOCAL_WRITE), "mlx5dv_devx_umem_reg");
	mlx5dv_devx_query_eqn(ctx, 0, &eqn);

	command(in, 0x400);
	in[CQC + 1] = collapsed ? 0x12 : 0; /* cc and oi */
	set32(in + CQC + 4, q->umem[2]->umem_id);
	in[CQC + 0xc] = log;
	set24(in + CQC + 0xd, q->uar->page_id);
	in[CQC + 0x17] = eqn;
	set64(in + CQC + 0x38, 64); /* its doorbell record */
	set32(in + 0x58, q->umem[1]->umem_id);
	in[0x5c] = 0x80;
	need(q->cq = mlx5dv_devx_obj_create(ctx, in, sizeof in, out, sizeof out), "creating a completion queue");
	q->cqn = out[9] << 16 | out[10] << 8 | out[11];

	command(in, 0x500);
	in[QPC + 1] = service;
	in[QPC + 2] = 0x18; /* migrated */
	set24(in + QPC + 5, pdn);
	in[QPC + 0xa] = log << 3;
	set24(in + QPC + 0xd, q->uar->page_id);
	set24(in + QPC + 0x7d, q->cqn);
	in[QPC + 0xac] = srqn ? 1 : 3; /* shared receives, or no receive queue */
	set24(in + QPC + 0xad, srqn);
	set24(in + QPC + 0x9d, receive_cqn);
	in[QPC + 0xd0] = 0x10;
	set32(in + QPC + 0xe4, q->umem[2]->umem_id);
	set32(in + 0x108, q->umem[0]->umem_id);
	in[0x10c] = 0x80;
	need(q->qp = mlx5dv_devx_obj_create(ctx, in, sizeof in, out, sizeof out), "creating a queue pair");
	q->qpn = out[9] << 16 | out[10] << 8 | out[11];
}

void queue_open(struct queue *q, struct ibv_context *ctx, uint32_t pdn, unsigned log, int service, bool collapsed, struct mlx5dv_devx_uar *uar, const struct memory *memory)
{
	open_queue(q, ctx, pdn, log, service, collapsed, uar, memory, 0, 0);
}

void queue_open_receiving(struct queue *q, struct ibv_context *ctx, uint32_t pdn, unsigned log, uint32_t srqn, uint32_t cqn)
{
	open_queue(q, ctx, pdn, log, QUEUE_RC, true, NULL, &host_memory, srqn, cqn);
}

struct mlx5dv_devx_obj *receives_open(struct ibv_context *ctx, uint32_t pdn, unsigned log, struct mlx5dv_devx_umem *ring, struct mlx5dv_devx_umem *record, uint32_t *number)
{
	enum { WQ = 0x50 };
	uint8_t in[CREATE_IN], out[16];
	struct mlx5dv_devx_obj *o;

	command(in, 0x90c);
	in[0x21] = 0x10; /* ready */
	in[WQ] = 0x10;   /* element after element, round the ring */
	set24(in + WQ + 9, pdn);
	in[WQ + 0x21] = 5; /* 32 bytes each */
	in[WQ + 0x23] = log;
	set32(in + WQ + 0x28, record->umem_id);
	set32(in + WQ + 0x2c, ring->umem_id);
	need(o = mlx5dv_devx_obj_create(ctx, in, sizeof in, out, sizeof out), "creating a shared receive queue");
	*number = out[9] << 16 | out[10] << 8 | out[11];
	return o;
}

void queue_connect(struct queue *q, uint32_t dest)
{
	for (int op = 0x502; op <= 0x504; op++) {
		uint8_t in[CREATE_IN], out[16];

		command(in, op);
		set24(in + 9, q->qpn);
		in[QPC + 0x92] = 0xe0; /* reads, writes and atomics from there */
		if (op == 0x502)
			in[QPC + 0x18 + 0x25] = 1; /* the port */
		if (op == 0x504) {
			in[QPC + 0x71] = 7; /* retries */
			in[QPC + 0x72] = q->rnr_retry << 5;
		}
		if (op == 0x503) {
			in[QPC + 0x94] = 12; /* a pause of 0.64 ms when no receive is there */
			in[QPC + 8] = IBV_MTU_4096 << 5;
			in[QPC + 0x18 + 7] = 1; /* the path: LID, service level */
			in[QPC + 0x18 + 0x24] = 3;
		}
		set24(in + QPC + 0x15, dest);
		if (mlx5dv_devx_obj_modify(q->qp, in, sizeof in, out, sizeof out)) {
			fprintf(stderr, "command %#x of queue %#x is refused\n", op, q->qpn);
			exit(1);
		}
	}
}

void queue_close(struct queue *q)
{
	mlx5dv_devx_obj_destroy(q->qp);
	mlx5dv_devx_obj_destroy(q->cq);
	for (int i = 0; i < 3; i++)
		mlx5dv_devx_umem_dereg(q->umem[i]);
	if (q->own_uar)
		mlx5dv_devx_free_uar(q->uar);
	for (int i = 0; i < 3; i++)
		q->memory->put(q->address[i]);
}

/* An element under way: the ring may end in the middle of it. */
struct element {
	struct queue *q;
	uint8_t bytes[1024], *at;
	unsigned opcode, opmod;
	bool signaled;
};

static void begin(struct element *e, struct queue *q, unsigned opcode, bool signaled)
{
	*e = (struct element){ .q = q, .opcode = opcode, .signaled = signaled };
	e->at = e->bytes + 16;
}

static void address(struct element *e, const struct remote *r)
{
	if (r->dct) {
		struct mlx5_wqe_av av = { 0 };

		if (r->av)
			av = *r->av;
		else
			av.rlid = htobe16(r->dlid);
		av.key.dc_key = htobe64(r->dc_key);
		av.dqp_dct = htobe32(r->dct | (r->av ? 1u << 31 : 0));
		memcpy(e->at, &av, r->av ? 48 : 16);
		e->at += r->av ? 48 : 16;
	}
	set64(e->at, r->addr);
	set32(e->at + 8, r->key);
	e->at += 16;
}

static void data(struct element *e, uint64_t addr, uint32_t len, uint32_t lkey)
{
	set32(e->at, len);
	set32(e->at + 4, lkey);
	set64(e->at + 8, addr);
	e->at += 16;
}

static uint32_t end(struct element *e)
{
	struct queue *q = e->q;
	const uint32_t index = q->next, mask = (1u << q->log) - 1;
	const unsigned ds = (e->at - e->bytes) / 16, blocks = (ds + 3) / 4;

	set32(e->bytes, e->opmod << 24 | (index & 0xffff) << 8 | e->opcode);
	set32(e->bytes + 4, q->qpn << 8 | ds);
	e->bytes[11] = e->signaled ? 8 : 0;
	for (unsigned i = 0; i < blocks; i++)
		memcpy(q->ring + (size_t)((index + i) & mask) * BLOCK, e->bytes + i * BLOCK, BLOCK);
	q->next += blocks;
	return index;
}

uint32_t put_write(struct queue *q, const struct remote *r, uint64_t addr, uint32_t len, uint32_t lkey, bool signaled)
{
	struct element e;

	begin(&e, q, MLX5_OPCODE_RDMA_WRITE, signaled);
	address(&e, r);
	data(&e, addr, len, lkey);
	return end(&e);
}

uint32_t put_inline(struct queue *q, const struct remote *r, const void *bytes, uint32_t len, bool signaled)
{
	struct element e;

	begin(&e, q, MLX5_OPCODE_RDMA_WRITE, signaled);
	address(&e, r);
	set32(e.at, len | 1u << 31);
	memcpy(e.at + 4, bytes, len);
	e.at += (4 + len + 15) / 16 * 16;
	return end(&e);
}

uint32_t put_send(struct queue *q, const void *bytes, uint32_t n, uint64_t addr, uint32_t len, uint32_t lkey, bool signaled)
{
	struct element e;

	begin(&e, q, MLX5_OPCODE_SEND, signaled);
	set32(e.at, n | 1u << 31);
	memcpy(e.at + 4, bytes, n);
	e.at += (4 + n + 15) / 16 * 16;
	if (len)
		data(&e, addr, len, lkey);
	return end(&e);
}

uint32_t put_read(struct queue *q, const struct remote *r, uint64_t addr, uint32_t len, uint32_t lkey, bool signaled)
{
	struct element e;

	begin(&e, q, MLX5_OPCODE_RDMA_READ, signaled);
	address(&e, r);
	data(&e, addr, len, lkey);
	return end(&e);
}

uint32_t put_fetch_add(struct queue *q, const struct remote *r, uint64_t add, uint64_t addr, uint32_t lkey, bool signaled)
{
	struct element e;

	begin(&e, q, MLX5_OPCODE_ATOMIC_FA, signaled);
	address(&e, r);
	set64(e.at, add);
	e.at += 16;
	data(&e, addr, 8, lkey);
	return end(&e);
}

uint32_t put_compare_swap(struct queue *q, const struct remote *r, uint64_t compare, uint64_t swap, uint64_t addr, uint32_t lkey, bool signaled)
{
	struct element e;

	begin(&e, q, MLX5_OPCODE_ATOMIC_CS, signaled);
	address(&e, r);
	set64(e.at, swap);
	set64(e.at + 8, compare);
	e.at += 16;
	data(&e, addr, 8, lkey);
	return end(&e);
}

uint32_t put_masked_swap(struct queue *q, const struct remote *r, int size, const uint64_t operands[4], uint64_t addr, uint32_t lkey, bool signaled)
{
	struct element e;

	begin(&e, q, MLX5_OPCODE_ATOMIC_MASKED_CS, signaled);
	e.opmod = size == 4 ? 8 : 9;
	address(&e, r);
	for (int i = 0; i < 4; i++, e.at += size)
		if (size == 4)
			set32(e.at, (uint32_t)operands[i]);
		else
			set64(e.at, operands[i]);
	data(&e, addr, size, lkey);
	return end(&e);
}

uint32_t put_masked_add(struct queue *q, const struct remote *r, int size, uint64_t add, uint64_t ends, uint64_t addr, uint32_t lkey, bool signaled)
{
	struct element e;

	begin(&e, q, MLX5_OPCODE_ATOMIC_MASKED_FA, signaled);
	e.opmod = size == 4 ? 8 : 9;
	address(&e, r);
	if (size == 4) {
		set32(e.at, (uint32_t)add);
		set32(e.at + 4, (uint32_t)ends);
	} else {
		set64(e.at, add);
		set64(e.at + 8, ends);
	}
	e.at += 16;
	data(&e, addr, size, lkey);
	return end(&e);
}

uint32_t put_nop(struct queue *q, bool signaled)
{
	return put_raw(q, MLX5_OPCODE_NOP, signaled);
}

uint32_t put_wait(struct queue *q, uint32_t cqn, uint32_t index, bool signaled)
{
	struct element e;

	begin(&e, q, 0x0f, signaled);
	set32(e.at + 8, index);
	set32(e.at + 12, cqn);
	e.at += 16;
	return end(&e);
}

uint32_t put_raw(struct queue *q, unsigned opcode, bool signaled)
{
	struct element e;

	begin(&e, q, opcode, signaled);
	return end(&e);
}

static void store(struct queue *q, unsigned buffer, const uint8_t *value)
{
	uint64_t v;

	memcpy(&v, value, sizeof v);
	__atomic_store_n((uint64_t *)((char *)q->bell + buffer * 0x100), v, __ATOMIC_RELEASE);
}

void ring(struct queue *q)
{
	uint8_t b[8];

	__atomic_store_n(q->record + 1, htobe32(q->next & 0xffff), __ATOMIC_RELEASE);
	set32(b, (q->next & 0xffff) << 8);
	set32(b + 4, q->qpn << 8);
	store(q, 0, b);
}

void ring_control(struct queue *q, uint32_t last)
{
	__atomic_store_n(q->record + 1, htobe32(q->next & 0xffff), __ATOMIC_RELEASE);
	store(q, q->buffer, q->ring + (size_t)(last & ((1u << q->log) - 1)) * BLOCK);
	q->buffer ^= 1;
}

static bool completed(struct queue *q, uint32_t index, int *result)
{
	const uint32_t mask = (1u << q->log) - 1;
	uint8_t *e = q->entries + (q->collapsed ? 0 : (size_t)(q->polled & mask) * BLOCK);
	const uint32_t last = __atomic_load_n((uint32_t *)(e + 60), __ATOMIC_ACQUIRE);
	uint8_t b[4];

	memcpy(b, &last, sizeof b);
	if (b[3] >> 4 == 0xf || (!q->collapsed && (b[3] & 1) != (q->polled >> q->log & 1)))
		return false; /* never written, or in the round before */
	const uint16_t counter = b[0] << 8 | b[1];

	*result = b[3] >> 4 == 0xd ? e[55] : 0;
	if (q->collapsed)
		return (int16_t)(counter - (uint16_t)index) >= 0;
	q->polled++;
	return counter == (uint16_t)index || *result;
}

int wait_for(struct queue *q, uint32_t index)
{
	struct timespec begin, now;
	int result;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (unsigned n = 1; !completed(q, index, &result); n++) {
		if (n % 1024)
			continue;
		sched_yield();
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec - begin.tv_sec > 60) {
			fprintf(stderr, "queue %#x: element %u has not completed in a minute\n", q->qpn, index);
			exit(1);
		}
	}
	return result;
}
