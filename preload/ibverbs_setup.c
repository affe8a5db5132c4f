/* Hooks of everything that sets up: devices, protection domains, regions, queues, address handles. */
#define _GNU_SOURCE
#include "ibverbs.h"

#include <errno.h>

/* A missing library answers as a call that the driver does not have. */
static void *absent(void)
{
    errno = ENOSYS;
    return NULL;
}

/* ---- devices: patched, and told to the capture only when something is made on them ---------------------------------------------------- */

/* Depth of our hooks in an opening call: only the outermost patches, so that a tool in between finds tables as the library made them. */
static __thread unsigned opening;

void context_opening(void) { opening++; }

struct ibv_context *context_opened(struct ibv_context *c, void *function)
{
    if (--opening == 0 && c) {
        st_keep_loaded(function); /* its pointers are in our tables */
        patch_context(c);
    }
    return c;
}

ST_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    if (!REAL(ibv_open_device))
        return absent();
    context_opening();
    return context_opened(real.ibv_open_device(device), (void *)real.ibv_open_device);
}

ST_EXPORT struct ibv_context *ibv_import_device(int cmd_fd)
{
    if (!REAL(ibv_import_device))
        return absent();
    context_opening();
    return context_opened(real.ibv_import_device(cmd_fd), (void *)real.ibv_import_device);
}

ST_EXPORT int ibv_close_device(struct ibv_context *context)
{
    if (!REAL(ibv_close_device))
        return ENOSYS;
    uint64_t serial = context_serial(context);
    uint32_t id = st_find(ST_KIND_DEVICE, (uintptr_t)context)->id;
    int rc = real.ibv_close_device(context);
    if (rc == 0) {
        context_gone(context, serial);
        object_gone(ST_KIND_DEVICE, context, id);
    }
    return rc;
}

/* ---- protection domains ------------------------------------------------------------------------------------------------------------ */

ST_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    if (!REAL(ibv_alloc_pd))
        return absent();
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    struct ibv_pd *pd = real.ibv_alloc_pd(context);
    if (t) {
        if (pd)
            pd_of(pd);
        st_leave(t, ST_LAYER_VERBS);
    }
    return pd;
}

struct ibv_pd *hook_alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *attr)
{
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    struct ibv_pd *pd = context_of(c)->alloc_parent_domain(c, attr);
    if (t) {
        if (pd)
            pd_of(pd);
        st_leave(t, ST_LAYER_VERBS);
    }
    return pd;
}

ST_EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
    if (!REAL(ibv_dealloc_pd))
        return ENOSYS;
    uint32_t id = st_find(ST_KIND_PD, (uintptr_t)pd)->id;
    int rc = real.ibv_dealloc_pd(pd);
    if (rc == 0)
        object_gone(ST_KIND_PD, pd, id);
    return rc;
}

/* ---- memory regions: one form of the call is made of another inside the library; only the outermost is recorded ------------------------ */

static struct ibv_mr *registered(struct st_thread *t, uint64_t begin, struct ibv_mr *mr, const void *address, size_t length, uint64_t iova, unsigned access, unsigned dmabuf)
{
    if (t) {
        if (mr)
            define_mr(mr, address, length, iova, access, dmabuf, st_clock() - begin);
        st_leave(t, ST_LAYER_VERBS);
    }
    return mr;
}

ST_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    if (!REAL(ibv_reg_mr))
        return absent();
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    uint64_t begin = st_clock();
    return registered(t, begin, real.ibv_reg_mr(pd, addr, length, access), addr, length, (uintptr_t)addr, (unsigned)access, 0);
}

ST_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
    if (!REAL(ibv_reg_mr_iova))
        return absent();
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    uint64_t begin = st_clock();
    return registered(t, begin, real.ibv_reg_mr_iova(pd, addr, length, iova, access), addr, length, iova, (unsigned)access, 0);
}

ST_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access)
{
    if (!REAL(ibv_reg_mr_iova2))
        return absent();
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    uint64_t begin = st_clock();
    return registered(t, begin, real.ibv_reg_mr_iova2(pd, addr, length, iova, access), addr, length, iova, access, 0);
}

ST_EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
    if (!REAL(ibv_reg_dmabuf_mr))
        return absent();
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    uint64_t begin = st_clock();
    return registered(t, begin, real.ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access), NULL, length, iova, (unsigned)access, 1);
}

/* What a changed region is afterwards stands in the structure: a new object, since its keys are new. */
ST_EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
    if (!REAL(ibv_rereg_mr))
        return ENOSYS;
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    uint64_t begin = st_clock();
    int rc = real.ibv_rereg_mr(mr, flags, pd, addr, length, access);
    if (t) {
        if (rc == 0)
            define_mr(mr, mr->addr, mr->length, (uintptr_t)mr->addr, flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned)access : 0, 0, st_clock() - begin);
        st_leave(t, ST_LAYER_VERBS);
    }
    return rc;
}

ST_EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    if (!REAL(ibv_dereg_mr))
        return ENOSYS;
    uint32_t id = st_find(ST_KIND_MR, (uintptr_t)mr)->id;
    int rc = real.ibv_dereg_mr(mr);
    if (rc == 0)
        object_gone(ST_KIND_MR, mr, id);
    return rc;
}

/* ---- completion queues ------------------------------------------------------------------------------------------------------------- */

static struct ibv_cq *cq_made(struct st_thread *t, struct ibv_cq *cq)
{
    if (t) {
        if (cq)
            define_cq(cq);
        st_leave(t, ST_LAYER_VERBS);
    }
    return cq;
}

struct ibv_cq_ex *cq_ex_made(struct st_thread *t, struct ibv_cq_ex *cq)
{
    if (cq)
        patch_cq(cq);
    cq_made(t, cq ? ibv_cq_ex_to_cq(cq) : NULL);
    return cq;
}

ST_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int comp_vector)
{
    if (!REAL(ibv_create_cq))
        return absent();
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    return cq_made(t, real.ibv_create_cq(context, cqe, cq_context, channel, comp_vector));
}

struct ibv_cq_ex *hook_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr)
{
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    return cq_ex_made(t, context_of(c)->create_cq_ex(c, attr));
}

ST_EXPORT struct ibv_cq_ex *efadv_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr, struct efadv_cq_init_attr *efa_attr, uint32_t inlen)
{
    if (!REAL(efadv_create_cq))
        return absent();
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    return cq_ex_made(t, real.efadv_create_cq(context, attr, efa_attr, inlen));
}

ST_EXPORT int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
    if (!REAL(ibv_resize_cq))
        return ENOSYS;
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    int rc = real.ibv_resize_cq(cq, cqe);
    if (t) {
        struct st_object *o = rc == 0 ? cq_of(cq) : st_unknown;
        if (o->id)
            st_def_verbs_cq(o->id, device_id(o), (uint64_t)cq->cqe);
        st_leave(t, ST_LAYER_VERBS);
    }
    return rc;
}

ST_EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
    if (!REAL(ibv_destroy_cq))
        return ENOSYS;
    struct st_object *o = st_find(ST_KIND_CQ, (uintptr_t)cq);
    uint32_t id = o->id;
    uint64_t serial = queue_serial(cq);
    if (id && st_self->ready)
        st_polls_end(st_self, o);
    int rc = real.ibv_destroy_cq(cq);
    if (rc == 0) {
        queue_gone(cq, serial);
        object_gone(ST_KIND_CQ, cq, id);
    }
    return rc;
}

/* ---- shared receive queues ----------------------------------------------------------------------------------------------------------- */

static struct ibv_srq *srq_made(struct st_thread *t, struct ibv_srq *srq, const struct ibv_srq_attr *attr)
{
    if (t) {
        if (srq)
            define_srq(srq, attr->max_wr, attr->max_sge);
        st_leave(t, ST_LAYER_VERBS);
    }
    return srq;
}

ST_EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    if (!REAL(ibv_create_srq))
        return absent();
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    return srq_made(t, real.ibv_create_srq(pd, attr), &attr->attr);
}

struct ibv_srq *hook_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr)
{
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    return srq_made(t, context_of(c)->create_srq_ex(c, attr), &attr->attr);
}

ST_EXPORT int ibv_destroy_srq(struct ibv_srq *srq)
{
    if (!REAL(ibv_destroy_srq))
        return ENOSYS;
    uint32_t id = st_find(ST_KIND_SRQ, (uintptr_t)srq)->id;
    int rc = real.ibv_destroy_srq(srq);
    if (rc == 0)
        object_gone(ST_KIND_SRQ, srq, id);
    return rc;
}

/* ---- queue pairs --------------------------------------------------------------------------------------------------------------------- */

static struct ibv_qp *qp_made(struct st_thread *t, struct ibv_qp *qp, int signal_all, const struct ibv_qp_cap *cap, unsigned flags)
{
    if (t) {
        if (qp)
            define_qp(qp, signal_all, cap, flags);
        st_leave(t, ST_LAYER_VERBS);
    }
    return qp;
}

struct ibv_qp *qp_ex_made(struct st_thread *t, struct ibv_qp *qp, const struct ibv_qp_init_attr_ex *a, unsigned flags)
{
    int blind = qp && a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS && patch_qp(qp, a->send_ops_flags);
    if (t && qp) {
        define_qp(qp, a->sq_sig_all, &a->cap, flags);
        if (blind)
            st_def_verbs_blind(st_find(ST_KIND_QP, (uintptr_t)qp)->id, "too many extended queue pairs at once: what is posted by ibv_wr_* is not recorded");
    }
    if (t)
        st_leave(t, ST_LAYER_VERBS);
    return qp;
}

ST_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    if (!REAL(ibv_create_qp))
        return absent();
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    return qp_made(t, real.ibv_create_qp(pd, attr), attr->sq_sig_all, &attr->cap, 0);
}

struct ibv_qp *hook_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr)
{
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    return qp_ex_made(t, context_of(c)->create_qp_ex(c, attr), attr, 0);
}

struct ibv_qp *hook_open_qp(struct ibv_context *c, struct ibv_qp_open_attr *attr)
{
    static const struct ibv_qp_cap none;
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    return qp_made(t, context_of(c)->open_qp(c, attr), 0, &none, 0);
}

/* EFA's reliable datagrams: an address handle in every request. */
ST_EXPORT struct ibv_qp *efadv_create_driver_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, uint32_t driver_qp_type)
{
    if (!REAL(efadv_create_driver_qp))
        return absent();
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    return qp_made(t, real.efadv_create_driver_qp(pd, attr, driver_qp_type), attr->sq_sig_all, &attr->cap, QP_UNCONNECTED);
}

ST_EXPORT struct ibv_qp *efadv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr, struct efadv_qp_init_attr *efa_attr, uint32_t inlen)
{
    if (!REAL(efadv_create_qp_ex))
        return absent();
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    return qp_ex_made(t, real.efadv_create_qp_ex(context, attr, efa_attr, inlen), attr, QP_UNCONNECTED);
}

ST_EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    if (!REAL(ibv_modify_qp))
        return ENOSYS;
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    uint32_t number = qp->qp_num;
    int rc = real.ibv_modify_qp(qp, attr, mask);
    if (t) {
        struct st_object *o = rc ? st_unknown : qp_of(qp);
        if (qp->qp_num != number)
            define_qp_number(o, number, qp->qp_num);
        if (rc == 0)
            define_qp_change(o, attr, (unsigned)mask);
        st_leave(t, ST_LAYER_VERBS);
    }
    return rc;
}

ST_EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
    if (!REAL(ibv_destroy_qp))
        return ENOSYS;
    uint32_t id = st_find(ST_KIND_QP, (uintptr_t)qp)->id, qpn = qp->qp_num;
    struct ibv_cq *send_cq = qp->send_cq, *recv_cq = qp->recv_cq;
    uint64_t serial = queue_serial(qp);
    int rc = real.ibv_destroy_qp(qp);
    if (rc == 0) {
        queue_gone(qp, serial);
        qp_gone(qp, id, qpn, send_cq, recv_cq);
    }
    return rc;
}

/* ---- address handles ----------------------------------------------------------------------------------------------------------------- */

ST_EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    if (!REAL(ibv_create_ah))
        return absent();
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    struct ibv_ah *ah = real.ibv_create_ah(pd, attr);
    if (t) {
        if (ah)
            define_ah(ah, pd, attr);
        st_leave(t, ST_LAYER_VERBS);
    }
    return ah;
}

ST_EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port_num)
{
    if (!REAL(ibv_create_ah_from_wc))
        return absent();
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    struct ibv_ah *ah = real.ibv_create_ah_from_wc(pd, wc, grh, port_num);
    if (t) {
        struct ibv_ah_attr a;
        int saved = errno;
        if (ah && REAL(ibv_init_ah_from_wc) && !real.ibv_init_ah_from_wc(pd->context, port_num, wc, grh, &a))
            define_ah(ah, pd, &a);
        errno = saved;
        st_leave(t, ST_LAYER_VERBS);
    }
    return ah;
}

ST_EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
    if (!REAL(ibv_destroy_ah))
        return ENOSYS;
    uint32_t id = st_find(ST_KIND_AH, (uintptr_t)ah)->id;
    int rc = real.ibv_destroy_ah(ah);
    if (rc == 0)
        object_gone(ST_KIND_AH, ah, id);
    return rc;
}
