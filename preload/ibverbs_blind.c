/* Queue pairs whose requests pass no call: the program writes them to the device's rings itself. They are named, so that nobody takes
 * their silence for idleness. */
#define _GNU_SOURCE
#include "ibverbs.h"

#include <errno.h>

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
