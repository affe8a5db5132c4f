/* Queue pairs made by commands to the device's firmware (DEVX), as programs make those whose rings a GPU fills. libibverbs knows nothing of them, and
 * their requests pass no call; but how they are made and connected does, in mailboxes.
 *
 * Layouts: ConnectX Programmer's Reference Manual, CREATE_QP, RST2INIT_QP, INIT2RTR_QP, the queue pair context (QPC) and its primary address
 * path; all big endian. */
#define _GNU_SOURCE
#include "ibverbs.h"
#include "queues.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

enum { CREATE_QP = 0x500, RST2INIT_QP = 0x502, INIT2RTR_QP = 0x503, RTR2RTS_QP = 0x504, TO_ERROR_QP = 0x507, TO_RESET_QP = 0x50a };
enum { MAILBOX_QPC = 0x18, QPC_END = 0x108, MAILBOX_RING_OFFSET = 0x100, MAILBOX_RING_MEMORY = 0x108, CREATE_END = 0x110, ANSWER_QPN = 9 };
enum { SERVICE_DCI = 5 };
/* In the context. */
enum { QPC_SERVICE = 0x01, QPC_MTU = 0x08, QPC_SQ_SIZE = 0x0a, QPC_PAGE = 0x0d, QPC_REMOTE_QPN = 0x15, QPC_PATH = 0x18, QPC_RECORD = 0xa0, QPC_RECORD_MEMORY = 0xe4 };
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

/* ---- what queues are made of ---------------------------------------------------------------------------------------------------------- */

ST_EXPORT struct mlx5dv_devx_uar *mlx5dv_devx_alloc_uar(struct ibv_context *context, uint32_t flags)
{
    if (!REAL(mlx5dv_devx_alloc_uar)) {
        errno = ENOSYS;
        return NULL;
    }
    struct mlx5dv_devx_uar *u = real.mlx5dv_devx_alloc_uar(context, flags);
    if (u && u->reg_addr)
        st_page_add(&(struct st_page){u, (uintptr_t)u->reg_addr, ST_DOORBELL_AREA, u->page_id});
    return u;
}

ST_EXPORT void mlx5dv_devx_free_uar(struct mlx5dv_devx_uar *uar)
{
    if (!REAL(mlx5dv_devx_free_uar))
        return;
    st_page_gone(uar);
    real.mlx5dv_devx_free_uar(uar);
}

static struct mlx5dv_devx_umem *registered(struct mlx5dv_devx_umem *m, const void *addr, size_t size)
{
    if (m && addr)
        st_memory_add(m, m->umem_id, (uintptr_t)addr, size);
    return m;
}

ST_EXPORT struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg(struct ibv_context *context, void *addr, size_t size, uint32_t access)
{
    if (!REAL(mlx5dv_devx_umem_reg)) {
        errno = ENOSYS;
        return NULL;
    }
    return registered(real.mlx5dv_devx_umem_reg(context, addr, size, access), addr, size);
}

ST_EXPORT struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg_ex(struct ibv_context *context, struct mlx5dv_devx_umem_in *in)
{
    if (!REAL(mlx5dv_devx_umem_reg_ex)) {
        errno = ENOSYS;
        return NULL;
    }
    const void *addr = in->addr;
    size_t size = in->size;
    return registered(real.mlx5dv_devx_umem_reg_ex(context, in), addr, size);
}

ST_EXPORT int mlx5dv_devx_umem_dereg(struct mlx5dv_devx_umem *umem)
{
    if (!REAL(mlx5dv_devx_umem_dereg))
        return ENOSYS;
    st_memory_gone(umem);
    return real.mlx5dv_devx_umem_dereg(umem);
}

/* ---- queue pairs ------------------------------------------------------------------------------------------------------------------------ */

/* A queue whose ring and doorbells are known can be watched. */
static void chart(const void *key, const uint8_t *in, size_t inlen, uint32_t qpn)
{
    const uint8_t *qpc = in + MAILBOX_QPC;
    struct st_object *o = st_find(ST_KIND_QP, (uintptr_t)key);
    struct st_queue q = {.key = key, .object = o, .qpn = qpn, .page = get24(qpc + QPC_PAGE), .blocks = send_blocks(qpc), .dynamic = qpc[QPC_SERVICE] == SERVICE_DCI};
    if (!o->id || inlen < CREATE_END || !q.blocks)
        return;
    q.ring = st_memory_at(get32(in + MAILBOX_RING_MEMORY), get64(in + MAILBOX_RING_OFFSET));
    q.record = st_memory_at(get32(qpc + QPC_RECORD_MEMORY), get64(qpc + QPC_RECORD));
    if (q.ring)
        st_queue_add(&q);
}

ST_EXPORT struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *context, const void *in, size_t inlen, void *out, size_t outlen)
{
    if (!REAL(mlx5dv_devx_obj_create)) {
        errno = ENOSYS;
        return NULL;
    }
    struct mlx5dv_devx_obj *obj = real.mlx5dv_devx_obj_create(context, in, inlen, out, outlen);
    if (!obj || inlen < QPC_END || outlen < ANSWER_QPN + 3 || get16(in) != CREATE_QP)
        return obj;
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    if (t) {
        const uint8_t *qpc = (const uint8_t *)in + MAILBOX_QPC;
        define_raw_qp(context, obj, get24((const uint8_t *)out + ANSWER_QPN), qp_type(qpc[QPC_SERVICE]), send_blocks(qpc),
                      "made with mlx5dv_devx_obj_create: requests are written to its rings without a call");
        chart(obj, in, inlen, get24((const uint8_t *)out + ANSWER_QPN));
        st_leave(t, ST_LAYER_VERBS);
    }
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

ST_EXPORT int mlx5dv_devx_obj_modify(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen, void *out, size_t outlen)
{
    if (!REAL(mlx5dv_devx_obj_modify))
        return ENOSYS;
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    int rc = real.mlx5dv_devx_obj_modify(obj, in, inlen, out, outlen);
    if (t) {
        struct st_object *o = st_find(ST_KIND_QP, (uintptr_t)obj);
        struct ibv_qp_attr a;
        unsigned command = inlen >= 2 ? get16(in) : 0;
        int ends = command == TO_ERROR_QP || command == TO_RESET_QP; /* whose mailbox has no context */
        int mask = rc == 0 && o->id && (ends || inlen >= QPC_END) ? change(command, (const uint8_t *)in + MAILBOX_QPC, &a) : 0;
        if (mask)
            define_qp_change(o, &a, (unsigned)mask);
        st_leave(t, ST_LAYER_VERBS);
    }
    return rc;
}

ST_EXPORT int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *obj)
{
    if (!REAL(mlx5dv_devx_obj_destroy))
        return ENOSYS;
    uint32_t id = st_find(ST_KIND_QP, (uintptr_t)obj)->id;
    st_queue_gone(obj);
    int rc = real.mlx5dv_devx_obj_destroy(obj);
    if (rc == 0)
        object_gone(ST_KIND_QP, obj, id);
    return rc;
}
