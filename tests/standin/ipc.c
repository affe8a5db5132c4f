/* Memory of the stand-in's GPUs that several processes use: handles, as the driver gives them for what cuMemAlloc made. */
#include "cuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct handle {
	int pid, fd, device;
	dev_t dev;
	ino_t ino;
	uint64_t size;
};

_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "a handle's size is given");

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr p)
{
	struct handle h = { .pid = getpid() };
	struct stat st;

	memset(out, 0, sizeof *out);
	h.fd = standin_block(p, NULL, &h.size, &h.device);
	if (h.fd < 0 || fstat(h.fd, &st))
		return CUDA_ERROR_INVALID_VALUE;
	h.dev = st.st_dev;
	h.ino = st.st_ino;
	memcpy(out, &h, sizeof h);
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle handle, unsigned flags)
{
	struct handle h;
	struct stat st;
	char path[64];
	int fd;

	memcpy(&h, &handle, sizeof h);
	if (flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	if (h.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT; /* not in the process that has it */
	snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (fstat(fd, &st) || st.st_dev != h.dev || st.st_ino != h.ino) {
		close(fd); /* freed, and its descriptor is another's */
		return CUDA_ERROR_INVALID_VALUE;
	}
	return standin_map(fd, h.size, h.device, p);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr p)
{
	return cuMemFree_v2(p);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	uint64_t first, n;
	int device;

	if (standin_block(p, &first, &n, &device) < 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (base)
		*base = first;
	if (size)
		*size = n;
	return CUDA_SUCCESS;
}
