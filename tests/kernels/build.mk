# What launches kernels on the stand-in driver: one that looks its functions up, one that is linked with them.
KERNELS := $(B)/kernels

tests: $(KERNELS)/client $(KERNELS)/linked $(KERNELS)/busy

$(KERNELS)/client $(KERNELS)/linked: tests/kernels/clients/client.c tests/standin/standin.h $(B)/standin/libcuda.so
	@mkdir -p $(@D)
	$(CC) $(CWARN) -D_GNU_SOURCE -O2 $(if $(filter linked,$(@F)),-DLINKED) -o $@ $< -L$(B)/standin -lcuda -ldl -pthread

$(KERNELS)/busy: tests/kernels/clients/busy.c tests/standin/standin.h $(B)/standin/libcuda.so
	@mkdir -p $(@D)
	$(CC) $(CWARN) -D_GNU_SOURCE -O2 -o $@ $< -L$(B)/standin -lcuda -ldl -pthread
