# Provider cuda: not linked with libcuda, whose functions it takes the place of.
PROVIDERS += cuda
cuda_SRC := $(addprefix preload/,cuda.c devmem.c doorbell.c decode.c decode_mlx5.c decode_efa.c)
