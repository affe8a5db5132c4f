# provider-ucx.so: not linked with libucp, whose functions it takes the place of.
UCX_SRC := $(addprefix preload/,ucx.c ucx_messages.c ucx_memory.c ucx_objects.c ucx_requests.c ucx_uct.c ucx_uct_ops.c)

all: $(LIBDIR)/provider-ucx.so

$(LIBDIR)/provider-ucx.so: $(UCX_SRC) $(PRELOAD_HDR) preload/ucx.map preload/ucx.mk $(LIBDIR)/libsigmatrace.so
	@mkdir -p $(@D)
	$(CC) $(PRELOAD_CFLAGS) $(PRELOAD_LDFLAGS) -Wl,-Bsymbolic -Wl,-soname,provider-ucx.so -Wl,-rpath,'$$ORIGIN' -Wl,--version-script,preload/ucx.map -o $@ $(UCX_SRC) $(LIBDIR)/libsigmatrace.so -ldl -lpthread
