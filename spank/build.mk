# The Slurm plugin, for the Slurm whose spank.h is installed: Slurm takes plugins of its own major.minor only.
SPANK_SRC := $(addprefix spank/,plugin.c site.c options.c client.c local.c allocator.c remote.c step.c command.c joblog.c)
SLURM_INCLUDE ?= /usr/include
PREFIX ?= /usr/local

ifneq ($(wildcard $(SLURM_INCLUDE)/slurm/spank.h),)
all: $(B)/lib/slurm/spank_sigmatrace.so
endif

$(B)/lib/slurm/spank_sigmatrace.so: $(SPANK_SRC) spank/internal.h spank/sigmatrace.map spank/build.mk
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -fPIC -isystem $(SLURM_INCLUDE) -DSIGMATRACE_PREFIX='"$(PREFIX)"' -shared \
		-Wl,--version-script,spank/sigmatrace.map -o $@.new $(SPANK_SRC)
	mv $@.new $@ # slurmd and every srun map it: never written in place
