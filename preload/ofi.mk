# Provider libfabric: not linked with libfabric, whose functions it takes the place of.
PROVIDERS += libfabric
libfabric_SRC := $(addprefix preload/,ofi.c ofi_objects.c ofi_endpoint.c ofi_messages.c ofi_access.c ofi_queues.c)
libfabric_MAP := preload/ofi.map
