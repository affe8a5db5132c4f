# The Slurm plugin's fuzz targets, one after the other, each for so many seconds: make fuzz SECONDS=300
SECONDS ?= 60
.PHONY: fuzz
fuzz:
	@for t in site options step job node; do echo "fuzz: $$t"; tests/spank/fuzz.sh $$t $(abspath $(B))/fuzz -max_total_time=$(SECONDS) -print_final_stats=1 || exit; done
