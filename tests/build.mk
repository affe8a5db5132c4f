# Test targets. `make test` installs what the tests need, builds all of it, and runs every part.
.PHONY: tests test test-quick test-fresh bench

# What the parts run beside the product: clients, counters.
tests: all

test:
	scripts/deps.sh build deb test vm fresh
	$(MAKE) tests
	tests/run $(TESTFLAGS)

# The parts that need nothing but this machine and little time.
test-quick:
	scripts/deps.sh build test
	$(MAKE) tests
	tests/run -quick $(TESTFLAGS)

# The whole of `make test` in a newly made Debian root.
test-fresh:
	scripts/deps.sh fresh
	tests/fresh.sh test

# One JSON object a line: name, value, unit, baseline, ratio, command. Each benchmark is an executable tests/bench/*.sh.
bench:
	scripts/deps.sh build bench
	$(MAKE) tests
	@for b in $(sort $(wildcard tests/bench/*.sh)); do $$b || exit 1; done
