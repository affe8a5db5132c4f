/*
 * Inside of the provider ibverbs. Four ways lead a program to libibverbs, and each is caught where it is:
 *
 *     exported functions           ibverbs_setup.c: ours are found first, and call the library's (ibverbs_real.c)
 *     dlsym, dlvsym                ibverbs_real.c: st_hooks hands out ours
 *     ibv_context.ops and          ibverbs_context.c: patched in place when a device has been opened; the hooks are in
 *     verbs_context                ibverbs_post.c, ibverbs_poll.c and ibverbs_setup.c
 *     pointers in ibv_qp_ex, cq_ex ibverbs_wr.c, ibverbs_poll.c: patched when the queue has been made
 *
 * A fifth goes round them all: provider mlx5dv, which this one lends its objects to (verbs.h, ibverbs_lend.c).
 *
 * What was patched lives longer than a capture: a forked child goes on with patched tables while its objects are wiped. So originals
 * lie in static memory here, and whatever hangs on an st_object is made again when it is missing (ibverbs_define.c).
 */
#ifndef ST_IBVERBS_H
#define ST_IBVERBS_H

#include "recorder.h"
#include "verbs.h"

#include <infiniband/verbs.h>
#include <infiniband/efadv.h>

/* inline wrappers of verbs.h that would pull the library's symbols in */
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

/* ---- the real library ------------------------------------------------------------------------------------------------------------ */

/* What is hooked: every symbol with the version whose signature and structures are those of verbs.h. Older versions of the same name
 * (IBVERBS_1.0) are other functions, and their callers go straight to the library. */
#define IBV_HOOKED(X)                                                                                                                        \
    X(ibv_open_device, "IBVERBS_1.1")                                                                                                        \
    X(ibv_import_device, "IBVERBS_1.10")                                                                                                     \
    X(ibv_close_device, "IBVERBS_1.1")                                                                                                       \
    X(ibv_alloc_pd, "IBVERBS_1.1")                                                                                                           \
    X(ibv_dealloc_pd, "IBVERBS_1.1")                                                                                                         \
    X(ibv_reg_mr, "IBVERBS_1.1")                                                                                                             \
    X(ibv_reg_mr_iova, "IBVERBS_1.7")                                                                                                        \
    X(ibv_reg_mr_iova2, "IBVERBS_1.8")                                                                                                       \
    X(ibv_reg_dmabuf_mr, "IBVERBS_1.12")                                                                                                     \
    X(ibv_rereg_mr, "IBVERBS_1.1")                                                                                                           \
    X(ibv_dereg_mr, "IBVERBS_1.1")                                                                                                           \
    X(ibv_create_cq, "IBVERBS_1.1")                                                                                                          \
    X(ibv_resize_cq, "IBVERBS_1.1")                                                                                                          \
    X(ibv_destroy_cq, "IBVERBS_1.1")                                                                                                         \
    X(ibv_create_srq, "IBVERBS_1.1")                                                                                                         \
    X(ibv_destroy_srq, "IBVERBS_1.1")                                                                                                        \
    X(ibv_create_qp, "IBVERBS_1.1")                                                                                                          \
    X(ibv_modify_qp, "IBVERBS_1.1")                                                                                                          \
    X(ibv_destroy_qp, "IBVERBS_1.1")                                                                                                         \
    X(ibv_create_ah, "IBVERBS_1.1")                                                                                                          \
    X(ibv_create_ah_from_wc, "IBVERBS_1.1")                                                                                                  \
    X(ibv_destroy_ah, "IBVERBS_1.1")
#define EFADV_HOOKED(X)                                                                                                                      \
    X(efadv_create_driver_qp, "EFA_1.0")                                                                                                     \
    X(efadv_create_qp_ex, "EFA_1.1")                                                                                                         \
    X(efadv_create_cq, "EFA_1.2")
/* What is only called. */
#define IBV_CALLED(X)                                                                                                                        \
    X(ibv_query_device, "IBVERBS_1.1")                                                                                                       \
    X(ibv_query_gid, "IBVERBS_1.1")                                                                                                          \
    X(_ibv_query_gid_table, "IBVERBS_1.11")                                                                                                  \
    X(ibv_query_qp, "IBVERBS_1.1")                                                                                                           \
    X(ibv_query_srq, "IBVERBS_1.1")                                                                                                          \
    X(ibv_qp_to_qp_ex, "IBVERBS_1.6")                                                                                                        \
    X(ibv_init_ah_from_wc, "IBVERBS_1.1")

struct real {
#define X(name, version) __typeof__(name) *name;
    IBV_HOOKED(X) EFADV_HOOKED(X) IBV_CALLED(X)
#undef X
};
extern struct real real;

/* Looks up what is not known yet. */
void find_real(void);
/* The library's function, or NULL when no such library is loaded. */
#define REAL(name) (st_likely(!!__atomic_load_n(&real.name, __ATOMIC_RELAXED)) ? real.name : (find_real(), real.name))

/* ---- originals of patched tables --------------------------------------------------------------------------------------------------- */

struct context {
    struct ibv_context *context; /* NULL: free */
    uint64_t serial;
    int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
    int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
    int (*post_srq_recv)(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
    int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
    int (*req_notify_cq)(struct ibv_cq *, int);
    int (*bind_mw)(struct ibv_qp *, struct ibv_mw *, struct ibv_mw_bind *);
    struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
    struct ibv_qp *(*open_qp)(struct ibv_context *, struct ibv_qp_open_attr *);
    struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
    struct ibv_srq *(*create_srq_ex)(struct ibv_context *, struct ibv_srq_init_attr_ex *);
    struct ibv_pd *(*alloc_parent_domain)(struct ibv_context *, struct ibv_parent_domain_init_attr *);
    uint64_t fill[3]; /* 128 bytes: an index is a shift */
};
#define CONTEXTS 256
extern struct context contexts[CONTEXTS];

/* Pointers of an extended queue, shared by all queues that have the same. */
struct queue {
    const void *key; /* NULL: free */
    uint64_t serial;
    const void *originals;
};
#define QUEUES 65536
extern struct queue queues[QUEUES];
#define PROBES 32

/* The originals of a patched context. Never NULL for a context whose tables are ours. */
static inline const struct context *context_of(const struct ibv_context *c)
{
    unsigned i = (unsigned)((uintptr_t)c * 0x9e3779b97f4a7c15ull >> 56);
    for (unsigned n = 0; n < PROBES; n++, i = (i + 1) % CONTEXTS)
        if (st_likely(contexts[i].context == c))
            return &contexts[i];
    return NULL;
}

/* The originals of a patched queue pair or completion queue; NULL when it is not patched. */
static inline const void *originals_of(const void *key)
{
    unsigned i = (unsigned)((uintptr_t)key * 0x9e3779b97f4a7c15ull >> 48);
    for (unsigned n = 0; n < PROBES; n++, i = (i + 1) % QUEUES)
        if (st_likely(queues[i].key == key))
            return queues[i].originals;
    return NULL;
}

/* Held for microseconds in slow paths. A lock that a forked child inherits from a thread that it does not have counts as free. */
void registry_lock(void);
void registry_unlock(void);

/* Patches the tables of a context that has just been opened; leaves it alone when there is no room. */
void patch_context(struct ibv_context *c);
/* 0: no room. */
int queue_patched(const void *key, const void *originals);
/* For closing: what to give to the _gone function after the real one has succeeded. 0: not patched. The number tells a queue or
 * context from one that another thread has meanwhile made at the same address. */
uint64_t queue_serial(const void *key);
void queue_gone(const void *key, uint64_t serial);
uint64_t context_serial(const struct ibv_context *c);
void context_gone(const struct ibv_context *c, uint64_t serial);

/* ---- objects: user[] and flags of ours ------------------------------------------------------------------------------------------------ */

/* object id of the context; of queues, above it, the most entries of a request: send or shared receive in 16 bits, receive in 16 */
enum { USER_DEVICE = 0 };
static inline uint32_t device_id(const struct st_object *o) { return (uint32_t)o->user[USER_DEVICE]; }
static inline uint32_t most_sges(const struct st_object *o) { return (uint32_t)(o->user[USER_DEVICE] >> 32) & 0xffff; }
static inline uint32_t most_recv_sges(const struct st_object *o) { return (uint32_t)(o->user[USER_DEVICE] >> 48); }
/* queue pairs, shared receive queues: the key last hashed, and its hash in the low half */
enum { USER_REMOTE_KEY = 1, USER_LOCAL_KEY = 2 };
/* queue pairs that are QP_PLAIN: the context's original post_send */
enum { USER_ORIGINAL = 3 };
/* completion queues: 1 + number of the only queue pair, ~0 when there have been several; how many there are */
enum { USER_ONLY_QP = 1, USER_QPS = 2 };
enum {
    QP_SIGNAL_ALL = IBV_SEND_SIGNALED, /* as in the requests' flags */
    QP_UNCONNECTED = 1 << 8,           /* requests carry an address handle */
    QP_PLAIN = 1 << 9,                 /* they do not, and have no other peculiarity */
};

/* ibverbs_define.c. All but the _of functions: inside st_enter, after the real call. errno is kept. */
struct st_object *device_of(struct ibv_context *c);
struct st_object *pd_of(struct ibv_pd *pd);
struct st_object *adopt_cq(struct ibv_cq *cq);
struct st_object *adopt_srq(struct ibv_srq *srq);
struct st_object *adopt_qp(struct ibv_qp *qp);
void define_mr(struct ibv_mr *mr, const void *address, size_t length, uint64_t iova, unsigned access, unsigned dmabuf, uint64_t duration);
void define_cq(struct ibv_cq *cq);
void define_srq(struct ibv_srq *srq, unsigned entries, unsigned sges);
void define_qp(struct ibv_qp *qp, int signal_all, const struct ibv_qp_cap *cap, unsigned flags);
/* Something that exists in the device only. key: what stands for it in the program. */
struct st_object *make_object(enum st_kind kind, const void *key);
void define_qp_change(struct st_object *o, const struct ibv_qp_attr *a, unsigned mask);
/* A queue pair has another number than it was made with. */
void define_qp_number(struct st_object *o, uint32_t was, uint32_t qpn);
void define_ah(struct ibv_ah *ah, struct ibv_pd *pd, const struct ibv_ah_attr *a);
/* Ends what stood for a library's object that is gone. id: of the object before it went, so that one made at the same address by another
 * thread meanwhile is left alone; 0: there was none. */
void object_gone(enum st_kind kind, const void *p, uint32_t id);
void qp_gone(const struct ibv_qp *qp, uint32_t id, uint32_t qpn, struct ibv_cq *send_cq, struct ibv_cq *recv_cq);

/* The object of a queue; of one whose making was not seen (in another capture, or another way), a new one. */
static inline struct st_object *qp_of(struct ibv_qp *qp)
{
    struct st_object *o = st_find(ST_KIND_QP, (uintptr_t)qp);
    return st_likely(o->id) ? o : adopt_qp(qp);
}
static inline struct st_object *cq_of(struct ibv_cq *cq)
{
    struct st_object *o = st_find(ST_KIND_CQ, (uintptr_t)cq);
    return st_likely(o->id) ? o : adopt_cq(cq);
}
static inline struct st_object *srq_of(struct ibv_srq *srq)
{
    struct st_object *o = st_find(ST_KIND_SRQ, (uintptr_t)srq);
    return st_likely(o->id) ? o : adopt_srq(srq);
}

/* A key as it is stored: hashed, local ones too, since many devices give a region one number for both. */
static inline uint32_t stored_key(uint64_t *last, uint32_t key)
{
    uint64_t c = __atomic_load_n(last, __ATOMIC_RELAXED);
    if (st_unlikely((uint32_t)(c >> 32) != key)) {
        c = (uint64_t)key << 32 | st_hash_key(key);
        __atomic_store_n(last, c, __ATOMIC_RELAXED);
    }
    return (uint32_t)c;
}

/* ---- hooks of tables ---------------------------------------------------------------------------------------------------------------- */

int hook_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int hook_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int hook_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int hook_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int hook_poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc);
int hook_req_notify_cq(struct ibv_cq *cq, int solicited_only);
struct ibv_qp *hook_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr);
struct ibv_qp *hook_open_qp(struct ibv_context *c, struct ibv_qp_open_attr *attr);
struct ibv_cq_ex *hook_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr);
struct ibv_srq *hook_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr);
struct ibv_pd *hook_alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *attr);

/* ibverbs_setup.c. Around a call that opens a device, and behind one that makes a queue: what the program gets. t: of st_enter, which is left. */
void context_opening(void);
struct ibv_context *context_opened(struct ibv_context *c, void *function);
struct ibv_cq_ex *cq_ex_made(struct st_thread *t, struct ibv_cq_ex *cq);
struct ibv_qp *qp_ex_made(struct st_thread *t, struct ibv_qp *qp, const struct ibv_qp_init_attr_ex *a, unsigned flags);

/* Patches the ibv_wr_* pointers of a queue pair made with operations `ops` (ibv_qp_create_send_ops_flags). -1: there was no room. */
int patch_qp(struct ibv_qp *qp, uint64_t ops);
/* Patches start_poll and next_poll where the queue has them. */
void patch_cq(struct ibv_cq_ex *cq);

#endif
