# What measurements on machines with GPUs preload; its programs are compiled there.
GPU := $(B)/gpu

tests: $(GPU)/choose.so $(GPU)/crash.so

$(GPU)/%.so: tests/gpu/choose/%.c $(wildcard tests/softhca/*.h)
	@mkdir -p $(@D)
	$(CC) $(CWARN) -O2 -g -fPIC -pthread -D_GNU_SOURCE -shared -o $@ $<

# Runs on a machine with an NVIDIA GPU, which may have neither Go nor packages: what is needed was built elsewhere.
.PHONY: bench-gpu
bench-gpu:
	RECORDER=$(B) tests/gpu/bench.sh $(SH) $(GROUPS_OF_BENCH)
