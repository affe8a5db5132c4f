# The tests' own programs, build/tests/NAME, and the counting preloads, build/tests/count-*.so.
TB := $(B)/tests
CLIENTS := $(TB)/ucp-client $(TB)/verbs-client $(TB)/peer-client $(TB)/dlv-client $(TB)/burst-client $(TB)/mpi-app $(TB)/nvtx-client $(TB)/ofi-client $(TB)/ofi-contexts $(TB)/call-client $(TB)/ofi-call-client $(TB)/allreduce-client
COUNTERS := $(TB)/count-ucp.so $(TB)/count-uct.so $(TB)/count-verbs.so $(TB)/count-ofi.so
CLIENT_CC = $(CC) $(CWARN) -O2

tests: $(CLIENTS) $(COUNTERS) $(TB)/ucp-version.so

$(TB):
	mkdir -p $@

$(CLIENTS): tests/clients/tally.h | $(TB)
$(TB)/burst-client $(TB)/mpi-app: preload/sigmatrace.h
$(TB)/verbs-client $(TB)/peer-client $(TB)/burst-client: tests/clients/rc.h
$(TB)/ucp-client $(TB)/peer-client $(TB)/ofi-client $(TB)/ofi-contexts: tests/clients/meet.h

$(TB)/ucp-client: tests/clients/ucp-client.c
	$(CLIENT_CC) -o $@ $< -lucp -lucs
$(TB)/verbs-client: tests/clients/verbs-client.c
	$(CLIENT_CC) -o $@ $< -libverbs
$(TB)/peer-client: tests/clients/peer-client.c
	$(CLIENT_CC) -o $@ $< -libverbs
$(TB)/dlv-client: tests/clients/dlv-client.c
	$(CLIENT_CC) -o $@ $< -ldl
$(TB)/burst-client: tests/clients/burst-client.c
	$(CLIENT_CC) -o $@ $< -libverbs -lucp -lucs
# With NVTX_INCLUDE, a folder that has nvtx3/nvToolsExt.h, against NVIDIA's own header.
$(TB)/nvtx-client: tests/clients/nvtx-client.c
	$(CLIENT_CC) $(if $(NVTX_INCLUDE),-DNVTX_HEADER -isystem $(NVTX_INCLUDE)) -o $@ $< -ldl
$(TB)/ofi-client $(TB)/ofi-contexts: tests/clients/ofi-pair.h
$(TB)/ofi-client: tests/clients/ofi-client.c tests/clients/ofi-ops.c tests/clients/ofi-client.h
	$(CLIENT_CC) -o $@ $(filter %.c,$^) -lfabric -lpthread
$(TB)/ofi-contexts: tests/clients/ofi-contexts.c
	$(CLIENT_CC) -o $@ $< -lfabric
$(TB)/call-client $(TB)/ofi-call-client: tests/clients/timed.h
$(TB)/call-client: tests/clients/call-client.c
	$(CLIENT_CC) -o $@ $< -lucp -lucs
$(TB)/ofi-call-client: tests/clients/ofi-call-client.c
	$(CLIENT_CC) -o $@ $< -lfabric
$(TB)/mpi-app $(TB)/allreduce-client: $(TB)/%: tests/clients/%.c
	OMPI_CC=$(CC) mpicc $(CWARN) -O2 -o $@ $<
$(TB)/mpi-app-mpich: tests/clients/mpi-app.c preload/sigmatrace.h | $(TB) # in roots whose Slurm has no PMIx
	mpicc.mpich $(CWARN) -O2 -o $@ $<

$(TB)/ucp-version.so: tests/clients/ucp-version.c | $(TB)
	$(CLIENT_CC) -fPIC -shared -o $@ $<

$(COUNTERS): $(TB)/count-%.so: tests/count/%.c tests/count/count.c tests/count/count.h | $(TB)
	$(CLIENT_CC) -fPIC -shared -o $@ $(filter %.c,$^) -ldl -lpthread
