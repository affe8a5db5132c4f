/*
 * What the files of provider-libfabric.so share.
 *
 *     ofi.c           fi_fabric, and how function tables are replaced and objects' records kept
 *     ofi_objects.c   hooks of fabrics and domains: what is made from them; event queues, address vectors, memory regions
 *     ofi_endpoint.c  endpoints: their tables, bindings, names, and ways to peers
 *     ofi_messages.c  hooks: msg, tagged
 *     ofi_access.c    hooks: rma, atomic
 *     ofi_queues.c    hooks: completion queues, counters
 *
 * Of libfabric's exported functions only fi_fabric makes anything; all else goes through function tables inside the objects. The tables
 * are constants of a provider, shared by all its objects, so none is changed: an object's pointer is led to a copy of its own, which
 * lies in the object's record here. From the copy's address a hook gets at the record, and from there at the original table.
 *
 * Layered providers (ofi_rxm over verbs) make fabrics of others inside. Those are left alone, and with them all that comes from them: so
 * what is recorded is what the application asked for. Records are ordinary memory: a forked child goes on with the tables that its
 * parent replaced. The library is not linked with libfabric; a table is read as far as its size says.
 */
#ifndef ST_OFI_H
#define ST_OFI_H

#include "recorder.h"

#pragma GCC visibility push(default) /* what we hook is exported */
#include <rdma/fabric.h>
int fi_fabric2(struct fi_info *info, struct fid_fabric **fabric, uint64_t flags, void *context); /* since 1.20 */
#pragma GCC visibility pop
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#pragma GCC visibility push(hidden)

/* ---- replaced tables --------------------------------------------------------------------------------------------------------- */

#define OFI_ROOM 16 /* entries that a newer version may have added to a table; a longer one is left alone */

/* A copy of a table of the type, with room for what a newer version has, and the original. */
#define OFI_COPY(type)                                                                                                                 \
    struct {                                                                                                                           \
        struct type copy;                                                                                                              \
        void *more[OFI_ROOM];                                                                                                          \
        struct type *real;                                                                                                             \
        const void *left; /* what stood in the object when it was put back last: the copy, or another preload's */                    \
    }

/* A hook in a table: where its entry is. */
struct ofi_hook {
    size_t offset;
    void *ours;
};
#define OFI_HOOK(type, member, hook) {offsetof(struct type, member), (void *)(hook)}

/* Fills copy with the table and our hooks, as far as the table goes and has entries of its own. false: it is not to be replaced. */
bool ofi_copy(void *copy, size_t room, const void *table, const struct ofi_hook *hooks, unsigned n);

/* Leads the pointer `place` of an object to the copy `slot` with hooks, and back to the original for a while. Where another preload's table
 * has taken the copy's place, that one leads here and is left alone, unless the provider has set a new table meanwhile. */
#define OFI_PATCH(slot, place, hooks)                                                                                                  \
    do {                                                                                                                               \
        if ((place) == (slot).real && (place))                                                                                         \
            (place) = &(slot).copy;                                                                                                    \
        else if ((place) != &(slot).copy && (place) != (slot).left &&                                                                  \
                 ofi_copy(&(slot).copy, sizeof(slot).copy + sizeof(slot).more, place, hooks, sizeof(hooks) / sizeof *(hooks))) {       \
            (slot).real = (place);                                                                                                     \
            (place) = &(slot).copy;                                                                                                    \
        }                                                                                                                              \
    } while (0)
#define OFI_RESTORE(slot, place)                                                                                                       \
    do {                                                                                                                               \
        (slot).left = (place);                                                                                                         \
        if ((place) == &(slot).copy)                                                                                                   \
            (place) = (slot).real;                                                                                                     \
    } while (0)

/* The record of which the table is the copy in `slot`. */
#define OFI_OF(table, type, slot) ((struct type *)(void *)((char *)(table) - offsetof(struct type, slot)))

/* ---- records ----------------------------------------------------------------------------------------------------------------- */

/* What all records begin with. */
struct ofi_record {
    OFI_COPY(fi_ops) ops;
    struct fid *fid;
    void (*tables)(struct ofi_record *, bool ours); /* replaces the object's tables, or puts the originals back */
    struct ofi_record *next;                        /* free list */
    uint16_t class;                                 /* FI_CLASS_... */
    uint16_t pool;
};

struct ofi_fabric {
    struct ofi_record r;
    OFI_COPY(fi_ops_fabric) fabric;
};

struct ofi_domain {
    struct ofi_record r;
    OFI_COPY(fi_ops_domain) domain;
    OFI_COPY(fi_ops_mr) mr;
};

struct ofi_eq {
    struct ofi_record r;
    OFI_COPY(fi_ops_eq) eq;
};

struct ofi_av {
    struct ofi_record r;
    OFI_COPY(fi_ops_av) av;
    unsigned context_bits; /* of an address: which receive context */
};

struct ofi_mr {
    struct ofi_record r;
};

struct ofi_cq {
    struct ofi_record r;
    OFI_COPY(fi_ops_cq) cq;
    uint32_t format, entries;
};

struct ofi_counter {
    struct ofi_record r;
    OFI_COPY(fi_ops_cntr) cntr;
    uint64_t seen[2]; /* last values: completed, failed */
};

#define OFI_BINDS 12
struct ofi_ep {
    struct ofi_record r;
    OFI_COPY(fi_ops_ep) ep;
    OFI_COPY(fi_ops_msg) msg;
    OFI_COPY(fi_ops_tagged) tagged;
    OFI_COPY(fi_ops_rma) rma;
    OFI_COPY(fi_ops_atomic) atomic;
    struct ofi_ep *root;   /* of which this is an alias; else itself */
    struct ofi_ep *parent; /* scalable endpoint of a context */
    struct ofi_ep *shared; /* receive context */
    struct ofi_ep *all;    /* list of all */
    struct fid_av *av;
    bool connected; /* one peer, which no address names */
    bool directed;  /* receives may be limited to a source */
    bool named; /* of a connected one: that it may be asked for its names */
    bool tx_queue, tx_selective, rx_queue, rx_selective;
    uint64_t counted; /* FI_SEND, FI_RECV, FI_READ, FI_WRITE: what counters count */
    uint32_t type, format, index;
    uint64_t caps, mode, tx_flags, rx_flags;
    struct {
        struct ofi_record *to; /* queue, counter, shared receive context */
        uint64_t flags;
    } binds[OFI_BINDS];
    unsigned bound;
    char provider[64], fabric[128], domain[64];
};

/* Makes a record of a class; NULL where there is no memory: the object is then left alone. */
struct ofi_record *ofi_new(unsigned class, size_t size, struct fid *fid, void (*tables)(struct ofi_record *, bool));
void ofi_free(struct ofi_record *r);

/* Hook of all objects' close. */
int ofi_close(struct fid *fid);
/* Whether an object has a record of ours, and the record. */
static inline struct ofi_record *ofi_record_of(const struct fid *fid)
{
    return fid->ops->close == ofi_close ? OFI_OF(fid->ops, ofi_record, ops) : NULL;
}
#define OFI_CLOSE OFI_HOOK(fi_ops, close, ofi_close)

/* Held for microseconds in slow paths. A lock that a forked child inherits from a thread that it does not have counts as free. */
void ofi_lock(void);
void ofi_unlock(void);

/* Calls of this thread that are in a slow hook's real function: what such a call makes inside is the provider's own business. */
extern __thread uint32_t ofi_inside __attribute__((tls_model("initial-exec")));

/* A slow hook: t as st_enter; mine: whether objects that the call makes are the application's. */
struct ofi_slow {
    struct st_thread *t;
    bool mine;
};
static inline struct ofi_slow ofi_begin(void) { return (struct ofi_slow){st_enter(ST_LAYER_OFI), !ofi_inside++}; }
static inline void ofi_end(struct ofi_slow s)
{
    ofi_inside--;
    if (s.t)
        st_leave(s.t, ST_LAYER_OFI);
}

void ofi_blind(const char *reason);

/* ---- made objects: each takes what the real function made ---------------------------------------------------------------------- */

void ofi_take_fabric(struct fid_fabric *fabric);
void ofi_take_cq(struct fid_cq *cq, const struct fi_cq_attr *attr);
void ofi_take_counter(struct fid_cntr *cntr);
void ofi_take_endpoint(struct fid_ep *ep, const struct fi_info *info, unsigned class);
/* After FI_CONNECTED of an endpoint. */
void ofi_connected(struct fid *fid);
/* Before an address is taken out of an address vector: nothing stands for it any more. */
void ofi_forget_address(struct fid_av *av, fi_addr_t address);
void ofi_define_version(void);

/* ---- objects as they are recorded ------------------------------------------------------------------------------------------------ */

/* Each is looked up by its record, and defined when it is missing: first seen, or seen by a forked child for the first time. */
struct st_object *ofi_define_endpoint(struct ofi_ep *e);
struct st_object *ofi_define_peer(struct ofi_ep *e, fi_addr_t address);
struct st_object *ofi_define_cq(struct ofi_cq *q);
struct st_object *ofi_define_counter(struct ofi_counter *c);
/* Ends what stood for an endpoint and its ways to peers. */
void ofi_endpoint_gone(struct ofi_ep *e);

static inline struct st_object *ofi_endpoint(struct ofi_ep *e)
{
    struct st_object *o = st_find(ST_KIND_OFI_ENDPOINT, (uintptr_t)e->root);
    return st_likely(o->id) ? o : ofi_define_endpoint(e->root);
}

static inline struct st_object *ofi_cq(struct ofi_cq *q)
{
    struct st_object *o = st_find(ST_KIND_OFI_CQ, (uintptr_t)q);
    return st_likely(o->id) ? o : ofi_define_cq(q);
}

static inline struct st_object *ofi_counter(struct ofi_counter *c)
{
    struct st_object *o = st_find(ST_KIND_OFI_COUNTER, (uintptr_t)c);
    return st_likely(o->id) ? o : ofi_define_counter(c);
}

/* Endpoint and address in 56 bits. Two ways of a process that collide would be taken for one; of 10^5 ways none does, but once in 10^7. */
static inline uint64_t ofi_peer_key(const struct ofi_ep *e, fi_addr_t address)
{
    return ((address + 1) * 0x9e3779b97f4a7c15ull >> 8) ^ (uintptr_t)e->root >> 4;
}

/* What requests to an address are recorded on. */
static inline struct st_object *ofi_peer(struct ofi_ep *e, fi_addr_t address)
{
    if (e->connected)
        return ofi_endpoint(e);
    struct st_object *o = st_find(ST_KIND_OFI_PEER, ofi_peer_key(e, address));
    return st_likely(o->id) ? o : ofi_define_peer(e, address);
}

/* ---- calls ----------------------------------------------------------------------------------------------------------------------- */

extern const struct ofi_hook ofi_msg_hooks[9], ofi_tagged_hooks[9], ofi_rma_hooks[9], ofi_atomic_hooks[10];

/* A call being recorded. */
struct ofi_call {
    struct ofi_ep *e;
    struct st_thread *t; /* NULL: only to be passed through */
    uint64_t begin;      /* 0 in aggregate mode, which reads no clock */
    unsigned event, api;
    fi_addr_t address;
    uint64_t bytes, context, tag, ignore, data, flags, local, remote, key;
    unsigned atomic, datatype, op;
};

#define OFI_INLINE static inline __attribute__((always_inline))

/* Declares c, the call of a hook of the table. */
#define OFI_CALL(table)                                                                                                                \
    struct ofi_call c;                                                                                                                 \
    c.e = OFI_OF(fid->table, ofi_ep, table);                                                                                           \
    c.t = st_enter(ST_LAYER_OFI);                                                                                                      \
    c.begin = c.t && st_mode != ST_AGGREGATE ? st_clock() : 0

OFI_INLINE uint64_t ofi_iov_bytes(const struct iovec *iov, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += iov[i].iov_len;
    return sum;
}
OFI_INLINE uint64_t ofi_iov_first(const struct iovec *iov, size_t count) { return count ? (uintptr_t)iov->iov_base : 0; }

/* How an accepted request of a kind (FI_SEND, FI_RECV, FI_READ, FI_WRITE) is completed. */
OFI_INLINE unsigned ofi_result(const struct ofi_ep *e, unsigned api, uint64_t flags, uint64_t kind)
{
    bool receive = kind == FI_RECV;
    bool queue = receive ? e->rx_queue : e->tx_queue, selective = receive ? e->rx_selective : e->tx_selective;
    if (api == ST_OFI_API_INJECT || api == ST_OFI_API_INJECTDATA)
        return ST_OFI_RESULT_DONE;
    if (queue && (!selective || flags & FI_COMPLETION))
        return ST_OFI_RESULT_PENDING;
    return e->counted & kind ? ST_OFI_RESULT_COUNTED : ST_OFI_RESULT_IMPLICIT;
}

OFI_INLINE void ofi_record_call(struct ofi_call *c, struct st_object *o)
{
    if (st_mode == ST_SIMPLE)
        st_rec_call(c->t, c->begin, ST_EV_OFI_CALL, o, c->event, 1, c->bytes, 0, st_clock() - c->begin);
    st_count(c->t, o, c->event, c->bytes, 1);
}

#pragma GCC visibility pop

#endif
