/* Provider libfabric: hooks of messages, tagged and not. */
#include "ofi.h"

/* The rest of a hook, from the return of its real function on. */
OFI_INLINE ssize_t sent(struct ofi_call *c, ssize_t rc)
{
    if (st_unlikely(!c->t))
        return rc;
    if (st_likely(!rc)) {
        struct st_object *o = ofi_peer(c->e, c->address);
        if (st_mode == ST_FULL)
            st_rec_ofi_message(c->t, c->begin, c->event, o, c->bytes, c->context, c->tag, 0, 0, c->data, c->flags, c->local,
                               ofi_result(c->e, c->api, c->flags, FI_SEND), c->api, st_clock() - c->begin);
        ofi_record_call(c, o);
    }
    st_leave(c->t, ST_LAYER_OFI);
    return rc;
}

/* A look for a message is no receive: it is recorded, but counts as nothing. */
static void peeked(struct ofi_call *c, struct st_object *o, uint32_t source)
{
    if (st_mode == ST_FULL)
        st_rec_ofi_message(c->t, c->begin, ST_EV_OFI_PEEK, o, c->bytes, c->context, c->tag, c->ignore, source, 0, c->flags, c->local,
                           ofi_result(c->e, c->api, c->flags, FI_RECV), c->api, st_clock() - c->begin);
}

OFI_INLINE ssize_t receiving(struct ofi_call *c, ssize_t rc)
{
    if (st_unlikely(!c->t))
        return rc;
    if (st_likely(!rc)) {
        struct st_object *o = ofi_endpoint(c->e);
        uint32_t source = c->e->directed && c->address != FI_ADDR_UNSPEC && !c->e->connected ? ofi_peer(c->e, c->address)->id : 0;
        if (st_unlikely(c->flags & FI_PEEK && c->api == ST_OFI_API_MSG)) {
            peeked(c, o, source);
        } else {
            if (st_mode == ST_FULL)
                st_rec_ofi_message(c->t, c->begin, c->event, o, c->bytes, c->context, c->tag, c->ignore, source, 0, c->flags, c->local,
                                   ofi_result(c->e, c->api, c->flags, FI_RECV), c->api, st_clock() - c->begin);
            ofi_record_call(c, o);
        }
    }
    st_leave(c->t, ST_LAYER_OFI);
    return rc;
}

/* What every call fills in. */
#define FILL(event_, api_, address_, bytes_, context_, tag_, ignore_, data_, flags_, local_)                                           \
    c.event = (event_), c.api = (api_), c.address = (address_), c.bytes = (bytes_), c.context = (uintptr_t)(context_), c.tag = (tag_),  \
    c.ignore = (ignore_), c.data = (data_), c.flags = (flags_), c.local = (uint64_t)(uintptr_t)(local_)

/* ---- msg ----------------------------------------------------------------------------------------------------------------------------- */

static ssize_t msg_send(struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t to, void *context)
{
    OFI_CALL(msg);
    FILL(ST_EV_OFI_SEND, ST_OFI_API_PLAIN, to, len, context, 0, 0, 0, c.e->tx_flags, buf);
    return sent(&c, c.e->msg.real->send(fid, buf, len, desc, to, context));
}

static ssize_t msg_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t to, void *context)
{
    OFI_CALL(msg);
    FILL(ST_EV_OFI_SEND, ST_OFI_API_VECTOR, to, ofi_iov_bytes(iov, count), context, 0, 0, 0, c.e->tx_flags, ofi_iov_first(iov, count));
    return sent(&c, c.e->msg.real->sendv(fid, iov, desc, count, to, context));
}

static ssize_t msg_sendmsg(struct fid_ep *fid, const struct fi_msg *m, uint64_t flags)
{
    OFI_CALL(msg);
    FILL(ST_EV_OFI_SEND, ST_OFI_API_MSG, m->addr, ofi_iov_bytes(m->msg_iov, m->iov_count), m->context, 0, 0,
         flags & FI_REMOTE_CQ_DATA ? m->data : 0, flags, ofi_iov_first(m->msg_iov, m->iov_count));
    return sent(&c, c.e->msg.real->sendmsg(fid, m, flags));
}

static ssize_t msg_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t to)
{
    OFI_CALL(msg);
    FILL(ST_EV_OFI_SEND, ST_OFI_API_INJECT, to, len, 0, 0, 0, 0, FI_INJECT, buf);
    return sent(&c, c.e->msg.real->inject(fid, buf, len, to));
}

static ssize_t msg_senddata(struct fid_ep *fid, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t to, void *context)
{
    OFI_CALL(msg);
    FILL(ST_EV_OFI_SEND, ST_OFI_API_DATA, to, len, context, 0, 0, data, c.e->tx_flags | FI_REMOTE_CQ_DATA, buf);
    return sent(&c, c.e->msg.real->senddata(fid, buf, len, desc, data, to, context));
}

static ssize_t msg_injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data, fi_addr_t to)
{
    OFI_CALL(msg);
    FILL(ST_EV_OFI_SEND, ST_OFI_API_INJECTDATA, to, len, 0, 0, 0, data, FI_INJECT | FI_REMOTE_CQ_DATA, buf);
    return sent(&c, c.e->msg.real->injectdata(fid, buf, len, data, to));
}

static ssize_t msg_recv(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t from, void *context)
{
    OFI_CALL(msg);
    FILL(ST_EV_OFI_RECV, ST_OFI_API_PLAIN, from, len, context, 0, 0, 0, c.e->rx_flags, buf);
    return receiving(&c, c.e->msg.real->recv(fid, buf, len, desc, from, context));
}

static ssize_t msg_recvv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t from, void *context)
{
    OFI_CALL(msg);
    FILL(ST_EV_OFI_RECV, ST_OFI_API_VECTOR, from, ofi_iov_bytes(iov, count), context, 0, 0, 0, c.e->rx_flags, ofi_iov_first(iov, count));
    return receiving(&c, c.e->msg.real->recvv(fid, iov, desc, count, from, context));
}

static ssize_t msg_recvmsg(struct fid_ep *fid, const struct fi_msg *m, uint64_t flags)
{
    OFI_CALL(msg);
    FILL(ST_EV_OFI_RECV, ST_OFI_API_MSG, m->addr, ofi_iov_bytes(m->msg_iov, m->iov_count), m->context, 0, 0, 0, flags,
         ofi_iov_first(m->msg_iov, m->iov_count));
    return receiving(&c, c.e->msg.real->recvmsg(fid, m, flags));
}

const struct ofi_hook ofi_msg_hooks[9] = {
    OFI_HOOK(fi_ops_msg, send, msg_send),         OFI_HOOK(fi_ops_msg, sendv, msg_sendv),           OFI_HOOK(fi_ops_msg, sendmsg, msg_sendmsg),
    OFI_HOOK(fi_ops_msg, inject, msg_inject),     OFI_HOOK(fi_ops_msg, senddata, msg_senddata),     OFI_HOOK(fi_ops_msg, injectdata, msg_injectdata),
    OFI_HOOK(fi_ops_msg, recv, msg_recv),         OFI_HOOK(fi_ops_msg, recvv, msg_recvv),           OFI_HOOK(fi_ops_msg, recvmsg, msg_recvmsg),
};

/* ---- tagged -------------------------------------------------------------------------------------------------------------------------- */

static ssize_t tagged_send(struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t tag, void *context)
{
    OFI_CALL(tagged);
    FILL(ST_EV_OFI_TAGGED_SEND, ST_OFI_API_PLAIN, to, len, context, tag, 0, 0, c.e->tx_flags, buf);
    return sent(&c, c.e->tagged.real->send(fid, buf, len, desc, to, tag, context));
}

static ssize_t tagged_sendv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t to, uint64_t tag, void *context)
{
    OFI_CALL(tagged);
    FILL(ST_EV_OFI_TAGGED_SEND, ST_OFI_API_VECTOR, to, ofi_iov_bytes(iov, count), context, tag, 0, 0, c.e->tx_flags, ofi_iov_first(iov, count));
    return sent(&c, c.e->tagged.real->sendv(fid, iov, desc, count, to, tag, context));
}

static ssize_t tagged_sendmsg(struct fid_ep *fid, const struct fi_msg_tagged *m, uint64_t flags)
{
    OFI_CALL(tagged);
    FILL(ST_EV_OFI_TAGGED_SEND, ST_OFI_API_MSG, m->addr, ofi_iov_bytes(m->msg_iov, m->iov_count), m->context, m->tag, 0,
         flags & FI_REMOTE_CQ_DATA ? m->data : 0, flags, ofi_iov_first(m->msg_iov, m->iov_count));
    return sent(&c, c.e->tagged.real->sendmsg(fid, m, flags));
}

static ssize_t tagged_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t to, uint64_t tag)
{
    OFI_CALL(tagged);
    FILL(ST_EV_OFI_TAGGED_SEND, ST_OFI_API_INJECT, to, len, 0, tag, 0, 0, FI_INJECT, buf);
    return sent(&c, c.e->tagged.real->inject(fid, buf, len, to, tag));
}

static ssize_t tagged_senddata(struct fid_ep *fid, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t to, uint64_t tag, void *context)
{
    OFI_CALL(tagged);
    FILL(ST_EV_OFI_TAGGED_SEND, ST_OFI_API_DATA, to, len, context, tag, 0, data, c.e->tx_flags | FI_REMOTE_CQ_DATA, buf);
    return sent(&c, c.e->tagged.real->senddata(fid, buf, len, desc, data, to, tag, context));
}

static ssize_t tagged_injectdata(struct fid_ep *fid, const void *buf, size_t len, uint64_t data, fi_addr_t to, uint64_t tag)
{
    OFI_CALL(tagged);
    FILL(ST_EV_OFI_TAGGED_SEND, ST_OFI_API_INJECTDATA, to, len, 0, tag, 0, data, FI_INJECT | FI_REMOTE_CQ_DATA, buf);
    return sent(&c, c.e->tagged.real->injectdata(fid, buf, len, data, to, tag));
}

static ssize_t tagged_recv(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t tag, uint64_t ignore, void *context)
{
    OFI_CALL(tagged);
    FILL(ST_EV_OFI_TAGGED_RECV, ST_OFI_API_PLAIN, from, len, context, tag, ignore, 0, c.e->rx_flags, buf);
    return receiving(&c, c.e->tagged.real->recv(fid, buf, len, desc, from, tag, ignore, context));
}

static ssize_t tagged_recvv(struct fid_ep *fid, const struct iovec *iov, void **desc, size_t count, fi_addr_t from, uint64_t tag, uint64_t ignore, void *context)
{
    OFI_CALL(tagged);
    FILL(ST_EV_OFI_TAGGED_RECV, ST_OFI_API_VECTOR, from, ofi_iov_bytes(iov, count), context, tag, ignore, 0, c.e->rx_flags, ofi_iov_first(iov, count));
    return receiving(&c, c.e->tagged.real->recvv(fid, iov, desc, count, from, tag, ignore, context));
}

static ssize_t tagged_recvmsg(struct fid_ep *fid, const struct fi_msg_tagged *m, uint64_t flags)
{
    OFI_CALL(tagged);
    FILL(ST_EV_OFI_TAGGED_RECV, ST_OFI_API_MSG, m->addr, ofi_iov_bytes(m->msg_iov, m->iov_count), m->context, m->tag, m->ignore, 0, flags,
         ofi_iov_first(m->msg_iov, m->iov_count));
    return receiving(&c, c.e->tagged.real->recvmsg(fid, m, flags));
}

const struct ofi_hook ofi_tagged_hooks[9] = {
    OFI_HOOK(fi_ops_tagged, send, tagged_send),         OFI_HOOK(fi_ops_tagged, sendv, tagged_sendv),
    OFI_HOOK(fi_ops_tagged, sendmsg, tagged_sendmsg),   OFI_HOOK(fi_ops_tagged, inject, tagged_inject),
    OFI_HOOK(fi_ops_tagged, senddata, tagged_senddata), OFI_HOOK(fi_ops_tagged, injectdata, tagged_injectdata),
    OFI_HOOK(fi_ops_tagged, recv, tagged_recv),         OFI_HOOK(fi_ops_tagged, recvv, tagged_recvv),
    OFI_HOOK(fi_ops_tagged, recvmsg, tagged_recvmsg),
};
