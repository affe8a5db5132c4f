#pragma once

#include "standin.h"

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* The allocation that the address lies in: its descriptor, or -1. `base` may be NULL. */
int standin_block(uint64_t p, uint64_t *base, uint64_t *size, int *device);
/* Memory of a descriptor, which it keeps, as a GPU's. */
CUresult standin_map(int fd, size_t n, int device, CUdeviceptr *p);
/* Where threads reach the address; its allocation, which is kept until it is let go, or NULL where it is not of a GPU. */
struct block *standin_hold(uint64_t p, uint64_t *usable);
void standin_let_go(struct block *b);

#pragma GCC visibility pop

struct ctx {
	int device;
};

/* A launch as a stream takes it. call: the observer's number of it. */
struct launch {
	struct standin_kernel *kernel;
	CUstream stream;
	void *argument;
	unsigned grid[3], block[3], shared;
	uint32_t call;
};
CUresult standin_launch(const struct launch *l);
/* The thread's own stream for NULL. */
CUstream standin_of_thread(CUstream s);
CUresult standin_old_register(void *p, size_t n);
CUresult standin_new_launch(void *everything);
/* CUPTI's number of a stream. */
uint32_t standin_number(CUstream s);
/* The process ends: the driver refuses. */
extern _Atomic bool standin_over;

/* A child of fork has none of the threads that may have had the file's lock. */
#define FREE_IN_CHILD(mu)                                             \
	static void free_in_child(void)                                   \
	{                                                                 \
		pthread_mutex_init(&(mu), NULL);                              \
	}                                                                 \
	__attribute__((constructor)) static void free_in_children(void)   \
	{                                                                 \
		pthread_atfork(NULL, NULL, free_in_child);                    \
	}
