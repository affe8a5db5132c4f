/*
 * The part of CUPTI's activity interface that is used here, by facts of its public reference (docs.nvidia.com/cupti, structures CUpti_ActivityKernel4 to 11, and
 * CUpti_CallbackData). Records are packed to 8 bytes and have only ever grown at their end: what is read here lies where it did in Kernel4, of CUDA 9.
 */
#ifndef ST_CUPTI_H
#define ST_CUPTI_H

#include <stddef.h>
#include <stdint.h>

enum { CUPTI_SUCCESS = 0, CUPTI_ERROR_NOT_INITIALIZED = 15 };
/* CONCURRENT_KERNEL, not KERNEL, which makes kernels run one by one. */
enum { CUPTI_CONCURRENT_KERNEL = 10 };
enum { CUPTI_FLUSH_FORCED = 1 };
enum { CUPTI_DRIVER_API = 1, CUPTI_API_ENTER = 0 };

/* The driver's functions that launch, by cupti_driver_cbid.h. */
#define CUPTI_LAUNCHES(X)                      \
    X(cuLaunchKernel, 307)                     \
    X(cuLaunchKernel_ptsz, 442)                \
    X(cuLaunchCooperativeKernel, 477)          \
    X(cuLaunchCooperativeKernel_ptsz, 478)     \
    X(cuGraphLaunch, 514)                      \
    X(cuGraphLaunch_ptsz, 515)                 \
    X(cuLaunchKernelEx, 652)                   \
    X(cuLaunchKernelEx_ptsz, 653)

struct cupti_call {
    int site;
    const char *function;
    const void *parameters;
    void *result;
    const char *symbol;
    void *context;
    uint32_t of_context;
    uint64_t *data;
    uint32_t correlation;
};
_Static_assert(offsetof(struct cupti_call, correlation) == 64, "cupti_callbacks.h");

struct cupti_kernel {
    uint32_t kind;
    uint8_t cache, shared_configuration;
    uint16_t registers;
    uint32_t partitioned_requested, partitioned_executed;
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3], static_shared, dynamic_shared;
    uint32_t local_of_thread, local, correlation;
    int64_t grid_number;
    const char *name;
};
_Static_assert(offsetof(struct cupti_kernel, start) == 16 && offsetof(struct cupti_kernel, correlation) == 92 && offsetof(struct cupti_kernel, name) == 104, "cupti_activity.h");
/* The least that a kernel's record takes: Kernel4's size. */
enum { CUPTI_KERNEL_BYTES = 144 };

/* Versions, as cuptiGetVersion tells them, of which it is known that records are such: CUDA 12 (19 and on) and 13.0 to 13.2. */
static inline int cupti_known(uint32_t version) { return (version >= 19 && version < 100) || (version >= 130000 && version < 130300); }

#define CUPTI_FUNCTIONS(X)                                                                                        \
    X(cuptiGetVersion, (uint32_t *version))                                                                       \
    X(cuptiSubscribe, (void **subscriber, void *callback, void *user))                                            \
    X(cuptiUnsubscribe, (void *subscriber))                                                                       \
    X(cuptiEnableCallback, (uint32_t enable, void *subscriber, int domain, uint32_t id))                          \
    X(cuptiGetTimestamp, (uint64_t *ns))                                                                          \
    X(cuptiActivityRegisterCallbacks, (void *requested, void *completed))                                         \
    X(cuptiActivityEnable, (int kind))                                                                            \
    X(cuptiActivityDisable, (int kind))                                                                           \
    X(cuptiActivityFlushAll, (uint32_t flags))                                                                    \
    X(cuptiActivityGetNextRecord, (uint8_t *buffer, size_t valid, void **record))                                 \
    X(cuptiActivityGetNumDroppedRecords, (void *context, uint32_t stream, size_t *n))                             \
    X(cuptiGetContextId, (void *context, uint32_t *id))                                                           \
    X(cuptiGetStreamIdEx, (void *context, void *stream, uint8_t of_thread, uint32_t *id))

#endif
