# A CUDA driver whose GPUs are threads.
STANDIN := $(B)/standin

tests: $(STANDIN)/libcuda.so.1 $(STANDIN)/libcuda.so

$(STANDIN)/libcuda.so.1: $(wildcard tests/standin/*.c tests/standin/*.h)
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -fPIC -pthread -D_GNU_SOURCE -shared -Wl,-soname,$(@F) -o $@ $(filter %.c,$^)

$(STANDIN)/libcuda.so: $(STANDIN)/libcuda.so.1
	ln -sf $(<F) $@
