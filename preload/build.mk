# libsigmatrace.so and the providers.
PRELOAD_SRC := $(addprefix preload/,app.c config.c crc.c file.c filesystem.c header.c interpose.c lookup.c memory.c nvtx.c object.c recorder.c ring.c select.c window.c written.c)
PRELOAD_HDR := $(wildcard preload/*.h)
PRELOAD_CFLAGS := $(CWARN) -O2 -g -fPIC -fvisibility=hidden -ftls-model=initial-exec $(SANITIZE)
# Every program of a job loads them, most for nothing. Two segments instead of four, and no symbol looked up before it is called, make an idle
# program's start some 60 us shorter (tests/bench, group start).
PRELOAD_LDFLAGS := -shared -Wl,-z,lazy -Wl,-z,norelro -Wl,-z,noseparate-code -Wl,-z,nodelete -Wl,--no-undefined

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
