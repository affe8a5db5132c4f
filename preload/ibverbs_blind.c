/* Queue pairs whose requests pass no call: the program writes them to the device's rings itself. They are named, so that nobody takes
 * their silence for idleness. */
#define _GNU_SOURCE
#include "ibverbs.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

/* A program that asks where a queue pair's ring and doorbell are is going to use them. */
ST_EXPORT int mlx5dv_init_obj(struct mlx5dv_obj *obj, uint64_t obj_type)
{
    if (!REAL(mlx5dv_init_obj))
        return ENOSYS;
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    int rc = real.mlx5dv_init_obj(obj, obj_type);
    if (t) {
        if (rc == 0 && obj_type & MLX5DV_OBJ_QP && obj->qp.in) {
            struct st_object *o = qp_of(obj->qp.in);
            if (o->id)
                st_def_verbs_blind(o->id, "its rings were asked for with mlx5dv_init_obj: requests are written to them without a call");
        }
        st_leave(t, ST_LAYER_VERBS);
    }
    return rc;
}

/* Command mailboxes, ConnectX Programmer's Reference Manual, CREATE_QP: opcode in bytes 0-1, queue pair context from 0x18, in it the
 * service type in byte 1; of the answer the number in bytes 9-11. */
enum { COMMAND_CREATE_QP = 0x500, COMMAND_QPC = 0x18, ANSWER_QPN = 8 };

static unsigned qp_type(uint8_t service)
{
    switch (service) {
    case 0: return IBV_QPT_RC;
    case 1: return IBV_QPT_UC;
    case 2: return IBV_QPT_UD;
    default: return IBV_QPT_DRIVER;
    }
}

ST_EXPORT struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *context, const void *in, size_t inlen, void *out, size_t outlen)
{
    if (!REAL(mlx5dv_devx_obj_create)) {
        errno = ENOSYS;
        return NULL;
    }
    struct mlx5dv_devx_obj *obj = real.mlx5dv_devx_obj_create(context, in, inlen, out, outlen);
    uint16_t command;
    if (!obj || inlen < COMMAND_QPC + 2 || outlen < ANSWER_QPN + 4)
        return obj;
    memcpy(&command, in, sizeof command);
    if (be16toh(command) != COMMAND_CREATE_QP)
        return obj;
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    if (t) {
        uint32_t qpn;
        memcpy(&qpn, (const char *)out + ANSWER_QPN, sizeof qpn);
        define_raw_qp(context, obj, be32toh(qpn) & 0xffffff, qp_type(((const uint8_t *)in)[COMMAND_QPC + 1]),
                      "made with mlx5dv_devx_obj_create: requests are written to its rings without a call");
        st_leave(t, ST_LAYER_VERBS);
    }
    return obj;
}

ST_EXPORT int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *obj)
{
    if (!REAL(mlx5dv_devx_obj_destroy))
        return ENOSYS;
    uint32_t id = st_find(ST_KIND_QP, (uintptr_t)obj)->id;
    int rc = real.mlx5dv_devx_obj_destroy(obj);
    if (rc == 0)
        object_gone(ST_KIND_QP, obj, id);
    return rc;
}
