/*
 * What a GPU kernel does, done by a processor: queues made by DEVX commands in memory of the program's own, elements written into them, doorbells
 * rung. Layouts: mlx5dv.h's segments; create_cq_in, create_qp_in and their contexts of the ConnectX programmer's reference.
 */
#pragma once

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

/* Where queues lie: get returns an address for the adapter, and the one by which the caller of the functions below reaches it. */
struct memory {
	void *(*get)(size_t n, void **usable);
	void (*put)(void *address);
};

extern const struct memory host_memory;

struct queue {
	struct ibv_context *ctx;
	const struct memory *memory;
	void *address[3];
	unsigned log; /* of the number of 64-byte blocks */
	uint8_t *ring, *entries;
	uint32_t *record;
	struct mlx5dv_devx_uar *uar;
	void *bell; /* what is rung: its register, by the address that the ringing side has for it */
	bool own_uar, collapsed;
	struct mlx5dv_devx_umem *umem[3];
	struct mlx5dv_devx_obj *cq, *qp;
	uint32_t qpn, cqn;
	uint32_t next;   /* index of the next element, free running */
	uint32_t polled; /* completions taken, where not collapsed */
	unsigned buffer; /* of BlueFlame */
	unsigned rnr_retry; /* to be set before it is connected; 7, no end, where nobody does */
};

/* MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED, which older headers do not have: a page of doorbells of its own. */
#define OWN_PAGE (1u << 31)
enum { QUEUE_RC = 0, QUEUE_DCI = 5 };

/* With a page of its own where uar is NULL. Ends the program with a message when it cannot be made. */
void queue_open(struct queue *q, struct ibv_context *ctx, uint32_t pdn, unsigned log, int service, bool collapsed, struct mlx5dv_devx_uar *uar, const struct memory *memory);
/* The same with receives taken from a shared queue, of which completions go to a verbs completion queue. */
void queue_open_receiving(struct queue *q, struct ibv_context *ctx, uint32_t pdn, unsigned log, uint32_t srqn, uint32_t cqn);
/* To the state in which it sends; dest: of a connected queue. */
void queue_connect(struct queue *q, uint32_t dest);
void queue_close(struct queue *q);

uint32_t domain_number(struct ibv_pd *pd);

/* A request's remote part: address and key, and, on a dynamically connected queue, the target with its handle. */
struct remote {
	uint64_t addr;
	uint32_t key;
	uint32_t dct; /* 0: connected */
	uint64_t dc_key;
	uint16_t dlid; /* of the target's port, in a short address vector */
	struct mlx5_wqe_av *av; /* with it the whole vector goes along, else its first 16 bytes */
};

/* Elements; signaled: with a completion. Each returns its index. */
uint32_t put_write(struct queue *q, const struct remote *r, uint64_t addr, uint32_t len, uint32_t lkey, bool signaled);
uint32_t put_inline(struct queue *q, const struct remote *r, const void *bytes, uint32_t len, bool signaled);
/* A send of bytes in the element and behind them, where len is not 0, bytes of memory. */
uint32_t put_send(struct queue *q, const void *bytes, uint32_t n, uint64_t addr, uint32_t len, uint32_t lkey, bool signaled);
uint32_t put_read(struct queue *q, const struct remote *r, uint64_t addr, uint32_t len, uint32_t lkey, bool signaled);
uint32_t put_fetch_add(struct queue *q, const struct remote *r, uint64_t add, uint64_t addr, uint32_t lkey, bool signaled);
uint32_t put_compare_swap(struct queue *q, const struct remote *r, uint64_t compare, uint64_t swap, uint64_t addr, uint32_t lkey, bool signaled);
/* Masked, of 4 or 8 bytes: swap where compare holds, each under its mask. */
uint32_t put_masked_swap(struct queue *q, const struct remote *r, int size, const uint64_t operands[4], uint64_t addr, uint32_t lkey, bool signaled);
uint32_t put_masked_add(struct queue *q, const struct remote *r, int size, uint64_t add, uint64_t ends, uint64_t addr, uint32_t lkey, bool signaled);
uint32_t put_nop(struct queue *q, bool signaled);
/* Holds the queue until more than `index` completions came to the completion queue cqn. */
uint32_t put_wait(struct queue *q, uint32_t cqn, uint32_t index, bool signaled);
uint32_t put_raw(struct queue *q, unsigned opcode, bool signaled);

/* The doorbell record and the doorbell, as IBGDA and DOCA write them: the next index. */
void ring(struct queue *q);
/* As processors' drivers do: the last element's control segment, into BlueFlame's buffers in turn. */
void ring_control(struct queue *q, uint32_t last);

/* Waits until the element `index` has completed. Returns the syndrome, 0 for success. A minute at most. */
int wait_for(struct queue *q, uint32_t index);

/* A shared receive queue by DEVX, elements of one pointer each, in 1 << log of 32 bytes at `ring`; its number in *number. */
struct mlx5dv_devx_obj *receives_open(struct ibv_context *ctx, uint32_t pdn, unsigned log, struct mlx5dv_devx_umem *ring, struct mlx5dv_devx_umem *record, uint32_t *number);
