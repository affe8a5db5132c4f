# libsigmatrace.so and the providers.
PRELOAD_SRC := $(addprefix preload/,app.c config.c crc.c file.c interpose.c lookup.c memory.c nvtx.c object.c recorder.c select.c window.c)
PRELOAD_HDR := $(wildcard preload/*.h)
PRELOAD_CFLAGS := $(CWARN) -O2 -g -fPIC -fvisibility=hidden -fno-plt -ftls-model=initial-exec $(SANITIZE)
PRELOAD_LDFLAGS := -shared -Wl,-z,now -Wl,-z,relro -Wl,-z,nodelete -Wl,--no-undefined

all: $(LIBDIR)/libsigmatrace.so

$(LIBDIR)/libsigmatrace.so: $(PRELOAD_SRC) $(PRELOAD_HDR) preload/sigmatrace.map preload/build.mk
	@mkdir -p $(@D)
	$(CC) $(PRELOAD_CFLAGS) $(PRELOAD_LDFLAGS) -Wl,-soname,libsigmatrace.so -Wl,--version-script,preload/sigmatrace.map -o $@ $(PRELOAD_SRC) -ldl -lpthread

# The recorder for aarch64, cross-compiled: `make aarch64`.
AARCH64_CC ?= aarch64-linux-gnu-gcc
.PHONY: aarch64
aarch64: $(B)/aarch64/libsigmatrace.so
$(B)/aarch64/libsigmatrace.so: $(PRELOAD_SRC) $(PRELOAD_HDR) preload/sigmatrace.map preload/build.mk
	@mkdir -p $(@D)
	$(AARCH64_CC) $(PRELOAD_CFLAGS) $(PRELOAD_LDFLAGS) -Wl,-soname,libsigmatrace.so -Wl,--version-script,preload/sigmatrace.map -o $@ $(PRELOAD_SRC) -ldl -lpthread

-include $(wildcard preload/ucx.mk preload/ibverbs.mk preload/ofi.mk)

.PHONY: generate
generate:
	$(GO) run ./preload/gen
	$(GO) run ./merge/parquet/gen
