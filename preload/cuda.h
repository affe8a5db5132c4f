/*
 * Inside of the provider cuda. cuda.c catches what a program asks the CUDA driver for, whichever way it has found the functions; doorbell.c watches the pages
 * that kernels ring, and decode.c reads the work queue elements that a doorbell covers.
 */
#ifndef ST_CUDA_H
#define ST_CUDA_H

#include "devmem.h"
#include "queues.h"
#include "recorder.h"

/* The driver's interface, by the parts of it that are used here (cuda.h of CUDA 13; unchanged since 6.5). */
typedef int CUresult;
typedef uint64_t CUdeviceptr;

enum { CUDA_SUCCESS = 0, CUDA_ERROR_NOT_INITIALIZED = 3 };
enum { REGISTER_PORTABLE = 1, REGISTER_MAPPED = 2, REGISTER_IO_MEMORY = 4 };
enum { ATTRIBUTE_CONTEXT = 1, ATTRIBUTE_MEMORY_TYPE = 2, MEMORY_OF_DEVICE = 2 };

/* Which default stream a program has asked for, where a function is there twice (bits of cuGetProcAddress's flags). */
enum cuda_streams { STREAMS_ANY, STREAMS_LEGACY = 1, STREAMS_OF_THREAD = 2 };
/* The first version that nothing is known of: a later major one may have given a name another meaning. */
enum { CUDA_NEXT = 14000 };
/* What is hooked: symbol; name, versions (from, to below) and streams for which cuGetProcAddress gives just this function. The versions are those of the
 * driver's own type definitions (cudaTypedefs.h): a name of several symbols has another signature in each. */
#define CU_HOOKED(X) CU_OTHERS(X) CU_LAUNCHES(X)
#define CU_OTHERS(X)                                                                                        \
    X(cuMemHostRegister_v2, "cuMemHostRegister", 6050, CUDA_NEXT, STREAMS_ANY)                              \
    X(cuMemHostUnregister, "cuMemHostUnregister", 4000, CUDA_NEXT, STREAMS_ANY)                             \
    X(cuMemHostGetDevicePointer_v2, "cuMemHostGetDevicePointer", 3020, CUDA_NEXT, STREAMS_ANY)              \
    X(cuMemFree_v2, "cuMemFree", 3020, CUDA_NEXT, STREAMS_ANY)                                              \
    X(cuMemUnmap, "cuMemUnmap", 10020, CUDA_NEXT, STREAMS_ANY)                                              \
    X(cuGetProcAddress_v2, "cuGetProcAddress", 12000, CUDA_NEXT, STREAMS_ANY)                               \
    X(cuGetProcAddress, "cuGetProcAddress", 11030, 12000, STREAMS_ANY)                                      \
    X(cuGetExportTable, "cuGetExportTable", 3000, CUDA_NEXT, STREAMS_ANY)
/* Those of kernels.c, which are left out where kernels are not recorded. */
#define CU_LAUNCHES(X)                                                                                      \
    X(cuLaunchKernel, "cuLaunchKernel", 4000, CUDA_NEXT, STREAMS_LEGACY)                                    \
    X(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, CUDA_NEXT, STREAMS_OF_THREAD)                            \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, CUDA_NEXT, STREAMS_LEGACY)                               \
    X(cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 11060, CUDA_NEXT, STREAMS_OF_THREAD)                       \
    X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, CUDA_NEXT, STREAMS_LEGACY)              \
    X(cuLaunchCooperativeKernel_ptsz, "cuLaunchCooperativeKernel", 9000, CUDA_NEXT, STREAMS_OF_THREAD)      \
    X(cuGraphLaunch, "cuGraphLaunch", 10000, CUDA_NEXT, STREAMS_LEGACY)                                     \
    X(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000, CUDA_NEXT, STREAMS_OF_THREAD)                             \
    X(cuModuleUnload, "cuModuleUnload", 2000, CUDA_NEXT, STREAMS_ANY)                                       \
    X(cuLibraryUnload, "cuLibraryUnload", 12000, CUDA_NEXT, STREAMS_ANY)
/* What is only called: for memory, all of which doorbells need, and for kernels. */
#define CU_CALLED(X) CU_FOR_MEMORY(X) CU_FOR_KERNELS(X)
#define CU_FOR_MEMORY(X)                                                   \
    X(cuPointerGetAttribute)                                               \
    X(cuMemGetAddressRange_v2)                                             \
    X(cuCtxPushCurrent_v2)                                                 \
    X(cuCtxPopCurrent_v2)                                                  \
    X(cuCtxGetCurrent)                                                     \
    X(cuStreamCreateWithPriority)                                          \
    X(cuStreamDestroy_v2)                                                  \
    X(cuStreamQuery)                                                       \
    X(cuStreamSynchronize)                                                 \
    X(cuMemcpyDtoHAsync_v2)                                                \
    X(cuThreadExchangeStreamCaptureMode)
#define CU_FOR_KERNELS(X)                                                  \
    X(cuCtxGetDevice)                                                      \
    X(cuDeviceGetCount)                                                    \
    X(cuDeviceGetUuid_v2)                                                  \
    X(cuDeviceGetUuid)                                                     \
    X(cuDeviceGetPCIBusId)                                                 \
    X(cuDeviceGetName)                                                     \
    X(cuFuncGetName)                                                       \
    X(cuKernelGetName)                                                     \
    X(cuStreamIsCapturing)

/* CUlaunchConfig and CUlaunchAttribute, which is 72 bytes: a number and up to 64 bytes of value (cuda.h of CUDA 11.8 to 13). */
struct cuda_attribute {
    uint32_t id, pad;
    union {
        char bytes[64];
        int cooperative;
    } value;
};
struct cuda_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    const struct cuda_attribute *attributes;
    unsigned n;
};
_Static_assert(sizeof(struct cuda_attribute) == 72 && offsetof(struct cuda_config, n) == 48, "cuda.h");

CUresult cuMemHostRegister_v2(void *p, size_t size, unsigned flags);
CUresult cuMemHostUnregister(void *p);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *p, unsigned flags);
CUresult cuMemFree_v2(CUdeviceptr p);
CUresult cuMemUnmap(CUdeviceptr p, size_t size);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p);
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
CUresult cuGetExportTable(const void **table, const uint8_t *uuid);
CUresult cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments, void **extra);
CUresult cuLaunchKernel_ptsz(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments, void **extra);
CUresult cuLaunchKernelEx(const struct cuda_config *c, void *f, void **arguments, void **extra);
CUresult cuLaunchKernelEx_ptsz(const struct cuda_config *c, void *f, void **arguments, void **extra);
CUresult cuLaunchCooperativeKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments);
CUresult cuLaunchCooperativeKernel_ptsz(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments);
CUresult cuGraphLaunch(void *graph, void *stream);
CUresult cuGraphLaunch_ptsz(void *graph, void *stream);
CUresult cuModuleUnload(void *module);
CUresult cuLibraryUnload(void *library);
CUresult cuCtxGetDevice(int *device);
CUresult cuDeviceGetCount(int *n);
CUresult cuDeviceGetUuid_v2(uint8_t *uuid, int device);
CUresult cuDeviceGetUuid(uint8_t *uuid, int device);
CUresult cuDeviceGetPCIBusId(char *name, int size, int device);
CUresult cuDeviceGetName(char *name, int size, int device);
CUresult cuFuncGetName(const char **name, void *f);
CUresult cuKernelGetName(const char **name, void *f);
CUresult cuStreamIsCapturing(void *stream, int *state);
CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr p);
CUresult cuCtxPushCurrent_v2(void *context);
CUresult cuCtxPopCurrent_v2(void **context);
CUresult cuCtxGetCurrent(void **context);
CUresult cuStreamCreateWithPriority(void **stream, unsigned flags, int priority);
CUresult cuStreamDestroy_v2(void *stream);
CUresult cuStreamQuery(void *stream);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, void *stream);
CUresult cuStreamSynchronize(void *stream);

struct cuda_real {
#define X(name, ...) __typeof__(name) *name;
    CU_HOOKED(X) CU_CALLED(X)
#undef X
};
extern struct cuda_real cuda_real;
/* The driver's function, or NULL. */
void cuda_find(void);
#define CUDA(name) (st_likely(!!__atomic_load_n(&cuda_real.name, __ATOMIC_RELAXED)) ? cuda_real.name : (cuda_find(), cuda_real.name))

/* doorbell.c: a page of ours in the place of a register at p, of which size bytes are registered with a driver. false: it is left as it is. */
bool doorbell_interpose(const struct devmem *driver, void *p, size_t size, uint64_t *device);
/* Whether the driver still knows the page of ours: it goes with a context. */
bool doorbell_alive(void *p);
/* Nobody rings it any longer. alive: what the driver made for it is there, and is to go. */
void doorbell_release(void *p, bool alive);
/* Memory of GPUs is going to be given back, of which size bytes are told of, or, if that is 0, as many as the driver knows of: what was rung for and lies there is read before, and
 * nothing afterwards. */
void doorbell_memory_goes(const struct devmem *driver, uint64_t address, uint64_t size);
/* A kernel or a graph is going to be launched. The first time that one is, what was rung for by then is read before, for 10 ms at most: drivers load kernels then, have copies wait meanwhile, and
 * what lies there may be written over as soon as the kernel runs. */
void doorbell_kernel_comes(const void *function);
/* Handles of functions may be used again from here on. */
void doorbell_kernels_gone(void);

/* decode.c: records what lies in the blocks from index `from` to `to` of a queue, of which blocks[i & (n - 1)] is the i-th; now: when they were
 * rung. Returns how many are not there: written over, and counted as lost. */
uint32_t decode(struct st_thread *t, uint64_t now, const struct st_queue *q, const uint8_t *blocks, uint32_t from, uint32_t to);

#endif
