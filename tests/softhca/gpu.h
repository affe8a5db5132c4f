/* Memory of GPUs: found and copied through the CUDA driver that the program has loaded, without a build against it. */
#pragma once

#include "mem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Whether the program has CUDA's driver. */
bool gpu_driver(void);

/* Whether it is memory of a GPU, and of which (the ordinal). */
bool gpu_memory(const void *addr, uint32_t *device);

/*
 * Makes everything that copies need: a kernel that waits for data keeps the driver from making a stream or registering memory, so all
 * of it has to be there before the first. Returns 0 or an errno.
 */
int gpu_prepare(uint32_t device);

/* Copies within this process, each side of a GPU or the host's; `device`: of one of them. 0 or an errno. */
int gpu_copy(uint64_t dst, uint64_t src, size_t n, uint32_t device);

/* The calling thread is the copier: it has streams of its own. */
void gpu_is_copier(void);

void gpu_forked(void);

/* copier.c: what another process's GPU memory needs, done by that process. */
int copier_start(void);
void copier_forked(void);
/* mem_copy where memory of a GPU takes part. */
int gpu_move(const struct span *dst, int ndst, const struct span *src, int nsrc);
/* mem_update of a word in a GPU's memory. */
int gpu_update(const struct span *target, const struct mem_atomic *a, uint64_t *old);

#pragma GCC visibility pop
