# What the guests of tests/vm run besides the programs that all tests share.
tests: $(TB)/clock-client

$(TB)/clock-client: tests/vm/clock-client.c | $(TB)
	$(CLIENT_CC) -o $@ $<
