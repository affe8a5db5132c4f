# The Slurm plugin, for the Slurm whose spank.h is installed: Slurm takes plugins of its own major.minor only.
SPANK_SRC := $(addprefix spank/,plugin.c site.c options.c client.c local.c allocator.c remote.c collect.c step.c command.c joblog.c clock.c resolved.c commandline.c trust.c batch.c)
SLURM_INCLUDE ?= /usr/include

ifneq ($(wildcard $(SLURM_INCLUDE)/slurm/spank.h),)
# Major and minor, such as 22.05, of SLURM_VERSION_NUMBER, which has a byte for each; the plugin is installed under a name that has them.
SLURM_VERSION := $(shell n=$$(sed -n 's/^\#define SLURM_VERSION_NUMBER \(0x[0-9a-f]*\).*/\1/p' $(SLURM_INCLUDE)/slurm/slurm_version.h); \
	[ -z "$$n" ] || printf %02d.%02d $$((n >> 16)) $$((n >> 8 & 255)))
all: $(B)/lib/slurm/spank_sigmatrace-$(SLURM_VERSION).so

$(B)/lib/slurm/spank_sigmatrace-$(SLURM_VERSION).so: $(B)/lib/slurm/spank_sigmatrace.so
	rm -f $(@D)/spank_sigmatrace-*.so
	ln $< $@
endif

$(B)/lib/slurm/spank_sigmatrace.so: $(SPANK_SRC) spank/internal.h spank/sigmatrace.map spank/build.mk $(wildcard $(SLURM_INCLUDE)/slurm/slurm_version.h)
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -fPIC -isystem $(SLURM_INCLUDE) -shared \
		-Wl,--version-script,spank/sigmatrace.map -o $@.new $(SPANK_SRC)
	mv $@.new $@ # slurmd and every srun map it: never written in place
