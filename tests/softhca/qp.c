/* Queue pairs: creation, states, attributes, destruction. */
#include "devx.h"
#include "stats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct hca_qp *create(struct ibv_pd *pd, const struct ibv_qp_init_attr *a)
{
	const size_t inl = a->cap.max_inline_data > 64 ? a->cap.max_inline_data : 64;
	const uint32_t sge = a->cap.max_send_sge ? a->cap.max_send_sge : 1;
	const size_t data = inl > sge * sizeof(struct ibv_sge) ? inl : sge * sizeof(struct ibv_sge);
	struct hca_qp *q = calloc(1, sizeof *q);
	struct shm_qp *s;
	struct qp_stats *stats;
	uint32_t rq = 0;
	int i;

	if (!q)
		return NULL;
	q->stride = (sizeof(struct wqe) + data + 63) & ~(size_t)63;
	q->depth = round_up_pow2(a->cap.max_send_wr);
	q->sq = aligned_alloc(64, q->stride * q->depth);
	if (!q->sq)
		goto no_sq;
	if (!a->srq) {
		q->rq = rq_create(a->cap.max_recv_wr, a->cap.max_recv_sge, to_pd(pd)->pdn, false, &rq);
		if (!q->rq)
			goto no_rq;
	} else {
		rq = to_srq(a->srq)->index;
	}
	shm_lock(hca.shm, &hca.shm->tables);
	i = shm_take_qp(hca.shm, hca.slot);
	shm_unlock(&hca.shm->tables);
	if (i < 0) {
		errno = ENOMEM;
		goto no_qp;
	}
	stats = stats_queue_pair(hca.shm->qp[i].qpn, a->qp_type, pd->context);
	if (!stats) {
		atomic_store(&hca.shm->qp[i].life, SHM_FREE);
		goto no_qp;
	}
	s = q->sh = &hca.shm->qp[i];
	s->type = a->qp_type;
	s->pdn = to_pd(pd)->pdn;
	s->scq = to_cq(a->send_cq)->index;
	s->rcq = to_cq(a->recv_cq)->index;
	s->rq = rq;
	s->has_srq = a->srq != NULL;

	q->index = i;
	q->epoch = hca.epoch;
	q->stats = stats;
	q->sig_all = a->sq_sig_all;
	q->init = *a;
	q->init.cap.max_send_wr = q->depth;
	q->init.cap.max_send_sge = sge;
	q->init.cap.max_inline_data = inl;
	q->init.cap.max_recv_wr = q->rq ? q->rq->depth : 0;
	q->init.cap.max_recv_sge = q->rq ? q->rq->max_sge : 0;
	pthread_mutex_init(&q->mu, NULL);
	q->qp.context = pd->context;
	q->qp.qp_context = a->qp_context;
	q->qp.pd = pd;
	q->qp.send_cq = a->send_cq;
	q->qp.recv_cq = a->recv_cq;
	q->qp.srq = a->srq;
	q->qp.handle = i;
	q->qp.qp_num = s->qpn;
	q->qp.state = IBV_QPS_RESET;
	q->qp.qp_type = a->qp_type;
	pthread_mutex_init(&q->qp.mutex, NULL);
	pthread_cond_init(&q->qp.cond, NULL);
	return q;

no_qp:
	if (q->rq)
		rq_destroy(rq);
no_rq:
	free(q->sq);
no_sq:
	free(q);
	return NULL;
}

static struct hca_qp *create_checked(struct ibv_pd *pd, struct ibv_qp_init_attr *a, bool extended, uint64_t ops)
{
	struct hca_qp *q;

	if (a->qp_type != IBV_QPT_RC && a->qp_type != IBV_QPT_UD) {
		hca_log("create_qp type %d: not emulated", a->qp_type);
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!pd || !a->send_cq || !a->recv_cq || a->cap.max_send_wr > HCA_MAX_WR || a->cap.max_recv_wr > HCA_MAX_WR ||
	    a->cap.max_send_sge > HCA_MAX_SGE || a->cap.max_recv_sge > HCA_MAX_SGE || a->cap.max_inline_data > HCA_MAX_INLINE) {
		errno = EINVAL;
		return NULL;
	}
	q = create(pd, a);
	if (!q)
		return NULL;
	if (extended) {
		int rc = wr_methods(q, ops);

		if (rc) {
			ibv_destroy_qp(&q->qp);
			errno = rc;
			return NULL;
		}
	}
	a->cap = q->init.cap;
	q->counted = true;
	atomic_fetch_add(&to_pd(pd)->users, 1);
	atomic_fetch_add(&to_cq(a->send_cq)->users, 1);
	atomic_fetch_add(&to_cq(a->recv_cq)->users, 1);
	if (a->srq)
		atomic_fetch_add(&to_srq(a->srq)->users, 1);
	pthread_mutex_lock(&hca.qps_mu);
	hca.qps[q->index] = q;
	pthread_mutex_unlock(&hca.qps_mu);
	hca_log("create_qp type %d send %u x %u recv %u x %u inline %u -> %#x", a->qp_type, a->cap.max_send_wr, a->cap.max_send_sge,
		a->cap.max_recv_wr, a->cap.max_recv_sge, a->cap.max_inline_data, q->qp.qp_num);
	return q;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct hca_qp *q = create_checked(pd, a, false, 0);

	return q ? &q->qp : NULL;
}

struct ibv_qp *op_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	struct ibv_qp_init_attr plain;
	struct hca_qp *q;

	(void)c;
	if (!(a->comp_mask & IBV_QP_INIT_ATTR_PD) ||
	    (a->comp_mask & ~(uint32_t)(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS))) {
		hca_log("create_qp_ex comp_mask %#x: not emulated", a->comp_mask);
		errno = EOPNOTSUPP;
		return NULL;
	}
	/* the extended structure begins with the plain one */
	memcpy(&plain, a, sizeof plain);
	q = create_checked(a->pd, &plain, (a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0, a->send_ops_flags);
	if (!q)
		return NULL;
	a->cap = plain.cap;
	return &q->qp;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	return to_qp(qp)->has_ex ? &to_qp(qp)->ex : NULL;
}

/* The attributes that a transition must bring, as the kernel checks them;
 * -1 for transitions that do not exist. */
static int required(uint32_t type, enum ibv_qp_state from, enum ibv_qp_state to)
{
	const bool rc = type == IBV_QPT_RC;

	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return 0;
	if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
		return IBV_QP_PKEY_INDEX | IBV_QP_PORT | (rc || type == HCA_QPT_DCT ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY);
	if (from == IBV_QPS_INIT && to == IBV_QPS_INIT)
		return 0;
	if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
		return rc ? IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0;
	if (from == IBV_QPS_RTR && to == IBV_QPS_RTS)
		return rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC : IBV_QP_SQ_PSN;
	if ((from == IBV_QPS_RTS || from == IBV_QPS_SQD) && (to == IBV_QPS_RTS || to == IBV_QPS_SQD))
		return 0;
	return -1;
}

static void remember(struct hca_qp *q, const struct ibv_qp_attr *a, int mask)
{
	struct ibv_qp_attr *k = &q->attr;
	struct shm_qp *s = q->sh;

	if (mask & IBV_QP_ACCESS_FLAGS)
		s->access = k->qp_access_flags = a->qp_access_flags;
	if (mask & IBV_QP_PKEY_INDEX)
		k->pkey_index = a->pkey_index;
	if (mask & IBV_QP_PORT)
		k->port_num = a->port_num;
	if (mask & IBV_QP_QKEY)
		s->qkey = k->qkey = a->qkey;
	if (mask & IBV_QP_AV)
		k->ah_attr = a->ah_attr;
	if (mask & IBV_QP_PATH_MTU)
		k->path_mtu = a->path_mtu;
	if (mask & IBV_QP_TIMEOUT)
		k->timeout = a->timeout;
	if (mask & IBV_QP_RETRY_CNT)
		k->retry_cnt = a->retry_cnt;
	if (mask & IBV_QP_RNR_RETRY)
		k->rnr_retry = a->rnr_retry;
	if (mask & IBV_QP_RQ_PSN)
		k->rq_psn = a->rq_psn;
	if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
		k->max_rd_atomic = a->max_rd_atomic;
	if (mask & IBV_QP_MIN_RNR_TIMER)
		s->min_rnr_timer = k->min_rnr_timer = a->min_rnr_timer;
	if (mask & IBV_QP_SQ_PSN)
		k->sq_psn = a->sq_psn;
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
		k->max_dest_rd_atomic = a->max_dest_rd_atomic;
	if (mask & IBV_QP_PATH_MIG_STATE)
		k->path_mig_state = a->path_mig_state;
	if (mask & IBV_QP_DEST_QPN)
		s->dest_qpn = k->dest_qp_num = a->dest_qp_num;
}

static void reset(struct hca_qp *q)
{
	union taken_recv taken;

	rx_lock(q->sh);
	atomic_store(&q->sh->state, IBV_QPS_RESET);
	q->sh->receiving = 0;
	q->sh->dest_qpn = 0;
	while (q->rq && rq_take(q->rq, &taken.r, false))
		;
	shm_unlock(&q->sh->rx);
	if (q->devx) { /* its indices begin again */
		q->posted = 0;
		q->devx->decoded = false;
		if (q->rq)
			rings_reset(q->rq);
	}
	q->executed = q->posted;
	atomic_store(&q->retired, q->posted);
	q->waiting_since_ns = 0;
	if (q->qp.send_cq)
		cq_forget_qp(to_cq(q->qp.send_cq), q->qp.qp_num);
	if (q->qp.recv_cq && q->qp.recv_cq != q->qp.send_cq)
		cq_forget_qp(to_cq(q->qp.recv_cq), q->qp.qp_num);
}

/* q->mu held. */
static void change_state(struct hca_qp *q, int to, const struct ibv_qp_attr *a, int mask)
{
	const int from = atomic_load(&q->sh->state);

	rx_lock(q->sh);
	remember(q, a, mask);
	if (to != IBV_QPS_ERR && to != IBV_QPS_RESET)
		atomic_store(&q->sh->state, to);
	shm_unlock(&q->sh->rx);
	if (to == IBV_QPS_ERR)
		exec_enter_error(q);
	else if (to == IBV_QPS_RESET)
		reset(q);
	else
		exec_queue(q, false);
	q->qp.state = to;
	if (to == IBV_QPS_RTR)
		q->qp.qp_num = q->sh->qpn;
	hca_log("modify_qp %#x from %d to %d dest %#x", q->qp.qp_num, from, to, q->sh->dest_qpn);
}

static void after_change(struct hca_qp *q, int to)
{
	/* the peer may have requests that waited for this; our engine has to
	 * look after the peer from now on */
	if (to == IBV_QPS_RTR || to == IBV_QPS_RTS) {
		const struct shm_qp *t = shm_find_qp(hca.shm, q->sh->dest_qpn);

		if (t && t->life == SHM_LIVE) {
			q->stats->peer_qpn = t->qpn;
			q->stats->peer_pid = hca.shm->proc[t->proc].pid;
			shm_wake(hca.shm, t->proc);
		}
		shm_wake(hca.shm, hca.slot);
	}
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask)
{
	struct hca_qp *q = to_qp(qp);
	enum ibv_qp_state from, to;
	int need;

	if (q->epoch != hca.epoch)
		return EIO;
	pthread_mutex_lock(&q->mu);
	from = atomic_load(&q->sh->state);
	to = mask & IBV_QP_STATE ? a->qp_state : from;
	need = to == from && !(mask & IBV_QP_STATE) ? 0 : required(q->sh->type, from, to);
	if (need < 0 || (mask & need) != need || ((mask & IBV_QP_PORT) && a->port_num != 1) ||
	    ((mask & IBV_QP_CUR_STATE) && a->cur_qp_state != from)) {
		pthread_mutex_unlock(&q->mu);
		hca_log("modify_qp %#x from %d to %d mask %#x refused (needs %#x)", qp->qp_num, from, to, mask, need);
		return EINVAL;
	}
	change_state(q, to, a, mask);
	pthread_mutex_unlock(&q->mu);
	after_change(q, to);
	return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init)
{
	struct hca_qp *q = to_qp(qp);

	(void)mask;
	*a = q->attr;
	qp->state = q->epoch == hca.epoch ? atomic_load(&q->sh->state) : IBV_QPS_ERR;
	a->qp_state = a->cur_qp_state = qp->state;
	a->cap = q->init.cap;
	if (init)
		*init = q->init;
	return 0;
}

static void unlist(struct hca_qp *q)
{
	pthread_mutex_lock(&hca.qps_mu);
	if (hca.qps[q->index] == q)
		hca.qps[q->index] = NULL;
	for (struct hca_qp **p = &hca.pending; *p; p = &(*p)->next_pending)
		if (*p == q) {
			*p = q->next_pending;
			q->listed = false;
			atomic_fetch_sub(&hca.pending_count, 1);
			break;
		}
	pthread_mutex_unlock(&hca.qps_mu);
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct hca_qp *q = to_qp(qp);

	if (q->devx)
		uar_detach(q->devx);
	if (q->epoch == hca.epoch && hca.ready) {
		unlist(q);
		/* passing through each lock: nobody works on it any longer */
		pthread_mutex_lock(&q->mu);
		rx_lock(q->sh);
		atomic_store(&q->sh->life, SHM_FREE);
		shm_unlock(&q->sh->rx);
		pthread_mutex_unlock(&q->mu);
		cq_forget_qp(to_cq(qp->send_cq), qp->qp_num);
		if (qp->recv_cq != qp->send_cq)
			cq_forget_qp(to_cq(qp->recv_cq), qp->qp_num);
		if (q->rq)
			rq_destroy(q->sh->rq);
		hca_log("destroy_qp %#x", qp->qp_num);
	}
	if (q->counted) {
		evq_forget(&to_context(qp->context)->async, qp);
		atomic_fetch_sub(&to_pd(qp->pd)->users, 1);
		atomic_fetch_sub(&to_cq(qp->send_cq)->users, 1);
		atomic_fetch_sub(&to_cq(qp->recv_cq)->users, 1);
		if (qp->srq)
			atomic_fetch_sub(&to_srq(qp->srq)->users, 1);
	}
	if (q->devx)
		rings_close_qp(q);
	free(q->sq);
	free(q);
	return 0;
}

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	memset(ece, 0, sizeof *ece);
	return 0;
}

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	return ece->vendor_id ? EINVAL : 0;
}

int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)qp;
	(void)op;
	(void)flags;
	return 0;
}

struct hca_qp *qp_bare(struct ibv_context *c, uint32_t type, uint32_t pdn, uint32_t scq, uint32_t rcq)
{
	struct hca_qp *q = calloc(1, sizeof *q);
	struct shm_qp *s;
	int i;

	if (!q)
		return NULL;
	shm_lock(hca.shm, &hca.shm->tables);
	i = shm_take_qp(hca.shm, hca.slot);
	shm_unlock(&hca.shm->tables);
	if (i < 0 || !(q->stats = stats_queue_pair(hca.shm->qp[i].qpn, type, c))) {
		if (i >= 0)
			atomic_store(&hca.shm->qp[i].life, SHM_FREE);
		free(q);
		errno = ENOMEM;
		return NULL;
	}
	s = q->sh = &hca.shm->qp[i];
	s->type = type;
	s->pdn = pdn;
	s->scq = scq;
	s->rcq = rcq;
	q->index = i;
	q->epoch = hca.epoch;
	q->attr.rnr_retry = 7;
	pthread_mutex_init(&q->mu, NULL);
	q->qp.context = c;
	q->qp.handle = i;
	q->qp.qp_num = s->qpn;
	q->qp.qp_type = type == IBV_QPT_RC ? IBV_QPT_RC : IBV_QPT_DRIVER;
	pthread_mutex_lock(&hca.qps_mu);
	hca.qps[i] = q;
	pthread_mutex_unlock(&hca.qps_mu);
	return q;
}

void qp_bare_state(struct hca_qp *q, int to, uint32_t dest_qpn)
{
	struct ibv_qp_attr a = { .qp_state = to, .dest_qp_num = dest_qpn };

	pthread_mutex_lock(&q->mu);
	change_state(q, to, &a, dest_qpn ? IBV_QP_DEST_QPN : 0);
	pthread_mutex_unlock(&q->mu);
	after_change(q, to);
}

void qp_bare_free(struct hca_qp *q)
{
	unlist(q);
	pthread_mutex_lock(&q->mu);
	rx_lock(q->sh);
	atomic_store(&q->sh->life, SHM_FREE);
	shm_unlock(&q->sh->rx);
	pthread_mutex_unlock(&q->mu);
	free(q);
}
