/* Objects of the capture: what stands for a device, a queue, a region, and its definition. Slow paths only. */
#define _GNU_SOURCE
#include "ibverbs.h"

#include "gpu_of.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* An object for the library's object at p, in place of one that an unseen end left behind. Registry lock held, so that a thread that
 * is ending the old one and a thread that has just got the same address for a new one do not meet. */
static struct st_object *replace(enum st_kind kind, const void *p)
{
    struct st_object *o = st_find(kind, (uintptr_t)p);
    if (o->id)
        st_object_end(o);
    return st_object_new(kind, (uintptr_t)p);
}

struct st_object *make_object(enum st_kind kind, const void *p)
{
    registry_lock();
    struct st_object *o = replace(kind, p);
    registry_unlock();
    return o;
}

/* The object of something whose making was not seen. *fresh: this call made it. After the object table has been full once, no more are
 * tried: it would be one try for every request. */
static struct st_object *adopt(enum st_kind kind, const void *p, int *fresh)
{
    static int full;
    *fresh = 0;
    if (!p || __atomic_load_n(&full, __ATOMIC_RELAXED))
        return st_unknown;
    registry_lock();
    struct st_object *o = st_find(kind, (uintptr_t)p);
    if (!o->id) {
        o = st_object_new(kind, (uintptr_t)p);
        *fresh = o->id != 0;
        if (!*fresh)
            __atomic_store_n(&full, 1, __ATOMIC_RELAXED);
    }
    registry_unlock();
    return o;
}

void object_gone(enum st_kind kind, const void *p, uint32_t id)
{
    if (!id)
        return;
    registry_lock();
    struct st_object *o = st_find(kind, (uintptr_t)p);
    if (o->id == id)
        st_object_end(o);
    registry_unlock();
}

/* ---- device ----------------------------------------------------------------------------------------------------------------------- */

static unsigned mtu_bytes(unsigned mtu) { return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0; }

static int query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a)
{
    struct verbs_context *v = verbs_get_ctx_op(c, query_port);
    memset(a, 0, sizeof *a);
    return v ? v->query_port(c, port, a, sizeof *a) : -1;
}

/* 1: RoCE version 2 by sysfs, for libraries without _ibv_query_gid_table. */
static unsigned gid_type(struct ibv_context *c, unsigned port, unsigned index)
{
    char path[IBV_SYSFS_PATH_MAX + 64], text[16] = "";
    snprintf(path, sizeof path, "%s/ports/%u/gid_attrs/types/%u", c->device->ibdev_path, port, index);
    int cancel = st_uncancelled(), fd = st_open_file(path, O_RDONLY, 0);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    st_cancelled(cancel);
    return n > 0 && !strncmp(text, "RoCE v2", 7);
}

static int gid_set(const union ibv_gid *g) { return g->global.subnet_prefix || g->global.interface_id; }

#define GIDS 1024

/* The whole table in one call. 0: not to be had. */
static int define_gid_table(struct ibv_context *c, uint32_t device)
{
    size_t size = GIDS * sizeof(struct ibv_gid_entry);
    int found = 0;
    if (!REAL(_ibv_query_gid_table))
        return 0;
    struct ibv_gid_entry *e = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (e == MAP_FAILED)
        return 0;
    ssize_t n = real._ibv_query_gid_table(c, e, GIDS, 0, sizeof *e);
    for (ssize_t i = 0; i < n && i < GIDS; i++) {
        if (!gid_set(&e[i].gid))
            continue;
        st_def_verbs_gid(device, e[i].port_num, e[i].gid_index, e[i].gid_type == IBV_GID_TYPE_ROCE_V2, &e[i].gid, sizeof e[i].gid);
        found++;
    }
    munmap(e, size);
    return found;
}

static void define_device(struct ibv_context *c, struct st_object *o)
{
    struct ibv_device_attr d;
    int saved = errno;
    memset(&d, 0, sizeof d);
    if (REAL(ibv_query_device) && real.ibv_query_device(c, &d))
        memset(&d, 0, sizeof d);
    d.fw_ver[sizeof d.fw_ver - 1] = 0;
    st_def_verbs_device(o->id, c->device->name, be64toh(d.node_guid), be64toh(d.sys_image_guid), d.vendor_id, d.vendor_part_id, d.phys_port_cnt, d.fw_ver);
    int whole = define_gid_table(c, o->id);
    for (unsigned port = 1; port <= d.phys_port_cnt; port++) {
        struct ibv_port_attr p;
        if (query_port(c, (uint8_t)port, &p))
            continue;
        st_def_verbs_port(o->id, port, p.state, p.lid, p.lmc, p.sm_lid, mtu_bytes(p.active_mtu), p.active_width, p.active_speed, p.link_layer);
        for (unsigned i = 0; !whole && REAL(ibv_query_gid) && (int)i < p.gid_tbl_len && i < GIDS; i++) {
            union ibv_gid g;
            if (!real.ibv_query_gid(c, (uint8_t)port, (int)i, &g) && gid_set(&g))
                st_def_verbs_gid(o->id, port, i, gid_type(c, port, i), &g, sizeof g);
        }
    }
    errno = saved;
}

struct st_object *device_of(struct ibv_context *c)
{
    struct st_object *o = st_find(ST_KIND_DEVICE, (uintptr_t)c);
    int fresh;
    if (o->id)
        return o;
    o = adopt(ST_KIND_DEVICE, c, &fresh);
    if (fresh)
        define_device(c, o);
    return o;
}

struct st_object *pd_of(struct ibv_pd *pd)
{
    int fresh;
    struct st_object *o = adopt(ST_KIND_PD, pd, &fresh);
    if (fresh)
        st_def_verbs_pd(o->id, device_of(pd->context)->id);
    return o;
}

/* ---- memory regions, address handles ------------------------------------------------------------------------------------------------ */

void define_mr(struct ibv_mr *mr, const void *address, size_t length, uint64_t iova, unsigned access, unsigned dmabuf, uint64_t duration)
{
    struct st_object *pd = pd_of(mr->pd), *o = make_object(ST_KIND_MR, mr);
    struct gpu g;
    if (!o->id)
        return;
    st_def_verbs_mr(o->id, pd->id, (uintptr_t)address, length, iova, st_hash_key(mr->lkey), st_hash_key(mr->rkey), access, dmabuf, duration);
    /* of a DMA-BUF no address is told but the one that others are to use: libraries give it the GPU's */
    if (gpu_of(address ? address : (const void *)(uintptr_t)iova, &g))
        st_def_memory_gpu(o->id, g.ordinal, g.uuid, g.uuid_size);
}

void define_ah(struct ibv_ah *ah, struct ibv_pd *pd, const struct ibv_ah_attr *a)
{
    struct st_object *p = pd_of(pd), *o = make_object(ST_KIND_AH, ah);
    if (o->id)
        st_def_verbs_ah(o->id, p->id, a->dlid, &a->grh.dgid, a->is_global ? sizeof a->grh.dgid : 0, a->is_global ? a->grh.sgid_index : 0, a->is_global, a->port_num, a->sl);
}

/* ---- queues ----------------------------------------------------------------------------------------------------------------------- */

static void describe_cq(struct ibv_cq *cq, struct st_object *o)
{
    uint32_t device = device_of(cq->context)->id;
    o->user[USER_DEVICE] = device;
    st_def_verbs_cq(o->id, device, (uint64_t)cq->cqe);
}

void define_cq(struct ibv_cq *cq)
{
    struct st_object *o = make_object(ST_KIND_CQ, cq);
    if (o->id)
        describe_cq(cq, o);
}

struct st_object *adopt_cq(struct ibv_cq *cq)
{
    int fresh;
    struct st_object *o = adopt(ST_KIND_CQ, cq, &fresh);
    if (fresh)
        describe_cq(cq, o);
    return o;
}

static uint64_t with_sges(uint32_t send, uint32_t recv) { return (uint64_t)(recv & 0xffff) << 48 | (uint64_t)(send & 0xffff) << 32; }

static void describe_srq(struct ibv_srq *srq, struct st_object *o, unsigned entries, unsigned sges)
{
    struct verbs_context *v = verbs_get_ctx_op(srq->context, get_srq_num);
    uint32_t number = 0;
    int saved = errno;
    if (v && v->get_srq_num(srq, &number)) /* basic ones have none: refused */
        number = 0;
    errno = saved;
    o->user[USER_DEVICE] = device_of(srq->context)->id | with_sges(sges, 0);
    st_def_verbs_srq(o->id, pd_of(srq->pd)->id, entries, number);
}

void define_srq(struct ibv_srq *srq, unsigned entries, unsigned sges)
{
    struct st_object *o = make_object(ST_KIND_SRQ, srq);
    if (o->id)
        describe_srq(srq, o, entries, sges);
}

struct st_object *adopt_srq(struct ibv_srq *srq)
{
    int fresh;
    struct st_object *o = adopt(ST_KIND_SRQ, srq, &fresh);
    if (fresh) {
        struct ibv_srq_attr a;
        int saved = errno;
        memset(&a, 0, sizeof a);
        if (REAL(ibv_query_srq) && real.ibv_query_srq(srq, &a))
            memset(&a, 0, sizeof a);
        errno = saved;
        describe_srq(srq, o, a.max_wr, a.max_sge);
    }
    return o;
}

static uint64_t qpn_key(struct st_object *qp, uint32_t qpn) { return (uint64_t)device_id(qp) << 24 | qpn; }

/* A completion queue that does not say the queue pair's number (ibv_cq_ex made without it) still tells it while it has only one. */
static void attach(struct st_object *cq, uint32_t qpn)
{
    if (cq->id)
        cq->user[USER_ONLY_QP] = cq->user[USER_QPS]++ ? ~0ull : 1 + (uint64_t)qpn;
}

static void detach(struct ibv_cq *cq)
{
    struct st_object *o = st_find(ST_KIND_CQ, (uintptr_t)cq);
    if (o->id && o->user[USER_QPS] && !--o->user[USER_QPS])
        o->user[USER_ONLY_QP] = 0;
}

static void describe_qp(struct ibv_qp *qp, struct st_object *o, int signal_all, const struct ibv_qp_cap *cap, unsigned flags)
{
    struct st_object *send_cq = qp->send_cq ? cq_of(qp->send_cq) : st_unknown, *recv_cq = qp->recv_cq ? cq_of(qp->recv_cq) : st_unknown;
    struct st_object *srq = qp->srq ? srq_of(qp->srq) : st_unknown;
    uint32_t device = device_of(qp->context)->id;
    const struct context *c = context_of(qp->context);
    o->user[USER_DEVICE] = device | with_sges(cap->max_send_sge, cap->max_recv_sge);
    flags |= (signal_all ? QP_SIGNAL_ALL : 0) | (qp->qp_type == IBV_QPT_UD ? QP_UNCONNECTED : 0);
    if (c && c->post_send && cap->max_send_sge && !(flags & QP_UNCONNECTED)) {
        flags |= QP_PLAIN;
        o->user[USER_ORIGINAL] = (uintptr_t)c->post_send;
    }
    o->flags = (uint16_t)flags;
    st_def_verbs_qp(o->id, device, pd_of(qp->pd)->id, qp->qp_num, qp->qp_type, send_cq->id, recv_cq->id, srq->id, !!signal_all, cap->max_send_wr, cap->max_recv_wr,
                    cap->max_inline_data);
    if (!c)
        st_def_verbs_blind(o->id, "its device was opened by a way that was not seen: requests and completions are not recorded");
    registry_lock();
    st_object_alias(o, ST_KIND_QPN, qpn_key(o, qp->qp_num));
    attach(send_cq, qp->qp_num);
    if (recv_cq != send_cq)
        attach(recv_cq, qp->qp_num);
    registry_unlock();
}

void define_qp(struct ibv_qp *qp, int signal_all, const struct ibv_qp_cap *cap, unsigned flags)
{
    struct st_object *o = make_object(ST_KIND_QP, qp);
    if (o->id)
        describe_qp(qp, o, signal_all, cap, flags);
}

struct st_object *adopt_qp(struct ibv_qp *qp)
{
    int fresh;
    struct st_object *o = adopt(ST_KIND_QP, qp, &fresh);
    if (!fresh)
        return o;
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    unsigned mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_DEST_QPN | IBV_QP_PORT | IBV_QP_QKEY;
    int saved = errno;
    memset(&a, 0, sizeof a);
    memset(&init, 0, sizeof init);
    int known = REAL(ibv_query_qp) && !real.ibv_query_qp(qp, &a, (int)mask, &init);
    errno = saved;
    describe_qp(qp, o, known && init.sq_sig_all, &init.cap, 0);
    if (known)
        define_qp_change(o, &a, mask);
    return o;
}

void qp_gone(const struct ibv_qp *qp, uint32_t id, uint32_t qpn, struct ibv_cq *send_cq, struct ibv_cq *recv_cq)
{
    if (!id)
        return;
    registry_lock();
    struct st_object *o = st_find(ST_KIND_QP, (uintptr_t)qp);
    if (o->id == id) {
        uint64_t key = qpn_key(o, qpn);
        if (st_find(ST_KIND_QPN, key) == o)
            st_object_forget(ST_KIND_QPN, key);
        st_object_end(o);
    }
    detach(send_cq);
    if (recv_cq != send_cq)
        detach(recv_cq);
    registry_unlock();
}

void define_qp_number(struct st_object *o, uint32_t was, uint32_t qpn)
{
    if (!o->id)
        return;
    st_def_verbs_qp_number(o->id, qpn);
    registry_lock();
    if (st_find(ST_KIND_QPN, qpn_key(o, was)) == o)
        st_object_forget(ST_KIND_QPN, qpn_key(o, was));
    st_object_alias(o, ST_KIND_QPN, qpn_key(o, qpn));
    registry_unlock();
}

void define_qp_change(struct st_object *o, const struct ibv_qp_attr *a, unsigned mask)
{
    const struct ibv_ah_attr *h = &a->ah_attr;
    int av = !!(mask & IBV_QP_AV), global = av && h->is_global;
#define IF(bit, value) (mask & (bit) ? (value) : 0)
    st_def_verbs_qp_modify(o->id, mask, mask & IBV_QP_STATE ? a->qp_state : IBV_QPS_UNKNOWN, IF(IBV_QP_DEST_QPN, a->dest_qp_num), av ? h->dlid : 0, &h->grh.dgid,
                           global ? sizeof h->grh.dgid : 0, global ? h->grh.sgid_index : 0, (uint64_t)global, mask & IBV_QP_PORT ? a->port_num : av ? h->port_num : 0, av ? h->sl : 0,
                           global ? h->grh.traffic_class : 0, global ? h->grh.flow_label : 0, global ? h->grh.hop_limit : 0, IF(IBV_QP_PATH_MTU, mtu_bytes(a->path_mtu)),
                           IF(IBV_QP_RQ_PSN, a->rq_psn), IF(IBV_QP_SQ_PSN, a->sq_psn), IF(IBV_QP_TIMEOUT, a->timeout), IF(IBV_QP_RETRY_CNT, a->retry_cnt), IF(IBV_QP_RNR_RETRY, a->rnr_retry),
                           IF(IBV_QP_QKEY, a->qkey));
#undef IF
}
