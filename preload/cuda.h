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

/* What is hooked: name, and the name and first version under which cuGetProcAddress knows it. */
#define CU_HOOKED(X)                                                       \
    X(cuMemHostRegister_v2, "cuMemHostRegister", 6050)                     \
    X(cuMemHostUnregister, "cuMemHostUnregister", 4000)                    \
    X(cuMemHostGetDevicePointer_v2, "cuMemHostGetDevicePointer", 3020)     \
    X(cuGetProcAddress_v2, "cuGetProcAddress", 12000)                      \
    X(cuGetProcAddress, "cuGetProcAddress", 11030)
/* What is only called. */
#define CU_CALLED(X)                                                       \
    X(cuPointerGetAttribute)                                               \
    X(cuCtxPushCurrent_v2)                                                 \
    X(cuCtxPopCurrent_v2)                                                  \
    X(cuCtxGetCurrent)                                                     \
    X(cuStreamCreateWithPriority)                                          \
    X(cuStreamDestroy_v2)                                                  \
    X(cuStreamQuery)                                                       \
    X(cuStreamSynchronize)                                                 \
    X(cuMemcpyDtoHAsync_v2)                                                \
    X(cuThreadExchangeStreamCaptureMode)

CUresult cuMemHostRegister_v2(void *p, size_t size, unsigned flags);
CUresult cuMemHostUnregister(void *p);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *p, unsigned flags);
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
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
/* Nobody rings it any longer. */
void doorbell_release(void *p);

/* decode.c: records what lies in the blocks from index `from` to `to` of a queue, of which blocks[i & (n - 1)] is the i-th; now: when they were
 * rung. */
void decode(struct st_thread *t, uint64_t now, const struct st_queue *q, const uint8_t *blocks, uint32_t from, uint32_t to);

#endif
