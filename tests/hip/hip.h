/* The part of HIP's and HSA's interfaces that programs here use (hip_runtime_api.h, hsa_ext_amd.h of ROCm 6). Kernels: standin.h. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int hipError_t;
typedef int hipDevice_t;
typedef struct ctx *hipCtx_t;
typedef struct stream *hipStream_t;
typedef struct standin_kernel *hipFunction_t;
typedef void *hipDeviceptr_t;
typedef struct {
	uint32_t x, y, z;
} dim3;
typedef struct {
	char bytes[16];
} hipUUID;
typedef struct {
	uint64_t handle;
} hsa_agent_t;
typedef struct {
	uint64_t handle;
} hsa_amd_memory_pool_t;

enum { hipSuccess = 0, hipErrorInvalidValue = 1, hipErrorNotReady = 600 };
enum { hipHostRegisterPortable = 1, hipHostRegisterMapped = 2, hipHostRegisterIoMemory = 4 };
enum { hipStreamNonBlocking = 1 };
enum { hipMemcpyDefault = 4 };
enum { HIP_POINTER_ATTRIBUTE_CONTEXT = 1, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE = 2, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9 };
enum { hipMemoryTypeHost = 1, hipMemoryTypeDevice = 2 };
enum { HSA_STATUS_SUCCESS = 0, HSA_STATUS_ERROR_INVALID_ARGUMENT = 0x1001 };

hipError_t hipInit(unsigned flags);
hipError_t hipRuntimeGetVersion(int *version);
hipError_t hipGetDeviceCount(int *n);
hipError_t hipGetDevice(int *device);
hipError_t hipSetDevice(int device);
hipError_t hipDeviceGet(hipDevice_t *device, int ordinal);
hipError_t hipDeviceGetUuid(hipUUID *uuid, hipDevice_t device);
hipError_t hipDevicePrimaryCtxRetain(hipCtx_t *c, hipDevice_t device);
hipError_t hipCtxPushCurrent(hipCtx_t c);
hipError_t hipCtxPopCurrent(hipCtx_t *c);
hipError_t hipPeekAtLastError(void);
hipError_t hipGetLastError(void);
hipError_t hipMalloc(void **p, size_t n);
hipError_t hipFree(void *p);
hipError_t hipMemGetAddressRange(void **base, size_t *size, void *p);
hipError_t hipHostMalloc(void **p, size_t n, unsigned flags);
hipError_t hipHostFree(void *p);
hipError_t hipHostRegister(void *p, size_t n, unsigned flags);
hipError_t hipHostUnregister(void *p);
hipError_t hipHostGetDevicePointer(void **device, void *p, unsigned flags);
hipError_t hipPointerGetAttribute(void *out, int attribute, hipDeviceptr_t p);
hipError_t hipMemcpyAsync(void *dst, const void *src, size_t n, int kind, hipStream_t s);
hipError_t hipMemcpyDtoHAsync(void *dst, hipDeviceptr_t src, size_t n, hipStream_t s);
hipError_t hipStreamCreateWithFlags(hipStream_t *s, unsigned flags);
hipError_t hipStreamCreateWithPriority(hipStream_t *s, unsigned flags, int priority);
hipError_t hipStreamDestroy(hipStream_t s);
hipError_t hipStreamQuery(hipStream_t s);
hipError_t hipStreamSynchronize(hipStream_t s);
hipError_t hipThreadExchangeStreamCaptureMode(int *mode);
hipError_t hipLaunchKernel(const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, hipStream_t s);
hipError_t hipExtLaunchKernel(const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, hipStream_t s, void *begin, void *end, int flags);
hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, hipStream_t s, void **arguments, void **extra);
const char *hipKernelNameRef(hipFunction_t f);
const char *hipKernelNameRefByPtr(const void *f, hipStream_t s);
hipError_t hipGetProcAddress(const char *name, void **f, int version, uint64_t flags, int *status);

int hsa_init(void);
int hsa_amd_memory_lock(void *p, size_t n, hsa_agent_t *agents, int count, void **device);
int hsa_amd_memory_lock_to_pool(void *p, size_t n, hsa_agent_t *agents, int count, hsa_amd_memory_pool_t pool, uint32_t flags, void **device);
int hsa_amd_memory_unlock(void *p);
