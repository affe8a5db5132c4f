# provider-libfabric.so: not linked with libfabric, whose functions it takes the place of.
OFI_SRC := $(addprefix preload/,ofi.c ofi_objects.c ofi_endpoint.c ofi_messages.c ofi_access.c ofi_queues.c)

all: $(LIBDIR)/provider-libfabric.so

$(LIBDIR)/provider-libfabric.so: $(OFI_SRC) $(PRELOAD_HDR) preload/ofi.map preload/ofi.mk $(LIBDIR)/libsigmatrace.so
	@mkdir -p $(@D)
	$(CC) $(PRELOAD_CFLAGS) $(PRELOAD_LDFLAGS) -Wl,-Bsymbolic -Wl,-soname,provider-libfabric.so -Wl,-rpath,'$$ORIGIN' -Wl,--version-script,preload/ofi.map -o $@ $(OFI_SRC) $(LIBDIR)/libsigmatrace.so -ldl -lpthread
