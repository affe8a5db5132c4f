/*
 * Rings of verbs objects in mlx5's layout, for programs that go past the verbs calls: mlx5dv_init_obj tells them where elements, completions and
 * doorbell records lie. What others of the segment's processes fill or take from (completions, receives) lies in the segment; a send queue
 * is the owner's own, as one made by DEVX is.
 *
 * A completion queue keeps its verbs ring as well, and each completion is written into both: a program may read the one or the other.
 */
#include "devx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { RECORDS = 64, CQE = 64, CQ_BELL = 0x20, NEXT_SEGMENT = 16, INVALID_KEY = 0x100 };
enum { FREE_ENTRY = 0xf0, GRH_IN_DATA = 1 << 28, SOLICITED_ONLY = 1 << 24 };

/* The page to which a program writes when it wants an event of a completion queue: one for each, as a later write would hide an earlier one. */
struct cq_bell {
	uint64_t *word, seen;
	struct hca_cq *cq;
	struct cq_bell *next;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct cq_bell *bells;

static uint32_t *cq_records(const struct shm_cq *c)
{
	return (uint32_t *)shm_page(hca.shm, c->raw_page) + (size_t)c->depth * c->raw_stride / sizeof(uint32_t);
}

static uint8_t *cq_entry(const struct shm_cq *c, uint32_t n)
{
	return (uint8_t *)shm_page(hca.shm, c->raw_page) + (size_t)(n & (c->depth - 1)) * c->raw_stride + c->raw_stride - CQE;
}

static uint32_t *rq_record(const struct shm_rq *r)
{
	return (uint32_t *)shm_page(hca.shm, r->raw_page) + (size_t)r->depth * r->raw_stride / sizeof(uint32_t);
}

static uint8_t *rq_element(const struct shm_rq *r, uint32_t n)
{
	return (uint8_t *)shm_page(hca.shm, r->raw_page) + (size_t)(n & (r->depth - 1)) * r->raw_stride;
}

size_t rings_cq_bytes(const struct shm_cq *c)
{
	return (size_t)c->depth * c->raw_stride + RECORDS;
}

size_t rings_rq_bytes(const struct shm_rq *r)
{
	return (size_t)r->depth * r->raw_stride + RECORDS;
}

/* Pages of zeros, or 0. */
static uint32_t pages(size_t bytes)
{
	uint32_t page;

	shm_lock(hca.shm, &hca.shm->tables);
	page = shm_pages_alloc(hca.shm, hca.slot, bytes);
	shm_unlock(&hca.shm->tables);
	if (page)
		memset(shm_page(hca.shm, page), 0, bytes);
	return page;
}

/* An entry as it is before and after the bytes that tell whose it is. */
void rings_write_entry(uint8_t *to, const uint8_t *e)
{
	uint32_t last;

	memcpy(to, e, CQE - sizeof last);
	memcpy(&last, e + CQE - sizeof last, sizeof last);
	__atomic_store_n((uint32_t *)(void *)(to + CQE - sizeof last), last, __ATOMIC_RELEASE);
}

void rings_cqe(struct shm_cq *c, uint32_t n, const struct shm_cqe *e)
{
	static const uint8_t arrived[] = { [IBV_WC_RECV & 0x7f] = MLX5_CQE_RESP_SEND, [IBV_WC_RECV_RDMA_WITH_IMM & 0x7f] = MLX5_CQE_RESP_WR_IMM };
	uint8_t raw[CQE] = { 0 };
	struct mlx5_cqe64 *q = (struct mlx5_cqe64 *)(void *)raw;
	unsigned opcode = MLX5_CQE_REQ;

	q->sop_drop_qpn = htobe32(e->qpn);
	q->wqe_counter = htobe16((uint16_t)e->wr_id);
	q->byte_cnt = htobe32(e->byte_len);
	q->timestamp = htobe64(e->timestamp_ns);
	if (e->is_recv) {
		opcode = e->opcode == IBV_WC_RECV && (e->flags & IBV_WC_WITH_IMM) ? MLX5_CQE_RESP_SEND_IMM : arrived[e->opcode & 0x7f];
		q->slid = htobe16(e->slid);
		q->flags_rqpn = htobe32(e->src_qp | (e->flags & IBV_WC_GRH ? GRH_IN_DATA : 0));
		q->imm_inval_pkey = e->imm;
	} else {
		raw[56] = (uint8_t)(e->wr_id >> 16); /* the element's operation */
	}
	if (e->status) {
		raw[54] = 0x80;
		raw[55] = devx_syndrome(e->status);
		opcode = e->is_recv ? MLX5_CQE_RESP_ERR : MLX5_CQE_REQ_ERR;
	}
	q->op_own = (uint8_t)(opcode << 4 | (n & c->depth ? MLX5_CQE_OWNER_MASK : 0));
	rings_write_entry(cq_entry(c, n), raw);
}

bool rings_cq_full(const struct shm_cq *c, uint32_t head)
{
	return !c->ignore_overrun && ((head - be32toh(__atomic_load_n(cq_records(c), __ATOMIC_RELAXED))) & 0xffffff) >= c->depth;
}

static int open_bell(struct hca_cq *c)
{
	struct cq_bell *b = calloc(1, sizeof *b);
	void *page = mmap(NULL, SHM_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (!b || page == MAP_FAILED || doorbell_start()) {
		if (page != MAP_FAILED)
			munmap(page, SHM_PAGE);
		free(b);
		return ENOMEM;
	}
	c->bell = page;
	b->word = (uint64_t *)(void *)((char *)page + CQ_BELL);
	b->cq = c;
	pthread_mutex_lock(&mu);
	b->next = bells;
	bells = b;
	pthread_mutex_unlock(&mu);
	return 0;
}

void rings_close_cq(struct hca_cq *c)
{
	pthread_mutex_lock(&mu);
	for (struct cq_bell **p = &bells; *p; p = &(*p)->next)
		if ((*p)->cq == c) {
			struct cq_bell *b = *p;

			*p = b->next;
			free(b);
			break;
		}
	pthread_mutex_unlock(&mu);
	if (c->bell)
		munmap(c->bell, SHM_PAGE);
}

bool rings_look(void)
{
	bool any = false;

	pthread_mutex_lock(&mu);
	for (struct cq_bell *b = bells; b; b = b->next) {
		const uint64_t v = __atomic_load_n(b->word, __ATOMIC_ACQUIRE);
		const uint32_t asked = (uint32_t)(be64toh(v) >> 32);

		if (v == b->seen)
			continue;
		b->seen = v;
		any = true;
		cq_arm(b->cq, (asked & SOLICITED_ONLY) != 0, asked & 0xffffff);
	}
	pthread_mutex_unlock(&mu);
	return any;
}

void rings_forked(void)
{
	pthread_mutex_init(&mu, NULL);
	bells = NULL;
}

static int cq_ring(struct hca_cq *c, struct mlx5dv_cq *out)
{
	struct shm_cq *s = c->sh;

	if (!s->raw_page) {
		uint32_t page;
		int rc = 0;

		pthread_mutex_lock(&c->mu);
		if (!s->raw_stride)
			s->raw_stride = CQE;
		page = pages(rings_cq_bytes(s));
		if (!page || open_bell(c))
			rc = ENOMEM;
		shm_lock(hca.shm, &s->lock);
		if (!rc && s->head)
			rc = EBUSY; /* completions came before there was a ring for them */
		if (!rc) {
			s->raw_page = page;
			for (uint32_t i = 0; i < s->depth; i++)
				cq_entry(s, i)[CQE - 1] = FREE_ENTRY;
		}
		shm_unlock(&s->lock);
		pthread_mutex_unlock(&c->mu);
		if (rc) {
			shm_lock(hca.shm, &hca.shm->tables);
			shm_pages_free(hca.shm, page, rings_cq_bytes(s));
			shm_unlock(&hca.shm->tables);
			return rc;
		}
		hca_log("cq %u: ring of %u entries of %u bytes", c->index, s->depth, s->raw_stride);
	}
	*out = (struct mlx5dv_cq){
		.buf = shm_page(hca.shm, s->raw_page),
		.dbrec = cq_records(s),
		.cqe_cnt = s->depth,
		.cqe_size = s->raw_stride,
		.cq_uar = c->bell,
		.cqn = c->index,
	};
	return 0;
}

/* A ring for receives; elements of a shared queue begin with a link to the next. */
static int rq_ring(struct shm_rq *r)
{
	const size_t head = r->is_srq ? NEXT_SEGMENT : 0;
	uint32_t page;

	if (r->raw_page)
		return 0;
	r->raw_stride = round_up_pow2((uint32_t)(head + r->max_sge * sizeof(struct mlx5_wqe_data_seg)));
	page = pages(rings_rq_bytes(r));
	if (!page)
		return ENOMEM;
	shm_lock(hca.shm, &r->lock);
	r->raw_page = page;
	r->linked = r->is_srq;
	for (uint32_t i = 0; r->is_srq && i < r->depth; i++)
		put16(rq_element(r, i) + 2, (uint16_t)((i + 1) & (r->depth - 1)));
	shm_unlock(&r->lock);
	return 0;
}

/* Bytes of a ring in the memory of its owner, whichever process that is. */
static bool fetch(const struct span *from, uint32_t at, void *to, uint32_t n)
{
	struct span src = *from;
	const struct span dst = { .addr = (uintptr_t)to, .len = n, .proc = hca.slot };

	src.addr += at;
	src.len = n;
	return !mem_copy(&dst, 1, &src, 1);
}

/* Takes the oldest receive of the ring; r->lock held. */
bool rings_take(struct shm_rq *r, struct shm_recv *out)
{
	const uint16_t at = r->raw_next;
	uint8_t own[NEXT_SEGMENT + HCA_MAX_SGE * 16];
	const uint8_t *e = own, *segment;
	uint32_t posted = 0;

	if (r->raw_page) {
		posted = __atomic_load_n(rq_record(r), __ATOMIC_ACQUIRE);
		e = rq_element(r, at);
	} else if (!fetch(&r->raw_record, 0, &posted, sizeof posted)) {
		return false;
	}
	if ((uint16_t)be32toh(posted) == r->raw_taken)
		return false;
	if (!r->raw_page && !fetch(&r->raw_ring, (at & (r->depth - 1)) * r->raw_stride, own, r->raw_stride < sizeof own ? r->raw_stride : sizeof own))
		return false;
	segment = e + (r->is_srq ? NEXT_SEGMENT : 0);
	*out = (struct shm_recv){ .wr_id = at };
	for (; out->num_sge < r->max_sge && get32(segment + 4) != INVALID_KEY; segment += 16)
		out->sge[out->num_sge++] = (struct ibv_sge){ .length = get32(segment), .lkey = get32(segment + 4), .addr = get64(segment + 8) };
	r->raw_taken++;
	r->raw_next = r->linked ? get16(e + 2) : (uint16_t)(at + 1);
	return true;
}

int rings_create_rq(const struct devx_memory *ring, const struct devx_memory *record, uint32_t log, uint32_t stride, uint32_t pdn, bool linked)
{
	struct shm *s = hca.shm;
	int i;

	shm_lock(s, &s->tables);
	i = shm_take_rq(s, hca.slot);
	shm_unlock(&s->tables);
	if (i < 0)
		return -1;
	struct shm_rq *r = &s->rq[i];

	shm_lock(s, &r->lock);
	r->pdn = pdn;
	r->is_srq = 1;
	r->linked = linked;
	r->depth = 1u << log;
	r->raw_stride = stride;
	r->max_sge = (stride - NEXT_SEGMENT) / 16 < HCA_MAX_SGE ? (stride - NEXT_SEGMENT) / 16 : HCA_MAX_SGE;
	r->raw_record = (struct span){ .addr = record->addr, .len = 4, .proc = hca.slot, .kind = record->kind, .device = record->device };
	r->raw_ring = (struct span){ .addr = ring->addr, .len = (uint32_t)ring->size, .proc = hca.slot, .kind = ring->kind, .device = ring->device };
	shm_unlock(&r->lock);
	return i;
}

/* With the queue pair's state; the program starts at element 0 again. */
void rings_reset(struct shm_rq *r)
{
	shm_lock(hca.shm, &r->lock);
	if (r->raw_page) {
		r->raw_next = r->raw_taken = 0;
		__atomic_store_n(rq_record(r), 0, __ATOMIC_RELAXED);
	}
	shm_unlock(&r->lock);
}

static int srq_ring(struct hca_srq *s, struct mlx5dv_srq *out)
{
	const uint64_t asked = out->comp_mask;
	const int rc = rq_ring(s->sh);

	if (rc)
		return rc;
	*out = (struct mlx5dv_srq){
		.buf = shm_page(hca.shm, s->sh->raw_page),
		.dbrec = rq_record(s->sh),
		.stride = s->sh->raw_stride,
		.tail = s->sh->depth - 1,
		.comp_mask = asked & MLX5DV_SRQ_MASK_SRQN,
		.srqn = s->index,
	};
	return 0;
}

/* The send queue becomes one as DEVX makes them, and is the program's from here on. */
static int send_ring(struct hca_qp *q)
{
	const uint32_t sge = q->init.cap.max_send_sge * sizeof(struct mlx5_wqe_data_seg), in_line = 4 + q->init.cap.max_inline_data;
	const uint32_t element = 16 + 48 + 16 + (sge > in_line ? sge : in_line);
	const uint32_t blocks = q->depth * ((element + WQE_BLOCK - 1) / WQE_BLOCK);
	struct devx_queue *d = calloc(1, sizeof *d);
	uint8_t *ring = NULL;
	int rc = ENOMEM;

	if (!d)
		return ENOMEM;
	d->log = 31 - __builtin_clz(round_up_pow2(blocks));
	d->own_page = uar_alloc(q->qp.context, UAR_OWN);
	ring = aligned_alloc(SHM_PAGE, ((size_t)WQE_BLOCK << d->log) + SHM_PAGE);
	if (!d->own_page || !ring || devx_queue_init(d))
		goto no;
	memset(ring, 0, ((size_t)WQE_BLOCK << d->log) + SHM_PAGE);
	d->own_ring = ring;
	d->ring = (struct devx_memory){ .addr = (uintptr_t)ring, .size = (uint64_t)WQE_BLOCK << d->log };
	d->record = (struct devx_memory){ .addr = (uintptr_t)ring + d->ring.size, .size = 8 };
	d->uar = uar_find(d->own_page->page_id);
	d->q = q;
	pthread_mutex_lock(&q->mu);
	if (q->posted) {
		rc = EBUSY;
	} else {
		rc = 0;
		q->depth = 1u << d->log;
		q->devx = d;
	}
	pthread_mutex_unlock(&q->mu);
	if (rc)
		goto no;
	uar_attach(d->uar, d);
	hca_log("queue pair %#x: ring of %u blocks, page %u", q->qp.qp_num, q->depth, d->own_page->page_id);
	return 0;
no:
	if (d->own_page)
		uar_free(d->own_page);
	free(ring);
	devx_queue_free(d);
	return rc;
}

void rings_close_qp(struct hca_qp *q)
{
	struct devx_queue *d = q->devx;

	uar_detach(d);
	uar_free(d->own_page);
	free(d->own_ring);
	devx_queue_free(d);
	q->devx = NULL;
}

static int qp_rings(struct hca_qp *q, struct mlx5dv_qp *out)
{
	int rc;

	if (!q->counted || (q->devx && !q->devx->own_page))
		return EINVAL; /* has no verbs queues */
	rc = q->devx ? 0 : send_ring(q);
	if (!rc && q->rq)
		rc = rq_ring(q->rq);
	if (rc)
		return rc;
	/* one record for both: what the adapter of another process reads of it lies in the segment */
	*out = (struct mlx5dv_qp){
		.dbrec = q->rq ? rq_record(q->rq) : (uint32_t *)(uintptr_t)q->devx->record.addr,
		.sq = { .buf = q->devx->own_ring, .wqe_cnt = q->depth, .stride = WQE_BLOCK },
		.bf = { .reg = q->devx->own_page->reg_addr, .size = 256 },
	};
	if (q->rq) {
		q->devx->record.addr = (uintptr_t)rq_record(q->rq);
		out->rq.buf = shm_page(hca.shm, q->rq->raw_page);
		out->rq.wqe_cnt = q->rq->depth;
		out->rq.stride = q->rq->raw_stride;
	}
	return 0;
}

int rings_init_obj(struct mlx5dv_obj *o, uint64_t type)
{
	int rc = 0;

	if (type & MLX5DV_OBJ_CQ)
		rc = cq_ring(to_cq(o->cq.in), o->cq.out);
	if (!rc && (type & MLX5DV_OBJ_SRQ))
		rc = srq_ring(to_srq(o->srq.in), o->srq.out);
	if (!rc && (type & MLX5DV_OBJ_QP))
		rc = qp_rings(to_qp(o->qp.in), o->qp.out);
	return rc;
}
