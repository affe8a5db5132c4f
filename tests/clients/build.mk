# The tests' own programs, build/tests/NAME, and the counting preloads, build/tests/count-*.so.
TB := $(B)/tests
CLIENTS := $(TB)/ucp-client $(TB)/verbs-client $(TB)/peer-client $(TB)/dlv-client $(TB)/burst-client $(TB)/mpi-app
COUNTERS := $(TB)/count-ucp.so $(TB)/count-uct.so $(TB)/count-verbs.so
CLIENT_CC = $(CC) $(CWARN) -O2

tests: $(CLIENTS) $(COUNTERS) $(TB)/ucp-version.so

$(TB):
	mkdir -p $@

$(CLIENTS): tests/clients/tally.h | $(TB)
$(TB)/verbs-client $(TB)/peer-client $(TB)/burst-client: tests/clients/rc.h

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
$(TB)/mpi-app: tests/clients/mpi-app.c
	OMPI_CC=$(CC) mpicc $(CWARN) -O2 -o $@ $<

$(TB)/ucp-version.so: tests/clients/ucp-version.c | $(TB)
	$(CLIENT_CC) -fPIC -shared -o $@ $<

$(COUNTERS): $(TB)/count-%.so: tests/count/%.c tests/count/count.c tests/count/count.h | $(TB)
	$(CLIENT_CC) -fPIC -shared -o $@ $(filter %.c,$^) -ldl -lpthread
