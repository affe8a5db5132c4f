# Provider cuda: not linked with libcuda, libamdhip64 and libhsa-runtime64, whose functions it takes the place of.
PROVIDERS += cuda
cuda_SRC := $(addprefix preload/,cuda.c devmem.c doorbell.c doorbell_before.c doorbell_copy.c doorbell_queue.c doorbell_ring.c spin.c decode.c decode_mlx5.c decode_efa.c)
# What the drivers share of registers, and HIP, the twin of CUDA.
cuda_SRC += $(addprefix preload/,registered.c hip.c hip_devmem.c hip_launch.c)
cuda_NEEDS := ibverbs mlx5dv
cuda_SRC += $(addprefix preload/,kernels.c gpu.c notes.c cupti.c)
