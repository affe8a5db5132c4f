/* Memory of GPUs by HIP: devmem.h. A context is a device, of which 1 + its number is the handle. */
#include "hip.h"

enum { NON_BLOCKING = 1, PRIORITY = -1, RELAXED = 2, PORTABLE_MAPPED = 3, ATTRIBUTE_MEMORY_TYPE = 2, ATTRIBUTE_DEVICE_ORDINAL = 9, MEMORY_OF_DEVICE = 2 };

/* The calling thread's device and its part in the recording of a graph, which some calls would break off; and the error that it would be told of. */
struct place {
    int device, mode, error;
};

static void enter(struct place *p, void *context)
{
    hip_inside++;
    p->device = 0;
    p->mode = RELAXED;
    p->error = hip_real.hipPeekAtLastError();
    hip_real.hipThreadExchangeStreamCaptureMode(&p->mode);
    hip_real.hipGetDevice(&p->device);
    if (context)
        hip_real.hipSetDevice((int)(uintptr_t)context - 1);
}

static void leave(const struct place *p, void *context)
{
    int mode = p->mode;
    if (context)
        hip_real.hipSetDevice(p->device);
    hip_real.hipThreadExchangeStreamCaptureMode(&mode);
    if (p->error == HIP_SUCCESS && hip_real.hipPeekAtLastError() != HIP_SUCCESS)
        (void)hip_real.hipGetLastError(); /* a refusal of ours, which the program must not find */
    hip_inside--;
}

/* Before ROCm 7 any call of ours replaces an error that the program has not asked for yet. */
static bool ready(void)
{
    static int known;
    int version = __atomic_load_n(&known, __ATOMIC_RELAXED);
#define X(name) HIP(name) &&
    bool all = HIP_CALLED(X) HIP(hipHostRegister) && HIP(hipHostGetDevicePointer) && HIP(hipHostUnregister);
#undef X
    bool clear = all && hip_real.hipPeekAtLastError() == HIP_SUCCESS;
    if (clear && !version && hip_real.hipRuntimeGetVersion(&version) == HIP_SUCCESS)
        __atomic_store_n(&known, version, __ATOMIC_RELAXED);
    return all && version >= HIP_ROCM_6 && (clear || version >= HIP_ROCM_7);
}

static bool context_of(uint64_t address, void **context)
{
    struct place p;
    unsigned type = 0;
    int device = 0;
    enter(&p, NULL);
    /* memory that HIP does not know is the host's: it is refused. A program's own error that is not asked for yet would be lost by that. */
    bool of_device = !p.error && hip_real.hipPointerGetAttribute(&type, ATTRIBUTE_MEMORY_TYPE, (void *)address) == HIP_SUCCESS && type == MEMORY_OF_DEVICE;
    bool known = !p.error && (!of_device || hip_real.hipPointerGetAttribute(&device, ATTRIBUTE_DEVICE_ORDINAL, (void *)address) == HIP_SUCCESS);
    leave(&p, NULL);
    *context = of_device && known ? (void *)(uintptr_t)(device + 1) : NULL;
    return known;
}

static uint64_t size_at(uint64_t address)
{
    struct place p;
    void *base = NULL;
    size_t size = 0;
    enter(&p, NULL);
    int rc = p.error ? p.error : hip_real.hipMemGetAddressRange(&base, &size, (void *)address);
    leave(&p, NULL);
    return rc == HIP_SUCCESS ? size - (address - (uintptr_t)base) : 0;
}

static void *current(void)
{
    int device = 0;
    return hip_real.hipGetDevice(&device) == HIP_SUCCESS ? (void *)(uintptr_t)(device + 1) : NULL;
}

static void *open_stream(void *context)
{
    struct place p;
    void *stream = NULL;
    enter(&p, context);
    if (hip_real.hipStreamCreateWithPriority(&stream, NON_BLOCKING, PRIORITY) != HIP_SUCCESS)
        stream = NULL;
    leave(&p, context);
    return stream;
}

static void close_stream(void *context, void *stream)
{
    struct place p;
    enter(&p, context);
    (void)hip_real.hipStreamDestroy(stream);
    leave(&p, context);
}

static bool copy(void *context, void *stream, void *to, uint64_t from, size_t n)
{
    struct place p;
    enter(&p, context);
    bool ok = hip_real.hipMemcpyDtoHAsync(to, (void *)from, n, stream) == HIP_SUCCESS;
    leave(&p, context);
    return ok;
}

static int done(void *context, void *stream)
{
    struct place p;
    enter(&p, context);
    int rc = hip_real.hipStreamQuery(stream);
    leave(&p, context);
    return rc == HIP_SUCCESS ? 1 : rc == HIP_ERROR_NOT_READY ? 0 : -1;
}

static bool wait_for(void *context, void *stream)
{
    struct place p;
    enter(&p, context);
    bool ok = hip_real.hipStreamSynchronize(stream) == HIP_SUCCESS;
    leave(&p, context);
    return ok;
}

static bool pin(void *host, size_t size, uint64_t *device)
{
    struct place p;
    void *address = NULL;
    enter(&p, NULL);
    bool ok = hip_real.hipHostRegister(host, size, PORTABLE_MAPPED) == HIP_SUCCESS;
    if (ok && device && hip_real.hipHostGetDevicePointer(&address, host, 0) != HIP_SUCCESS) {
        (void)hip_real.hipHostUnregister(host);
        ok = false;
    }
    leave(&p, NULL);
    if (ok && device)
        *device = (uintptr_t)address;
    return ok;
}

static void unpin(void *host)
{
    struct place p;
    enter(&p, NULL);
    (void)hip_real.hipHostUnregister(host);
    leave(&p, NULL);
}

static bool alive(void *host)
{
    struct place p;
    void *address = NULL;
    enter(&p, NULL);
    bool ok = hip_real.hipHostGetDevicePointer(&address, host, 0) == HIP_SUCCESS;
    leave(&p, NULL);
    return ok;
}

#define ROW(n)                                                                                                                                                 \
    {                                                                                                                                                          \
        .nests = n, .ready = ready, .context_of = context_of, .size_at = size_at, .current = current, .open = open_stream, .close = close_stream, .copy = copy, .done = done, .wait = wait_for, \
        .pin = pin, .unpin = unpin, .alive = alive,                                                                                                            \
    }
const struct devmem devmem_hip = ROW(false), devmem_hsa = ROW(true);
