/* Taking entries in the shared tables, and finding them again. */
#include "fault.h"
#include "hca.h"
#include "tcp.h"

#include <string.h>

/*
 * Entries are taken round robin, so that a number comes back as late as
 * possible. Entry 0 is never used.
 */
#define TAKE(table, cursor, count, unused)                                  \
	({                                                                  \
		int taken_ = -1;                                            \
		for (uint32_t n_ = 0; n_ < (count) && taken_ < 0; n_++) {   \
			uint32_t i_ = s->cursor = s->cursor % ((count) - 1) + 1; \
			if (unused(&s->table[i_]))                          \
				taken_ = (int)i_;                           \
		}                                                           \
		taken_;                                                     \
	})

#define NOT_LIVE(e) ((e)->life != SHM_LIVE)
#define NOT_TAKEN(e) (!(e)->taken)

int shm_take_qp(struct shm *s, unsigned slot)
{
	const bool again = fault(FAULT_REUSE);

	if (again)
		s->next_qp = 0;
	int i = TAKE(qp, next_qp, SHM_QPS, NOT_LIVE);

	if (i < 0)
		return -1;
	struct shm_qp *q = &s->qp[i];

	shm_lock(s, &q->rx);
	memset((char *)q + sizeof q->rx, 0, sizeof *q - sizeof q->rx);
	q->proc = slot;
	/* 24 bits: 12 of generation (never 0), 12 of index; of several hosts, 4 of host and 8 of generation */
	const uint32_t host = tcp_host() > 0 ? (uint32_t)tcp_host() : 0;

	if (!again || !s->qp_generation[i])
		s->qp_generation[i] = s->qp_generation[i] % (tcp_host() < 0 ? 4095 : TCP_GENERATIONS) + 1;
	q->qpn = host << TCP_HOST_SHIFT | s->qp_generation[i] << 12 | (uint32_t)i;
	atomic_store(&q->life, SHM_LIVE);
	shm_unlock(&q->rx);
	return i;
}

int shm_take_cq(struct shm *s, unsigned slot)
{
	int i = TAKE(cq, next_cq, SHM_CQS, NOT_LIVE);

	if (i < 0)
		return -1;
	memset(&s->cq[i], 0, sizeof s->cq[i]);
	s->cq[i].proc = slot;
	atomic_store(&s->cq[i].life, SHM_LIVE);
	return i;
}

int shm_take_rq(struct shm *s, unsigned slot)
{
	int i = TAKE(rq, next_rq, SHM_RQS, NOT_LIVE);

	if (i < 0)
		return -1;
	memset(&s->rq[i], 0, sizeof s->rq[i]);
	s->rq[i].proc = slot;
	atomic_store(&s->rq[i].life, SHM_LIVE);
	return i;
}

int shm_take_mr(struct shm *s, unsigned slot)
{
	int i = TAKE(mr, next_mr, SHM_MRS, NOT_TAKEN);

	if (i < 0)
		return -1;
	s->mr[i].proc = slot;
	s->mr[i].taken = 1;
	s->mr[i].tag = (s->mr[i].tag + 1) & 0xff;
	return i;
}

size_t shm_cq_bytes(const struct shm_cq *c)
{
	return (size_t)c->depth * sizeof(struct shm_cqe);
}

size_t shm_rq_bytes(const struct shm_rq *r)
{
	return (size_t)r->depth * r->stride;
}

struct shm_qp *shm_find_qp(struct shm *s, uint32_t qpn)
{
	struct shm_qp *q = &s->qp[qpn & (SHM_QPS - 1)];

	if (atomic_load(&q->qpn) != qpn || q->life == SHM_FREE)
		return NULL;
	return q;
}
