/* What libmlx5 opens and makes for libibverbs, and queue pairs whose requests then pass no call: the program writes them to the device's rings itself. They are named, so that nobody
 * takes their silence for idleness. */
#define _GNU_SOURCE
#include "mlx5dv.h"
#include "versioned.h"

#include <errno.h>

struct mlx5dv_real mlx5dv_real;

static const struct st_hook hooks[] = {
#define X(name, version) {#name, version, (void *)name, (void **)(void *)&mlx5dv_real.name},
    MLX5DV_HOOKED(X) {0}};
#undef X

void mlx5dv_find(void)
{
    int saved = errno;
    st_find_versions(hooks, "libmlx5.so.1");
    errno = saved;
}

__attribute__((constructor)) static void start(void) { st_hooks("mlx5dv_", hooks); }

/* A missing library answers as a call that the driver does not have. */
static void *absent(void)
{
    errno = ENOSYS;
    return NULL;
}

ST_EXPORT struct ibv_context *mlx5dv_open_device(struct ibv_device *device, struct mlx5dv_context_attr *attr)
{
    if (!MLX5(mlx5dv_open_device))
        return absent();
    if (!&st_verbs)
        return mlx5dv_real.mlx5dv_open_device(device, attr);
    st_verbs.opening();
    return st_verbs.opened(mlx5dv_real.mlx5dv_open_device(device, attr), (void *)mlx5dv_real.mlx5dv_open_device);
}

ST_EXPORT struct ibv_cq_ex *mlx5dv_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr, struct mlx5dv_cq_init_attr *mlx5_attr)
{
    if (!MLX5(mlx5dv_create_cq))
        return absent();
    struct st_thread *t = enter_verbs();
    struct ibv_cq_ex *cq = mlx5dv_real.mlx5dv_create_cq(context, attr, mlx5_attr);
    return &st_verbs ? st_verbs.cq_made(t, cq) : cq;
}

ST_EXPORT struct ibv_qp *mlx5dv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr, struct mlx5dv_qp_init_attr *mlx5_attr)
{
    if (!MLX5(mlx5dv_create_qp))
        return absent();
    struct st_thread *t = enter_verbs();
    struct ibv_qp *qp = mlx5dv_real.mlx5dv_create_qp(context, attr, mlx5_attr);
    return &st_verbs ? st_verbs.qp_made(t, qp, attr) : qp;
}

/* A program that asks where a queue pair's ring and doorbell are is going to use them. */
ST_EXPORT int mlx5dv_init_obj(struct mlx5dv_obj *obj, uint64_t obj_type)
{
    if (!MLX5(mlx5dv_init_obj))
        return ENOSYS;
    struct st_thread *t = enter_verbs();
    int rc = mlx5dv_real.mlx5dv_init_obj(obj, obj_type);
    if (t && rc == 0 && obj_type & MLX5DV_OBJ_QP && obj->qp.in) {
        struct st_object *o = st_verbs.queue_pair(obj->qp.in);
        if (o->id)
            st_def_verbs_blind(o->id, "its rings were asked for with mlx5dv_init_obj: requests, if any, are written to them without a call");
    }
    leave_verbs(t);
    return rc;
}
