/* ibv_wr_*: requests are built by calls through pointers in the extended queue pair and posted together by wr_complete. */
#define _GNU_SOURCE
#include "ibverbs_request.h"

#include <string.h>

/* The originals of one kind of queue pair; drivers have a handful of kinds. */
struct wr_table {
    struct ibv_qp_ex ops; /* only its pointers */
};
#define TABLES 64
static struct wr_table tables[TABLES];
static unsigned tables_used;

/* What a hook was put in for: found by the queue pair. */
static inline const struct ibv_qp_ex *originals(const struct ibv_qp_ex *qp) { return &((const struct wr_table *)originals_of(qp))->ops; }

/* The request that the setters of the queue pair mean. */
static struct request *current(const struct ibv_qp_ex *qp)
{
    static __thread struct request none;
    struct batch *b = &batch;
    for (uint32_t i = b->used; i--;)
        if (st_likely(b->requests[i].qp == &qp->qp_base))
            return &b->requests[i];
    return &none;
}

static struct request *build(const struct ibv_qp_ex *qp, unsigned opcode)
{
    struct request *r = batch_request(&qp->qp_base, opcode);
    r->wr_id = qp->wr_id;
    r->flags = qp->wr_flags & 0x1f;
    return r;
}

static struct request *build_remote(const struct ibv_qp_ex *qp, unsigned opcode, uint32_t rkey, uint64_t remote_addr)
{
    struct request *r = build(qp, opcode);
    r->remote_key = rkey;
    r->remote_address = remote_addr;
    return r;
}

/* ---- regions ---------------------------------------------------------------------------------------------------------------------- */

static void wr_start(struct ibv_qp_ex *qp)
{
    originals(qp)->wr_start(qp);
    if (st_unlikely(batch.used)) /* a batch that was neither completed nor aborted, or another queue pair's */
        batch_drop(&qp->qp_base, 0);
}

static int wr_complete(struct ibv_qp_ex *qp)
{
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    uint64_t begin = st_clock();
    int rc = originals(qp)->wr_complete(qp);
    if (t) {
        if (rc == 0 && batch.used)
            batch_posted(t, begin, &qp->qp_base, 0, batch.used);
        st_leave(t, ST_LAYER_VERBS);
    }
    batch_drop(&qp->qp_base, 0);
    return rc;
}

static void wr_abort(struct ibv_qp_ex *qp)
{
    originals(qp)->wr_abort(qp);
    batch_drop(&qp->qp_base, 0);
}

/* ---- builders --------------------------------------------------------------------------------------------------------------------- */

static void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t compare, uint64_t swap)
{
    struct request *r = build_remote(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote_addr);
    r->compare_add = compare;
    r->swap = swap;
    originals(qp)->wr_atomic_cmp_swp(qp, rkey, remote_addr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t add)
{
    build_remote(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote_addr)->compare_add = add;
    originals(qp)->wr_atomic_fetch_add(qp, rkey, remote_addr, add);
}

static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *bind_info)
{
    build_remote(qp, IBV_WR_BIND_MW, rkey, bind_info->addr);
    originals(qp)->wr_bind_mw(qp, mw, rkey, bind_info);
}

static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey)
{
    build(qp, IBV_WR_LOCAL_INV)->immediate = (uint32_t)st_hash_key(invalidate_rkey);
    originals(qp)->wr_local_inv(qp, invalidate_rkey);
}

static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
{
    build_remote(qp, IBV_WR_RDMA_READ, rkey, remote_addr);
    originals(qp)->wr_rdma_read(qp, rkey, remote_addr);
}

static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
{
    build_remote(qp, IBV_WR_RDMA_WRITE, rkey, remote_addr);
    originals(qp)->wr_rdma_write(qp, rkey, remote_addr);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, __be32 imm_data)
{
    build_remote(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote_addr)->immediate = ntohl(imm_data);
    originals(qp)->wr_rdma_write_imm(qp, rkey, remote_addr, imm_data);
}

static void wr_send(struct ibv_qp_ex *qp)
{
    build(qp, IBV_WR_SEND);
    originals(qp)->wr_send(qp);
}

static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm_data)
{
    build(qp, IBV_WR_SEND_WITH_IMM)->immediate = ntohl(imm_data);
    originals(qp)->wr_send_imm(qp, imm_data);
}

static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey)
{
    build(qp, IBV_WR_SEND_WITH_INV)->immediate = (uint32_t)st_hash_key(invalidate_rkey);
    originals(qp)->wr_send_inv(qp, invalidate_rkey);
}

static void wr_send_tso(struct ibv_qp_ex *qp, void *hdr, uint16_t hdr_sz, uint16_t mss)
{
    build(qp, IBV_WR_TSO);
    originals(qp)->wr_send_tso(qp, hdr, hdr_sz, mss);
}

static void wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, const void *atomic_wr)
{
    struct request *r = build_remote(qp, IBV_WR_ATOMIC_WRITE, rkey, remote_addr);
    r->bytes = 8; /* always */
    r->sges = 1;
    r->local_address = (uintptr_t)atomic_wr;
    originals(qp)->wr_atomic_write(qp, rkey, remote_addr, atomic_wr);
}

/* ---- setters ---------------------------------------------------------------------------------------------------------------------- */

static void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_qpn, uint32_t remote_qkey)
{
    struct request *r = current(qp);
    r->ah = ah;
    r->remote_qpn = remote_qpn;
    originals(qp)->wr_set_ud_addr(qp, ah, remote_qpn, remote_qkey);
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
    struct request *r = current(qp);
    r->sges = 1;
    r->bytes = length;
    r->local_address = addr;
    r->local_key = lkey;
    originals(qp)->wr_set_sge(qp, lkey, addr, length);
}

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t num_sge, const struct ibv_sge *list)
{
    uint32_t most = most_sges(st_find(ST_KIND_QP, (uintptr_t)qp));
    if (!most || num_sge <= most) /* more fail the batch, unread */
        batch_list(current(qp), list, (int)num_sge);
    originals(qp)->wr_set_sge_list(qp, num_sge, list);
}

static void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
{
    struct request *r = current(qp);
    r->sges = 1;
    r->bytes = length;
    r->local_address = (uintptr_t)addr;
    r->flags |= IBV_SEND_INLINE;
    originals(qp)->wr_set_inline_data(qp, addr, length);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t num_buf, const struct ibv_data_buf *list)
{
    struct request *r = current(qp);
    r->sges = num_buf ? 1 : 0; /* the list's entries are no scatter/gather entries: first address, and bytes of all */
    r->bytes = 0;
    for (size_t i = 0; i < num_buf; i++)
        r->bytes += list[i].length;
    r->local_address = num_buf ? (uintptr_t)list[0].addr : 0;
    r->flags |= IBV_SEND_INLINE;
    originals(qp)->wr_set_inline_data_list(qp, num_buf, list);
}

/* ---- patching --------------------------------------------------------------------------------------------------------------------- */

#define POINTERS(X)                                                                                                                          \
    X(wr_atomic_cmp_swp) X(wr_atomic_fetch_add) X(wr_bind_mw) X(wr_local_inv) X(wr_rdma_read) X(wr_rdma_write) X(wr_rdma_write_imm)            \
    X(wr_send) X(wr_send_imm) X(wr_send_inv) X(wr_send_tso) X(wr_set_ud_addr) X(wr_set_inline_data)                                            \
    X(wr_set_inline_data_list) X(wr_set_sge) X(wr_set_sge_list) X(wr_start) X(wr_complete) X(wr_abort)

static const struct wr_table *table_of(const struct wr_table *want)
{
    const struct wr_table *found = NULL;
    registry_lock();
    for (unsigned i = 0; i < tables_used && !found; i++)
        if (!memcmp(&tables[i], want, sizeof *want))
            found = &tables[i];
    if (!found && tables_used < TABLES) {
        tables[tables_used] = *want;
        found = &tables[tables_used++];
    }
    registry_unlock();
    return found;
}

int patch_qp(struct ibv_qp *qp, uint64_t ops)
{
    struct ibv_qp_ex *x = REAL(ibv_qp_to_qp_ex) ? real.ibv_qp_to_qp_ex(qp) : NULL;
    struct wr_table want;
    if (!x || !x->wr_start || x->wr_start == wr_start)
        return 0;
    memset(&want, 0, sizeof want);
#define X(p) want.ops.p = x->p;
    POINTERS(X)
#undef X
    /* a library older than this operation has no such member */
    if (ops & IBV_QP_EX_WITH_ATOMIC_WRITE)
        want.ops.wr_atomic_write = x->wr_atomic_write;
    const struct wr_table *table = table_of(&want);
    if (!table || !queue_patched(x, table))
        return -1;
#define X(p)                                                                                                                                 \
    if (x->p)                                                                                                                                \
        x->p = p;
    POINTERS(X)
#undef X
    if (ops & IBV_QP_EX_WITH_ATOMIC_WRITE && x->wr_atomic_write)
        x->wr_atomic_write = wr_atomic_write;
    return 0;
}
