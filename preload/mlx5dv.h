/*
 * Inside of the provider mlx5dv: calls of libmlx5 that pass libibverbs by. mlx5dv.c has those that open and make what libibverbs knows, and those that take its rings; mlx5dv_devx.c
 * what programs make in the device themselves, for queues that GPUs fill and ring; also whose memory that lies in. Objects are provider ibverbs' (verbs.h).
 */
#ifndef ST_MLX5DV_H
#define ST_MLX5DV_H

#include "recorder.h"
#include "verbs.h"

#include <infiniband/mlx5dv.h>

/* Not there where provider ibverbs was not loaded. */
#pragma weak st_verbs

/* Every symbol with the version that programs link to. */
#define MLX5DV_HOOKED(X)                       \
    X(mlx5dv_open_device, "MLX5_1.7")          \
    X(mlx5dv_create_qp, "MLX5_1.3")            \
    X(mlx5dv_create_cq, "MLX5_1.1")            \
    X(mlx5dv_init_obj, "MLX5_1.2")             \
    X(mlx5dv_devx_obj_create, "MLX5_1.7")      \
    X(mlx5dv_devx_obj_modify, "MLX5_1.7")      \
    X(mlx5dv_devx_obj_destroy, "MLX5_1.7")     \
    X(mlx5dv_devx_qp_modify, "MLX5_1.8")       \
    X(mlx5dv_devx_alloc_uar, "MLX5_1.7")       \
    X(mlx5dv_devx_free_uar, "MLX5_1.7")        \
    X(mlx5dv_devx_umem_reg, "MLX5_1.7")        \
    X(mlx5dv_devx_umem_reg_ex, "MLX5_1.19")    \
    X(mlx5dv_devx_umem_dereg, "MLX5_1.7")

struct mlx5dv_real {
#define X(name, version) __typeof__(name) *name;
    MLX5DV_HOOKED(X)
#undef X
};
extern struct mlx5dv_real mlx5dv_real;
void mlx5dv_find(void);
/* The library's function, or NULL when no such library is loaded. */
#define MLX5(name) (st_likely(!!__atomic_load_n(&mlx5dv_real.name, __ATOMIC_RELAXED)) ? mlx5dv_real.name : (mlx5dv_find(), mlx5dv_real.name))

/* st_enter of layer verbs; NULL too without provider ibverbs. */
static inline struct st_thread *enter_verbs(void) { return &st_verbs ? st_enter(ST_LAYER_VERBS) : NULL; }
static inline void leave_verbs(struct st_thread *t)
{
    if (t)
        st_leave(t, ST_LAYER_VERBS);
}

#endif
