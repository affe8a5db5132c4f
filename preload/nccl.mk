# Provider nccl: a profiler plugin, found by the name that NCCL looks for (nccl_chain.c).
PROVIDERS += nccl
nccl_SRC := $(addprefix preload/,nccl.c nccl_chain.c nccl_record.c nccl_slots.c)
nccl_SONAME := libnccl-profiler.so
