/* What programs make by commands to the device's firmware (DEVX), as those do whose rings a GPU fills: pages of doorbells, memory, completion queues, queue pairs. libibverbs knows nothing
 * of them, and their requests pass no call; but how they are made and connected does, in mailboxes.
 *
 * Layouts: ConnectX Programmer's Reference Manual, CREATE_CQ, CREATE_QP, RST2INIT_QP, INIT2RTR_QP, the contexts of both queues (CQC, QPC) and the queue pair's primary address
 * path; all big endian. */
#define _GNU_SOURCE
#include "mlx5dv.h"
#include "queues.h"

#include <errno.h>
#include <string.h>

enum { CREATE_CQ = 0x400, CREATE_QP = 0x500, RST2INIT_QP = 0x502, INIT2RTR_QP = 0x503, RTR2RTS_QP = 0x504, TO_ERROR_QP = 0x507, TO_RESET_QP = 0x50a };
enum { ANSWER_NUMBER = 9, ANSWER_END = 12 };
enum { MAILBOX_QPC = 0x18, QPC_END = 0x108, MAILBOX_RING_OFFSET = 0x100, MAILBOX_RING_MEMORY = 0x108, CREATE_END = 0x110 };
enum { MAILBOX_CQC = 0x10, MAILBOX_ENTRIES_OFFSET = 0x50, MAILBOX_ENTRIES_MEMORY = 0x58, CREATE_CQ_END = 0x5c };
enum { SERVICE_DCI = 5 };
/* In the contexts. */
enum {
    QPC_SERVICE = 0x01, QPC_MTU = 0x08, QPC_RQ_SIZE = 0x09, QPC_SQ_SIZE = 0x0a, QPC_PAGE = 0x0d, QPC_REMOTE_QPN = 0x15, QPC_PATH = 0x18, QPC_SEND_CQ = 0x7d, QPC_RECV_CQ = 0x9d,
    QPC_RECORD = 0xa0, QPC_RQ_TYPE = 0xac, QPC_RECORD_MEMORY = 0xe4
};
enum { CQC_ENTRY_SIZE = 0x01, CQC_RECORD_MEMORY = 0x04, CQC_SIZE = 0x0c, CQC_PAGE = 0x0d, CQC_RECORD = 0x38 };
/* In the path. */
enum { PATH_GLOBAL = 0x05, PATH_LID = 0x06, PATH_GID_INDEX = 0x09, PATH_HOP_LIMIT = 0x0b, PATH_CLASS_AND_LABEL = 0x0c, PATH_GID = 0x10, PATH_SL = 0x24, PATH_PORT = 0x25 };

static uint32_t get16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static uint32_t get24(const uint8_t *p) { return get16(p) << 8 | p[2]; }
static uint32_t get32(const uint8_t *p) { return get24(p) << 8 | p[3]; }
static uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }

static unsigned qp_type(uint8_t service)
{
    switch (service) {
    case 0: return IBV_QPT_RC;
    case 1: return IBV_QPT_UC;
    case 2: return IBV_QPT_UD;
    default: return IBV_QPT_DRIVER;
    }
}

/* Blocks of 64 bytes; a request takes one or more. */
static unsigned send_blocks(const uint8_t *qpc) { return qpc[QPC_SQ_SIZE] & 0x80 ? 0 : 1u << (qpc[QPC_SQ_SIZE] >> 3 & 0xf); }

/* 0 where receives come from a shared queue, or there are none. */
static unsigned receive_entries(const uint8_t *qpc) { return qpc[QPC_RQ_TYPE] & 7 ? 0 : 1u << (qpc[QPC_RQ_SIZE] >> 3 & 0xf); }

/* Numbers of pages, memories and queues are a context's own: programs with several adapters have the same ones twice. Each context gets a number, 0 stands for any beyond the table. */
static uint64_t scope(const struct ibv_context *c)
{
    enum { SCOPES = 255 };
    static const struct ibv_context *known[SCOPES];
    for (unsigned i = 0; i < SCOPES; i++) {
        const struct ibv_context *none = NULL, *k = __atomic_load_n(&known[i], __ATOMIC_ACQUIRE);
        if (k == c || (!k && (__atomic_compare_exchange_n(&known[i], &none, c, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) || none == c)))
            return i + 1;
    }
    return 0;
}
static uint32_t page_in(uint64_t scope, uint32_t number) { return (uint32_t)(scope << 24) | (number & 0xffffff); }
static uint64_t number_in(uint64_t scope, uint32_t number) { return scope << 32 | number; }

/* An object that mailboxes name by its number. */
enum { USER_NUMBER = 3 };
static struct st_object *numbered(enum st_kind kind, const void *key, enum st_kind by_number, uint64_t number)
{
    struct st_object *o = st_verbs.make(kind, key);
    if (o->id) {
        o->user[USER_NUMBER] = number;
        st_object_alias(o, by_number, number);
    }
    return o;
}

static void numbered_gone(enum st_kind kind, const void *key, enum st_kind by_number, uint32_t id)
{
    struct st_object *o = st_find(kind, (uintptr_t)key);
    if (!id || o->id != id)
        return;
    uint64_t number = o->user[USER_NUMBER];
    if (st_find(by_number, number) == o)
        st_object_forget(by_number, number);
    st_verbs.gone(kind, key, id);
}

/* ---- what queues are made of ---------------------------------------------------------------------------------------------------------- */

ST_EXPORT struct mlx5dv_devx_uar *mlx5dv_devx_alloc_uar(struct ibv_context *context, uint32_t flags)
{
    if (!MLX5(mlx5dv_devx_alloc_uar)) {
        errno = ENOSYS;
        return NULL;
    }
    struct st_thread *t = enter_verbs();
    struct mlx5dv_devx_uar *u = mlx5dv_real.mlx5dv_devx_alloc_uar(context, flags);
    if (u) {
        uint32_t page = page_in(scope(context), u->page_id);
        bool first = !u->reg_addr || st_page_add(&(struct st_page){u, (uintptr_t)u->reg_addr, ST_DOORBELL_AREA, page, 0});
        struct st_object *o = t && (first || !st_find(ST_KIND_UAR, (uintptr_t)u)->id) ? numbered(ST_KIND_UAR, u, ST_KIND_UAR_NUMBER, page) : st_unknown;
        if (o->id)
            st_def_mlx5_uar(o->id, st_verbs.device(context)->id, u->page_id, (uintptr_t)u->reg_addr);
    }
    leave_verbs(t);
    return u;
}

ST_EXPORT void mlx5dv_devx_free_uar(struct mlx5dv_devx_uar *uar)
{
    if (!MLX5(mlx5dv_devx_free_uar))
        return;
    if (st_page_gone(uar))
        numbered_gone(ST_KIND_UAR, uar, ST_KIND_UAR_NUMBER, st_find(ST_KIND_UAR, (uintptr_t)uar)->id);
    mlx5dv_real.mlx5dv_devx_free_uar(uar);
}

static struct mlx5dv_devx_umem *registered(struct st_thread *t, struct ibv_context *context, struct mlx5dv_devx_umem *m, const void *addr, size_t size)
{
    if (m) {
        uint64_t number = number_in(scope(context), m->umem_id);
        struct gpu g = {0};
        bool of_gpu = &st_verbs && st_verbs.gpu_of(addr, &g);
        if (addr)
            st_memory_add(m, number, (uintptr_t)addr, size, of_gpu);
        struct st_object *o = t ? numbered(ST_KIND_UMEM, m, ST_KIND_UMEM_NUMBER, number) : st_unknown;
        if (o->id)
            st_def_mlx5_umem(o->id, st_verbs.device(context)->id, m->umem_id, (uintptr_t)addr, size, of_gpu, g.ordinal, g.context, g.uuid, g.uuid_size);
    }
    leave_verbs(t);
    return m;
}

ST_EXPORT struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg(struct ibv_context *context, void *addr, size_t size, uint32_t access)
{
    if (!MLX5(mlx5dv_devx_umem_reg)) {
        errno = ENOSYS;
        return NULL;
    }
    struct st_thread *t = enter_verbs();
    return registered(t, context, mlx5dv_real.mlx5dv_devx_umem_reg(context, addr, size, access), addr, size);
}

ST_EXPORT struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg_ex(struct ibv_context *context, struct mlx5dv_devx_umem_in *in)
{
    if (!MLX5(mlx5dv_devx_umem_reg_ex)) {
        errno = ENOSYS;
        return NULL;
    }
    const void *addr = in->addr;
    size_t size = in->size;
    struct st_thread *t = enter_verbs();
    return registered(t, context, mlx5dv_real.mlx5dv_devx_umem_reg_ex(context, in), addr, size);
}

ST_EXPORT int mlx5dv_devx_umem_dereg(struct mlx5dv_devx_umem *umem)
{
    if (!MLX5(mlx5dv_devx_umem_dereg))
        return ENOSYS;
    uint32_t id = st_find(ST_KIND_UMEM, (uintptr_t)umem)->id;
    st_memory_gone(umem);
    int rc = mlx5dv_real.mlx5dv_devx_umem_dereg(umem);
    if (rc == 0)
        numbered_gone(ST_KIND_UMEM, umem, ST_KIND_UMEM_NUMBER, id);
    return rc;
}

/* ---- queues ------------------------------------------------------------------------------------------------------------------------------- */

static uint32_t memory_object(uint64_t in, uint32_t number) { return st_find(ST_KIND_UMEM_NUMBER, number_in(in, number))->id; }
static uint32_t page_object(uint64_t in, uint32_t number) { return st_find(ST_KIND_UAR_NUMBER, page_in(in, number))->id; }

static void completion_queue_made(struct ibv_context *c, const void *key, const uint8_t *in, size_t inlen, uint32_t cqn)
{
    enum { ENTRY = 64 };
    if (inlen < CREATE_CQ_END)
        return;
    const uint8_t *cqc = in + MAILBOX_CQC;
    uint64_t where = scope(c);
    struct st_object *o = numbered(ST_KIND_CQ, key, ST_KIND_CQN, number_in(where, cqn));
    if (!o->id)
        return;
    uint64_t entries = 1ull << (cqc[CQC_SIZE] & 0x1f);
    st_def_verbs_cq(o->id, st_verbs.device(c)->id, entries);
    st_def_mlx5_ring(o->id, cqn, memory_object(where, get32(in + MAILBOX_ENTRIES_MEMORY)), get64(in + MAILBOX_ENTRIES_OFFSET), entries, ENTRY << (cqc[CQC_ENTRY_SIZE] >> 5),
                     memory_object(where, get32(cqc + CQC_RECORD_MEMORY)), get64(cqc + CQC_RECORD), page_object(where, get24(cqc + CQC_PAGE)));
}

/* A queue whose ring and doorbells are known can be watched. */
static void chart(const void *key, struct st_object *o, const uint8_t *in, uint64_t where, uint32_t qpn)
{
    const uint8_t *qpc = in + MAILBOX_QPC;
    struct st_queue q = {.key = key, .object = o, .qpn = qpn, .page = page_in(where, get24(qpc + QPC_PAGE)), .blocks = send_blocks(qpc), .dynamic = qpc[QPC_SERVICE] == SERVICE_DCI};
    uint32_t memory = get32(in + MAILBOX_RING_MEMORY), record = get32(qpc + QPC_RECORD_MEMORY);
    if (!q.blocks)
        return;
    st_def_mlx5_ring(o->id, qpn, memory_object(where, memory), get64(in + MAILBOX_RING_OFFSET), q.blocks, 64, memory_object(where, record), get64(qpc + QPC_RECORD),
                     page_object(where, get24(qpc + QPC_PAGE)));
    q.ring = st_memory_at(number_in(where, memory), get64(in + MAILBOX_RING_OFFSET), &q.ring_of_gpu);
    q.record = st_memory_at(number_in(where, record), get64(qpc + QPC_RECORD), &q.record_of_gpu);
    st_queue_add(&q); /* one whose ring is not known is rung all the same */
}

static void queue_pair_made(struct ibv_context *c, const void *key, const uint8_t *in, size_t inlen, uint32_t qpn)
{
    const uint8_t *qpc = in + MAILBOX_QPC;
    if (inlen < QPC_END)
        return;
    struct st_object *o = st_verbs.make(ST_KIND_QP, key);
    if (!o->id)
        return;
    uint64_t where = scope(c);
    uint32_t send_cq = st_find(ST_KIND_CQN, number_in(where, get24(qpc + QPC_SEND_CQ)))->id, recv_cq = st_find(ST_KIND_CQN, number_in(where, get24(qpc + QPC_RECV_CQ)))->id;
    st_def_verbs_qp(o->id, st_verbs.device(c)->id, 0, qpn, qp_type(qpc[QPC_SERVICE]), send_cq, recv_cq, 0, 0, send_blocks(qpc), receive_entries(qpc), 0);
    st_def_verbs_blind(o->id, "made with mlx5dv_devx_obj_create: requests, if any, are written to its rings without a call");
    if (inlen >= CREATE_END)
        chart(key, o, in, where, qpn);
}

ST_EXPORT struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *context, const void *in, size_t inlen, void *out, size_t outlen)
{
    if (!MLX5(mlx5dv_devx_obj_create)) {
        errno = ENOSYS;
        return NULL;
    }
    struct st_thread *t = enter_verbs();
    struct mlx5dv_devx_obj *obj = mlx5dv_real.mlx5dv_devx_obj_create(context, in, inlen, out, outlen);
    if (t && obj && inlen >= 2 && outlen >= ANSWER_END) {
        uint32_t number = get24((const uint8_t *)out + ANSWER_NUMBER);
        switch (get16(in)) {
        case CREATE_CQ: completion_queue_made(context, obj, in, inlen, number); break;
        case CREATE_QP: queue_pair_made(context, obj, in, inlen, number); break;
        }
    }
    leave_verbs(t);
    return obj;
}

/* The change that a command makes, as ibv_modify_qp would have it; the mask. 0: none that is followed. */
static int change(unsigned command, const uint8_t *qpc, struct ibv_qp_attr *a)
{
    const uint8_t *path = qpc + QPC_PATH;
    memset(a, 0, sizeof *a);
    switch (command) {
    case RST2INIT_QP:
        a->qp_state = IBV_QPS_INIT;
        a->port_num = path[PATH_PORT];
        return IBV_QP_STATE | (a->port_num ? IBV_QP_PORT : 0);
    case RTR2RTS_QP:
        a->qp_state = IBV_QPS_RTS;
        return IBV_QP_STATE;
    case TO_ERROR_QP:
        a->qp_state = IBV_QPS_ERR;
        return IBV_QP_STATE;
    case TO_RESET_QP:
        a->qp_state = IBV_QPS_RESET;
        return IBV_QP_STATE;
    case INIT2RTR_QP:
        break;
    default:
        return 0;
    }
    a->qp_state = IBV_QPS_RTR;
    a->path_mtu = qpc[QPC_MTU] >> 5;
    a->ah_attr.dlid = (uint16_t)get16(path + PATH_LID);
    a->ah_attr.is_global = path[PATH_GLOBAL] >> 7;
    a->ah_attr.port_num = path[PATH_PORT];
    a->ah_attr.sl = path[PATH_SL] & 0xf;
    a->ah_attr.grh.sgid_index = path[PATH_GID_INDEX];
    a->ah_attr.grh.hop_limit = path[PATH_HOP_LIMIT];
    a->ah_attr.grh.traffic_class = (uint8_t)(get32(path + PATH_CLASS_AND_LABEL) >> 20);
    a->ah_attr.grh.flow_label = get32(path + PATH_CLASS_AND_LABEL) & 0xfffff;
    memcpy(&a->ah_attr.grh.dgid, path + PATH_GID, sizeof a->ah_attr.grh.dgid);
    if (!a->ah_attr.dlid && get32(path + PATH_GID) | get32(path + PATH_GID + 4) | get32(path + PATH_GID + 8) | get32(path + PATH_GID + 12))
        a->ah_attr.is_global = 1; /* on Ethernet there is always a route, and the bit may be left out */
    a->dest_qp_num = get24(qpc + QPC_REMOTE_QPN);
    /* dynamically connected queues have no peer of their own, and say 0 */
    return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | (a->dest_qp_num ? IBV_QP_DEST_QPN : 0);
}

/* Records what a command has done to a queue pair. false: it was not to be followed, or has changed nothing. */
static bool changed(struct st_object *o, const void *in, size_t inlen)
{
    struct ibv_qp_attr a;
    unsigned command = inlen >= 2 ? get16(in) : 0;
    int ends = command == TO_ERROR_QP || command == TO_RESET_QP; /* whose mailbox has no context */
    int mask = o->id && (ends || inlen >= QPC_END) ? change(command, (const uint8_t *)in + MAILBOX_QPC, &a) : 0;
    if (mask)
        st_verbs.change(o, &a, (unsigned)mask);
    return mask;
}

ST_EXPORT int mlx5dv_devx_obj_modify(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen, void *out, size_t outlen)
{
    if (!MLX5(mlx5dv_devx_obj_modify))
        return ENOSYS;
    struct st_thread *t = enter_verbs();
    int rc = mlx5dv_real.mlx5dv_devx_obj_modify(obj, in, inlen, out, outlen);
    if (t && rc == 0 && changed(st_find(ST_KIND_QP, (uintptr_t)obj), in, inlen) && get16(in) == TO_RESET_QP)
        st_queue_reset(obj);
    leave_verbs(t);
    return rc;
}

/* The same of a queue pair that verbs have made, as UCX connects its own. */
ST_EXPORT int mlx5dv_devx_qp_modify(struct ibv_qp *qp, const void *in, size_t inlen, void *out, size_t outlen)
{
    if (!MLX5(mlx5dv_devx_qp_modify))
        return ENOSYS;
    struct st_thread *t = enter_verbs();
    int rc = mlx5dv_real.mlx5dv_devx_qp_modify(qp, in, inlen, out, outlen);
    if (t && rc == 0)
        changed(st_verbs.queue_pair(qp), in, inlen);
    leave_verbs(t);
    return rc;
}

ST_EXPORT int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *obj)
{
    if (!MLX5(mlx5dv_devx_obj_destroy))
        return ENOSYS;
    uint32_t qp = st_find(ST_KIND_QP, (uintptr_t)obj)->id, cq = st_find(ST_KIND_CQ, (uintptr_t)obj)->id;
    st_queue_ends(obj);
    int rc = mlx5dv_real.mlx5dv_devx_obj_destroy(obj);
    if (rc)
        st_queue_stays(obj);
    else
        st_queue_gone(obj);
    if (rc == 0 && qp)
        st_verbs.gone(ST_KIND_QP, obj, qp);
    if (rc == 0)
        numbered_gone(ST_KIND_CQ, obj, ST_KIND_CQN, cq);
    return rc;
}
