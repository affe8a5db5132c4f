# The recorder and the providers: libsigmatrace.so and a provider-NAME.so each, to be preloaded together; and for the usual sets of providers
# one object that holds the recorder and them, libsigmatrace.NAME+NAME.so with the names in order of the alphabet.
PRELOAD_SRC := $(addprefix preload/,app.c chunk.c config.c crc.c file.c filesystem.c header.c interpose.c lookup.c memory.c nvtx.c object.c queues.c recorder.c ring.c select.c window.c written.c)
PRELOAD_HDR := $(wildcard preload/*.h)
PRELOAD_CFLAGS := $(CWARN) -O2 -g -fPIC -fvisibility=hidden -ftls-model=initial-exec -fno-tree-slp-vectorize $(SANITIZE)
# Every program of a job loads them, most for nothing. Two segments instead of four, no relro and no symbol looked up before it is called make
# an idle program's start some 15 to 30 us shorter (README.md).
PRELOAD_LDFLAGS := -shared -Wl,-z,lazy -Wl,-z,norelro -Wl,-z,noseparate-code -Wl,-z,nodelete -Wl,--no-undefined
# Calls of our own functions are ours, whatever stands before us. Data is not bound: sigmatrace_recorder is to be the process's first one.
PRELOAD_LDFLAGS += -Wl,-Bsymbolic-functions

all: $(LIBDIR)/libsigmatrace.so

$(LIBDIR)/libsigmatrace.so: $(PRELOAD_SRC) $(PRELOAD_HDR) preload/build.mk
	@mkdir -p $(@D)
	$(CC) $(PRELOAD_CFLAGS) $(PRELOAD_LDFLAGS) -Wl,-soname,$(@F) -o $@ $(PRELOAD_SRC) -ldl -lpthread

# The recorder for aarch64, cross-compiled: `make aarch64`.
AARCH64_CC ?= aarch64-linux-gnu-gcc
.PHONY: aarch64
aarch64: $(B)/aarch64/libsigmatrace.so
$(B)/aarch64/libsigmatrace.so: $(PRELOAD_SRC) $(PRELOAD_HDR) preload/build.mk
	@mkdir -p $(@D)
	$(AARCH64_CC) $(PRELOAD_CFLAGS) $(PRELOAD_LDFLAGS) -Wl,-soname,$(@F) -o $@ $(PRELOAD_SRC) -ldl -lpthread

# Each NAME.mk adds a name to PROVIDERS, and sets NAME_SRC to its files, NAME_MAP to the script of its symbols' versions, if they have some, NAME_NEEDS to the providers
# without which it records nothing, and NAME_SONAME to the name that a library looks for, where it is to find us by that.
PROVIDERS :=
-include $(wildcard preload/ucx.mk preload/ibverbs.mk preload/ofi.mk preload/mlx5dv.mk preload/cuda.mk preload/nccl.mk)

version_scripts = $(addprefix -Wl$(comma)--version-script$(comma),$1)
comma := ,
empty :=
space := $(empty) $(empty)

define provider
all: $(LIBDIR)/provider-$1.so
$(LIBDIR)/provider-$1.so: $($1_SRC) $($1_MAP) $(PRELOAD_HDR) preload/build.mk $(wildcard preload/*.mk) $(LIBDIR)/libsigmatrace.so
	$$(CC) $$(PRELOAD_CFLAGS) $$(PRELOAD_LDFLAGS) -Wl,-soname,$(or $($1_SONAME),$$(@F)) -Wl,-rpath,'$$$$ORIGIN' $(call version_scripts,$($1_MAP)) -o $$@ $($1_SRC) $(LIBDIR)/libsigmatrace.so -ldl -lpthread
endef
$(foreach p,$(PROVIDERS),$(eval $(call provider,$p)))

# The sets: each provider with what it needs, those of the profiles that we ship, the one that they had before mlx5dv was a provider, and all.
set_name = $(subst $(space),+,$(sort $(subst +, ,$1)))
PROFILE_SETS := $(shell sed -n 's/^providers = \[\(.*\)\].*/\1/p' profiles/*.toml | tr -d '" ' | tr , +)
SETS := $(sort $(foreach s,$(foreach p,$(PROVIDERS),$(subst $(space),+,$(strip $p $($p_NEEDS)))) $(PROFILE_SETS) ibverbs+libfabric+ucx $(subst $(space),+,$(PROVIDERS)),$(call set_name,$s)))
whole_objects = $(patsubst preload/%.c,$(B)/preload/%.o,$1)

# An object of a set that is no longer built would be preloaded nevertheless.
STALE := $(filter-out $(SETS:%=$(LIBDIR)/libsigmatrace.%.so),$(wildcard $(LIBDIR)/libsigmatrace.*.so))
$(if $(STALE),$(shell rm -f $(STALE)))

# ST_WHOLE: the recorder's functions and data are not exported, so providers reach them without a table in between.
$(B)/preload/%.o: preload/%.c $(PRELOAD_HDR) preload/build.mk
	@mkdir -p $(@D)
	$(CC) $(PRELOAD_CFLAGS) -DST_WHOLE -c -o $@ $<

# The recorder's objects come first: its constructors run before the providers'.
define whole
all: $(LIBDIR)/libsigmatrace.$1.so
$(LIBDIR)/libsigmatrace.$1.so: $(call whole_objects,$(PRELOAD_SRC) $(foreach p,$(subst +, ,$1),$($p_SRC))) $(foreach p,$(subst +, ,$1),$($p_MAP))
	@mkdir -p $$(@D)
	$$(CC) $$(PRELOAD_LDFLAGS) $$(SANITIZE) -Wl,-soname,$(or $(strip $(foreach p,$(subst +, ,$1),$($p_SONAME))),$$(@F)) $(call version_scripts,$(foreach p,$(subst +, ,$1),$($p_MAP))) -o $$@ $$(filter %.o,$$^) -ldl -lpthread
endef
$(foreach s,$(SETS),$(eval $(call whole,$s)))

# What each part is made of, a line a part, for tests that compile the sources in other ways.
.PHONY: sources
sources:
	@echo recorder $(PRELOAD_SRC)
	@$(foreach p,$(PROVIDERS),echo $p $($p_SRC);)

.PHONY: generate
generate:
	$(GO) run ./preload/gen
	$(GO) run ./merge/parquet/gen
