# A client that does what NCCL does with a profiler plugin, and plugins of somebody else's.
TN := $(B)/tests/nccl
TN_PLUGINS := $(TN)/all.so $(TN)/old.so $(TN)/v1.so $(TN)/hidden/libnccl-profiler.so $(TN)/hidden-v1/libnccl-profiler.so
TN_VERSIONS_all := PROFILER(2) PROFILER(3) PROFILER(4) PROFILER(5) PROFILER(6)
TN_VERSIONS_old := PROFILER(3) PROFILER(4)
# Version 1 has the shape of version 2.
TN_VERSIONS_v1 := const struct profiler ncclProfiler_v1 = { "other", (void *)first_v2, start_v2, stop, record, finalize };

tests: $(TN)/nccl-client $(TN_PLUGINS) $(TN)/pass.so

$(TN)/nccl-client: $(addprefix tests/nccl/clients/,client.c load.c abi.h client.h) tests/clients/rc.h
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -pthread -D_GNU_SOURCE -o $@ $(filter %.c,$^) -libverbs -ldl

$(TN)/%.so: tests/nccl/clients/plugin.c tests/nccl/clients/abi.h
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -fPIC -shared -pthread -D_GNU_SOURCE '-DVERSIONS=$(TN_VERSIONS_$*)' -o $@ $<

$(TN)/pass.so: tests/nccl/clients/pass.c tests/nccl/clients/abi.h
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -fPIC -shared -D_GNU_SOURCE -o $@ $< -ldl

$(TN)/hidden/libnccl-profiler.so: $(TN)/all.so
$(TN)/hidden-v1/libnccl-profiler.so: $(TN)/v1.so
$(TN)/hidden/libnccl-profiler.so $(TN)/hidden-v1/libnccl-profiler.so:
	@mkdir -p $(@D)
	cp $< $@
