/* Shared by the files of bell_check. */
#pragma once

#include "gpu.h"

struct how {
	uint32_t total, log, batch, window;
	const struct memory *memory;
};

/* What BELL says. */
extern struct how how;

/* A queue and the end of it, and a kernel's share in both. */
struct loop {
	struct end *e;
	struct queue q, peer;
	struct remote to;
	uint32_t total;
	uint64_t bad;
	_Atomic uint32_t *progress; /* elements that have completed */
	uint32_t again; /* doorbells that were rung once more */
};

void open_loop(struct loop *l, struct end *e, unsigned log, struct mlx5dv_devx_uar *uar);
void close_loop(struct loop *l);
uint32_t put_number(struct loop *l, uint32_t i, bool signaled);
/* A kernel that writes `total` elements, `batch` to a doorbell, with `window` at most that have not completed; its argument is a loop. */
void stream_of(void *argument);

extern const struct test launch_tests[];
