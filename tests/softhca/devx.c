/* DEVX: objects made by commands of the firmware. Those that device-initiated communication needs, the rest is refused. */
#include "devx.h"
#include "fault.h"
#include "gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { QUERY_HCA_CAP = 0x100, CREATE_CQ = 0x400, CREATE_QP = 0x500, RST2INIT_QP = 0x502, INIT2RTR_QP = 0x503, RTR2RTS_QP = 0x504, TO_ERR_QP = 0x507, TO_RST_QP = 0x50a, CREATE_RMP = 0x90c };
enum { BAD_PARAMETER = 3, BAD_RESOURCE = 5 }; /* status of a command */
enum { IN_CQC = 0x10, IN_QPC = 0x18, CREATE_IN = 0x110 };

struct mlx5dv_devx_obj {
	struct devx_cq *cq;
	struct devx_queue *queue;
	int rq; /* 0: none */
	struct ibv_context *context;
};

struct umem {
	struct mlx5dv_devx_umem u;
	struct devx_memory m;
	struct umem *next;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct umem *umems;
static uint32_t last_umem;
static struct devx_cq *_Atomic cqs[SHM_CQS];

/* Programs that find DEVX go past the verbs calls: only who asks for that gets it. */
static bool enabled(void)
{
	static int on = -1;

	if (on < 0) {
		const char *e = getenv("SOFTHCA_DEVX");

		on = e && atoi(e) > 0;
	}
	return on;
}

static struct mlx5dv_devx_umem *umem_reg(struct ibv_context *c, void *addr, size_t size)
{
	struct umem *m;

	(void)c;
	if (!addr || !size) { /* a dmabuf alone says nothing of where its memory is */
		errno = EOPNOTSUPP;
		return NULL;
	}
	m = calloc(1, sizeof *m);
	if (!m)
		return NULL;
	m->m = (struct devx_memory){ .addr = (uintptr_t)addr, .size = size };
	m->m.kind = mem_kind_of(addr, &m->m.device);
	if (m->m.kind == MEM_GPU && gpu_prepare(m->m.device)) {
		free(m);
		errno = ENODEV;
		return NULL;
	}
	pthread_mutex_lock(&mu);
	m->u.umem_id = ++last_umem;
	m->next = umems;
	umems = m;
	pthread_mutex_unlock(&mu);
	hca_log("umem_reg addr %p size %zu kind %u -> %u", addr, size, m->m.kind, m->u.umem_id);
	return &m->u;
}

static int umem_dereg(struct mlx5dv_devx_umem *u)
{
	struct umem *m = (struct umem *)u;

	pthread_mutex_lock(&mu);
	for (struct umem **p = &umems; *p; p = &(*p)->next)
		if (*p == m) {
			*p = m->next;
			break;
		}
	pthread_mutex_unlock(&mu);
	free(m);
	return 0;
}

/* `size` bytes at an offset of a registered memory; false when they are not in it. */
static bool memory_at(uint32_t id, uint64_t offset, uint64_t size, struct devx_memory *out)
{
	bool found = false;

	pthread_mutex_lock(&mu);
	for (struct umem *m = umems; m && !found; m = m->next)
		if (m->u.umem_id == id && offset <= m->m.size && size <= m->m.size - offset) {
			*out = m->m;
			out->addr += offset;
			out->size = size;
			found = true;
		}
	pthread_mutex_unlock(&mu);
	return found;
}

static int refuse(void *out, size_t outlen, uint8_t status)
{
	if (outlen)
		*(uint8_t *)out = status;
	errno = EREMOTEIO;
	return EREMOTEIO;
}

static int general_cmd(const void *in, size_t inlen, void *out, size_t outlen)
{
	enum { CAPABILITIES = 0x10, GENERAL = 0, ATOMIC = 3, ROCE = 4 };
	const uint8_t *i = in;
	uint8_t *cap = (uint8_t *)out + CAPABILITIES;

	memset(out, 0, outlen);
	if (inlen < 8 || get16(i) != QUERY_HCA_CAP || outlen < CAPABILITIES + 0x80)
		return refuse(out, outlen, BAD_PARAMETER);
	switch (get16(i + 6) >> 1) { /* the last bit: current or most */
	case GENERAL:
		cap[0x11] = 15;                     /* log_max_qp_sz */
		put16(cap + 0x2e, hca.ethernet ? 2 : 1); /* gid_table_size */
		cap[0x36] |= hca.ethernet;          /* port_type */
		cap[0x38] |= 30;                    /* log_max_msg */
		cap[0x3f] |= 1;                     /* cqe_version */
		cap[0x40] |= 0x80;                  /* compact_address_vector */
		cap[0x41] |= 0x80;                  /* umr_modify_atomic_disabled */
		cap[0x43] |= 0x02;                  /* atomic */
		cap[0x47] |= 1;                     /* rc */
		cap[0x4c] |= 0x80;                  /* bf */
		cap[0x4d] |= 9;                     /* log_bf_reg_size */
		put16(cap + 0x52, WQE_MAX);         /* max_wqe_sz_sq */
		put16(cap + 0x56, 512);             /* max_wqe_sz_rq */
		cap[0x70] |= 15;                    /* log_max_rmp */
		return 0;
	case ATOMIC:
		cap[0x8] |= 0x40;         /* results of 8 bytes come in the host's order */
		put16(cap + 0x12, 0xf);   /* compare-and-swap, fetch-and-add, both masked */
		put16(cap + 0x16, 0xc);   /* of 4 and 8 bytes, on connected queues */
		put16(cap + 0x1a, 0xc);   /* and dynamically connected ones */
		return 0;
	case ROCE:
		return 0;
	default:
		return refuse(out, outlen, BAD_PARAMETER);
	}
}

struct devx_cq *devx_find_cq(uint32_t cqn)
{
	return cqn < SHM_CQS ? cqs[cqn] : NULL;
}

static struct devx_cq *create_cq(const uint8_t *in)
{
	const uint8_t *cqc = in + IN_CQC;
	struct devx_cq *c = calloc(1, sizeof *c);
	int i = -1;

	if (!c)
		return NULL;
	c->log = cqc[0xc] & 0x1f;
	c->collapsed = cqc[1] & 0x10;
	if (c->log <= 22 && memory_at(get32(in + 0x58), get64(in + 0x50), c->collapsed ? 64 : 64ull << c->log, &c->ring)) {
		shm_lock(hca.shm, &hca.shm->tables);
		i = shm_take_cq(hca.shm, hca.slot);
		shm_unlock(&hca.shm->tables);
	}
	if (i < 0) {
		free(c);
		return NULL;
	}
	pthread_mutex_init(&c->mu, NULL);
	c->cqn = i;
	cqs[i] = c;
	hca_log("CREATE_CQ of %u%s at %#lx kind %u -> %u", 1u << c->log, c->collapsed ? " collapsed" : "", (unsigned long)c->ring.addr, c->ring.kind, c->cqn);
	return c;
}

static bool own_srq(uint32_t i)
{
	return i && i < SHM_RQS && hca.shm->rq[i].life == SHM_LIVE && hca.shm->rq[i].proc == hca.slot && hca.shm->rq[i].is_srq;
}

static struct devx_queue *create_qp(struct ibv_context *context, const uint8_t *in)
{
	enum { SERVICE_RC = 0, SERVICE_DCI = 5 };
	const uint8_t *qpc = in + IN_QPC;
	const uint32_t type = qpc[1] == SERVICE_RC ? IBV_QPT_RC : HCA_QPT_DCI, scq = get24(qpc + 0x7d);
	const bool shared_rq = (qpc[0xac] & 7) == 1;
	const uint32_t rq = get24(qpc + 0xad);
	struct devx_queue *d = calloc(1, sizeof *d);

	if (!d)
		return NULL;
	d->log = (qpc[0xa] >> 3) & 0xf;
	d->cq = devx_find_cq(scq);
	d->uar = uar_find(get24(qpc + 0xd));
	if ((qpc[1] != SERVICE_RC && qpc[1] != SERVICE_DCI) || (qpc[0xa] & 0x80) || !d->uar ||
	    (!d->cq && (scq >= SHM_CQS || !hca.cqs[scq])) || (shared_rq && !own_srq(rq)) ||
	    !memory_at(get32(in + 0x108), get64(in + 0x100), (uint64_t)WQE_BLOCK << d->log, &d->ring) ||
	    !memory_at(get32(qpc + 0xe4), get64(qpc + 0xa0), 8, &d->record) || devx_queue_init(d))
		goto no;
	d->q = qp_bare(context, type, get24(qpc + 5), scq, get24(qpc + 0x9d));
	if (!d->q)
		goto no;
	d->q->devx = d;
	if (shared_rq) {
		d->q->sh->rq = rq;
		d->q->sh->has_srq = 1;
	}
	d->q->depth = 1u << d->log;
	uar_attach(d->uar, d);
	hca_log("CREATE_QP %s of %u blocks at %#lx kind %u, cq %u, page %u -> %#x", type == IBV_QPT_RC ? "RC" : "DCI", 1u << d->log,
		(unsigned long)d->ring.addr, d->ring.kind, scq, get24(qpc + 0xd), d->q->qp.qp_num);
	return d;
no:
	hca_log("CREATE_QP refused: service %u, cq %u, page %u, memories %u %u", qpc[1], scq, get24(qpc + 0xd), get32(in + 0x108), get32(qpc + 0xe4));
	devx_queue_free(d);
	return NULL;
}

/* Receives that several queues share. */
static int create_rmp(const uint8_t *in)
{
	enum { WQ = 0x20 + 0x30, CYCLIC = 1, MAX_LOG = 15 };
	const uint8_t *wq = in + WQ;
	const unsigned type = wq[0] >> 4, log = wq[0x23] & 0x1f, log_stride = wq[0x21] & 0xf;
	struct devx_memory ring, record;
	int i = 0;

	if (type <= CYCLIC && log <= MAX_LOG && log_stride >= 5 && log_stride <= 10 &&
	    memory_at(get32(wq + 0x2c), get64(wq + 0x30), 1ull << (log + log_stride), &ring) &&
	    memory_at(get32(wq + 0x28), get64(wq + 0x10), 4, &record))
		i = rings_create_rq(&ring, &record, log, 1u << log_stride, get24(wq + 9), type != CYCLIC);
	hca_log("CREATE_RMP of %u x %u, type %u -> %d", 1u << log, 1u << log_stride, type, i);
	return i > 0 ? i : 0;
}

static struct mlx5dv_devx_obj *obj_create(struct ibv_context *context, const void *in, size_t inlen, void *out, size_t outlen)
{
	struct mlx5dv_devx_obj *o = calloc(1, sizeof *o);
	const uint16_t op = inlen >= CREATE_IN ? get16(in) : 0;

	if (!o)
		return NULL;
	memset(out, 0, outlen);
	o->context = context;
	if (outlen >= 16 && op == CREATE_CQ && (o->cq = create_cq(in)))
		put24((uint8_t *)out + 9, o->cq->cqn);
	else if (outlen >= 16 && op == CREATE_QP && (o->queue = create_qp(context, in)))
		put24((uint8_t *)out + 9, o->queue->q->qp.qp_num);
	else if (outlen >= 16 && op == CREATE_RMP && (o->rq = create_rmp(in)))
		put24((uint8_t *)out + 9, o->rq);
	if (o->cq || o->queue || o->rq)
		return o;
	hca_log("obj_create: command %#x of %zu bytes refused", op, inlen);
	refuse(out, outlen, op == CREATE_CQ || op == CREATE_QP || op == CREATE_RMP ? BAD_RESOURCE : BAD_PARAMETER);
	free(o);
	return NULL;
}

static void set_access(struct shm_qp *s, uint8_t flags)
{
	s->access |= (flags & 0x80 ? IBV_ACCESS_REMOTE_READ : 0) | (flags & 0x40 ? IBV_ACCESS_REMOTE_WRITE : 0) | (flags & 0x20 ? IBV_ACCESS_REMOTE_ATOMIC : 0);
}

static int modify(struct hca_qp *q, const void *in, size_t inlen, void *out, size_t outlen)
{
	const uint8_t *qpc = (const uint8_t *)in + IN_QPC;
	const uint16_t op = inlen >= 16 ? get16(in) : 0;
	int to;

	memset(out, 0, outlen);
	if (!q || (op >= RST2INIT_QP && op <= RTR2RTS_QP && inlen < CREATE_IN))
		return refuse(out, outlen, BAD_PARAMETER);
	switch (op) {
	case RST2INIT_QP:
		to = IBV_QPS_INIT;
		break;
	case INIT2RTR_QP:
		to = IBV_QPS_RTR;
		break;
	case RTR2RTS_QP:
		to = IBV_QPS_RTS;
		break;
	case TO_ERR_QP:
		to = IBV_QPS_ERR;
		break;
	case TO_RST_QP:
		to = IBV_QPS_RESET;
		break;
	default:
		hca_log("obj_modify: command %#x refused", op);
		return refuse(out, outlen, BAD_PARAMETER);
	}
	if (op == RST2INIT_QP || op == INIT2RTR_QP)
		set_access(q->sh, qpc[0x92]);
	if (op == INIT2RTR_QP)
		q->sh->min_rnr_timer = qpc[0x94] & 0x1f;
	if (op == RTR2RTS_QP) {
		q->attr.retry_cnt = qpc[0x71] & 7;
		q->attr.rnr_retry = qpc[0x72] >> 5;
	}
	qp_bare_state(q, to, op == INIT2RTR_QP ? get24(qpc + 0x15) : 0);
	return 0;
}

static int obj_modify(struct mlx5dv_devx_obj *o, const void *in, size_t inlen, void *out, size_t outlen)
{
	return modify(o->queue ? o->queue->q : NULL, in, inlen, out, outlen);
}

static int qp_modify(struct ibv_qp *qp, const void *in, size_t inlen, void *out, size_t outlen)
{
	return modify(to_qp(qp), in, inlen, out, outlen);
}

static int obj_destroy(struct mlx5dv_devx_obj *o)
{
	if (fault(FAULT_BUSY))
		return errno = EBUSY;
	if (o->queue) {
		uar_detach(o->queue);
		qp_bare_free(o->queue->q);
		devx_queue_free(o->queue);
	}
	if (o->rq)
		rq_destroy(o->rq);
	if (o->cq) {
		cqs[o->cq->cqn] = NULL;
		atomic_store(&hca.shm->cq[o->cq->cqn].life, SHM_FREE);
		free(o->cq);
	}
	free(o);
	return 0;
}

/* The target of dynamically connected queues: a verbs object, which ibv_modify_qp and ibv_destroy_qp take. */
static struct ibv_qp *create_dct(struct ibv_context *context, struct ibv_qp_init_attr_ex *a, uint64_t key)
{
	struct hca_qp *q;

	if (!a->pd || !a->srq || !a->recv_cq) {
		errno = EINVAL;
		return NULL;
	}
	q = qp_bare(context, HCA_QPT_DCT, to_pd(a->pd)->pdn, to_cq(a->recv_cq)->index, to_cq(a->recv_cq)->index);
	if (!q)
		return NULL;
	q->sh->rq = to_srq(a->srq)->index;
	q->sh->has_srq = 1;
	q->sh->dc_key = key;
	q->qp.pd = a->pd;
	q->qp.send_cq = q->qp.recv_cq = a->recv_cq;
	q->qp.srq = a->srq;
	q->qp.qp_num = 0; /* it gets its number when it becomes ready to receive */
	hca_log("create DCT -> %#x", q->sh->qpn);
	return &q->qp;
}

/* The address vector of a handle, as requests carry it. */
static struct mlx5_wqe_av *address_vector(struct hca_ah *h)
{
	h->av = (struct mlx5_wqe_av){
		.stat_rate_sl = h->attr.sl,
		.fl_mlid = h->attr.src_path_bits,
		.rlid = htobe16(h->attr.dlid),
	};
	if (h->attr.is_global) {
		h->av.tclass = h->attr.grh.traffic_class;
		h->av.hop_limit = h->attr.grh.hop_limit;
		h->av.grh_gid_fl = htobe32(1u << 30 | (uint32_t)h->attr.grh.sgid_index << 20 | (h->attr.grh.flow_label & 0xfffff));
		memcpy(h->av.rgid, h->attr.grh.dgid.raw, sizeof h->av.rgid);
	}
	return &h->av;
}

static int init_obj(struct mlx5dv_obj *o, uint64_t type)
{
	if (type & ~(uint64_t)(MLX5DV_OBJ_PD | MLX5DV_OBJ_CQ | MLX5DV_OBJ_SRQ | MLX5DV_OBJ_QP | MLX5DV_OBJ_AH))
		return EOPNOTSUPP;
	if (type & MLX5DV_OBJ_PD)
		*o->pd.out = (struct mlx5dv_pd){ .pdn = to_pd(o->pd.in)->pdn };
	if (type & MLX5DV_OBJ_AH)
		*o->ah.out = (struct mlx5dv_ah){ .av = address_vector((struct hca_ah *)o->ah.in) };
	return rings_init_obj(o, type);
}

static struct ibv_cq_ex *create_cq_verbs(struct ibv_context *c, struct ibv_cq_init_attr_ex *a, uint32_t entry_bytes)
{
	struct ibv_cq_ex *cq = op_create_cq_ex(c, a);

	if (cq)
		to_cq(ibv_cq_ex_to_cq(cq))->sh->raw_stride = entry_bytes;
	return cq;
}

struct devx_events {
	struct mlx5dv_devx_event_channel ch;
	struct evq queue; /* of cookies */
};

static struct mlx5dv_devx_event_channel *create_events(void)
{
	struct devx_events *e = calloc(1, sizeof *e);

	if (!e)
		return NULL;
	if (evq_init(&e->queue)) {
		free(e);
		return NULL;
	}
	e->ch.fd = e->queue.fd;
	return &e->ch;
}

static void destroy_events(struct mlx5dv_devx_event_channel *ch)
{
	evq_close(&((struct devx_events *)ch)->queue);
	free(ch);
}

static int subscribe(struct mlx5dv_devx_event_channel *ch, struct mlx5dv_devx_obj *o, uint16_t event, uint64_t cookie)
{
	enum { LAST_RECEIVE = 0x13 };

	if (!o || !o->queue || event != LAST_RECEIVE)
		return EOPNOTSUPP;
	o->queue->cookie = cookie;
	o->queue->events = (struct devx_events *)ch;
	return 0;
}

void devx_last_receive(struct devx_queue *d)
{
	if (d->events)
		evq_push(&d->events->queue, (void *)(uintptr_t)d->cookie, 0);
}

static ssize_t get_event(struct mlx5dv_devx_event_channel *ch, struct mlx5dv_devx_async_event_hdr *out, size_t size)
{
	struct ev e;

	if (size < sizeof *out) {
		errno = EINVAL;
		return -1;
	}
	if (evq_pop(&((struct devx_events *)ch)->queue, &e))
		return -1;
	out->cookie = (uintptr_t)e.object;
	return sizeof *out;
}

const struct softhca_devx *softhca_devx(void)
{
	static const struct softhca_devx table = {
		.enabled = enabled,
		.alloc_uar = uar_alloc,
		.free_uar = uar_free,
		.umem_reg = umem_reg,
		.umem_dereg = umem_dereg,
		.general_cmd = general_cmd,
		.obj_create = obj_create,
		.obj_modify = obj_modify,
		.obj_destroy = obj_destroy,
		.create_dct = create_dct,
		.init_obj = init_obj,
		.create_cq = create_cq_verbs,
		.qp_modify = qp_modify,
		.create_events = create_events,
		.destroy_events = destroy_events,
		.subscribe = subscribe,
		.get_event = get_event,
	};

	return &table;
}
