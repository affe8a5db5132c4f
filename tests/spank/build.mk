# The fuzz targets in C, the Slurm plugin's and that of work queue elements, one after the other, each for so many seconds: make fuzz SECONDS=300
SECONDS ?= 60
.PHONY: fuzz
fuzz:
	@for t in site options step job node; do echo "fuzz: $$t"; tests/spank/fuzz.sh $$t $(abspath $(B))/fuzz -max_total_time=$(SECONDS) -print_final_stats=1 || exit; done
	@echo "fuzz: element"; tests/elements/fuzz.sh $(abspath $(B))/fuzz -max_total_time=$(SECONDS) -print_final_stats=1
