/* A libmlx5.so.1 whose mlx5dv_init_obj and DEVX commands succeed, which the software HCA's need not. */
#include <infiniband/mlx5dv.h>
#include <string.h>

int mlx5dv_init_obj(struct mlx5dv_obj *obj, uint64_t obj_type)
{
    (void)obj, (void)obj_type;
    return 0;
}

struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *context, const void *in, size_t inlen, void *out, size_t outlen)
{
    static int object;
    (void)context, (void)in, (void)inlen;
    memset(out, 0, outlen);
    memcpy((char *)out + 9, "\x12\x34\x56", 3);
    return (void *)&object;
}

int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *obj)
{
    (void)obj;
    return 0;
}
