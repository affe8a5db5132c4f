/*
 * Queues that programs, GPU kernels above all, fill and ring by themselves: DEVX objects, their work queue elements and the pages of
 * doorbells. Layouts are those of the ConnectX programmer's reference (mlx5_ifc's structures: cqc, qpc, cmd_hca_cap), which NVSHMEM and NCCL
 * write; control and data segments are mlx5dv.h's.
 */
#pragma once

#include "hca.h"

#include <infiniband/mlx5dv.h>

struct mlx5dv_devx_obj;

/* What libmlx5.so.1 calls here. */
struct softhca_devx {
	bool (*enabled)(void);
	struct mlx5dv_devx_uar *(*alloc_uar)(struct ibv_context *c, uint32_t flags);
	void (*free_uar)(struct mlx5dv_devx_uar *uar);
	struct mlx5dv_devx_umem *(*umem_reg)(struct ibv_context *c, void *addr, size_t size);
	int (*umem_dereg)(struct mlx5dv_devx_umem *umem);
	int (*general_cmd)(const void *in, size_t inlen, void *out, size_t outlen);
	struct mlx5dv_devx_obj *(*obj_create)(struct ibv_context *c, const void *in, size_t inlen, void *out, size_t outlen);
	int (*obj_modify)(struct mlx5dv_devx_obj *o, const void *in, size_t inlen, void *out, size_t outlen);
	int (*obj_destroy)(struct mlx5dv_devx_obj *o);
	struct ibv_qp *(*create_dct)(struct ibv_context *c, struct ibv_qp_init_attr_ex *a, uint64_t key);
	int (*init_obj)(struct mlx5dv_obj *o, uint64_t type);
	struct ibv_cq_ex *(*create_cq)(struct ibv_context *c, struct ibv_cq_init_attr_ex *a, uint32_t entry_bytes);
	int (*qp_modify)(struct ibv_qp *qp, const void *in, size_t inlen, void *out, size_t outlen);
	struct mlx5dv_devx_event_channel *(*create_events)(void);
	void (*destroy_events)(struct mlx5dv_devx_event_channel *ch);
	int (*subscribe)(struct mlx5dv_devx_event_channel *ch, struct mlx5dv_devx_obj *o, uint16_t event, uint64_t cookie);
	ssize_t (*get_event)(struct mlx5dv_devx_event_channel *ch, struct mlx5dv_devx_async_event_hdr *out, size_t size);
};

const struct softhca_devx *softhca_devx(void);

enum { WQE_BLOCK = 64, WQE_MAX = 1024, WQE_BLOCKS = WQE_MAX / WQE_BLOCK };

/* Memory of this process that the adapter reads and writes itself. */
struct devx_memory {
	uint64_t addr, size;
	uint32_t kind, device; /* as in struct span */
};

struct devx_cq {
	uint32_t cqn;
	struct devx_memory ring; /* of 1 << log entries of 64 bytes */
	uint32_t log;
	bool collapsed; /* all in entry 0 */
	pthread_mutex_t mu;
	_Atomic uint32_t produced;
};

/* A send queue in the program's memory. The element that is being executed is decoded when its turn comes, out of a copy of
 * what the doorbells have covered. */
struct devx_queue {
	struct hca_qp *q;
	struct devx_cq *cq; /* NULL: a verbs completion queue */
	struct devx_memory ring, record; /* elements; the doorbell record */
	uint32_t log;
	uint8_t *copy;
	struct uar *uar;
	struct mlx5dv_devx_uar *own_page; /* of a verbs queue pair, with its ring */
	void *own_ring;
	struct devx_events *events; /* who wants to know that no receive will follow */
	uint64_t cookie;
	struct devx_queue *next; /* on the same page */
	struct wqe *current;
	uint8_t *raw; /* the same, whole: inline bytes stay there */
	bool decoded;        /* `current` is the element at decoded_at */
	uint32_t decoded_at;
};

#pragma GCC visibility push(hidden)

/* devx.c */
struct devx_cq *devx_find_cq(uint32_t cqn);
/* The last receive of a queue in the error state was completed. */
void devx_last_receive(struct devx_queue *d);

/* devx_wqe.c: for exec.c, with q->mu held */
struct wqe *devx_next(struct hca_qp *q);
bool devx_wait_over(const struct wqe *w);
void devx_complete(struct hca_qp *q, const struct wqe *w, enum ibv_wc_status status);
/* Elements up to the 16-bit index `to` may be executed. */
void devx_ring(struct devx_queue *d, uint16_t to);
int devx_queue_init(struct devx_queue *d);
void devx_queue_free(struct devx_queue *d);
uint8_t devx_syndrome(enum ibv_wc_status status);

/* doorbell.c */
struct mlx5dv_devx_uar *uar_alloc(struct ibv_context *c, uint32_t flags);
void uar_free(struct mlx5dv_devx_uar *u);
enum { UAR_OWN = 2 }; /* flags of alloc_uar: a page that nobody else gets */
struct uar *uar_find(uint32_t page_id);
void uar_attach(struct uar *u, struct devx_queue *d);
void uar_detach(struct devx_queue *d);
/* Makes the thread that looks. 0, or an errno. */
int doorbell_start(void);
void doorbell_forked(void);

/* rings.c */
int rings_init_obj(struct mlx5dv_obj *o, uint64_t type);
/* Writes completion number n into the ring of mlx5's layout; lock held. */
void rings_cqe(struct shm_cq *c, uint32_t n, const struct shm_cqe *e);
void rings_write_entry(uint8_t *to, const uint8_t *e);
bool rings_cq_full(const struct shm_cq *c, uint32_t head);
/* A shared receive queue in the program's memory: its number, or -1. */
int rings_create_rq(const struct devx_memory *ring, const struct devx_memory *record, uint32_t log, uint32_t stride, uint32_t pdn, bool linked);
bool rings_take(struct shm_rq *r, struct shm_recv *out);
void rings_reset(struct shm_rq *r);
size_t rings_cq_bytes(const struct shm_cq *c);
size_t rings_rq_bytes(const struct shm_rq *r);
void rings_close_cq(struct hca_cq *c);
void rings_close_qp(struct hca_qp *q);
/* Whether a program asked for an event since. */
bool rings_look(void);
void rings_forked(void);

#pragma GCC visibility pop

static inline uint16_t get16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t get24(const uint8_t *p)
{
	return (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
}

static inline uint32_t get32(const uint8_t *p)
{
	return get24(p) << 8 | p[3];
}

static inline uint64_t get64(const uint8_t *p)
{
	return (uint64_t)get32(p) << 32 | get32(p + 4);
}

static inline void put16(uint8_t *p, uint16_t v)
{
	p[0] = v >> 8;
	p[1] = (uint8_t)v;
}

static inline void put24(uint8_t *p, uint32_t v)
{
	p[0] = v >> 16;
	put16(p + 1, (uint16_t)v);
}
