/* A libmlx5.so.1 whose mlx5dv_init_obj succeeds, which the software HCA's does not for queue pairs. */
#include <infiniband/mlx5dv.h>

int mlx5dv_init_obj(struct mlx5dv_obj *obj, uint64_t obj_type)
{
    (void)obj, (void)obj_type;
    return 0;
}
