# Provider mlx5dv: not linked with libmlx5, whose functions it takes the place of. What it records hangs on objects of provider ibverbs (verbs.h).
PROVIDERS += mlx5dv
mlx5dv_SRC := $(addprefix preload/,mlx5dv.c mlx5dv_devx.c)
mlx5dv_MAP := preload/mlx5dv.map
mlx5dv_NEEDS := ibverbs
