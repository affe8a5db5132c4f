/* Devices, contexts and memory of the stand-in CUDA driver. */
#include "cuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DEVICES = 16, STACK = 32 };

struct block {
	struct block *next;
	_Atomic int copies;
	uint64_t address; /* for programs: nobody can use it */
	uint8_t *alias;
	size_t size;
	int device, fd;
};

struct range {
	struct range *next;
	uint8_t *p;
	size_t size;
};

static struct ctx contexts[DEVICES];
static _Thread_local CUcontext stack[STACK];
static _Thread_local int depth;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

FREE_IN_CHILD(mu)

static struct block *blocks;
static struct range *registered;

static int count(void)
{
	const char *e = getenv("STANDIN_GPUS");
	const int n = e ? atoi(e) : 2;

	return n < 0 ? 0 : n > DEVICES ? DEVICES : n;
}

static CUcontext current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

_Atomic bool standin_over;

static void end(void)
{
	standin_over = true;
}

/* Until the process's handlers of exit have run, as the driver's is one. */
CUresult cuInit(unsigned flags)
{
	static _Atomic bool known;

	if (!atomic_exchange(&known, true))
		atexit(end);
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
	*version = 13000;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *n)
{
	*n = count();
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *d, int ordinal)
{
	if (ordinal < 0 || ordinal >= count())
		return CUDA_ERROR_INVALID_DEVICE;
	*d = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *u, CUdevice d)
{
	return cuDeviceGetUuid_v2(u, d);
}

CUresult cuDeviceGetUuid_v2(CUuuid *u, CUdevice d)
{
	if (d < 0 || d >= count())
		return CUDA_ERROR_INVALID_DEVICE;
	memset(u, 0x5a, sizeof *u);
	u->bytes[15] = (char)d;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d)
{
	if (d < 0 || d >= count())
		return CUDA_ERROR_INVALID_DEVICE;
	contexts[d].device = d;
	*c = &contexts[d];
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d)
{
	return d < 0 || d >= count() ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

/* Registrations end, of all devices. What was allocated stays, other than with the driver, since other processes' adapters have it. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice d)
{
	if (d < 0 || d >= count())
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&mu);
	while (registered) {
		struct range *r = registered;

		registered = r->next;
		free(r);
	}
	pthread_mutex_unlock(&mu);
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *c)
{
	*c = current();
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext c)
{
	if (depth)
		stack[depth - 1] = c;
	else if (c)
		stack[depth++] = c;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext c)
{
	if (!c || depth == STACK)
		return CUDA_ERROR_INVALID_CONTEXT;
	stack[depth++] = c;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *c)
{
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (c)
		*c = stack[depth];
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *d)
{
	if (!current())
		return CUDA_ERROR_INVALID_CONTEXT;
	*d = current()->device;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n)
{
	int fd;

	if (!current())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!n)
		return CUDA_ERROR_INVALID_VALUE;
	n = (n + 4095) & ~(size_t)4095;
	fd = memfd_create("standin-gpu", MFD_CLOEXEC);
	if (fd >= 0 && ftruncate(fd, (off_t)n)) {
		close(fd);
		fd = -1;
	}
	return fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : standin_map(fd, n, current()->device, p);
}

CUresult standin_map(int fd, size_t n, int device, CUdeviceptr *p)
{
	struct block *b = calloc(1, sizeof *b);
	void *address = mmap(NULL, n, PROT_NONE, MAP_SHARED, fd, 0);
	void *alias = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (!b || address == MAP_FAILED || alias == MAP_FAILED) {
		free(b);
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	b->alias = alias;
	b->fd = fd;
	b->address = *p = (uintptr_t)address;
	b->size = n;
	b->device = device;
	pthread_mutex_lock(&mu);
	b->next = blocks;
	blocks = b;
	pthread_mutex_unlock(&mu);
	return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr p)
{
	struct block *b = NULL;

	pthread_mutex_lock(&mu);
	for (struct block **at = &blocks; *at; at = &(*at)->next)
		if ((*at)->address == p) {
			b = *at;
			*at = b->next;
			break;
		}
	pthread_mutex_unlock(&mu);
	if (!b)
		return CUDA_ERROR_INVALID_VALUE;
	while (atomic_load(&b->copies)) /* those under way end before */
		usleep(50);
	munmap((void *)(uintptr_t)b->address, b->size);
	munmap(b->alias, b->size);
	close(b->fd);
	free(b);
	return CUDA_SUCCESS;
}

/* Reserved addresses that memory was mapped to: all of a block, as this driver makes them. */
CUresult cuMemUnmap(CUdeviceptr p, size_t n)
{
	uint64_t base, size;
	int device;

	return standin_block(p, &base, &size, &device) < 0 || base != p || size != n ? CUDA_ERROR_INVALID_VALUE : cuMemFree_v2(p);
}

/* What the address is of; its device, or -1 where it is not of a GPU. */
static int device_of(uint64_t p, uint8_t **alias)
{
	int device = -1;

	pthread_mutex_lock(&mu);
	for (const struct block *b = blocks; b; b = b->next)
		if (p >= b->address && p - b->address < b->size) {
			device = b->device;
			*alias = b->alias + (p - b->address);
			break;
		}
	pthread_mutex_unlock(&mu);
	return device;
}

int standin_block(uint64_t p, uint64_t *base, uint64_t *size, int *device)
{
	int fd = -1;

	pthread_mutex_lock(&mu);
	for (const struct block *b = blocks; b && fd < 0; b = b->next)
		if (p >= b->address && p - b->address < b->size) {
			if (base)
				*base = b->address;
			*size = b->size;
			*device = b->device;
			fd = b->fd;
		}
	pthread_mutex_unlock(&mu);
	return fd;
}

struct block *standin_hold(uint64_t p, uint64_t *usable)
{
	struct block *b;

	*usable = p;
	pthread_mutex_lock(&mu);
	for (b = blocks; b; b = b->next)
		if (p >= b->address && p - b->address < b->size) {
			atomic_fetch_add(&b->copies, 1);
			*usable = (uintptr_t)b->alias + (p - b->address);
			break;
		}
	pthread_mutex_unlock(&mu);
	return b;
}

void standin_let_go(struct block *b)
{
	if (b)
		atomic_fetch_sub(&b->copies, 1);
}

void *standin_gpu(uint64_t address)
{
	uint8_t *alias = (uint8_t *)(uintptr_t)address;

	device_of(address, &alias);
	return alias;
}

CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr p)
{
	uint8_t *alias;
	const int device = device_of(p, &alias);

	errno = ENOTTY; /* a driver leaves there what its system calls do */
	if (standin_over)
		return CUDA_ERROR_DEINITIALIZED;
	if (device < 0)
		return CUDA_ERROR_INVALID_VALUE; /* as for memory that CUDA does not know */
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)out = &contexts[device];
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)out = 2;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)out = device;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemHostRegister_v2(void *p, size_t n, unsigned flags)
{
	struct range *r = calloc(1, sizeof *r);
	CUresult rc = CUDA_SUCCESS;

	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!p || !n || (flags & ~7u)) {
		free(r);
		return CUDA_ERROR_INVALID_VALUE;
	}
	*r = (struct range){ .p = p, .size = n };
	pthread_mutex_lock(&mu);
	for (const struct range *k = registered; k; k = k->next)
		if (r->p < k->p + k->size && k->p < r->p + n)
			rc = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	if (rc) {
		free(r);
	} else {
		r->next = registered;
		registered = r;
	}
	pthread_mutex_unlock(&mu);
	return rc;
}

CUresult cuMemHostUnregister(void *p)
{
	CUresult rc = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;

	if (!current())
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&mu);
	for (struct range **at = &registered; *at; at = &(*at)->next)
		if ((*at)->p == p) {
			struct range *r = *at;

			*at = r->next;
			free(r);
			rc = CUDA_SUCCESS;
			break;
		}
	pthread_mutex_unlock(&mu);
	return rc;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *d, void *p, unsigned flags)
{
	CUresult rc = CUDA_ERROR_INVALID_VALUE;

	if (flags)
		return rc;
	pthread_mutex_lock(&mu);
	for (const struct range *r = registered; r; r = r->next)
		if ((uint8_t *)p >= r->p && (uint8_t *)p < r->p + r->size)
			rc = CUDA_SUCCESS;
	pthread_mutex_unlock(&mu);
	if (!rc)
		*d = (uintptr_t)p;
	return rc;
}
