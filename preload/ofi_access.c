/* Provider libfabric: hooks of remote memory access and atomics. */
#include "ofi.h"

/* The rest of a hook, from the return of its real function on. */
OFI_INLINE ssize_t accessed(struct ofi_call *c, ssize_t rc)
{
    if (st_unlikely(!c->t))
        return rc;
    if (st_likely(!rc)) {
        struct st_object *o = ofi_peer(c->e, c->address);
        uint64_t kind = c->event == ST_EV_OFI_READ || c->atomic > ST_OFI_ATOMIC_FORM_WRITE ? FI_READ : FI_WRITE;
        if (st_mode == ST_FULL)
            st_rec_ofi_access(c->t, c->begin, c->event, o, c->bytes, c->context, c->remote, st_hash_key(c->key), c->data, c->flags, c->local,
                              c->atomic, c->datatype, c->op, ofi_result(c->e, c->api, c->flags, kind), c->api, st_clock() - c->begin);
        ofi_record_call(c, o);
    }
    st_leave(c->t, ST_LAYER_OFI);
    return rc;
}

/* What every call fills in. */
#define FILL(event_, api_, address_, bytes_, context_, remote_, key_, data_, flags_, local_)                                           \
    c.event = (event_), c.api = (api_), c.address = (address_), c.bytes = (bytes_), c.context = (uintptr_t)(context_),                  \
    c.remote = (remote_), c.key = (key_), c.data = (data_), c.flags = (flags_), c.local = (uint64_t)(uintptr_t)(local_),                \
    c.atomic = c.datatype = c.op = 0

/* ---- rma ----------------------------------------------------------------------------------------------------------------------------- */

static ssize_t rma_read(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t addr, uint64_t key, void *context)
{
    OFI_CALL(rma);
    FILL(ST_EV_OFI_READ, ST_OFI_API_PLAIN, from, len, context, addr, key, 0, c.e->tx_flags, buf);
    return accessed(&c, c.e->rma.real->read(fid, buf, len, desc, from, addr, key, context));
}

static ssize_t rma_readv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t from, uint64_t addr, uint64_t key, void *context)
{
    OFI_CALL(rma);
    FILL(ST_EV_OFI_READ, ST_OFI_API_VECTOR, from, ofi_iov_bytes(iov, count), context, addr, key, 0, c.e->tx_flags, ofi_iov_first(iov, count));
    return accessed(&c, c.e->rma.real->readv(fid, iov, desc, count, from, addr, key, context));
}

static ssize_t rma_readmsg(struct fid_ep *fid, const struct fi_msg_rma *m, uint64_t flags)
{
    OFI_CALL(rma);
    FILL(ST_EV_OFI_READ, ST_OFI_API_MSG, m->addr, ofi_iov_bytes(m->msg_iov, m->iov_count), m->context, m->rma_iov_count ? m->rma_iov->addr : 0,
         m->rma_iov_count ? m->rma_iov->key : 0, 0, flags, ofi_iov_first(m->msg_iov, m->iov_count));
    return accessed(&c, c.e->rma.real->readmsg(fid, m, flags));
}

static ssize_t rma_write(struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t addr, uint64_t key, void *context)
{
    OFI_CALL(rma);
    FILL(ST_EV_OFI_WRITE, ST_OFI_API_PLAIN, to, len, context, addr, key, 0, c.e->tx_flags, buf);
    return accessed(&c, c.e->rma.real->write(fid, buf, len, desc, to, addr, key, context));
}

static ssize_t rma_writev(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t to, uint64_t addr, uint64_t key, void *context)
{
    OFI_CALL(rma);
    FILL(ST_EV_OFI_WRITE, ST_OFI_API_VECTOR, to, ofi_iov_bytes(iov, count), context, addr, key, 0, c.e->tx_flags, ofi_iov_first(iov, count));
    return accessed(&c, c.e->rma.real->writev(fid, iov, desc, count, to, addr, key, context));
}

static ssize_t rma_writemsg(struct fid_ep *fid, const struct fi_msg_rma *m, uint64_t flags)
{
    OFI_CALL(rma);
    FILL(ST_EV_OFI_WRITE, ST_OFI_API_MSG, m->addr, ofi_iov_bytes(m->msg_iov, m->iov_count), m->context, m->rma_iov_count ? m->rma_iov->addr : 0,
         m->rma_iov_count ? m->rma_iov->key : 0, flags & FI_REMOTE_CQ_DATA ? m->data : 0, flags, ofi_iov_first(m->msg_iov, m->iov_count));
    return accessed(&c, c.e->rma.real->writemsg(fid, m, flags));
}

static ssize_t rma_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t to, uint64_t addr, uint64_t key)
{
    OFI_CALL(rma);
    FILL(ST_EV_OFI_WRITE, ST_OFI_API_INJECT, to, len, 0, addr, key, 0, FI_INJECT, buf);
    return accessed(&c, c.e->rma.real->inject(fid, buf, len, to, addr, key));
}

static ssize_t rma_writedata(struct fid_ep *fid, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t to, uint64_t addr, uint64_t key, void *context)
{
    OFI_CALL(rma);
    FILL(ST_EV_OFI_WRITE, ST_OFI_API_DATA, to, len, context, addr, key, data, c.e->tx_flags | FI_REMOTE_CQ_DATA, buf);
    return accessed(&c, c.e->rma.real->writedata(fid, buf, len, desc, data, to, addr, key, context));
}

static ssize_t rma_injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data, fi_addr_t to, uint64_t addr, uint64_t key)
{
    OFI_CALL(rma);
    FILL(ST_EV_OFI_WRITE, ST_OFI_API_INJECTDATA, to, len, 0, addr, key, data, FI_INJECT | FI_REMOTE_CQ_DATA, buf);
    return accessed(&c, c.e->rma.real->injectdata(fid, buf, len, data, to, addr, key));
}

const struct ofi_hook ofi_rma_hooks[9] = {
    OFI_HOOK(fi_ops_rma, read, rma_read),       OFI_HOOK(fi_ops_rma, readv, rma_readv),         OFI_HOOK(fi_ops_rma, readmsg, rma_readmsg),
    OFI_HOOK(fi_ops_rma, write, rma_write),     OFI_HOOK(fi_ops_rma, writev, rma_writev),       OFI_HOOK(fi_ops_rma, writemsg, rma_writemsg),
    OFI_HOOK(fi_ops_rma, inject, rma_inject),   OFI_HOOK(fi_ops_rma, writedata, rma_writedata), OFI_HOOK(fi_ops_rma, injectdata, rma_injectdata),
};

/* ---- atomic -------------------------------------------------------------------------------------------------------------------------- */

/* Bytes of an element of each enum fi_datatype, the later ones too: 128-bit integers, FLOAT16, BFLOAT16, the two FLOAT8. */
static const uint8_t element_bytes[] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16, sizeof(long double), 2 * sizeof(long double), 16, 16, 2, 2, 1, 1};

OFI_INLINE uint64_t elements(unsigned datatype, size_t count) { return datatype < sizeof element_bytes ? count * element_bytes[datatype] : 0; }

static uint64_t ioc_count(const struct fi_ioc *ioc, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += ioc[i].count;
    return sum;
}

static size_t rma_ioc_count(const struct fi_rma_ioc *ioc, size_t count)
{
    size_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += ioc[i].count;
    return sum;
}

#define ATOMIC(form, api_, address_, count_, context_, remote_, key_, data_, flags_, local_)                                           \
    FILL(ST_EV_OFI_ATOMIC, api_, address_, elements(datatype, count_), context_, remote_, key_, data_, flags_, local_);                 \
    c.atomic = ST_OFI_ATOMIC_FORM_##form, c.datatype = datatype, c.op = op

static ssize_t atomic_write(struct fid_ep *fid, const void *buf, size_t count, void *desc, fi_addr_t to, uint64_t addr, uint64_t key,
                            enum fi_datatype datatype, enum fi_op op, void *context)
{
    OFI_CALL(atomic);
    ATOMIC(WRITE, ST_OFI_API_PLAIN, to, count, context, addr, key, 0, c.e->tx_flags, buf);
    return accessed(&c, c.e->atomic.real->write(fid, buf, count, desc, to, addr, key, datatype, op, context));
}

static ssize_t atomic_writev(struct fid_ep *fid, const struct fi_ioc *ioc, void **desc, size_t count, fi_addr_t to, uint64_t addr, uint64_t key,
                             enum fi_datatype datatype, enum fi_op op, void *context)
{
    OFI_CALL(atomic);
    ATOMIC(WRITE, ST_OFI_API_VECTOR, to, ioc_count(ioc, count), context, addr, key, 0, c.e->tx_flags, count ? ioc->addr : NULL);
    return accessed(&c, c.e->atomic.real->writev(fid, ioc, desc, count, to, addr, key, datatype, op, context));
}

static ssize_t atomic_inject(struct fid_ep *fid, const void *buf, size_t count, fi_addr_t to, uint64_t addr, uint64_t key,
                             enum fi_datatype datatype, enum fi_op op)
{
    OFI_CALL(atomic);
    ATOMIC(WRITE, ST_OFI_API_INJECT, to, count, 0, addr, key, 0, FI_INJECT, buf);
    return accessed(&c, c.e->atomic.real->inject(fid, buf, count, to, addr, key, datatype, op));
}

static ssize_t atomic_readwrite(struct fid_ep *fid, const void *buf, size_t count, void *desc, void *result, void *result_desc, fi_addr_t to,
                                uint64_t addr, uint64_t key, enum fi_datatype datatype, enum fi_op op, void *context)
{
    OFI_CALL(atomic);
    ATOMIC(FETCH, ST_OFI_API_PLAIN, to, count, context, addr, key, 0, c.e->tx_flags, buf);
    return accessed(&c, c.e->atomic.real->readwrite(fid, buf, count, desc, result, result_desc, to, addr, key, datatype, op, context));
}

static ssize_t atomic_readwritev(struct fid_ep *fid, const struct fi_ioc *ioc, void **desc, size_t count, struct fi_ioc *result, void **result_desc,
                                 size_t results, fi_addr_t to, uint64_t addr, uint64_t key, enum fi_datatype datatype, enum fi_op op, void *context)
{
    OFI_CALL(atomic);
    /* a fetch that only reads may come without operands: the results say as much */
    ATOMIC(FETCH, ST_OFI_API_VECTOR, to, ioc_count(result, results), context, addr, key, 0, c.e->tx_flags, ioc && count ? ioc->addr : NULL);
    return accessed(&c, c.e->atomic.real->readwritev(fid, ioc, desc, count, result, result_desc, results, to, addr, key, datatype, op, context));
}

static ssize_t atomic_compwrite(struct fid_ep *fid, const void *buf, size_t count, void *desc, const void *compare, void *compare_desc, void *result,
                                void *result_desc, fi_addr_t to, uint64_t addr, uint64_t key, enum fi_datatype datatype, enum fi_op op, void *context)
{
    OFI_CALL(atomic);
    ATOMIC(COMPARE, ST_OFI_API_PLAIN, to, count, context, addr, key, 0, c.e->tx_flags, buf);
    return accessed(&c, c.e->atomic.real->compwrite(fid, buf, count, desc, compare, compare_desc, result, result_desc, to, addr, key, datatype, op, context));
}

static ssize_t atomic_compwritev(struct fid_ep *fid, const struct fi_ioc *ioc, void **desc, size_t count, const struct fi_ioc *compare, void **compare_desc,
                                 size_t compares, struct fi_ioc *result, void **result_desc, size_t results, fi_addr_t to, uint64_t addr, uint64_t key,
                                 enum fi_datatype datatype, enum fi_op op, void *context)
{
    OFI_CALL(atomic);
    ATOMIC(COMPARE, ST_OFI_API_VECTOR, to, ioc_count(ioc, count), context, addr, key, 0, c.e->tx_flags, count ? ioc->addr : NULL);
    return accessed(&c, c.e->atomic.real->compwritev(fid, ioc, desc, count, compare, compare_desc, compares, result, result_desc, results, to, addr, key, datatype, op, context));
}

/* The msg forms: the remote side says how much. */
#define ATOMIC_MSG(form)                                                                                                               \
    unsigned datatype = m->datatype, op = m->op;                                                                                       \
    ATOMIC(form, ST_OFI_API_MSG, m->addr, rma_ioc_count(m->rma_iov, m->rma_iov_count), m->context, m->rma_iov_count ? m->rma_iov->addr : 0, \
           m->rma_iov_count ? m->rma_iov->key : 0, flags & FI_REMOTE_CQ_DATA ? m->data : 0, flags, m->msg_iov && m->iov_count ? m->msg_iov->addr : NULL)

static ssize_t atomic_writemsg(struct fid_ep *fid, const struct fi_msg_atomic *m, uint64_t flags)
{
    OFI_CALL(atomic);
    ATOMIC_MSG(WRITE);
    return accessed(&c, c.e->atomic.real->writemsg(fid, m, flags));
}

static ssize_t atomic_readwritemsg(struct fid_ep *fid, const struct fi_msg_atomic *m, struct fi_ioc *result, void **result_desc, size_t results, uint64_t flags)
{
    OFI_CALL(atomic);
    ATOMIC_MSG(FETCH);
    return accessed(&c, c.e->atomic.real->readwritemsg(fid, m, result, result_desc, results, flags));
}

static ssize_t atomic_compwritemsg(struct fid_ep *fid, const struct fi_msg_atomic *m, const struct fi_ioc *compare, void **compare_desc, size_t compares,
                                   struct fi_ioc *result, void **result_desc, size_t results, uint64_t flags)
{
    OFI_CALL(atomic);
    ATOMIC_MSG(COMPARE);
    return accessed(&c, c.e->atomic.real->compwritemsg(fid, m, compare, compare_desc, compares, result, result_desc, results, flags));
}

const struct ofi_hook ofi_atomic_hooks[10] = {
    OFI_HOOK(fi_ops_atomic, write, atomic_write),
    OFI_HOOK(fi_ops_atomic, writev, atomic_writev),
    OFI_HOOK(fi_ops_atomic, writemsg, atomic_writemsg),
    OFI_HOOK(fi_ops_atomic, inject, atomic_inject),
    OFI_HOOK(fi_ops_atomic, readwrite, atomic_readwrite),
    OFI_HOOK(fi_ops_atomic, readwritev, atomic_readwritev),
    OFI_HOOK(fi_ops_atomic, readwritemsg, atomic_readwritemsg),
    OFI_HOOK(fi_ops_atomic, compwrite, atomic_compwrite),
    OFI_HOOK(fi_ops_atomic, compwritev, atomic_compwritev),
    OFI_HOOK(fi_ops_atomic, compwritemsg, atomic_compwritemsg),
};
