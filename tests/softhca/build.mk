# The software HCA: drop-in libibverbs.so.1 and libmlx5.so.1.
SOFTHCA := tests/softhca
SH := $(B)/softhca
SH_CFLAGS := $(CWARN) -O2 -g -fPIC -pthread -D_GNU_SOURCE
SH_LDFLAGS := -shared -Wl,-z,nodelete -Wl,-z,defs -Wl,-Bsymbolic-functions
SH_ibverbs := shm table mem event cq cq_ex recv send wr exec target tcp qp engine process device names stats log devx devx_wqe doorbell rings gpu copier share fault
SH_mlx5 := mlx5
SH_GEN = awk -f $(SOFTHCA)/gen-symbols.awk -v out=$(1) $(SOFTHCA)/symbols/$*.list $(SH)/obj/$*.nm > $@

all: softhca
.PHONY: softhca

softhca: $(SH)/libibverbs.so $(SH)/libmlx5.so $(SH)/softhca-node.so

$(SH)/obj/%.o: $(SOFTHCA)/%.c $(wildcard $(SOFTHCA)/*.h)
	@mkdir -p $(@D)
	$(CC) $(SH_CFLAGS) -c -o $@ $<

$(SH)/obj/ibverbs.nm: $(SH_ibverbs:%=$(SH)/obj/%.o)
$(SH)/obj/mlx5.nm: $(SH_mlx5:%=$(SH)/obj/%.o)
$(SH)/obj/%.nm:
	nm --defined-only $^ > $@

SH_SYMBOLS := $(SOFTHCA)/symbols/%.list $(SH)/obj/%.nm $(SOFTHCA)/gen-symbols.awk
$(SH)/obj/%.map: $(SH_SYMBOLS)
	$(call SH_GEN,map)
$(SH)/obj/%.rename: $(SH_SYMBOLS)
	$(call SH_GEN,rename)
$(SH)/obj/%.stubs.c: $(SH_SYMBOLS)
	$(call SH_GEN,stubs)

# One relocatable object, in which names with a superseded version get theirs.
$(SH)/obj/%.versioned.o: $(SH)/obj/%.stubs.c $(SH)/obj/%.rename
	$(CC) $(SH_CFLAGS) -c -o $(SH)/obj/$*.stubs.o $<
	$(LD) -r -o $@ $(SH_$*:%=$(SH)/obj/%.o) $(SH)/obj/$*.stubs.o
	objcopy --redefine-syms=$(SH)/obj/$*.rename $@

$(SH)/libmlx5.so.1: $(SH)/libibverbs.so.1
$(SH)/lib%.so.1: $(SH)/obj/%.versioned.o $(SH)/obj/%.map
	$(CC) $(SH_CFLAGS) $(SH_LDFLAGS) -o $@ $(filter %.o %.so.1,$^) -Wl,-soname,$(@F) -Wl,--version-script,$(SH)/obj/$*.map

# One library under two names must stay one file, or a program that opens both
# has two adapters.
$(SH)/lib%.so: $(SH)/lib%.so.1
	ln -sf $(<F) $@

.SECONDARY: $(foreach l,ibverbs mlx5,$(SH)/obj/$l.map $(SH)/obj/$l.rename $(SH)/obj/$l.stubs.c $(SH)/obj/$l.versioned.o)

$(SH)/softhca-node.so: $(SOFTHCA)/node.c
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -fPIC -D_GNU_SOURCE -shared -o $@ $< -ldl

# Clients for test.sh.
SH_CHECK := $(wildcard $(SOFTHCA)/clients/check*.c)

$(SH)/verbs_check: $(SH_CHECK) $(SOFTHCA)/clients/check.h
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -pthread -D_GNU_SOURCE -o $@ $(SH_CHECK) -libverbs

SH_DEVX := $(addprefix $(SOFTHCA)/clients/,check.c devx.c devx_check.c devx_rings.c)
$(SH)/devx_check: $(SH_DEVX) $(SOFTHCA)/clients/check.h $(SOFTHCA)/clients/devx.h
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -pthread -D_GNU_SOURCE -o $@ $(filter %.c,$^) -lmlx5 -libverbs

$(SH)/bell_check: $(addprefix $(SOFTHCA)/clients/,bell.c bell_launches.c bell.h)
$(SH)/gpu_check $(SH)/bell_check $(SH)/end_check $(SH)/rough_check: $(SH)/%: $(addprefix $(SOFTHCA)/clients/,check.c devx.c gpu.c %.c check.h devx.h gpu.h) $(B)/standin/libcuda.so
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -pthread -D_GNU_SOURCE -o $@ $(filter %.c,$^) -L$(B)/standin -lcuda -lmlx5 -libverbs

$(SH)/dc_check: $(addprefix $(SOFTHCA)/clients/,check.c devx.c gpu.c dc_check.c check.h devx.h gpu.h) $(B)/standin/libcuda.so
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -pthread -D_GNU_SOURCE -o $@ $(filter %.c,$^) -L$(B)/standin -lcuda -lmlx5 -libverbs

$(SH)/fill_segment: $(SOFTHCA)/clients/fill_segment.c
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -o $@ $< -libverbs

$(SH)/host_check: $(SOFTHCA)/clients/host_check.c
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -D_GNU_SOURCE -o $@ $< -libverbs

$(SH)/sysfs_check: $(SOFTHCA)/clients/sysfs_check.c
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -D_GNU_SOURCE -o $@ $< -libverbs

$(SH)/dlopen_check: $(SOFTHCA)/clients/dlopen_check.c
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -o $@ $< -ldl

$(SH)/mpi_check: $(SOFTHCA)/clients/mpi_check.c
	@mkdir -p $(@D)
	OMPI_CC="$(CC)" mpicc $(CWARN) -O2 -g -o $@ $<

# The adapter and verbs_check in one program under the address, leak and undefined
# behaviour sanitizers.
.PHONY: softhca-asan softhca-test
softhca-asan: $(SH)/verbs_check-asan $(SH)/devx_check-asan
	UBSAN_OPTIONS=halt_on_error=1 $<
	SOFTHCA_DEVX=1 UBSAN_OPTIONS=halt_on_error=1 $(SH)/devx_check-asan

$(SH)/verbs_check-asan: $(SH_CHECK) $(SH_ibverbs:%=$(SOFTHCA)/%.c) $(wildcard $(SOFTHCA)/*.h $(SOFTHCA)/clients/*.h)
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O1 -g -pthread -D_GNU_SOURCE -fsanitize=address,undefined -fno-omit-frame-pointer -o $@ $(filter %.c,$^)

$(SH)/devx_check-asan: $(SH_DEVX) $(SH_ibverbs:%=$(SOFTHCA)/%.c) $(SH_mlx5:%=$(SOFTHCA)/%.c) $(wildcard $(SOFTHCA)/*.h $(SOFTHCA)/clients/*.h)
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O1 -g -pthread -D_GNU_SOURCE -fsanitize=address,undefined -fno-omit-frame-pointer -o $@ $(filter %.c,$^)

SH_CLIENTS := $(SH)/verbs_check $(SH)/devx_check $(SH)/gpu_check $(SH)/bell_check $(SH)/end_check $(SH)/rough_check $(SH)/dc_check $(SH)/fill_segment $(SH)/dlopen_check $(SH)/host_check $(SH)/sysfs_check $(if $(shell command -v mpicc),$(SH)/mpi_check)
tests: $(SH_CLIENTS)
softhca-test: softhca $(SH_CLIENTS)
	$(SOFTHCA)/test.sh
	$(SOFTHCA)/test-mlx5.sh
	$(SOFTHCA)/test-hosts.sh

tests: $(SH)/bfs
$(SH)/bfs: $(addprefix $(SOFTHCA)/clients/,check.c devx.c bfs.c check.h devx.h) $(B)/standin/libcuda.so
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -pthread -D_GNU_SOURCE -o $@ $(filter %.c,$^) -L$(B)/standin -lcuda -lmlx5 -libverbs
