/*
 * HIP, ROCm's twin of CUDA, as part of the provider cuda: hip.c catches what a program asks HIP and the runtime below it (HSA) for, hip_devmem.c reads memory by HIP. Pages of
 * doorbells are the same as CUDA's (registered.h, doorbell.c).
 *
 * Interfaces: hip_runtime_api.h and hsa_ext_amd.h of ROCm 6.0 and later; in ROCm 5 kinds of memory have other numbers, and pages are left alone.
 */
#ifndef ST_HIP_H
#define ST_HIP_H

#include "devmem.h"
#include "recorder.h"

enum { HIP_SUCCESS = 0, HIP_ERROR_NOT_INITIALIZED = 3, HIP_ERROR_NOT_READY = 600, HSA_SUCCESS = 0, HSA_ERROR_NOT_INITIALIZED = 0x100b };
enum { HIP_ROCM_6 = 60000000, HIP_ROCM_7 = 70000000 }; /* hipRuntimeGetVersion: major * 10^7 + minor * 10^5 + patch */

/* What is hooked. Programs that are linked ask for versions of these (hip_4.2, hip_6.1, ROCR_1); ours have none, and answer all. */
#define HIP_HOOKED(X)          \
    X(hipHostRegister)         \
    X(hipHostUnregister)       \
    X(hipHostGetDevicePointer) \
    X(hipGetProcAddress)       \
    X(hipFree)                 \
    X(hipLaunchKernel)         \
    X(hipExtLaunchKernel)      \
    X(hipModuleLaunchKernel)   \
    X(hipModuleUnload)
#define HSA_HOOKED(X)               \
    X(hsa_amd_memory_lock)          \
    X(hsa_amd_memory_lock_to_pool)  \
    X(hsa_amd_memory_unlock)
/* What is only called. */
#define HIP_CALLED(X)                     \
    X(hipRuntimeGetVersion)               \
    X(hipGetDevice)                       \
    X(hipSetDevice)                       \
    X(hipPointerGetAttribute)             \
    X(hipMemGetAddressRange)              \
    X(hipPeekAtLastError)                 \
    X(hipGetLastError)                    \
    X(hipStreamCreateWithPriority)        \
    X(hipStreamDestroy)                   \
    X(hipStreamQuery)                     \
    X(hipStreamSynchronize)               \
    X(hipMemcpyDtoHAsync)                 \
    X(hipThreadExchangeStreamCaptureMode)
/* What is called where it is there. */
#define HIP_OPTIONAL(X)      \
    X(hipDeviceGetUuid)      \
    X(hipDeviceGetPCIBusId)  \
    X(hipKernelNameRef)      \
    X(hipKernelNameRefByPtr) \
    X(hipStreamIsCapturing)

/* hsa_agent_t and hsa_amd_memory_pool_t are structures of one 64-bit number, which are passed as numbers are. */
struct hsa_agent;
struct hip_dim {
    uint32_t x, y, z;
};
int hipLaunchKernel(const void *f, struct hip_dim grid, struct hip_dim block, void **arguments, size_t shared, void *stream);
int hipExtLaunchKernel(const void *f, struct hip_dim grid, struct hip_dim block, void **arguments, size_t shared, void *stream, void *start, void *stop, int flags);
int hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments, void **extra);
int hipModuleUnload(void *module);
int hipDeviceGetUuid(uint8_t *uuid, int device);
int hipDeviceGetPCIBusId(char *name, int size, int device);
const char *hipKernelNameRef(const void *f);
const char *hipKernelNameRefByPtr(const void *f, void *stream);
int hipStreamIsCapturing(void *stream, int *state);
int hipHostRegister(void *p, size_t size, unsigned flags);
int hipHostUnregister(void *p);
int hipHostGetDevicePointer(void **device, void *p, unsigned flags);
int hipGetProcAddress(const char *name, void **function, int version, uint64_t flags, int *status);
int hsa_amd_memory_lock(void *p, size_t size, struct hsa_agent *agents, int n, void **device);
int hsa_amd_memory_lock_to_pool(void *p, size_t size, struct hsa_agent *agents, int n, uint64_t pool, uint32_t flags, void **device);
int hsa_amd_memory_unlock(void *p);
int hipFree(void *p);
int hipMemGetAddressRange(void **base, size_t *size, void *p);
int hipRuntimeGetVersion(int *version);
int hipGetDevice(int *device);
int hipSetDevice(int device);
int hipPointerGetAttribute(void *out, int attribute, void *p);
int hipPeekAtLastError(void);
int hipGetLastError(void);
int hipStreamCreateWithPriority(void **stream, unsigned flags, int priority);
int hipStreamDestroy(void *stream);
int hipStreamQuery(void *stream);
int hipStreamSynchronize(void *stream);
int hipMemcpyDtoHAsync(void *to, void *from, size_t n, void *stream);
int hipThreadExchangeStreamCaptureMode(int *mode);

struct hip_real {
#define X(name) __typeof__(name) *name;
    HIP_HOOKED(X) HSA_HOOKED(X) HIP_CALLED(X) HIP_OPTIONAL(X)
#undef X
};
extern struct hip_real hip_real;
void hip_find(void);
/* The runtime's function, or NULL. */
#define HIP(name) (st_likely(!!__atomic_load_n(&hip_real.name, __ATOMIC_RELAXED)) ? hip_real.name : (hip_find(), hip_real.name))

/* HIP locks memory by calling HSA: what it does there, for the program or for us, is its own business. Raised around such calls. */
extern __thread unsigned hip_inside __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* hip_devmem.c. Two rows of the same functions: what is locked by HSA is no business of hipHostUnregister's, nor the other way. */
extern const struct devmem devmem_hip, devmem_hsa;

#endif
