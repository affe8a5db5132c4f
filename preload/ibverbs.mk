# provider-ibverbs.so: built with the headers of libibverbs-dev, linked against no RDMA library.
IBVERBS_SRC := $(addprefix preload/,ibverbs_real.c ibverbs_context.c ibverbs_define.c ibverbs_setup.c ibverbs_blind.c ibverbs_post.c ibverbs_wr.c ibverbs_poll.c)

all: $(LIBDIR)/provider-ibverbs.so

$(LIBDIR)/provider-ibverbs.so: $(IBVERBS_SRC) $(PRELOAD_HDR) preload/ibverbs.map preload/ibverbs.mk $(LIBDIR)/libsigmatrace.so
	$(CC) $(PRELOAD_CFLAGS) $(PRELOAD_LDFLAGS) -Wl,-Bsymbolic -Wl,-soname,provider-ibverbs.so -Wl,--version-script,preload/ibverbs.map -Wl,-rpath,'$$ORIGIN' -o $@ $(IBVERBS_SRC) -L$(LIBDIR) -lsigmatrace -ldl -lpthread
