/* Provider libfabric: endpoints and contexts: their tables, bindings, names, and ways to peers. */
#define _GNU_SOURCE
#include "ofi.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct ofi_ep *endpoints; /* all, for what concerns every endpoint of an address vector */

#define NAME_BYTES 256
#define FI_TAGGED_DIRECTED (1ull << 45) /* FI_TAGGED_DIRECTED_RECV, since 2.0 */

/* ---- definitions ----------------------------------------------------------------------------------------------------------------- */

/* st_object.user of endpoints: USER_PEERS the first of the objects of their ways; of a way: USER_NEXT the next one. */
enum { USER_PEERS = 0, USER_NEXT = 0, USER_ADDRESS = 1 };

static size_t own_name(const struct fid_ep *ep, uint8_t *name)
{
    size_t size = NAME_BYTES;
    if (!FI_CHECK_OP(ep->cm, struct fi_ops_cm, getname) || ep->cm->getname((fid_t)&ep->fid, name, &size))
        return 0;
    return size < NAME_BYTES ? size : NAME_BYTES;
}

/* What peers know the endpoint by, and a connected one's peer, as far as it is known now. */
static void define_name(struct ofi_ep *e, const struct st_object *o)
{
    struct fid_ep *ep = (struct fid_ep *)e->r.fid;
    uint8_t name[NAME_BYTES], peer[NAME_BYTES];
    size_t peer_size = 0;
    if ((e->r.class != FI_CLASS_EP && e->r.class != FI_CLASS_SEP) || (e->connected && !e->named))
        return;
    size_t size = own_name(ep, name);
    if (e->connected && FI_CHECK_OP(ep->cm, struct fi_ops_cm, getpeer)) {
        peer_size = NAME_BYTES;
        if (ep->cm->getpeer(ep, peer, &peer_size))
            peer_size = 0;
        if (peer_size > NAME_BYTES)
            peer_size = NAME_BYTES;
    }
    if (!size && !peer_size)
        return;
    st_def_ofi_name(o->id, name, size, peer, peer_size);
    e->named = true;
}

/* A scalable endpoint is defined with its first context, and has no name before it is enabled itself. */
static void define_late_name(struct ofi_ep *e, const struct st_object *o)
{
    if (!e->connected && !e->named && o->id)
        define_name(e, o);
}

static void define_bind(const struct st_object *o, unsigned i, const struct ofi_ep *e)
{
    struct ofi_record *to = e->binds[i].to;
    uint32_t id = 0;
    if (to->class == FI_CLASS_CQ)
        id = ofi_cq((struct ofi_cq *)to)->id;
    else if (to->class == FI_CLASS_CNTR)
        id = ofi_counter((struct ofi_counter *)to)->id;
    else
        id = ofi_endpoint((struct ofi_ep *)to)->id;
    st_def_ofi_bind(o->id, id, e->binds[i].flags);
}

struct st_object *ofi_define_endpoint(struct ofi_ep *e)
{
    int saved = errno;
    ofi_define_version();
    uint32_t parent = e->parent ? ofi_endpoint(e->parent)->id : 0;
    struct st_object *o = st_object_new(ST_KIND_OFI_ENDPOINT, (uintptr_t)e);
    if (o->id) {
        st_def_ofi_endpoint(o->id, parent, e->r.class, e->type, e->format, e->caps, e->mode, e->tx_flags, e->rx_flags, e->provider, e->fabric, e->domain,
                            e->index);
        define_name(e, o);
        for (unsigned i = 0; i < e->bound; i++)
            define_bind(o, i, e);
    }
    errno = saved;
    return o;
}

void ofi_connected(struct fid *fid)
{
    struct ofi_record *r = fid->fclass == FI_CLASS_EP ? ofi_record_of(fid) : NULL;
    if (!r)
        return;
    struct ofi_ep *e = (struct ofi_ep *)r;
    bool again = e->named;
    e->named = true;
    struct st_object *o = st_find(ST_KIND_OFI_ENDPOINT, (uintptr_t)e->root);
    if (o->id && !again)
        define_name(e, o);
}

struct st_object *ofi_define_peer(struct ofi_ep *e, fi_addr_t address)
{
    int saved = errno;
    struct st_object *owner = ofi_endpoint(e), *o;
    if (e->parent)
        define_late_name(e->parent, ofi_endpoint(e->parent));
    struct fid_av *av = e->av ? e->av : e->parent ? e->parent->av : NULL;
    struct ofi_record *r = av ? ofi_record_of(&av->fid) : NULL;
    unsigned bits = r ? ((struct ofi_av *)r)->context_bits : 0;
    uint64_t context = bits ? address >> (64 - bits) : 0;
    uint8_t name[NAME_BYTES];
    size_t size = 0;
    if (av && address != FI_ADDR_UNSPEC && FI_CHECK_OP(av->ops, struct fi_ops_av, lookup)) {
        size = NAME_BYTES;
        ofi_inside++;
        if (av->ops->lookup(av, bits ? address << bits >> bits : address, name, &size))
            size = 0;
        ofi_inside--;
        if (size > NAME_BYTES)
            size = NAME_BYTES;
    }
    ofi_lock();
    o = st_find(ST_KIND_OFI_PEER, ofi_peer_key(e, address));
    if (!o->id && owner->id) { /* two threads may come here at once */
        o = st_object_new(ST_KIND_OFI_PEER, ofi_peer_key(e, address));
        if (o->id) {
            o->user[USER_ADDRESS] = address;
            o->user[USER_NEXT] = owner->user[USER_PEERS];
            owner->user[USER_PEERS] = (uintptr_t)o;
            st_def_ofi_peer(o->id, owner->id, address, context, name, size);
        }
    }
    ofi_unlock();
    errno = saved;
    return o;
}

void ofi_endpoint_gone(struct ofi_ep *e)
{
    ofi_lock();
    struct ofi_ep **at = &endpoints;
    while (*at && *at != e)
        at = &(*at)->all;
    if (*at)
        *at = e->all;
    ofi_unlock();
    if (e->root != e)
        return;
    struct st_object *o = st_find(ST_KIND_OFI_ENDPOINT, (uintptr_t)e);
    if (!o->id)
        return;
    struct st_object *next;
    for (struct st_object *p = (struct st_object *)(uintptr_t)o->user[USER_PEERS]; p; p = next) {
        next = (struct st_object *)(uintptr_t)p->user[USER_NEXT];
        st_object_end(p);
    }
    st_object_end(o);
}

static void forget_way(struct ofi_ep *e, fi_addr_t address)
{
    struct st_object *owner = st_find(ST_KIND_OFI_ENDPOINT, (uintptr_t)e->root), *o = st_find(ST_KIND_OFI_PEER, ofi_peer_key(e, address));
    if (!owner->id || !o->id)
        return;
    uint64_t *at = &owner->user[USER_PEERS];
    while (*at && *at != (uintptr_t)o)
        at = &((struct st_object *)(uintptr_t)*at)->user[USER_NEXT];
    if (*at)
        *at = o->user[USER_NEXT];
    st_object_end(o);
}

void ofi_forget_address(struct fid_av *av, fi_addr_t address)
{
    ofi_lock();
    for (struct ofi_ep *e = endpoints; e; e = e->all)
        if (e->root == e && (e->av ? e->av : e->parent ? e->parent->av : NULL) == av)
            forget_way(e, address);
    ofi_unlock();
}

/* ---- hooks ----------------------------------------------------------------------------------------------------------------------- */

/* A context has the queues of its scalable endpoint, unless it has been bound to others. */
static void take_queues(struct ofi_ep *context, const struct ofi_ep *scalable)
{
    if (scalable->tx_queue && !context->tx_queue)
        context->tx_queue = true, context->tx_selective = scalable->tx_selective;
    if (scalable->rx_queue && !context->rx_queue)
        context->rx_queue = true, context->rx_selective = scalable->rx_selective;
}

static void note_bind(struct ofi_ep *e, struct fid *to, uint64_t flags)
{
    struct ofi_record *r = ofi_record_of(to);
    switch (to->fclass) {
    case FI_CLASS_AV:
        e->av = (struct fid_av *)to;
        return;
    case FI_CLASS_CQ:
        if (flags & FI_TRANSMIT) {
            e->tx_queue = true;
            e->tx_selective = flags & FI_SELECTIVE_COMPLETION;
        }
        if (flags & FI_RECV) {
            e->rx_queue = true;
            e->rx_selective = flags & FI_SELECTIVE_COMPLETION;
        }
        break;
    case FI_CLASS_CNTR:
        e->counted |= flags;
        break;
    case FI_CLASS_SRX_CTX:
        e->shared = (struct ofi_ep *)r;
        break;
    default:
        return;
    }
    if (e->shared && e->rx_queue)
        e->shared->rx_selective = e->rx_selective;
    if (e->r.class == FI_CLASS_SEP) {
        ofi_lock();
        for (struct ofi_ep *c = endpoints; c; c = c->all)
            if (c->parent == e)
                take_queues(c, e);
        ofi_unlock();
    }
    if (!r || e->bound == OFI_BINDS)
        return;
    e->binds[e->bound].to = r;
    e->binds[e->bound++].flags = flags;
    struct st_object *o = st_find(ST_KIND_OFI_ENDPOINT, (uintptr_t)e->root);
    if (o->id)
        define_bind(o, e->bound - 1, e);
}

/* While a provider configures an endpoint it sees its own tables, which it may compare and replace. */
static int ep_bind(struct fid *fid, struct fid *to, uint64_t flags)
{
    struct ofi_ep *e = (struct ofi_ep *)OFI_OF(fid->ops, ofi_record, ops);
    struct ofi_slow s = ofi_begin();
    e->r.tables(&e->r, false);
    int rc = e->r.ops.real->bind(fid, to, flags);
    e->r.tables(&e->r, true);
    if (!rc)
        note_bind(e, to, flags);
    ofi_end(s);
    return rc;
}

static void take_alias(struct ofi_ep *e, const struct fi_alias *alias);

static int ep_control(struct fid *fid, int command, void *arg)
{
    struct ofi_ep *e = (struct ofi_ep *)OFI_OF(fid->ops, ofi_record, ops);
    struct ofi_slow s = ofi_begin();
    e->r.tables(&e->r, false);
    int rc = e->r.ops.real->control(fid, command, arg);
    e->r.tables(&e->r, true);
    if (!rc && command == FI_ENABLE && s.t) {
        define_late_name(e, ofi_endpoint(e));
    } else if (!rc && command == FI_SETOPSFLAG) {
        uint64_t flags;
        memcpy(&flags, arg, sizeof flags);
        if (flags & FI_TRANSMIT)
            e->tx_flags = flags;
        else if (flags & FI_RECV)
            e->rx_flags = flags;
    } else if (!rc && command == FI_ALIAS && s.mine) {
        take_alias(e, arg);
    }
    ofi_end(s);
    return rc;
}

static int ep_setopt(fid_t fid, int level, int name, const void *value, size_t size)
{
    struct ofi_ep *e = OFI_OF(((struct fid_ep *)fid)->ops, ofi_ep, ep);
    struct ofi_slow s = ofi_begin();
    e->r.tables(&e->r, false);
    int rc = e->ep.real->setopt(fid, level, name, value, size);
    e->r.tables(&e->r, true);
    ofi_end(s);
    return rc;
}

static ssize_t ep_cancel(fid_t fid, void *context)
{
    struct ofi_ep *e = OFI_OF(((struct fid_ep *)fid)->ops, ofi_ep, ep);
    struct st_thread *t = st_enter(ST_LAYER_OFI);
    uint64_t now = t ? st_clock() : 0;
    ssize_t rc = e->ep.real->cancel(fid, context);
    if (t) {
        if (st_mode == ST_FULL)
            st_rec_ofi_cancel(t, now, ST_EV_OFI_CANCEL, ofi_endpoint(e), (uintptr_t)context, rc);
        st_leave(t, ST_LAYER_OFI);
    }
    return rc;
}

static void take_context(struct ofi_ep *parent, struct fid_ep *ep, unsigned class, int index, uint64_t caps, uint64_t flags);

static int ep_tx_ctx(struct fid_ep *sep, int index, struct fi_tx_attr *attr, struct fid_ep **ep, void *context)
{
    struct ofi_ep *e = OFI_OF(sep->ops, ofi_ep, ep);
    struct ofi_slow s = ofi_begin();
    int rc = e->ep.real->tx_ctx(sep, index, attr, ep, context);
    if (!rc && s.mine)
        take_context(e, *ep, FI_CLASS_TX_CTX, index, attr ? attr->caps : 0, attr ? attr->op_flags : e->tx_flags);
    ofi_end(s);
    return rc;
}

static int ep_rx_ctx(struct fid_ep *sep, int index, struct fi_rx_attr *attr, struct fid_ep **ep, void *context)
{
    struct ofi_ep *e = OFI_OF(sep->ops, ofi_ep, ep);
    struct ofi_slow s = ofi_begin();
    int rc = e->ep.real->rx_ctx(sep, index, attr, ep, context);
    if (!rc && s.mine)
        take_context(e, *ep, FI_CLASS_RX_CTX, index, attr ? attr->caps : 0, attr ? attr->op_flags : e->rx_flags);
    ofi_end(s);
    return rc;
}

/* ---- tables ------------------------------------------------------------------------------------------------------------------------ */

static const struct ofi_hook fid_hooks[] = {OFI_CLOSE, OFI_HOOK(fi_ops, bind, ep_bind), OFI_HOOK(fi_ops, control, ep_control)};
static const struct ofi_hook ep_hooks[] = {
    OFI_HOOK(fi_ops_ep, cancel, ep_cancel),
    OFI_HOOK(fi_ops_ep, setopt, ep_setopt),
    OFI_HOOK(fi_ops_ep, tx_ctx, ep_tx_ctx),
    OFI_HOOK(fi_ops_ep, rx_ctx, ep_rx_ctx),
};

static void ep_tables(struct ofi_record *r, bool ours)
{
    struct ofi_ep *e = (struct ofi_ep *)r;
    struct fid_ep *ep = (struct fid_ep *)r->fid;
    bool sends = r->class != FI_CLASS_SRX_CTX && r->class != FI_CLASS_RX_CTX;
    if (ours) {
        OFI_PATCH(r->ops, ep->fid.ops, fid_hooks);
        OFI_PATCH(e->ep, ep->ops, ep_hooks);
        if (r->class == FI_CLASS_SEP)
            return;
        OFI_PATCH(e->msg, ep->msg, ofi_msg_hooks);
        OFI_PATCH(e->tagged, ep->tagged, ofi_tagged_hooks);
        if (sends) {
            OFI_PATCH(e->rma, ep->rma, ofi_rma_hooks);
            OFI_PATCH(e->atomic, ep->atomic, ofi_atomic_hooks);
        }
        return;
    }
    OFI_RESTORE(r->ops, ep->fid.ops);
    OFI_RESTORE(e->ep, ep->ops);
    if (r->class == FI_CLASS_SEP)
        return;
    OFI_RESTORE(e->msg, ep->msg);
    OFI_RESTORE(e->tagged, ep->tagged);
    if (sends) {
        OFI_RESTORE(e->rma, ep->rma);
        OFI_RESTORE(e->atomic, ep->atomic);
    }
}

static struct ofi_ep *new_ep(struct fid_ep *ep, unsigned class)
{
    struct ofi_ep *e = ofi_record_of(&ep->fid) ? NULL : (struct ofi_ep *)ofi_new(class, sizeof *e, &ep->fid, ep_tables);
    if (e)
        e->root = e;
    return e;
}

static void add_ep(struct ofi_ep *e)
{
    ofi_lock();
    e->all = endpoints;
    endpoints = e;
    ofi_unlock();
    ep_tables(&e->r, true);
}

static void text(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from ? from : ""); }

void ofi_take_endpoint(struct fid_ep *ep, const struct fi_info *info, unsigned class)
{
    struct ofi_ep *e = new_ep(ep, class);
    if (!e)
        return;
    e->caps = info->caps;
    e->mode = info->mode;
    e->format = info->addr_format;
    if (info->ep_attr)
        e->type = info->ep_attr->type;
    if (info->tx_attr)
        e->tx_flags = info->tx_attr->op_flags;
    if (info->rx_attr)
        e->rx_flags = info->rx_attr->op_flags;
    if (info->fabric_attr) {
        text(e->provider, sizeof e->provider, info->fabric_attr->prov_name);
        text(e->fabric, sizeof e->fabric, info->fabric_attr->name);
    }
    if (info->domain_attr)
        text(e->domain, sizeof e->domain, info->domain_attr->name);
    e->connected = e->type == FI_EP_MSG;
    e->rx_queue = class == FI_CLASS_SRX_CTX; /* its receives, posted before there is an endpoint even, complete to the endpoints' queues */
    e->directed = e->caps & (FI_DIRECTED_RECV | FI_TAGGED_DIRECTED);
    add_ep(e);
}

static void take_context(struct ofi_ep *parent, struct fid_ep *ep, unsigned class, int index, uint64_t caps, uint64_t flags)
{
    struct ofi_ep *e = new_ep(ep, class);
    if (!e)
        return;
    e->parent = parent;
    e->index = (uint32_t)index;
    e->caps = caps ? caps : parent->caps;
    e->mode = parent->mode;
    e->format = parent->format;
    e->type = parent->type;
    e->tx_flags = e->rx_flags = flags;
    memcpy(e->provider, parent->provider, sizeof e->provider);
    memcpy(e->fabric, parent->fabric, sizeof e->fabric);
    memcpy(e->domain, parent->domain, sizeof e->domain);
    e->directed = e->caps & (FI_DIRECTED_RECV | FI_TAGGED_DIRECTED);
    take_queues(e, parent);
    add_ep(e);
}

/* Another handle of the same endpoint, with default flags of its own. */
static void take_alias(struct ofi_ep *e, const struct fi_alias *alias)
{
    struct fid_ep *ep = (struct fid_ep *)*alias->fid;
    struct ofi_ep *a = new_ep(ep, e->r.class);
    if (!a)
        return;
    a->root = e->root;
    a->parent = e->parent;
    a->av = e->av;
    a->connected = e->connected;
    a->directed = e->directed;
    a->tx_queue = e->tx_queue, a->tx_selective = e->tx_selective;
    a->rx_queue = e->rx_queue, a->rx_selective = e->rx_selective;
    a->counted = e->counted;
    a->caps = e->caps;
    a->tx_flags = alias->flags & FI_TRANSMIT ? alias->flags : e->tx_flags;
    a->rx_flags = alias->flags & FI_RECV ? alias->flags : e->rx_flags;
    add_ep(a);
}
