/* Receive queues, own and shared: rings that senders take from. */
#include "devx.h"
#include "stats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct shm_recv *entry(const struct shm_rq *r, uint32_t i)
{
	return (struct shm_recv *)((char *)shm_page(hca.shm, r->page) + (size_t)(i & (r->depth - 1)) * r->stride);
}

struct shm_rq *rq_create(uint32_t depth, uint32_t max_sge, uint32_t pdn, bool srq, uint32_t *index)
{
	struct shm *s = hca.shm;
	struct shm_rq *r = NULL;
	int i;

	shm_lock(s, &s->tables);
	i = shm_take_rq(s, hca.slot);
	if (i >= 0) {
		r = &s->rq[i];
		r->pdn = pdn;
		r->is_srq = srq;
		r->max_sge = max_sge ? max_sge : 1;
		r->stride = (sizeof(struct shm_recv) + r->max_sge * sizeof(struct ibv_sge) + 31) & ~31u;
		r->depth = round_up_pow2(depth);
		r->page = shm_pages_alloc(s, hca.slot, shm_rq_bytes(r));
		if (!r->page) {
			atomic_store(&r->life, SHM_FREE);
			r = NULL;
		}
	}
	shm_unlock(&s->tables);
	if (!r)
		errno = ENOMEM;
	*index = i;
	return r;
}

void rq_destroy(uint32_t index)
{
	struct shm *s = hca.shm;

	if (!hca.ready)
		return;
	shm_lock(s, &s->tables);
	shm_pages_free(s, s->rq[index].page, shm_rq_bytes(&s->rq[index]));
	shm_pages_free(s, s->rq[index].raw_page, rings_rq_bytes(&s->rq[index]));
	atomic_store(&s->rq[index].life, SHM_FREE);
	shm_unlock(&s->tables);
}

bool rq_take(struct shm_rq *r, struct shm_recv *out, bool wait)
{
	bool found = false;

	shm_lock(hca.shm, &r->lock);
	uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);

	if ((r->raw_page || r->raw_ring.len) && rings_take(r, out)) {
		found = true;
	} else if (atomic_load_explicit(&r->head, memory_order_relaxed) != tail) {
		const struct shm_recv *e = entry(r, tail);

		memcpy(out, e, sizeof *e + e->num_sge * sizeof e->sge[0]);
		atomic_store(&r->tail, tail + 1);
		found = true;
	} else if (wait) {
		atomic_fetch_or(&r->waiters, 1ull << hca.slot);
	}
	shm_unlock(&r->lock);
	return found;
}

static int post(struct shm_rq *r, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	uint32_t n = 0;
	int rc = 0;

	shm_lock(hca.shm, &r->lock);
	for (; wr; wr = wr->next, n++) {
		uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);

		if (wr->num_sge < 0 || (uint32_t)wr->num_sge > r->max_sge)
			rc = EINVAL;
		else if (head - atomic_load_explicit(&r->tail, memory_order_relaxed) >= r->depth)
			rc = ENOMEM;
		if (rc) {
			*bad = wr;
			break;
		}
		struct shm_recv *e = entry(r, head);

		e->wr_id = wr->wr_id;
		e->num_sge = wr->num_sge;
		if (wr->num_sge)
			memcpy(e->sge, wr->sg_list, wr->num_sge * sizeof e->sge[0]);
		atomic_store(&r->head, head + 1);
	}
	uint64_t waiters = n ? atomic_exchange(&r->waiters, 0) : 0;

	shm_unlock(&r->lock);
	stats_recv_posted(n, r->is_srq);
	for (; waiters; waiters &= waiters - 1)
		shm_wake(hca.shm, __builtin_ctzll(waiters));
	return rc;
}

int op_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct hca_qp *q = to_qp(qp);
	int rc;

	if (q->epoch != hca.epoch || !q->rq || atomic_load(&q->sh->state) == IBV_QPS_RESET) {
		*bad = wr;
		return EINVAL;
	}
	rc = post(q->rq, wr, bad);
	if (atomic_load(&q->sh->state) == IBV_QPS_ERR) {
		rx_lock(q->sh);
		rx_error(q->sh);
		shm_unlock(&q->sh->rx);
	}
	return rc;
}

int op_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct hca_srq *s = to_srq(srq);

	if (s->epoch != hca.epoch) {
		*bad = wr;
		return EINVAL;
	}
	return post(s->sh, wr, bad);
}

static struct ibv_srq *create_srq(struct ibv_pd *pd, void *srq_context, const struct ibv_srq_attr *a)
{
	struct hca_srq *s;

	if (!a->max_wr || a->max_wr > HCA_MAX_WR || a->max_sge > HCA_MAX_SGE) {
		errno = EINVAL;
		return NULL;
	}
	s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->sh = rq_create(a->max_wr, a->max_sge, to_pd(pd)->pdn, true, &s->index);
	if (!s->sh) {
		free(s);
		return NULL;
	}
	s->epoch = hca.epoch;
	s->srq.context = pd->context;
	s->srq.srq_context = srq_context;
	s->srq.pd = pd;
	s->srq.handle = s->index;
	pthread_mutex_init(&s->srq.mutex, NULL);
	pthread_cond_init(&s->srq.cond, NULL);
	atomic_fetch_add(&to_pd(pd)->users, 1);
	hca_log("create_srq max_wr %u max_sge %u -> %u", a->max_wr, a->max_sge, s->index);
	return &s->srq;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
	struct ibv_srq *s = create_srq(pd, a->srq_context, &a->attr);

	if (s) {
		a->attr.max_wr = to_srq(s)->sh->depth;
		a->attr.max_sge = to_srq(s)->sh->max_sge;
	}
	return s;
}

struct ibv_srq *op_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *a)
{
	struct ibv_srq *s;

	(void)c;
	if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_PD) ||
	    ((a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) && a->srq_type != IBV_SRQT_BASIC)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	s = create_srq(a->pd, a->srq_context, &a->attr);
	if (s) {
		a->attr.max_wr = to_srq(s)->sh->depth;
		a->attr.max_sge = to_srq(s)->sh->max_sge;
	}
	return s;
}

int op_get_srq_num(struct ibv_srq *srq, uint32_t *number)
{
	*number = to_srq(srq)->index;
	return 0;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *a, int mask)
{
	(void)srq;
	(void)a;
	/* a limit may be set; its event is not emulated */
	return mask & ~IBV_SRQ_LIMIT ? EOPNOTSUPP : 0;
}

int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *a)
{
	*a = (struct ibv_srq_attr){ .max_wr = to_srq(srq)->sh->depth, .max_sge = to_srq(srq)->sh->max_sge };
	return 0;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	struct hca_srq *s = to_srq(srq);

	if (s->epoch == hca.epoch) {
		if (atomic_load(&s->users))
			return EBUSY;
		rq_destroy(s->index);
	}
	atomic_fetch_sub(&to_pd(srq->pd)->users, 1);
	free(s);
	return 0;
}
