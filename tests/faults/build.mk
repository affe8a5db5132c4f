# The program of the fault tests, build/tests/fault-client, and a preload for faults that cannot be provoked on every machine.
tests: $(B)/tests/fault-client $(B)/tests/fault-shim.so

$(B)/tests/fault-client: tests/faults/client/fault-client.c tests/clients/rc.h tests/clients/tally.h | $(B)/tests
	$(CLIENT_CC) -o $@ $< -libverbs -lucp -lucs -lpthread
$(B)/tests/fault-shim.so: tests/faults/client/shim.c | $(B)/tests
	$(CLIENT_CC) -fPIC -shared -o $@ $< -ldl
