# Provider ucx: not linked with libucp, whose functions it takes the place of. Those have no versions.
PROVIDERS += ucx
ucx_SRC := $(addprefix preload/,ucx.c ucx_messages.c ucx_memory.c ucx_objects.c ucx_requests.c ucx_uct.c ucx_uct_ops.c)
