/* count-verbs.so: counts accepted work requests, posted receives and polled completions of libibverbs.
 *
 * The data path is reached through pointers in library objects, so those are replaced, and the originals are kept for each
 * object: the operations of a context when it is opened, the functions of a queue pair when the program asks for its
 * ibv_wr_* interface (ibv_qp_to_qp_ex is the only way to it), those of a CQ when it is created. A program that gets
 * ibv_open_device or ibv_qp_to_qp_ex by dlvsym is given ours.
 *
 * Bytes are the lengths of the scatter/gather elements or inline buffers. A request built with ibv_wr_* counts when
 * wr_complete accepts it.
 */
#define _GNU_SOURCE
#include "count.h"

#include <dlfcn.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ, ATOMIC, OTHER, RECV, SRQ_RECV, CQE, CQE_ERROR, OPS };
#define SEND_OPS (OTHER + 1)

static struct counter ops[OPS] = {
	[SEND] = { .name = "send" },
	[SEND_IMM] = { .name = "send_imm" },
	[SEND_INV] = { .name = "send_inv" },
	[WRITE] = { .name = "write" },
	[WRITE_IMM] = { .name = "write_imm" },
	[READ] = { .name = "read" },
	[ATOMIC] = { .name = "atomic" },
	[OTHER] = { .name = "other" },
	[RECV] = { .name = "recv" },
	[SRQ_RECV] = { .name = "srq_recv" },
	[CQE] = { .name = "cqe" },
	[CQE_ERROR] = { .name = "cqe_error" },
};

/* ---- originals, by object ---- */

struct qp_state {
	struct ibv_qp_ex orig;
	int op; /* of the request under construction */
	uint64_t count[SEND_OPS], bytes[SEND_OPS]; /* since wr_start */
};

struct context_state {
	struct ibv_context_ops ops;
	struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
};

struct cq_state {
	int (*start_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
	int (*next_poll)(struct ibv_cq_ex *);
};

#define SLOTS 4096 /* objects of a kind alive at once */
struct map {
	void *key[SLOTS];
	void *value[SLOTS];
};
static struct map contexts, qps, cqs;
static pthread_mutex_t map_lock = PTHREAD_MUTEX_INITIALIZER;
static char removed; /* its address is the key of an entry that was removed */

static int map_slot(void *key, int i)
{
	return (int)((((uintptr_t)key >> 4) * 2654435761u + i) % SLOTS);
}

/* An entry never moves, so that it is found without the lock while others come and go. */
static void *map_find(struct map *m, void *key)
{
	for (int i = 0; i < SLOTS; i++) {
		int s = map_slot(key, i);
		void *k = __atomic_load_n(&m->key[s], __ATOMIC_ACQUIRE);
		if (k == key)
			return m->value[s];
		if (!k)
			return NULL;
	}
	return NULL;
}

/* For an object whose pointers were replaced: it must be there. */
static void *map_get(struct map *m, void *key)
{
	void *value = map_find(m, key);
	if (!value) {
		fprintf(stderr, "count: call through an object that was destroyed\n");
		abort();
	}
	return value;
}

static void map_put(struct map *m, void *key, void *value)
{
	pthread_mutex_lock(&map_lock);
	for (int i = 0; i < SLOTS; i++) {
		int s = map_slot(key, i);
		if (m->key[s] && m->key[s] != &removed)
			continue;
		m->value[s] = value;
		__atomic_store_n(&m->key[s], key, __ATOMIC_RELEASE);
		pthread_mutex_unlock(&map_lock);
		return;
	}
	fprintf(stderr, "count: more than %d verbs objects of a kind\n", SLOTS);
	abort();
}

/* A new zeroed value; NULL when the key is there, so its pointers have been replaced before. */
static void *map_add(struct map *m, void *key, size_t size)
{
	if (map_find(m, key))
		return NULL;
	void *value = calloc(1, size);
	if (!value)
		abort();
	map_put(m, key, value);
	return value;
}

/* Before an object is destroyed: its address may be another object's at once. The value goes back with map_put when the
 * object is not destroyed after all. */
static void *map_take(struct map *m, void *key)
{
	void *value = map_find(m, key);
	for (int i = 0; value && i < SLOTS; i++) {
		int s = map_slot(key, i);
		if (m->key[s] == key) {
			__atomic_store_n(&m->key[s], (void *)&removed, __ATOMIC_RELEASE);
			break;
		}
	}
	return value;
}

static int map_dispose(struct map *m, void *key, void *value, int rc)
{
	if (rc && value)
		map_put(m, key, value);
	else
		free(value);
	return rc;
}

/* ---- the operations of a context ---- */

static int op_of(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_SEND: return SEND;
	case IBV_WR_SEND_WITH_IMM: return SEND_IMM;
	case IBV_WR_SEND_WITH_INV: return SEND_INV;
	case IBV_WR_RDMA_WRITE: return WRITE;
	case IBV_WR_RDMA_WRITE_WITH_IMM: return WRITE_IMM;
	case IBV_WR_RDMA_READ: return READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD: return ATOMIC;
	default: return OTHER;
	}
}

static uint64_t sge_bytes(const struct ibv_sge *sg, int n)
{
	uint64_t bytes = 0;
	for (int i = 0; i < n; i++)
		bytes += sg[i].length;
	return bytes;
}

static struct context_state *state_of(struct ibv_context *ctx)
{
	return map_get(&contexts, ctx);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int rc = state_of(qp->context)->ops.post_send(qp, wr, bad);
	for (; wr && !(rc && wr == *bad); wr = wr->next)
		count_add(&ops[op_of(wr->opcode)], 1, sge_bytes(wr->sg_list, wr->num_sge));
	return rc;
}

static void count_recvs(int op, struct ibv_recv_wr *wr, struct ibv_recv_wr *end)
{
	for (; wr && wr != end; wr = wr->next)
		count_add(&ops[op], 1, sge_bytes(wr->sg_list, wr->num_sge));
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int rc = state_of(qp->context)->ops.post_recv(qp, wr, bad);
	count_recvs(RECV, wr, rc ? *bad : NULL);
	return rc;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int rc = state_of(srq->context)->ops.post_srq_recv(srq, wr, bad);
	count_recvs(SRQ_RECV, wr, rc ? *bad : NULL);
	return rc;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int got = state_of(cq->context)->ops.poll_cq(cq, n, wc);
	for (int i = 0; i < got; i++)
		count_add(&ops[wc[i].status == IBV_WC_SUCCESS ? CQE : CQE_ERROR], 1, 0);
	return got;
}

/* ---- extended CQs ---- */

static int polled(struct ibv_cq_ex *cq, int rc)
{
	if (!rc)
		count_add(&ops[cq->status == IBV_WC_SUCCESS ? CQE : CQE_ERROR], 1, 0);
	return rc;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	return polled(cq, ((struct cq_state *)map_get(&cqs, cq))->start_poll(cq, attr));
}

static int next_poll(struct ibv_cq_ex *cq)
{
	return polled(cq, ((struct cq_state *)map_get(&cqs, cq))->next_poll(cq));
}

static struct ibv_cq_ex *watch_cq(struct ibv_cq_ex *cq)
{
	if (!cq || !cq->start_poll)
		return cq;
	struct cq_state *s = map_add(&cqs, cq, sizeof *s);
	if (s) {
		s->start_poll = cq->start_poll;
		s->next_poll = cq->next_poll;
		cq->start_poll = start_poll;
		cq->next_poll = next_poll;
	}
	return cq;
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr)
{
	return watch_cq(state_of(ctx)->create_cq_ex(ctx, attr));
}

static struct ibv_context *watch_context(struct ibv_context *ctx)
{
	if (!ctx)
		return ctx;
	struct context_state *s = map_add(&contexts, ctx, sizeof *s);
	if (!s)
		return ctx;
	s->ops = ctx->ops;
	ctx->ops.post_send = post_send;
	ctx->ops.post_recv = post_recv;
	ctx->ops.post_srq_recv = post_srq_recv;
	ctx->ops.poll_cq = poll_cq;
	struct verbs_context *v = verbs_get_ctx(ctx);
	if (v && v->create_cq_ex) {
		s->create_cq_ex = v->create_cq_ex;
		v->create_cq_ex = create_cq_ex;
	}
	return ctx;
}

/* ---- ibv_wr_* ---- */

static struct qp_state *begin(struct ibv_qp_ex *qp, int op)
{
	struct qp_state *s = map_get(&qps, qp);
	s->op = op;
	s->count[op]++;
	return s;
}

static struct qp_state *add_bytes(struct ibv_qp_ex *qp, uint64_t n)
{
	struct qp_state *s = map_get(&qps, qp);
	s->bytes[s->op] += n;
	return s;
}

static void forget_requests(struct qp_state *s)
{
	memset(s->count, 0, sizeof s->count);
	memset(s->bytes, 0, sizeof s->bytes);
}

static void wr_start(struct ibv_qp_ex *qp)
{
	struct qp_state *s = map_get(&qps, qp);
	forget_requests(s);
	s->orig.wr_start(qp);
}

static int wr_complete(struct ibv_qp_ex *qp)
{
	struct qp_state *s = map_get(&qps, qp);
	int rc = s->orig.wr_complete(qp);
	if (!rc)
		for (int i = 0; i < SEND_OPS; i++)
			count_add(&ops[i], s->count[i], s->bytes[i]);
	forget_requests(s);
	return rc;
}

static void wr_abort(struct ibv_qp_ex *qp)
{
	struct qp_state *s = map_get(&qps, qp);
	forget_requests(s);
	s->orig.wr_abort(qp);
}

static void wr_send(struct ibv_qp_ex *qp) { begin(qp, SEND)->orig.wr_send(qp); }
static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm) { begin(qp, SEND_IMM)->orig.wr_send_imm(qp, imm); }
static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t rkey) { begin(qp, SEND_INV)->orig.wr_send_inv(qp, rkey); }
static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr)
{
	begin(qp, WRITE)->orig.wr_rdma_write(qp, rkey, addr);
}
static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, __be32 imm)
{
	begin(qp, WRITE_IMM)->orig.wr_rdma_write_imm(qp, rkey, addr, imm);
}
static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr)
{
	begin(qp, READ)->orig.wr_rdma_read(qp, rkey, addr);
}
static void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
	begin(qp, ATOMIC)->orig.wr_atomic_cmp_swp(qp, rkey, addr, compare, swap);
}
static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t add)
{
	begin(qp, ATOMIC)->orig.wr_atomic_fetch_add(qp, rkey, addr, add);
}
static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	begin(qp, OTHER)->orig.wr_bind_mw(qp, mw, rkey, info);
}
static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t rkey) { begin(qp, OTHER)->orig.wr_local_inv(qp, rkey); }
static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	add_bytes(qp, length)->orig.wr_set_sge(qp, lkey, addr, length);
}
static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t n, const struct ibv_sge *sg)
{
	add_bytes(qp, sge_bytes(sg, n))->orig.wr_set_sge_list(qp, n, sg);
}
static void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
{
	add_bytes(qp, length)->orig.wr_set_inline_data(qp, addr, length);
}
static void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t n, const struct ibv_data_buf *buf)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < n; i++)
		bytes += buf[i].length;
	add_bytes(qp, bytes)->orig.wr_set_inline_data_list(qp, n, buf);
}

static struct ibv_qp_ex *watch_qp(struct ibv_qp_ex *qp)
{
	if (!qp || !qp->wr_start)
		return qp;
	struct qp_state *s = map_add(&qps, qp, sizeof *s);
	if (!s)
		return qp;
	s->orig = *qp;
#define WATCH(f) \
	if (qp->f) \
	qp->f = f
	WATCH(wr_start);
	WATCH(wr_complete);
	WATCH(wr_abort);
	WATCH(wr_send);
	WATCH(wr_send_imm);
	WATCH(wr_send_inv);
	WATCH(wr_rdma_write);
	WATCH(wr_rdma_write_imm);
	WATCH(wr_rdma_read);
	WATCH(wr_atomic_cmp_swp);
	WATCH(wr_atomic_fetch_add);
	WATCH(wr_bind_mw);
	WATCH(wr_local_inv);
	WATCH(wr_set_sge);
	WATCH(wr_set_sge_list);
	WATCH(wr_set_inline_data);
	WATCH(wr_set_inline_data_list);
	return qp;
}

/* ---- the functions that programs find by name ---- */

#define REAL(name) COUNT_REAL(name, "libibverbs.so.1")

struct ibv_context *ibv_open_device(struct ibv_device *dev)
{
	REAL(ibv_open_device);
	return watch_context(real(dev));
}

struct ibv_context *ibv_import_device(int fd)
{
	REAL(ibv_import_device);
	return watch_context(real(fd));
}

int ibv_close_device(struct ibv_context *ctx)
{
	REAL(ibv_close_device);
	void *state = map_take(&contexts, ctx);
	return map_dispose(&contexts, ctx, state, real(ctx));
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	REAL(ibv_qp_to_qp_ex);
	return watch_qp(real(qp));
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	REAL(ibv_destroy_qp);
	void *state = map_take(&qps, qp); /* struct ibv_qp_ex begins with its struct ibv_qp */
	return map_dispose(&qps, qp, state, real(qp));
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	REAL(ibv_destroy_cq);
	void *state = map_take(&cqs, cq); /* and ibv_cq_ex with ibv_cq */
	return map_dispose(&cqs, cq, state, real(cq));
}

struct ibv_context *mlx5dv_open_device(struct ibv_device *dev, struct mlx5dv_context_attr *attr)
{
	COUNT_REAL(mlx5dv_open_device, "libmlx5.so.1");
	return watch_context(real(dev, attr));
}

struct ibv_cq_ex *mlx5dv_create_cq(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr, struct mlx5dv_cq_init_attr *mlx5)
{
	COUNT_REAL(mlx5dv_create_cq, "libmlx5.so.1");
	return watch_cq(real(ctx, attr, mlx5));
}

void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
	static void *(*real)(void *, const char *, const char *);
	if (!real)
		real = (void *(*)(void *, const char *, const char *))dlsym(RTLD_NEXT, "dlvsym");
	if (handle != RTLD_NEXT) {
		if (!strcmp(name, "ibv_open_device"))
			return (void *)ibv_open_device;
		if (!strcmp(name, "ibv_qp_to_qp_ex"))
			return (void *)ibv_qp_to_qp_ex;
	}
	return real(handle, name, version);
}

__attribute__((constructor)) static void init(void)
{
	count_register("verbs", ops, OPS);
}
