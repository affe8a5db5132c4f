# HIP and HSA whose GPUs are the stand-in CUDA driver's threads, and a client of them.
HIP := $(B)/hip
HIP_CFLAGS := $(CWARN) -O2 -g -pthread -D_GNU_SOURCE
SHARED_STANDIN := $(filter-out tests/standin/lookup.c,$(wildcard tests/standin/*.c))

tests: $(HIP)/hip_check

$(HIP)/libhsa-runtime64.so.1: tests/hip/hsa.c tests/hip/hip.h
	@mkdir -p $(@D)
	$(CC) $(HIP_CFLAGS) -fPIC -shared -Wl,-soname,$(@F) -o $@ $<

$(HIP)/libamdhip64.so.6: tests/hip/hip.c tests/hip/hip.h tests/hip/hip.map $(SHARED_STANDIN) $(wildcard tests/standin/*.h) $(HIP)/libhsa-runtime64.so.1
	$(CC) $(HIP_CFLAGS) -fPIC -shared -Wl,-soname,$(@F) -Wl,--version-script,tests/hip/hip.map -o $@ $(filter %.c %.so.1,$^)

$(HIP)/hip_check: $(addprefix tests/softhca/clients/,check.c devx.c check.h devx.h) tests/hip/hip_check.c tests/hip/hip.h $(HIP)/libamdhip64.so.6 $(HIP)/libhsa-runtime64.so.1
	$(CC) $(HIP_CFLAGS) -o $@ $(filter %.c %.so.6 %.so.1,$^) -lmlx5 -libverbs -ldl
