# Provider cuda: not linked with libcuda, whose functions it takes the place of.
PROVIDERS += cuda
cuda_SRC := $(addprefix preload/,cuda.c devmem.c doorbell.c decode.c)
cuda_SRC += $(addprefix preload/,kernels.c gpu.c notes.c cupti.c)
