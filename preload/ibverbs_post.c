/* Posting through the context's table: post_send, post_recv, post_srq_recv, bind_mw; and the batch that ibv_wr_* shares. */
#define _GNU_SOURCE
#include "ibverbs_request.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

/* ---- batch: everything about a request is read before the real call; once it is posted, another thread may have reaped and freed it --- */

__thread struct batch batch;
static pthread_key_t batch_end;
static int batch_end_made;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void batch_free(void *p)
{
    struct batch *b = p;
    if (b->requests)
        munmap(b->requests, b->room * sizeof *b->requests);
    if (b->sges)
        munmap(b->sges, b->sges_room * sizeof *b->sges);
    memset(b, 0, sizeof *b);
}

static void make_key(void) { __atomic_store_n(&batch_end_made, !pthread_key_create(&batch_end, batch_free), __ATOMIC_RELEASE); }

/* Makes room for n more elements. 0, or -1 without memory. */
static int grow(void **array, uint32_t *room, uint32_t used, size_t n, size_t element)
{
    size_t want = *room ? *room : 65536 / element;
    while (want < used + n)
        want *= 2;
    if (want > UINT32_MAX)
        return -1;
    int saved = errno;
    void *m = *room ? mremap(*array, *room * element, want * element, MREMAP_MAYMOVE)
                    : mmap(NULL, want * element, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) {
        errno = saved;
        return -1;
    }
    *array = m;
    *room = (uint32_t)want;
    pthread_once(&once, make_key);
    if (__atomic_load_n(&batch_end_made, __ATOMIC_ACQUIRE))
        pthread_setspecific(batch_end, &batch);
    errno = saved;
    return 0;
}

struct request *batch_request(const struct ibv_qp *qp, unsigned opcode)
{
    static __thread struct request none;
    struct batch *b = &batch;
    struct request *r = &none;
    if (st_likely(b->used < b->room) || !grow((void **)&b->requests, &b->room, b->used, 1, sizeof *r))
        r = &b->requests[b->used++];
    memset(r, 0, sizeof *r);
    r->qp = qp;
    r->opcode = opcode < OPCODES ? (uint8_t)opcode : IBV_WR_DRIVER1;
    return r;
}

void batch_list(struct request *r, const struct ibv_sge *list, int n)
{
    struct batch *b = &batch;
    r->sges = n > 0 ? (uint32_t)n : 0;
    r->bytes = 0;
    for (int i = 0; i < n; i++)
        r->bytes += list[i].length;
    if (n > 0) {
        r->local_address = list->addr;
        r->local_key = r->flags & IBV_SEND_INLINE ? 0 : list->lkey; /* not looked at by the driver, so not always set */
    }
    if (n <= 1 || st_mode != ST_FULL)
        return;
    uint32_t more = (uint32_t)n - 1;
    if (b->sges_used + more > b->sges_room && grow((void **)&b->sges, &b->sges_room, b->sges_used, more, sizeof *list)) {
        r->sges = 1;
        return;
    }
    r->more = b->sges_used;
    memcpy(&b->sges[b->sges_used], list + 1, more * sizeof *list);
    b->sges_used += more;
}

void batch_drop(const struct ibv_qp *qp, uint32_t from)
{
    struct batch *b = &batch;
    uint32_t kept = from;
    for (uint32_t i = from; i < b->used; i++)
        if (b->requests[i].qp != qp)
            b->requests[kept++] = b->requests[i];
    b->used = kept;
    if (!kept)
        b->sges_used = 0;
}

/* ---- recording -------------------------------------------------------------------------------------------------------------------- */

void record_unusual(struct st_thread *t, uint64_t now, struct st_object *o, const struct request *r, unsigned event, unsigned call)
{
    uint64_t peer = r->ah ? peer_of(r) : 0;
    uint32_t local = stored_key(&o->user[USER_LOCAL_KEY], r->local_key), remote = stored_key(&o->user[USER_REMOTE_KEY], r->remote_key);
    unsigned flags = r->flags | (o->flags & QP_SIGNAL_ALL);
    int full = st_mode == ST_FULL;
    if (event == ST_EV_VERBS_ATOMIC) {
        if (full)
            st_rec_verbs_atomic(t, now, event, o, r->wr_id, r->bytes, r->opcode, flags, r->local_address, local, r->remote_address, remote, r->compare_add, r->swap, call);
    } else if (event == ST_EV_VERBS_SEND && r->ah) {
        event = ST_EV_VERBS_DATAGRAM;
        if (full)
            st_rec_verbs_datagram(t, now, event, o, r->wr_id, r->bytes, r->opcode, flags, r->sges, r->local_address, local, peer >> 24, r->remote_qpn, r->immediate, call);
    } else if (full) {
        st_rec_verbs_request(t, now, event, o, r->wr_id, r->bytes, r->opcode, flags, r->sges, r->local_address, local, r->remote_address, remote, r->immediate, call);
    }
    if (full)
        for (uint32_t i = 1; i < r->sges; i++) {
            const struct ibv_sge *s = &batch.sges[r->more + i - 1];
            st_rec_verbs_sge(t, now, ST_EV_VERBS_SGE, o, i, s->addr, r->flags & IBV_SEND_INLINE ? 0 : st_hash_key(s->lkey), s->length);
        }
    st_count_peer(t, o, event, peer, r->bytes, !call);
}

static unsigned event_of(const struct request *r)
{
    unsigned event = opcodes[r->opcode].event;
    return event == ST_EV_VERBS_SEND && r->ah ? ST_EV_VERBS_DATAGRAM : event;
}

void batch_posted(struct st_thread *t, uint64_t begin, struct ibv_qp *qp, uint32_t from, uint32_t accepted)
{
    struct batch *b = &batch;
    struct st_object *o = qp_of(qp);
    const struct request *first = NULL;
    uint64_t bytes = 0, duration = st_mode == ST_SIMPLE ? st_clock() - begin : 0;
    uint32_t n = 0;
    if (st_mode == ST_SIMPLE) {
        for (uint32_t i = from; i < b->used && n < accepted; i++)
            if (b->requests[i].qp == qp) {
                if (!n++)
                    first = &b->requests[i];
                bytes += b->requests[i].bytes;
            }
        if (first)
            st_rec_call(t, begin, ST_EV_VERBS_CALL, o, event_of(first), n, bytes, first->ah ? first->remote_qpn : 0, duration);
        n = 0;
    }
    for (uint32_t i = from; i < b->used && n < accepted; i++)
        if (b->requests[i].qp == qp)
            record_request(t, begin, o, &b->requests[i], opcodes[b->requests[i].opcode].event, !!n++);
}

/* ---- post_send -------------------------------------------------------------------------------------------------------------------- */

/* Everything of a request that is valid by its opcode and its queue pair: most of it lies in unions. most: entries that the queue takes; 0:
 * not known. */
static void read_request(struct request *r, const struct ibv_qp *qp, const struct ibv_send_wr *wr, uint32_t most, unsigned unconnected)
{
    unsigned has = opcodes[r->opcode].has;
    r->wr = wr;
    r->wr_id = wr->wr_id;
    r->flags = wr->send_flags & 0x1f;
    if (most && wr->num_sge > (int)most)
        r->unread = 1;
    else
        batch_list(r, wr->sg_list, wr->num_sge);
    if (has & HAS_REMOTE) {
        r->remote_address = wr->wr.rdma.remote_addr;
        r->remote_key = wr->wr.rdma.rkey;
    } else if (has & HAS_OPERANDS) {
        r->remote_address = wr->wr.atomic.remote_addr;
        r->remote_key = wr->wr.atomic.rkey;
        r->compare_add = wr->wr.atomic.compare_add;
        r->swap = r->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? wr->wr.atomic.swap : 0;
    } else if (unconnected && opcodes[r->opcode].event == ST_EV_VERBS_SEND) {
        r->ah = wr->wr.ud.ah;
        r->remote_qpn = wr->wr.ud.remote_qpn;
    } else if (r->opcode == IBV_WR_BIND_MW) {
        r->remote_address = wr->bind_mw.bind_info.addr;
        r->remote_key = wr->bind_mw.rkey;
    }
    if (has & HAS_IMMEDIATE)
        r->immediate = ntohl(wr->imm_data);
    else if (has & HAS_KEY)
        r->immediate = (uint32_t)st_hash_key(wr->invalidate_rkey);
    r->qp = qp;
}

static int post_list(struct st_thread *t, const struct context *c, struct ibv_qp *qp, struct ibv_send_wr *list, struct ibv_send_wr **bad)
{
    uint32_t from = batch.used;
    uint64_t begin = st_clock();
    const struct st_object *o = qp_of(qp);
    for (const struct ibv_send_wr *wr = list; wr; wr = wr->next)
        read_request(batch_request(qp, wr->opcode), qp, wr, most_sges(o), o->flags & QP_UNCONNECTED || qp->qp_type == IBV_QPT_UD);
    int rc = c->post_send(qp, list, bad);
    uint32_t accepted = batch.used - from;
    if (st_unlikely(rc)) { /* those before *bad */
        uint32_t i = 0;
        while (i < accepted && bad && batch.requests[from + i].wr != *bad)
            i++;
        accepted = bad && i < accepted ? i : 0;
    }
    for (uint32_t i = from; i < from + accepted; i++)
        if (batch.requests[i].unread) /* a driver with more room than it said */
            batch_list(&batch.requests[i], batch.requests[i].wr->sg_list, batch.requests[i].wr->num_sge);
    if (accepted)
        batch_posted(t, begin, qp, from, accepted);
    batch_drop(qp, from);
    return rc;
}

/* The record of a posting call of one request in simple mode. */
static __attribute__((noinline)) void call_of_one(struct st_thread *t, uint64_t begin, struct st_object *o, unsigned event, uint64_t bytes)
{
    if (st_mode == ST_SIMPLE)
        st_rec_call(t, begin, ST_EV_VERBS_CALL, o, event, 1, bytes, 0, st_clock() - begin);
}

/* The commonest call: one request of one entry, on a queue pair that is known. opcode is a constant in each use, so that what such a
 * request does not have costs nothing. */
static inline __attribute__((always_inline)) int post_one(struct st_thread *t, struct st_object *o, struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
                                                          unsigned opcode)
{
    const unsigned event = opcodes[opcode].event, has = opcodes[opcode].has;
    const struct ibv_sge *s = wr->sg_list;
    uint64_t wr_id = wr->wr_id, bytes = s->length, local_address = s->addr, remote_address = has & HAS_REMOTE ? wr->wr.rdma.remote_addr : 0;
    uint32_t flags = wr->send_flags & 0x1f, local_key = flags & IBV_SEND_INLINE ? 0 : s->lkey;
    uint32_t remote_key = has & HAS_REMOTE ? wr->wr.rdma.rkey : 0, immediate = has & HAS_IMMEDIATE ? ntohl(wr->imm_data) : 0;
    uint64_t now = st_clock();
    int rc = ((int (*)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **))o->user[USER_ORIGINAL])(qp, wr, bad);
    if (st_likely(rc == 0)) {
        if (st_likely(st_mode == ST_FULL)) {
            local_key = stored_key(&o->user[USER_LOCAL_KEY], local_key);
            if (has & HAS_REMOTE)
                remote_key = stored_key(&o->user[USER_REMOTE_KEY], remote_key);
            st_rec_verbs_request(t, now, event, o, wr_id, bytes, opcode, flags | (o->flags & QP_SIGNAL_ALL), 1, local_address, local_key, remote_address, remote_key, immediate, 0);
        } else {
            call_of_one(t, now, o, event, bytes);
        }
        st_count(t, o, event, bytes, 1);
    }
    st_leave(t, ST_LAYER_VERBS);
    return rc;
}

static __attribute__((noinline)) int post_any(struct st_thread *t, struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    const struct context *c = context_of(qp->context);
    if (!t)
        return c->post_send(qp, wr, bad);
    int rc = post_list(t, c, qp, wr, bad);
    st_leave(t, ST_LAYER_VERBS);
    return rc;
}

int hook_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    if (st_likely(t && wr && !wr->next && wr->num_sge == 1)) {
        struct st_object *o = st_find(ST_KIND_QP, (uintptr_t)qp);
        if (st_likely(o->flags & QP_PLAIN))
            switch (wr->opcode) {
            case IBV_WR_RDMA_WRITE: return post_one(t, o, qp, wr, bad, IBV_WR_RDMA_WRITE);
            case IBV_WR_SEND: return post_one(t, o, qp, wr, bad, IBV_WR_SEND);
            case IBV_WR_RDMA_READ: return post_one(t, o, qp, wr, bad, IBV_WR_RDMA_READ);
            case IBV_WR_RDMA_WRITE_WITH_IMM: return post_one(t, o, qp, wr, bad, IBV_WR_RDMA_WRITE_WITH_IMM);
            case IBV_WR_SEND_WITH_IMM: return post_one(t, o, qp, wr, bad, IBV_WR_SEND_WITH_IMM);
            default: break;
            }
    }
    return post_any(t, qp, wr, bad);
}

/* ibv_bind_mw of a window of type 1 posts a request of its own. */
int hook_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    const struct context *c = context_of(qp->context);
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    if (!t)
        return c->bind_mw(qp, mw, bind);
    uint32_t from = batch.used;
    uint64_t begin = st_clock();
    struct request *r = batch_request(qp, IBV_WR_BIND_MW);
    r->wr_id = bind->wr_id;
    r->flags = bind->send_flags & 0x1f;
    r->remote_address = bind->bind_info.addr;
    int rc = c->bind_mw(qp, mw, bind);
    if (rc == 0)
        batch_posted(t, begin, qp, from, 1);
    batch_drop(qp, from);
    st_leave(t, ST_LAYER_VERBS);
    return rc;
}

/* ---- receives --------------------------------------------------------------------------------------------------------------------- */

/* Receives go through the batch as well: of a queue that is not a queue pair, the key is its address. */
static void read_receives(const void *queue, const struct ibv_recv_wr *list, uint32_t most)
{
    for (const struct ibv_recv_wr *wr = list; wr; wr = wr->next) {
        struct request *r = batch_request(queue, 0);
        r->wr = (const void *)wr;
        r->wr_id = wr->wr_id;
        if (most && wr->num_sge > (int)most)
            r->unread = 1;
        else
            batch_list(r, wr->sg_list, wr->num_sge);
    }
}

static void record_receives(struct st_thread *t, uint64_t begin, struct st_object *o, uint32_t from, uint32_t accepted)
{
    const struct request *first = &batch.requests[from];
    for (uint32_t i = from; i < from + accepted; i++)
        if (batch.requests[i].unread) {
            const struct ibv_recv_wr *wr = (const void *)batch.requests[i].wr;
            batch_list(&batch.requests[i], wr->sg_list, wr->num_sge);
        }
    if (st_mode == ST_SIMPLE) {
        uint64_t bytes = 0, duration = st_clock() - begin;
        for (uint32_t i = 0; i < accepted; i++)
            bytes += first[i].bytes;
        st_rec_call(t, begin, ST_EV_VERBS_CALL, o, ST_EV_VERBS_RECV, accepted, bytes, 0, duration);
    }
    for (uint32_t i = 0; i < accepted; i++) {
        const struct request *r = &first[i];
        if (st_mode == ST_FULL) {
            st_rec_verbs_receive(t, begin, ST_EV_VERBS_RECV, o, r->wr_id, r->bytes, r->sges, r->local_address, stored_key(&o->user[USER_LOCAL_KEY], r->local_key), !!i);
            for (uint32_t k = 1; k < r->sges; k++) {
                const struct ibv_sge *s = &batch.sges[r->more + k - 1];
                st_rec_verbs_sge(t, begin, ST_EV_VERBS_SGE, o, k, s->addr, st_hash_key(s->lkey), s->length);
            }
        }
        st_count(t, o, ST_EV_VERBS_RECV, r->bytes, !i);
    }
}

/* How many of the batch's requests from index `from` on were accepted, when the call returned rc. */
static uint32_t receives_accepted(uint32_t from, int rc, struct ibv_recv_wr **bad)
{
    uint32_t n = batch.used - from, i = 0;
    if (!rc)
        return n;
    while (i < n && bad && (const void *)batch.requests[from + i].wr != (const void *)*bad)
        i++;
    return bad && i < n ? i : 0;
}

/* One receive of one entry, the commonest. */
static inline __attribute__((always_inline)) void record_receive(struct st_thread *t, uint64_t begin, struct st_object *o, uint64_t wr_id, uint64_t bytes, uint64_t address, uint32_t key)
{
    if (st_mode == ST_FULL)
        st_rec_verbs_receive(t, begin, ST_EV_VERBS_RECV, o, wr_id, bytes, 1, address, stored_key(&o->user[USER_LOCAL_KEY], key), 0);
    else
        call_of_one(t, begin, o, ST_EV_VERBS_RECV, bytes);
    st_count(t, o, ST_EV_VERBS_RECV, bytes, 1);
}

int hook_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    const struct context *c = context_of(qp->context);
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    if (!t)
        return c->post_recv(qp, wr, bad);
    struct st_object *o = qp_of(qp);
    uint64_t begin = st_clock();
    int rc;
    if (st_likely(wr && !wr->next && wr->num_sge == 1 && most_recv_sges(o))) {
        uint64_t wr_id = wr->wr_id, bytes = wr->sg_list->length, address = wr->sg_list->addr;
        uint32_t key = wr->sg_list->lkey;
        rc = c->post_recv(qp, wr, bad);
        if (st_likely(rc == 0))
            record_receive(t, begin, o, wr_id, bytes, address, key);
    } else {
        uint32_t from = batch.used;
        read_receives(qp, wr, most_recv_sges(o));
        rc = c->post_recv(qp, wr, bad);
        uint32_t n = receives_accepted(from, rc, bad);
        if (n)
            record_receives(t, begin, o, from, n);
        batch_drop(qp, from);
    }
    st_leave(t, ST_LAYER_VERBS);
    return rc;
}

int hook_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    const struct context *c = context_of(srq->context);
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    if (!t)
        return c->post_srq_recv(srq, wr, bad);
    struct st_object *o = srq_of(srq);
    uint32_t from = batch.used;
    uint64_t begin = st_clock();
    read_receives(srq, wr, most_sges(o));
    int rc = c->post_srq_recv(srq, wr, bad);
    uint32_t n = receives_accepted(from, rc, bad);
    if (n)
        record_receives(t, begin, o, from, n);
    batch_drop((const void *)srq, from);
    st_leave(t, ST_LAYER_VERBS);
    return rc;
}
