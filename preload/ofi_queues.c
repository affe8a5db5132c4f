/* Provider libfabric: hooks of completion queues and counters. */
#include "ofi.h"

#include <errno.h>

/* ---- completion queues --------------------------------------------------------------------------------------------------------------- */

struct st_object *ofi_define_cq(struct ofi_cq *q)
{
    int saved = errno;
    ofi_define_version();
    struct st_object *o = st_object_new(ST_KIND_OFI_CQ, (uintptr_t)q);
    if (o->id)
        st_def_ofi_cq(o->id, q->format, q->entries);
    errno = saved;
    return o;
}

static const uint8_t entry_bytes[] = {
    [FI_CQ_FORMAT_UNSPEC] = sizeof(struct fi_cq_entry),     [FI_CQ_FORMAT_CONTEXT] = sizeof(struct fi_cq_entry),
    [FI_CQ_FORMAT_MSG] = sizeof(struct fi_cq_msg_entry),    [FI_CQ_FORMAT_DATA] = sizeof(struct fi_cq_data_entry),
    [FI_CQ_FORMAT_TAGGED] = sizeof(struct fi_cq_tagged_entry),
};
#define FORMATS (sizeof entry_bytes / sizeof *entry_bytes)

/* Which fields of an entry mean something, by its flags: the rest may be anything. */
#define SAYS_BYTES (FI_RECV | FI_REMOTE_WRITE | FI_MULTI_RECV)

/* entries: of the queue's format, each of whose structures begins like the next longer one. */
static void completions(struct st_thread *t, uint64_t now, struct ofi_cq *q, const void *entries, ssize_t n, const fi_addr_t *source)
{
    struct st_object *o = ofi_cq(q);
    unsigned format = q->format < FORMATS ? q->format : 0;
    st_polls_end(t, o);
    for (ssize_t i = 0; i < n; i++) {
        const struct fi_cq_tagged_entry *x = (const void *)((const char *)entries + i * entry_bytes[format]);
        uint64_t flags = format >= FI_CQ_FORMAT_MSG ? x->flags : 0, bytes = flags & SAYS_BYTES ? x->len : 0, data = 0, tag = 0;
        if (format >= FI_CQ_FORMAT_DATA && flags & FI_REMOTE_CQ_DATA)
            data = x->data;
        if (format == FI_CQ_FORMAT_TAGGED && (flags & (FI_TAGGED | FI_RECV)) == (FI_TAGGED | FI_RECV))
            tag = x->tag;
        if (st_mode == ST_FULL)
            st_rec_ofi_completion(t, now, ST_EV_OFI_COMPLETION, o, (uintptr_t)x->op_context, flags, bytes, data, tag, source ? source[i] + 1 : 0);
        st_count(t, o, ST_EV_OFI_COMPLETION, bytes, !i);
    }
}

/* After a look for completions returned rc; begin: of a look that may have waited. */
static void looked(struct st_thread *t, struct ofi_cq *q, const void *entries, ssize_t rc, const fi_addr_t *source)
{
    if (rc > 0)
        completions(t, st_clock(), q, entries, rc, source);
    else if ((rc == -FI_EAGAIN || rc == -FI_ETIMEDOUT || rc == -FI_ECANCELED) && st_mode == ST_FULL)
        st_polls_empty(t, ofi_cq(q), st_clock());
    st_leave(t, ST_LAYER_OFI);
}

static ssize_t cq_read(struct fid_cq *cq, void *buf, size_t count)
{
    struct ofi_cq *q = OFI_OF(cq->ops, ofi_cq, cq);
    struct st_thread *t = st_enter(ST_LAYER_OFI);
    ssize_t rc = q->cq.real->read(cq, buf, count);
    if (t)
        looked(t, q, buf, rc, NULL);
    return rc;
}

static ssize_t cq_readfrom(struct fid_cq *cq, void *buf, size_t count, fi_addr_t *source)
{
    struct ofi_cq *q = OFI_OF(cq->ops, ofi_cq, cq);
    struct st_thread *t = st_enter(ST_LAYER_OFI);
    ssize_t rc = q->cq.real->readfrom(cq, buf, count, source);
    if (t)
        looked(t, q, buf, rc, source);
    return rc;
}

static ssize_t cq_sread(struct fid_cq *cq, void *buf, size_t count, const void *cond, int timeout)
{
    struct ofi_cq *q = OFI_OF(cq->ops, ofi_cq, cq);
    struct st_thread *t = st_enter(ST_LAYER_OFI);
    ssize_t rc = q->cq.real->sread(cq, buf, count, cond, timeout);
    if (t)
        looked(t, q, buf, rc, NULL);
    return rc;
}

static ssize_t cq_sreadfrom(struct fid_cq *cq, void *buf, size_t count, fi_addr_t *source, const void *cond, int timeout)
{
    struct ofi_cq *q = OFI_OF(cq->ops, ofi_cq, cq);
    struct st_thread *t = st_enter(ST_LAYER_OFI);
    ssize_t rc = q->cq.real->sreadfrom(cq, buf, count, source, cond, timeout);
    if (t)
        looked(t, q, buf, rc, source);
    return rc;
}

/* Only the fields that every version of the entry has. */
static ssize_t cq_readerr(struct fid_cq *cq, struct fi_cq_err_entry *buf, uint64_t flags)
{
    struct ofi_cq *q = OFI_OF(cq->ops, ofi_cq, cq);
    struct st_thread *t = st_enter(ST_LAYER_OFI);
    ssize_t rc = q->cq.real->readerr(cq, buf, flags);
    if (t) {
        if (rc > 0 && !(flags & FI_PEEK)) {
            struct st_object *o = ofi_cq(q);
            uint64_t bytes = buf->flags & FI_RECV ? buf->len : 0;
            unsigned err = (unsigned)(buf->err < 0 ? -buf->err : buf->err); /* some providers have the sign wrong */
            st_polls_end(t, o);
            if (st_mode == ST_FULL)
                st_rec_ofi_error(t, st_clock(), ST_EV_OFI_ERROR, o, (uintptr_t)buf->op_context, buf->flags, bytes,
                                 buf->flags & FI_REMOTE_CQ_DATA ? buf->data : 0, buf->flags & FI_TAGGED ? buf->tag : 0,
                                 err == FI_ETRUNC ? buf->olen : 0, err, buf->prov_errno);
            st_count(t, o, ST_EV_OFI_ERROR, bytes, 1);
        }
        st_leave(t, ST_LAYER_OFI);
    }
    return rc;
}

static const struct ofi_hook close_hooks[] = {OFI_CLOSE};
static const struct ofi_hook cq_hooks[] = {
    OFI_HOOK(fi_ops_cq, read, cq_read),   OFI_HOOK(fi_ops_cq, readfrom, cq_readfrom),   OFI_HOOK(fi_ops_cq, readerr, cq_readerr),
    OFI_HOOK(fi_ops_cq, sread, cq_sread), OFI_HOOK(fi_ops_cq, sreadfrom, cq_sreadfrom),
};

static void cq_tables(struct ofi_record *r, bool ours)
{
    struct ofi_cq *q = (struct ofi_cq *)r;
    struct fid_cq *cq = (struct fid_cq *)r->fid;
    if (ours) {
        OFI_PATCH(r->ops, cq->fid.ops, close_hooks);
        OFI_PATCH(q->cq, cq->ops, cq_hooks);
    } else {
        OFI_RESTORE(r->ops, cq->fid.ops);
        OFI_RESTORE(q->cq, cq->ops);
    }
}

void ofi_take_cq(struct fid_cq *cq, const struct fi_cq_attr *attr)
{
    struct ofi_cq *q = (struct ofi_cq *)ofi_new(FI_CLASS_CQ, sizeof *q, &cq->fid, cq_tables);
    if (!q)
        return;
    q->format = attr ? attr->format : FI_CQ_FORMAT_UNSPEC; /* a provider that chooses says what */
    q->entries = attr ? (uint32_t)attr->size : 0;
    cq_tables(&q->r, true);
}

/* ---- counters --------------------------------------------------------------------------------------------------------------------------- */

struct st_object *ofi_define_counter(struct ofi_counter *c)
{
    int saved = errno;
    ofi_define_version();
    struct st_object *o = st_object_new(ST_KIND_OFI_COUNTER, (uintptr_t)c);
    if (o->id)
        st_def_ofi_counter(o->id);
    errno = saved;
    return o;
}

/* A value that was learned: recorded when it is new. */
static void learned(struct st_thread *t, struct ofi_counter *c, uint64_t value, unsigned kind)
{
    struct st_object *o = ofi_counter(c);
    uint64_t now = st_clock();
    if (__atomic_exchange_n(&c->seen[kind], value, __ATOMIC_RELAXED) == value) {
        st_polls_empty(t, o, now);
        return;
    }
    st_polls_end(t, o);
    st_rec_ofi_counter(t, now, ST_EV_OFI_COUNTER, o, value, kind);
}

static uint64_t cntr_read(struct fid_cntr *cntr)
{
    struct ofi_counter *c = OFI_OF(cntr->ops, ofi_counter, cntr);
    struct st_thread *t = st_enter(ST_LAYER_OFI);
    uint64_t value = c->cntr.real->read(cntr);
    if (t) {
        if (st_mode == ST_FULL)
            learned(t, c, value, ST_OFI_COUNTER_KIND_COMPLETED);
        st_leave(t, ST_LAYER_OFI);
    }
    return value;
}

static uint64_t cntr_readerr(struct fid_cntr *cntr)
{
    struct ofi_counter *c = OFI_OF(cntr->ops, ofi_counter, cntr);
    struct st_thread *t = st_enter(ST_LAYER_OFI);
    uint64_t value = c->cntr.real->readerr(cntr);
    if (t) {
        if (st_mode == ST_FULL)
            learned(t, c, value, ST_OFI_COUNTER_KIND_FAILED);
        st_leave(t, ST_LAYER_OFI);
    }
    return value;
}

/* A wait that succeeded: the counter has at least the threshold. */
static int cntr_wait(struct fid_cntr *cntr, uint64_t threshold, int timeout)
{
    struct ofi_counter *c = OFI_OF(cntr->ops, ofi_counter, cntr);
    struct st_thread *t = st_enter(ST_LAYER_OFI);
    int rc = c->cntr.real->wait(cntr, threshold, timeout);
    if (t) {
        if (st_mode == ST_FULL && !rc && threshold > __atomic_load_n(&c->seen[0], __ATOMIC_RELAXED))
            learned(t, c, threshold, ST_OFI_COUNTER_KIND_COMPLETED);
        st_leave(t, ST_LAYER_OFI);
    }
    return rc;
}

static void changed(struct st_thread *t, struct ofi_counter *c, uint64_t value, unsigned kind, int rc)
{
    if (!rc && st_mode == ST_FULL)
        st_rec_ofi_counter(t, st_clock(), ST_EV_OFI_COUNTER, ofi_counter(c), value, kind);
    st_leave(t, ST_LAYER_OFI);
}

static int cntr_set(struct fid_cntr *cntr, uint64_t value)
{
    struct ofi_counter *c = OFI_OF(cntr->ops, ofi_counter, cntr);
    struct st_thread *t = st_enter(ST_LAYER_OFI);
    int rc = c->cntr.real->set(cntr, value);
    if (!rc)
        __atomic_store_n(&c->seen[0], value, __ATOMIC_RELAXED);
    if (t)
        changed(t, c, value, ST_OFI_COUNTER_KIND_SET, rc);
    return rc;
}

static int cntr_add(struct fid_cntr *cntr, uint64_t value)
{
    struct ofi_counter *c = OFI_OF(cntr->ops, ofi_counter, cntr);
    struct st_thread *t = st_enter(ST_LAYER_OFI);
    int rc = c->cntr.real->add(cntr, value);
    if (t)
        changed(t, c, value, ST_OFI_COUNTER_KIND_ADDED, rc);
    return rc;
}

static const struct ofi_hook cntr_hooks[] = {
    OFI_HOOK(fi_ops_cntr, read, cntr_read), OFI_HOOK(fi_ops_cntr, readerr, cntr_readerr), OFI_HOOK(fi_ops_cntr, wait, cntr_wait),
    OFI_HOOK(fi_ops_cntr, set, cntr_set),   OFI_HOOK(fi_ops_cntr, add, cntr_add),
};

static void cntr_tables(struct ofi_record *r, bool ours)
{
    struct ofi_counter *c = (struct ofi_counter *)r;
    struct fid_cntr *cntr = (struct fid_cntr *)r->fid;
    if (ours) {
        OFI_PATCH(r->ops, cntr->fid.ops, close_hooks);
        OFI_PATCH(c->cntr, cntr->ops, cntr_hooks);
    } else {
        OFI_RESTORE(r->ops, cntr->fid.ops);
        OFI_RESTORE(c->cntr, cntr->ops);
    }
}

void ofi_take_counter(struct fid_cntr *cntr)
{
    struct ofi_counter *c = (struct ofi_counter *)ofi_new(FI_CLASS_CNTR, sizeof *c, &cntr->fid, cntr_tables);
    if (c)
        cntr_tables(&c->r, true);
}
