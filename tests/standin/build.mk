# A CUDA driver whose GPUs are threads.
STANDIN := $(B)/standin

tests: $(STANDIN)/libcuda.so.1 $(STANDIN)/libcuda.so $(STANDIN)/cupti/libcupti.so.13

$(STANDIN)/libcuda.so.1: $(filter-out tests/standin/cupti.c,$(wildcard tests/standin/*.c)) $(wildcard tests/standin/*.h)
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -fPIC -pthread -D_GNU_SOURCE -shared -Wl,-Bsymbolic -Wl,-soname,$(@F) -o $@ $(filter %.c,$^)

$(STANDIN)/libcuda.so: $(STANDIN)/libcuda.so.1
	ln -sf $(<F) $@

# Apart: programs find it where a test lets them.
$(STANDIN)/cupti/libcupti.so.13: tests/standin/cupti.c tests/standin/cuda.h tests/standin/standin.h $(STANDIN)/libcuda.so
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -fPIC -pthread -D_GNU_SOURCE -shared -Wl,-soname,$(@F) -o $@ $< -L$(STANDIN) -lcuda
