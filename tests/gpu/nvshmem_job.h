// What the programs on NVSHMEM share: becoming a job, and symmetric memory.
#pragma once

#include "program.h"
#include <nvshmem.h>
#include <nvshmemx.h>

template <typename T> static T *everywhere(size_t n)
{
	T *p = static_cast<T *>(nvshmem_malloc(n * sizeof(T)));

	if (!p) {
		printf("FAIL no symmetric memory\n");
		exit(1);
	}
	cudaMemset(p, 0, n * sizeof(T));
	finish("memset");
	return p;
}

template <typename T> static T *host_copy(const T *from, size_t n)
{
	T *to = static_cast<T *>(malloc(n * sizeof(T)));

	cudaMemcpy(to, from, n * sizeof(T), cudaMemcpyDeviceToHost);
	return to;
}

static void initialize(const char *path)
{
	nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
	nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;

	begin();
	if (rank == 0)
		nvshmemx_get_uniqueid(&id);
	share(path, &id, sizeof id);
	nvshmemx_set_attr_uniqueid_args(rank, ranks, &id, &attributes);
	if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes)) {
		printf("FAIL nvshmemx_init_attr\n");
		exit(1);
	}
}
