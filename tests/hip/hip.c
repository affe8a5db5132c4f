/* The stand-in for HIP: the stand-in CUDA driver under HIP's names, with HIP's devices for contexts, and its last error. */
#include "hip.h"
#include "../standin/cuda.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local int device;
static _Thread_local hipError_t last_error;

static int version(void)
{
	const char *e = getenv("STANDIN_HIP");

	return e ? atoi(e) : 60443482;
}

/* Errors have the same numbers. HIP keeps a thread's last one; until ROCm 6 its last result, be it one of success. */
static hipError_t told(CUresult rc)
{
	if (rc || version() < 70000000)
		last_error = rc;
	return rc;
}

/* A thread's first call finds a device current. */
static hipError_t current(void)
{
	CUcontext c;

	if (cuCtxGetCurrent(&c) == CUDA_SUCCESS && c)
		return hipSuccess;
	return cuDevicePrimaryCtxRetain(&c, device) ? hipErrorInvalidValue : cuCtxSetCurrent(c);
}

hipError_t hipInit(unsigned flags)
{
	return told(cuInit(flags));
}

hipError_t hipRuntimeGetVersion(int *v)
{
	*v = version();
	return told(hipSuccess);
}

hipError_t hipGetDeviceCount(int *n)
{
	return told(cuDeviceGetCount(n));
}

hipError_t hipGetDevice(int *d)
{
	*d = device;
	return told(hipSuccess);
}

hipError_t hipSetDevice(int d)
{
	CUcontext c;
	const CUresult rc = cuDevicePrimaryCtxRetain(&c, d);

	if (rc)
		return told(rc);
	device = d;
	return told(cuCtxSetCurrent(c));
}

hipError_t hipDeviceGet(hipDevice_t *d, int ordinal)
{
	return told(cuDeviceGet(d, ordinal));
}

hipError_t hipDeviceGetUuid(hipUUID *uuid, hipDevice_t d)
{
	return told(cuDeviceGetUuid_v2((CUuuid *)uuid, d));
}

hipError_t hipDevicePrimaryCtxRetain(hipCtx_t *c, hipDevice_t d)
{
	return told(cuDevicePrimaryCtxRetain(c, d));
}

hipError_t hipCtxPushCurrent(hipCtx_t c)
{
	return told(cuCtxPushCurrent_v2(c));
}

hipError_t hipCtxPopCurrent(hipCtx_t *c)
{
	return told(cuCtxPopCurrent_v2(c));
}

hipError_t hipPeekAtLastError(void)
{
	return last_error;
}

hipError_t hipGetLastError(void)
{
	const hipError_t rc = last_error;

	last_error = hipSuccess;
	return rc;
}

hipError_t hipMalloc(void **p, size_t n)
{
	CUdeviceptr d;
	const hipError_t rc = current() ? hipErrorInvalidValue : cuMemAlloc_v2(&d, n);

	if (!rc)
		*p = (void *)(uintptr_t)d;
	return told(rc);
}

hipError_t hipFree(void *p)
{
	return told(cuMemFree_v2((uintptr_t)p));
}

hipError_t hipMemGetAddressRange(void **base, size_t *size, void *p)
{
	CUdeviceptr start = 0;
	const hipError_t rc = cuMemGetAddressRange_v2(&start, size, (uintptr_t)p);

	if (!rc)
		*base = (void *)(uintptr_t)start;
	return told(rc);
}

/* As for kernels: what is a host's is usable as it is. */
hipError_t hipHostMalloc(void **p, size_t n, unsigned flags)
{
	(void)flags;
	*p = aligned_alloc(4096, (n + 4095) & ~(size_t)4095);
	return told(*p ? hipSuccess : hipErrorInvalidValue);
}

hipError_t hipHostFree(void *p)
{
	free(p);
	return hipSuccess;
}

/* As HIP does it, by the runtime below. */
hipError_t hipHostRegister(void *p, size_t n, unsigned flags)
{
	hsa_agent_t agent = { 1 };
	void *mapped;
	CUresult rc = cuMemHostRegister_v2(p, n, flags);

	if (!rc && hsa_amd_memory_lock(p, n, &agent, 1, &mapped))
		rc = CUDA_ERROR_INVALID_VALUE;
	return told(rc);
}

hipError_t hipHostUnregister(void *p)
{
	const CUresult rc = cuMemHostUnregister(p);

	if (!rc)
		hsa_amd_memory_unlock(p);
	return told(rc);
}

hipError_t hipHostGetDevicePointer(void **d, void *p, unsigned flags)
{
	CUdeviceptr at;
	const CUresult rc = cuMemHostGetDevicePointer_v2(&at, p, flags);

	if (!rc)
		*d = (void *)(uintptr_t)at;
	return told(rc);
}

hipError_t hipPointerGetAttribute(void *out, int attribute, hipDeviceptr_t p)
{
	return told(cuPointerGetAttribute(out, attribute, (uintptr_t)p));
}

hipError_t hipMemcpyAsync(void *dst, const void *src, size_t n, int kind, hipStream_t s)
{
	return told(kind < 0 || kind > hipMemcpyDefault ? CUDA_ERROR_INVALID_VALUE : cuMemcpyAsync((uintptr_t)dst, (uintptr_t)src, n, s));
}

hipError_t hipMemcpyDtoHAsync(void *dst, hipDeviceptr_t src, size_t n, hipStream_t s)
{
	return told(cuMemcpyDtoHAsync_v2(dst, (uintptr_t)src, n, s));
}

hipError_t hipStreamCreateWithFlags(hipStream_t *s, unsigned flags)
{
	return told(cuStreamCreate(s, flags));
}

hipError_t hipStreamCreateWithPriority(hipStream_t *s, unsigned flags, int priority)
{
	return told(cuStreamCreateWithPriority(s, flags, priority));
}

hipError_t hipStreamDestroy(hipStream_t s)
{
	return told(cuStreamDestroy_v2(s));
}

hipError_t hipStreamQuery(hipStream_t s)
{
	return cuStreamQuery(s); /* not being ready is no error */
}

hipError_t hipStreamSynchronize(hipStream_t s)
{
	return told(cuStreamSynchronize(s));
}

hipError_t hipThreadExchangeStreamCaptureMode(int *mode)
{
	return told(cuThreadExchangeStreamCaptureMode(mode));
}

hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, hipStream_t s, void **arguments, void **extra)
{
	return told(cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, s, arguments, extra));
}

hipError_t hipLaunchKernel(const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, hipStream_t s)
{
	return hipModuleLaunchKernel((hipFunction_t)(uintptr_t)f, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, s, arguments, NULL);
}

const char *hipKernelNameRef(hipFunction_t f)
{
	return f ? "of a module" : NULL;
}

const char *hipKernelNameRefByPtr(const void *f, hipStream_t s)
{
	(void)s;
	return f ? "of the program" : NULL;
}

hipError_t hipExtLaunchKernel(const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, hipStream_t s, void *begin, void *end, int flags)
{
	if (begin || end || flags)
		return told(hipErrorInvalidValue);
	return hipLaunchKernel(f, grid, block, arguments, shared, s);
}

hipError_t hipGetProcAddress(const char *name, void **f, int version, uint64_t flags, int *status)
{
	static const struct {
		const char *name;
		void *f;
	} table[] = {
#define ENTRY(name) { #name, (void *)name }
		ENTRY(hipHostRegister), ENTRY(hipHostUnregister), ENTRY(hipHostGetDevicePointer), ENTRY(hipGetProcAddress), ENTRY(hipLaunchKernel), ENTRY(hipExtLaunchKernel), ENTRY(hipMalloc), ENTRY(hipGetDevice),
	};

	(void)version;
	(void)flags;
	*f = NULL;
	for (size_t i = 0; i < sizeof table / sizeof *table && !*f; i++)
		if (!strcmp(table[i].name, name))
			*f = table[i].f;
	if (status)
		*status = !*f;
	return told(*f ? hipSuccess : hipErrorInvalidValue);
}
