/* Completion queues: producers of any process, consumers of the owner. */
#include "devx.h"
#include "stats.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct shm_cqe *ring(const struct shm_cq *c)
{
	return shm_page(hca.shm, c->page);
}

static void deliver_event(uint32_t index)
{
	pthread_mutex_lock(&hca.cqs_mu);
	struct hca_cq *c = hca.cqs[index];

	if (c && c->cq.channel)
		evq_push(&((struct hca_channel *)c->cq.channel)->queue, &c->cq, 0);
	pthread_mutex_unlock(&hca.cqs_mu);
}

static void fire(uint32_t index)
{
	struct shm_cq *c = &hca.shm->cq[index];

	if (c->proc == hca.slot) {
		deliver_event(index);
	} else {
		atomic_store(&c->event, 1);
		shm_wake(hca.shm, c->proc);
	}
}

void cq_deliver_events(void)
{
	for (uint32_t i = 1; i < SHM_CQS; i++)
		if (hca.cqs[i] && atomic_load(&hca.shm->cq[i].event) && atomic_exchange(&hca.shm->cq[i].event, 0))
			deliver_event(i);
}

static void overrun(const struct shm_cqe *e)
{
	struct shm_qp *q = shm_find_qp(hca.shm, e->qpn);

	fprintf(stderr, "softhca: completion queue overrun by queue pair %#x: the program polls too little for its size\n", e->qpn);
	if (q) {
		atomic_store(&q->state, IBV_QPS_ERR);
		atomic_fetch_or(&q->events, SHM_QP_CQ_ERROR);
		shm_wake(hca.shm, q->proc);
	}
}

void cq_push(uint32_t index, const struct shm_cqe *e)
{
	struct shm_cq *c = &hca.shm->cq[index];
	bool event = false;

	shm_lock(hca.shm, &c->lock);
	uint32_t head = atomic_load_explicit(&c->head, memory_order_relaxed);

	const bool polled = head - atomic_load_explicit(&c->tail, memory_order_acquire) < c->depth;

	/* who reads the ring of mlx5's layout does not poll */
	if (c->raw_page ? rings_cq_full(c, head) && !polled : !polled) {
		shm_unlock(&c->lock);
		overrun(e);
		return;
	}
	if (c->raw_page)
		rings_cqe(c, head, e);
	if (!polled)
		atomic_store_explicit(&c->tail, head + 1 - c->depth, memory_order_release);
	struct shm_cqe *slot = &ring(c)[head & (c->depth - 1)];

	*slot = *e;
	if (c->timestamps)
		slot->timestamp_ns = now_ns();
	atomic_store_explicit(&c->head, head + 1, memory_order_release);
	uint32_t armed = atomic_load_explicit(&c->armed, memory_order_relaxed);

	if (armed == 1 || (armed == 2 && (e->solicited || e->status))) {
		atomic_store(&c->armed, 0);
		event = true;
	}
	shm_unlock(&c->lock);
	if (event)
		fire(index);
}

/* The oldest entry; false when there is none. c->mu held. */
bool cq_next(struct hca_cq *c, struct shm_cqe *e)
{
	struct shm_cq *s = c->sh;
	uint32_t tail = atomic_load_explicit(&s->tail, memory_order_relaxed);

	if (atomic_load_explicit(&s->head, memory_order_acquire) == tail)
		return false;
	*e = ring(s)[tail & (s->depth - 1)];
	atomic_store_explicit(&s->tail, tail + 1, memory_order_release);
	if (!e->is_recv) {
		struct hca_qp *q = hca.qps[e->qpn & (SHM_QPS - 1)];

		/* it also retires the unsignalled requests before it */
		if (q && q->qp.qp_num == e->qpn)
			atomic_store_explicit(&q->retired, e->sq_end, memory_order_release);
	}
	stats_completion(e);
	return true;
}

/* Programs that poll in a loop share the cores with the peer they wait for. */
void cq_pause_if_empty(struct hca_cq *c, bool empty)
{
	if (!empty)
		c->empty_polls = 0;
	else if (++c->empty_polls % 256 == 0)
		sched_yield();
}

int op_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct hca_cq *c = to_cq(cq);
	struct shm_cqe e;
	int k = 0;

	if (c->epoch != hca.epoch)
		return -1;
	if (atomic_load_explicit(&hca.pending_count, memory_order_relaxed))
		exec_pending(false);
	pthread_mutex_lock(&c->mu);
	for (; k < n && cq_next(c, &e); k++)
		wc[k] = (struct ibv_wc){
			.wr_id = e.wr_id,
			.status = e.status,
			.opcode = e.opcode,
			.vendor_err = e.status ? 0x80u + e.status : 0,
			.byte_len = e.byte_len,
			.imm_data = e.imm,
			.qp_num = e.qpn,
			.src_qp = e.src_qp,
			.wc_flags = e.flags,
			.slid = e.slid,
			.sl = e.sl,
		};
	stats_poll(k);
	cq_pause_if_empty(c, k == 0);
	pthread_mutex_unlock(&c->mu);
	return k;
}

int op_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	struct hca_cq *c = to_cq(cq);
	bool now = false;

	if (c->epoch != hca.epoch)
		return EIO;
	shm_lock(hca.shm, &c->sh->lock);
	/* as mlx5 hardware: what lies there unpolled fires at once */
	if (!solicited_only && c->sh->head != c->sh->tail) {
		now = true;
		atomic_store(&c->sh->armed, 0);
	} else if (atomic_load(&c->sh->armed) != 1) {
		atomic_store(&c->sh->armed, solicited_only ? 2 : 1);
	}
	shm_unlock(&c->sh->lock);
	if (now)
		fire(c->index);
	return 0;
}

void cq_arm(struct hca_cq *c, bool solicited_only, uint32_t seen)
{
	bool now;

	shm_lock(hca.shm, &c->sh->lock);
	now = ((c->sh->head - seen) & 0xffffff) != 0;
	atomic_store(&c->sh->armed, now ? 0 : solicited_only ? 2 : 1);
	shm_unlock(&c->sh->lock);
	if (now)
		fire(c->index);
}

static struct hca_cq *create(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_comp_channel *channel, uint32_t vector)
{
	struct hca_cq *c;
	struct shm *s = hca.shm;
	int i;

	if (cqe < 1 || cqe > HCA_MAX_CQE || vector >= (uint32_t)ctx->num_comp_vectors) {
		errno = EINVAL;
		return NULL;
	}
	c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	shm_lock(s, &s->tables);
	i = shm_take_cq(s, hca.slot);
	if (i >= 0) {
		s->cq[i].depth = round_up_pow2(cqe + 1);
		s->cq[i].page = shm_pages_alloc(s, hca.slot, shm_cq_bytes(&s->cq[i]));
		if (!s->cq[i].page) {
			atomic_store(&s->cq[i].life, SHM_FREE);
			i = -1;
		}
	}
	shm_unlock(&s->tables);
	if (i < 0) {
		free(c);
		errno = ENOMEM;
		return NULL;
	}
	c->index = i;
	c->sh = &s->cq[i];
	c->epoch = hca.epoch;
	pthread_mutex_init(&c->mu, NULL);
	c->cq.context = ctx;
	c->cq.channel = channel;
	c->cq.cq_context = cq_context;
	c->cq.handle = i;
	c->cq.cqe = c->sh->depth - 1;
	pthread_mutex_init(&c->cq.mutex, NULL);
	pthread_cond_init(&c->cq.cond, NULL);
	if (channel)
		channel->refcnt++;
	pthread_mutex_lock(&hca.cqs_mu);
	hca.cqs[i] = c;
	pthread_mutex_unlock(&hca.cqs_mu);
	hca_log("create_cq %d -> %u of depth %u", cqe, i, c->sh->depth);
	return c;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	struct hca_cq *c = create(ctx, cqe, cq_context, channel, vector);

	return c ? &c->cq : NULL;
}

struct ibv_cq_ex *op_create_cq_ex(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *a)
{
	const uint64_t known = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	struct hca_cq *c;

	if ((a->wc_flags & ~known) || (a->comp_mask & ~(uint32_t)(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD))) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	c = create(ctx, a->cqe, a->cq_context, a->channel, a->comp_vector);
	if (!c)
		return NULL;
	c->sh->ignore_overrun = (a->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) && (a->flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
	c->sh->timestamps = (a->wc_flags & ~(uint64_t)IBV_WC_STANDARD_FLAGS) != 0;
	cq_ex_methods(c);
	return &c->ex;
}

int op_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *a)
{
	(void)cq;
	/* moderation of events: one completion may raise one, as without it */
	return a->attr_mask & ~(uint32_t)IBV_CQ_ATTR_MODERATE ? EINVAL : 0;
}

int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	struct hca_cq *c = to_cq(cq);
	struct shm_cq *s = c->sh;
	uint32_t depth = round_up_pow2(cqe + 1), page, used;
	int rc = 0;

	if (cqe < 1 || cqe > HCA_MAX_CQE || c->epoch != hca.epoch || s->raw_page)
		return EINVAL;
	shm_lock(hca.shm, &hca.shm->tables);
	page = shm_pages_alloc(hca.shm, hca.slot, depth * sizeof(struct shm_cqe));
	shm_unlock(&hca.shm->tables);
	if (!page)
		return ENOMEM;
	pthread_mutex_lock(&c->mu);
	shm_lock(hca.shm, &s->lock);
	uint32_t freed = page;
	size_t bytes = depth * sizeof(struct shm_cqe);

	used = s->head - s->tail;
	if (used >= depth) {
		rc = EINVAL;
	} else {
		struct shm_cqe *to = shm_page(hca.shm, page);

		for (uint32_t i = s->tail; i != s->head; i++)
			to[i & (depth - 1)] = ring(s)[i & (s->depth - 1)];
		freed = s->page;
		bytes = shm_cq_bytes(s);
		s->page = page;
		s->depth = depth;
		cq->cqe = depth - 1;
	}
	shm_unlock(&s->lock);
	pthread_mutex_unlock(&c->mu);
	shm_lock(hca.shm, &hca.shm->tables);
	shm_pages_free(hca.shm, freed, bytes);
	shm_unlock(&hca.shm->tables);
	return rc;
}

void cq_forget_qp(struct hca_cq *c, uint32_t qpn)
{
	struct shm_cq *s = c->sh;
	uint32_t kept;

	pthread_mutex_lock(&c->mu);
	shm_lock(hca.shm, &s->lock);
	/* moved towards the head, so that only the consumer's end changes */
	kept = s->head;
	for (uint32_t i = s->head; i != s->tail; i--) {
		struct shm_cqe *e = &ring(s)[(i - 1) & (s->depth - 1)];

		if (e->qpn == qpn)
			continue;
		kept--;
		if (kept != i - 1)
			ring(s)[kept & (s->depth - 1)] = *e;
	}
	s->tail = kept;
	shm_unlock(&s->lock);
	pthread_mutex_unlock(&c->mu);
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct hca_cq *c = to_cq(cq);

	if (c->epoch == hca.epoch) {
		if (atomic_load(&c->users))
			return EBUSY;
		pthread_mutex_lock(&hca.cqs_mu);
		hca.cqs[c->index] = NULL;
		pthread_mutex_unlock(&hca.cqs_mu);
		rings_close_cq(c);
		if (hca.ready) {
			shm_lock(hca.shm, &hca.shm->tables);
			shm_pages_free(hca.shm, c->sh->page, shm_cq_bytes(c->sh));
			shm_pages_free(hca.shm, c->sh->raw_page, rings_cq_bytes(c->sh));
			atomic_store(&c->sh->life, SHM_FREE);
			shm_unlock(&hca.shm->tables);
		}
	}
	if (cq->channel) {
		evq_forget(&((struct hca_channel *)cq->channel)->queue, cq);
		cq->channel->refcnt--;
	}
	pthread_mutex_lock(&cq->mutex);
	while (cq->comp_events_completed != c->events && c->epoch == hca.epoch)
		pthread_cond_wait(&cq->cond, &cq->mutex);
	pthread_mutex_unlock(&cq->mutex);
	free(c);
	return 0;
}
