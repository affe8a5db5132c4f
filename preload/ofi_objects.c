/* Provider libfabric: hooks of fabrics and domains, and of what is made from them but endpoints, completion queues and counters. */
#include "ofi.h"

#include <errno.h>

/* ---- event queues: only to learn that an endpoint is connected ----------------------------------------------------------------- */

/* event: NULL where a provider reads an error by it, from within readerr. */
static void event_seen(const uint32_t *event, const void *entry, size_t size, ssize_t rc)
{
    const struct fi_eq_cm_entry *e = entry;
    if (rc >= (ssize_t)sizeof e->fid && size >= sizeof e->fid && event && *event == FI_CONNECTED && e->fid)
        ofi_connected(e->fid);
}

static ssize_t eq_read(struct fid_eq *eq, uint32_t *event, void *buf, size_t len, uint64_t flags)
{
    struct ofi_eq *q = OFI_OF(eq->ops, ofi_eq, eq);
    struct ofi_slow s = ofi_begin();
    ssize_t rc = q->eq.real->read(eq, event, buf, len, flags);
    event_seen(event, buf, len, rc);
    ofi_end(s);
    return rc;
}

static ssize_t eq_sread(struct fid_eq *eq, uint32_t *event, void *buf, size_t len, int timeout, uint64_t flags)
{
    struct ofi_eq *q = OFI_OF(eq->ops, ofi_eq, eq);
    struct ofi_slow s = ofi_begin();
    ssize_t rc = q->eq.real->sread(eq, event, buf, len, timeout, flags);
    event_seen(event, buf, len, rc);
    ofi_end(s);
    return rc;
}

static const struct ofi_hook close_hooks[] = {OFI_CLOSE};
static const struct ofi_hook eq_hooks[] = {OFI_HOOK(fi_ops_eq, read, eq_read), OFI_HOOK(fi_ops_eq, sread, eq_sread)};

static void eq_tables(struct ofi_record *r, bool ours)
{
    struct ofi_eq *q = (struct ofi_eq *)r;
    struct fid_eq *eq = (struct fid_eq *)r->fid;
    if (ours) {
        OFI_PATCH(r->ops, eq->fid.ops, close_hooks);
        OFI_PATCH(q->eq, eq->ops, eq_hooks);
    } else {
        OFI_RESTORE(r->ops, eq->fid.ops);
        OFI_RESTORE(q->eq, eq->ops);
    }
}

/* ---- fabrics --------------------------------------------------------------------------------------------------------------------- */

static void take_domain(struct fid_domain *domain);

static int fabric_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context)
{
    struct ofi_fabric *f = OFI_OF(fabric->ops, ofi_fabric, fabric);
    struct ofi_slow s = ofi_begin();
    int rc = f->fabric.real->domain(fabric, info, domain, context);
    if (!rc && s.mine)
        take_domain(*domain);
    ofi_end(s);
    return rc;
}

static int fabric_domain2(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, uint64_t flags, void *context)
{
    struct ofi_fabric *f = OFI_OF(fabric->ops, ofi_fabric, fabric);
    struct ofi_slow s = ofi_begin();
    int rc = f->fabric.real->domain2(fabric, info, domain, flags, context);
    if (!rc && s.mine)
        take_domain(*domain);
    ofi_end(s);
    return rc;
}

static int fabric_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq, void *context)
{
    struct ofi_fabric *f = OFI_OF(fabric->ops, ofi_fabric, fabric);
    struct ofi_slow s = ofi_begin();
    int rc = f->fabric.real->eq_open(fabric, attr, eq, context);
    if (!rc && s.mine) {
        struct ofi_record *r = ofi_new(FI_CLASS_EQ, sizeof(struct ofi_eq), &(*eq)->fid, eq_tables);
        if (r)
            eq_tables(r, true);
    }
    ofi_end(s);
    return rc;
}

static const struct ofi_hook fabric_hooks[] = {
    OFI_HOOK(fi_ops_fabric, domain, fabric_domain),
    OFI_HOOK(fi_ops_fabric, domain2, fabric_domain2),
    OFI_HOOK(fi_ops_fabric, eq_open, fabric_eq_open),
};

static void fabric_tables(struct ofi_record *r, bool ours)
{
    struct ofi_fabric *f = (struct ofi_fabric *)r;
    struct fid_fabric *fabric = (struct fid_fabric *)r->fid;
    if (ours) {
        OFI_PATCH(r->ops, fabric->fid.ops, close_hooks);
        OFI_PATCH(f->fabric, fabric->ops, fabric_hooks);
    } else {
        OFI_RESTORE(r->ops, fabric->fid.ops);
        OFI_RESTORE(f->fabric, fabric->ops);
    }
}

void ofi_take_fabric(struct fid_fabric *fabric)
{
    if (ofi_record_of(&fabric->fid)) /* a provider that has one fabric for all, and gives it again */
        return;
    struct ofi_record *r = ofi_new(FI_CLASS_FABRIC, sizeof(struct ofi_fabric), &fabric->fid, fabric_tables);
    if (r)
        fabric_tables(r, true);
}

/* ---- address vectors --------------------------------------------------------------------------------------------------------------- */

static int av_remove(struct fid_av *av, fi_addr_t *address, size_t count, uint64_t flags)
{
    struct ofi_av *a = OFI_OF(av->ops, ofi_av, av);
    struct ofi_slow s = ofi_begin();
    /* before it is done: another thread may insert the next address under the same number as soon as it is */
    for (size_t i = 0; i < count; i++)
        ofi_forget_address(av, address[i]);
    int rc = a->av.real->remove(av, address, count, flags);
    ofi_end(s);
    return rc;
}

static const struct ofi_hook av_hooks[] = {OFI_HOOK(fi_ops_av, remove, av_remove)};

static void av_tables(struct ofi_record *r, bool ours)
{
    struct ofi_av *a = (struct ofi_av *)r;
    struct fid_av *av = (struct fid_av *)r->fid;
    if (ours) {
        OFI_PATCH(r->ops, av->fid.ops, close_hooks);
        OFI_PATCH(a->av, av->ops, av_hooks);
    } else {
        OFI_RESTORE(r->ops, av->fid.ops);
        OFI_RESTORE(a->av, av->ops);
    }
}

/* ---- memory regions ------------------------------------------------------------------------------------------------------------------ */

static void mr_tables(struct ofi_record *r, bool ours)
{
    if (ours)
        OFI_PATCH(r->ops, r->fid->ops, close_hooks);
    else
        OFI_RESTORE(r->ops, r->fid->ops);
}

static void take_mr(struct ofi_slow s, struct fid_mr *mr, const struct iovec *iov, size_t count, uint64_t access, uint64_t begin)
{
    struct ofi_record *r = s.mine ? ofi_new(FI_CLASS_MR, sizeof(struct ofi_mr), &mr->fid, mr_tables) : NULL;
    if (!r)
        return;
    mr_tables(r, true);
    if (!s.t)
        return;
    struct st_object *o = st_object_new(ST_KIND_OFI_MR, (uintptr_t)r);
    if (o->id)
        st_def_ofi_mr(o->id, count ? (uintptr_t)iov->iov_base : 0, ofi_iov_bytes(iov, count), count, access, st_hash_key(mr->key), st_clock() - begin);
}

static int mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr, void *context)
{
    struct ofi_domain *d = OFI_OF(((struct fid_domain *)fid)->mr, ofi_domain, mr);
    struct ofi_slow s = ofi_begin();
    uint64_t begin = st_clock();
    int rc = d->mr.real->reg(fid, buf, len, access, offset, key, flags, mr, context);
    if (!rc)
        take_mr(s, *mr, &(struct iovec){(void *)(uintptr_t)buf, len}, 1, access, begin);
    ofi_end(s);
    return rc;
}

static int mr_regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags,
                   struct fid_mr **mr, void *context)
{
    struct ofi_domain *d = OFI_OF(((struct fid_domain *)fid)->mr, ofi_domain, mr);
    struct ofi_slow s = ofi_begin();
    uint64_t begin = st_clock();
    int rc = d->mr.real->regv(fid, iov, count, access, offset, key, flags, mr, context);
    if (!rc)
        take_mr(s, *mr, iov, count, access, begin);
    ofi_end(s);
    return rc;
}

#define MR_DMABUF (1ull << 40) /* FI_MR_DMABUF, since 1.20: the segments are described otherwise */

static int mr_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr)
{
    struct ofi_domain *d = OFI_OF(((struct fid_domain *)fid)->mr, ofi_domain, mr);
    struct ofi_slow s = ofi_begin();
    uint64_t begin = st_clock();
    int rc = d->mr.real->regattr(fid, attr, flags, mr);
    if (!rc)
        take_mr(s, *mr, attr->mr_iov, flags & MR_DMABUF ? 0 : attr->iov_count, attr->access, begin);
    ofi_end(s);
    return rc;
}

/* ---- domains ------------------------------------------------------------------------------------------------------------------------- */

#define DOMAIN(call)                                                                                                                   \
    struct ofi_domain *d = OFI_OF(domain->ops, ofi_domain, domain);                                                                    \
    struct ofi_slow s = ofi_begin();                                                                                                   \
    int rc = d->domain.real->call;                                                                                                     \
    bool take = !rc && s.mine

static int domain_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context)
{
    DOMAIN(av_open(domain, attr, av, context));
    struct ofi_record *r = take ? ofi_new(FI_CLASS_AV, sizeof(struct ofi_av), &(*av)->fid, av_tables) : NULL;
    if (r) {
        ((struct ofi_av *)r)->context_bits = attr && attr->rx_ctx_bits > 0 && attr->rx_ctx_bits < 64 ? (unsigned)attr->rx_ctx_bits : 0;
        av_tables(r, true);
    }
    ofi_end(s);
    return rc;
}

static int domain_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context)
{
    DOMAIN(cq_open(domain, attr, cq, context));
    if (take)
        ofi_take_cq(*cq, attr);
    ofi_end(s);
    return rc;
}

static int domain_cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context)
{
    DOMAIN(cntr_open(domain, attr, cntr, context));
    if (take)
        ofi_take_counter(*cntr);
    ofi_end(s);
    return rc;
}

static int domain_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
    DOMAIN(endpoint(domain, info, ep, context));
    if (take)
        ofi_take_endpoint(*ep, info, FI_CLASS_EP);
    ofi_end(s);
    return rc;
}

static int domain_endpoint2(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, uint64_t flags, void *context)
{
    DOMAIN(endpoint2(domain, info, ep, flags, context));
    if (take)
        ofi_take_endpoint(*ep, info, FI_CLASS_EP);
    ofi_end(s);
    return rc;
}

static int domain_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
    DOMAIN(scalable_ep(domain, info, ep, context));
    if (take)
        ofi_take_endpoint(*ep, info, FI_CLASS_SEP);
    ofi_end(s);
    return rc;
}

static int domain_srx_ctx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **ep, void *context)
{
    DOMAIN(srx_ctx(domain, attr, ep, context));
    if (take) {
        struct fi_info info = {.rx_attr = attr, .caps = attr ? attr->caps : 0};
        ofi_take_endpoint(*ep, &info, FI_CLASS_SRX_CTX);
    }
    ofi_end(s);
    return rc;
}

static const struct ofi_hook domain_hooks[] = {
    OFI_HOOK(fi_ops_domain, av_open, domain_av_open),         OFI_HOOK(fi_ops_domain, cq_open, domain_cq_open),
    OFI_HOOK(fi_ops_domain, endpoint, domain_endpoint),       OFI_HOOK(fi_ops_domain, scalable_ep, domain_scalable_ep),
    OFI_HOOK(fi_ops_domain, cntr_open, domain_cntr_open),     OFI_HOOK(fi_ops_domain, srx_ctx, domain_srx_ctx),
    OFI_HOOK(fi_ops_domain, endpoint2, domain_endpoint2),
};
static const struct ofi_hook mr_hooks[] = {
    OFI_HOOK(fi_ops_mr, reg, mr_reg), OFI_HOOK(fi_ops_mr, regv, mr_regv), OFI_HOOK(fi_ops_mr, regattr, mr_regattr),
};

static void domain_tables(struct ofi_record *r, bool ours)
{
    struct ofi_domain *d = (struct ofi_domain *)r;
    struct fid_domain *domain = (struct fid_domain *)r->fid;
    if (ours) {
        OFI_PATCH(r->ops, domain->fid.ops, close_hooks);
        OFI_PATCH(d->domain, domain->ops, domain_hooks);
        OFI_PATCH(d->mr, domain->mr, mr_hooks);
    } else {
        OFI_RESTORE(r->ops, domain->fid.ops);
        OFI_RESTORE(d->domain, domain->ops);
        OFI_RESTORE(d->mr, domain->mr);
    }
}

static void take_domain(struct fid_domain *domain)
{
    if (ofi_record_of(&domain->fid))
        return;
    struct ofi_record *r = ofi_new(FI_CLASS_DOMAIN, sizeof(struct ofi_domain), &domain->fid, domain_tables);
    if (r)
        domain_tables(r, true);
}
