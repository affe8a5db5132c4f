/*
 * The part of CUPTI's activity interface that is used here, by facts of its public reference (docs.nvidia.com/cupti, structures CUpti_ActivityKernel4 to 11 and
 * CUpti_ActivityExternalCorrelation). Records are packed to 8 bytes and have only ever grown at their end: what is read here lies where it did in Kernel4, of CUDA 9.
 */
#ifndef ST_CUPTI_H
#define ST_CUPTI_H

#include <stddef.h>
#include <stdint.h>

enum { CUPTI_SUCCESS = 0, CUPTI_ERROR_NOT_INITIALIZED = 15 };
/* CONCURRENT_KERNEL, not KERNEL, which makes kernels run one by one. Numbers of launches are told for calls of the driver that are recorded, so those must be too. */
enum { CUPTI_DRIVER = 4, CUPTI_CONCURRENT_KERNEL = 10, CUPTI_EXTERNAL_CORRELATION = 39 };
enum { CUPTI_CUSTOM0 = 3, CUPTI_FLUSH_FORCED = 1 };

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

struct cupti_correlation {
    uint32_t kind, external_kind;
    uint64_t external;
    uint32_t correlation, reserved;
};
_Static_assert(sizeof(struct cupti_correlation) == 24, "cupti_activity.h");

/* Versions, as cuptiGetVersion tells them, of which it is known that records are such: CUDA 12 (19 and on) and 13.0 to 13.2. */
static inline int cupti_known(uint32_t version) { return (version >= 19 && version < 100) || (version >= 130000 && version < 130300); }

#define CUPTI_FUNCTIONS(X)                                                                                        \
    X(cuptiGetVersion, (uint32_t *version))                                                                       \
    X(cuptiSubscribe, (void **subscriber, void *callback, void *user))                                            \
    X(cuptiUnsubscribe, (void *subscriber))                                                                       \
    X(cuptiGetTimestamp, (uint64_t *ns))                                                                          \
    X(cuptiActivityRegisterCallbacks, (void *requested, void *completed))                                         \
    X(cuptiActivityEnable, (int kind))                                                                            \
    X(cuptiActivityDisable, (int kind))                                                                           \
    X(cuptiActivityFlushAll, (uint32_t flags))                                                                    \
    X(cuptiActivityGetNextRecord, (uint8_t *buffer, size_t valid, void **record))                                 \
    X(cuptiActivityGetNumDroppedRecords, (void *context, uint32_t stream, size_t *n))                             \
    X(cuptiActivityPushExternalCorrelationId, (int kind, uint64_t id))                                            \
    X(cuptiActivityPopExternalCorrelationId, (int kind, uint64_t *last))                                          \
    X(cuptiGetContextId, (void *context, uint32_t *id))                                                           \
    X(cuptiGetStreamIdEx, (void *context, void *stream, uint8_t of_thread, uint32_t *id))

#endif
