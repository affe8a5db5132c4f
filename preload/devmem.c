/* Memory of GPUs by the CUDA driver: devmem.h. */
#include "devmem.h"
#include "cuda.h"

enum { NON_BLOCKING = 1, PRIORITY = -5, NOT_READY = 600, RELAXED = 2 };

/* A program that records its streams into a graph loses the recording by some calls of other threads, if those do not say that they are no part of it. */
struct place {
    void *context;
    int mode;
};

static bool enter(struct place *p, void *context)
{
    *p = (struct place){context, RELAXED};
    if (context && cuda_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return false;
    cuda_real.cuThreadExchangeStreamCaptureMode(&p->mode);
    return true;
}

static void leave(struct place *p)
{
    void *old;
    cuda_real.cuThreadExchangeStreamCaptureMode(&p->mode);
    if (p->context)
        cuda_real.cuCtxPopCurrent_v2(&old);
}

static bool ready(void)
{
#define X(name) CUDA(name) &&
    return CU_FOR_MEMORY(X) CUDA(cuMemHostRegister_v2) && CUDA(cuMemHostGetDevicePointer_v2) && CUDA(cuMemHostUnregister);
#undef X
}

static bool context_of(uint64_t address, void **context)
{
    unsigned type = 0;
    *context = NULL;
    return cuda_real.cuPointerGetAttribute(&type, ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS || type != MEMORY_OF_DEVICE ||
           cuda_real.cuPointerGetAttribute(context, ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS;
}

static uint64_t size_at(uint64_t address)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    return cuda_real.cuMemGetAddressRange_v2(&base, &size, address) == CUDA_SUCCESS ? size - (address - base) : 0;
}

static void *current(void)
{
    void *context = NULL;
    return cuda_real.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}

static void *open_stream(void *context)
{
    struct place p;
    void *stream = NULL;
    if (!enter(&p, context))
        return NULL;
    if (cuda_real.cuStreamCreateWithPriority(&stream, NON_BLOCKING, PRIORITY) != CUDA_SUCCESS)
        stream = NULL;
    leave(&p);
    return stream;
}

static void close_stream(void *context, void *stream)
{
    struct place p;
    if (!enter(&p, context))
        return;
    cuda_real.cuStreamDestroy_v2(stream);
    leave(&p);
}

static bool copy(void *context, void *stream, void *to, uint64_t from, size_t n)
{
    struct place p;
    if (!enter(&p, context))
        return false;
    CUresult rc = cuda_real.cuMemcpyDtoHAsync_v2(to, from, n, stream);
    leave(&p);
    return rc == CUDA_SUCCESS;
}

static int done(void *context, void *stream)
{
    struct place p;
    if (!enter(&p, context))
        return -1;
    CUresult rc = cuda_real.cuStreamQuery(stream);
    leave(&p);
    return rc == CUDA_SUCCESS ? 1 : rc == NOT_READY ? 0 : -1;
}

static bool wait_for(void *context, void *stream)
{
    struct place p;
    if (!enter(&p, context))
        return false;
    CUresult rc = cuda_real.cuStreamSynchronize(stream);
    leave(&p);
    return rc == CUDA_SUCCESS;
}

static bool pin(void *host, size_t size, uint64_t *device)
{
    struct place p;
    enter(&p, NULL);
    bool ok = cuda_real.cuMemHostRegister_v2(host, size, REGISTER_PORTABLE | REGISTER_MAPPED) == CUDA_SUCCESS;
    if (ok && device && cuda_real.cuMemHostGetDevicePointer_v2(device, host, 0) != CUDA_SUCCESS) {
        cuda_real.cuMemHostUnregister(host);
        ok = false;
    }
    leave(&p);
    return ok;
}

static void unpin(void *host)
{
    struct place p;
    enter(&p, NULL);
    cuda_real.cuMemHostUnregister(host);
    leave(&p);
}

static bool alive(void *host)
{
    uint64_t device;
    return cuda_real.cuMemHostGetDevicePointer_v2(&device, host, 0) == CUDA_SUCCESS;
}

const struct devmem devmem_cuda = {
    .ready = ready,
    .context_of = context_of,
    .size_at = size_at,
    .current = current,
    .open = open_stream,
    .close = close_stream,
    .copy = copy,
    .done = done,
    .wait = wait_for,
    .pin = pin,
    .unpin = unpin,
    .alive = alive,
};
