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

/* The same for a whole process: what the driver has beside copies, where it has it. NULL: not there. */
struct gpu_sharing {
	int (*range)(uint64_t *base, size_t *size, uint64_t p);
	int (*get)(void *handle, uint64_t p);
	int (*close)(uint64_t p);
};
const struct gpu_sharing *gpu_sharing(void);
/* Maps another process's memory; 0 where that fails. */
uint64_t gpu_open_shared(const uint8_t handle[64], uint32_t device);
/* The calling thread works on a device; 0, or an errno. gpu_leave ends it. */
int gpu_enter(uint32_t device);
void gpu_leave(void);

/* share.c: another process's GPU memory mapped here, so that data goes there without its help. */
uint32_t share_export(uint64_t addr, uint32_t device);
void share_withdraw(uint32_t share);
int share_start(uint32_t device);
void share_forked(void);
/* Copies between that memory and ours. -1: it is not mapped; else 0 or an errno. */
int share_copy(const struct span *far, const struct span *near, bool out);

/* copier.c: what another process's GPU memory needs, done by that process. */
int copier_start(void);
void copier_forked(void);
/* mem_copy where memory of a GPU takes part. */
int gpu_move(const struct span *dst, int ndst, const struct span *src, int nsrc);
/* mem_update of a word in a GPU's memory. */
int gpu_update(const struct span *target, const struct mem_atomic *a, uint64_t *old);

#pragma GCC visibility pop
