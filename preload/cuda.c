/* The CUDA driver's functions as programs find them: linked, looked up, or asked of the driver itself (cuGetProcAddress, as CUDA's runtime does). */
#define _GNU_SOURCE
#include "cuda.h"
#include "registered.h"
#include "kernels.h"

#include <errno.h>
#include <string.h>

struct cuda_real cuda_real;

static const struct hooked {
    const char *asked;
    int since, below;
    enum cuda_streams streams;
    bool launch;
    void *ours;
    void **real;
} table[] = {
#define X(name, asked, since, below, streams) {asked, since, below, streams, LAUNCH, (void *)name, (void **)(void *)&cuda_real.name},
#define LAUNCH false
    CU_OTHERS(X)
#undef LAUNCH
#define LAUNCH true
    CU_LAUNCHES(X)
#undef LAUNCH
#undef X
};

static const struct st_hook hooks[] = {
#define X(name, ...) {#name, NULL, (void *)name, (void **)(void *)&cuda_real.name},
    CU_HOOKED(X){0}
#undef X
};

__attribute__((constructor)) static void start(void) { st_hooks("cu", hooks); }

void cuda_find(void)
{
    int saved = errno;
    void *p;
#define X(name, ...)                                                               \
    if (!__atomic_load_n(&cuda_real.name, __ATOMIC_RELAXED) && (p = st_next(#name, NULL))) \
        __atomic_store_n(&cuda_real.name, (__typeof__(name) *)p, __ATOMIC_RELEASE);
    CU_HOOKED(X) CU_CALLED(X)
#undef X
    errno = saved;
}

static bool streams_fit(enum cuda_streams streams, uint64_t flags)
{
    return flags <= STREAMS_OF_THREAD && (streams == STREAMS_ANY || (flags == STREAMS_OF_THREAD) == (streams == STREAMS_OF_THREAD));
}

/* What a program asked the driver for by name, version and flags, and got: ours in its place, where that is one of the functions that we know. Any other of the
 * same name may have another signature, and is left as it is. */
static void answer(const char *name, void **function, int version, uint64_t flags)
{
    bool known = false;
    if (!strcmp(name, "cuGetProcAddress_v2")) { /* some ask for it by the symbol's name, which is of one version alone */
        name = "cuGetProcAddress";
        version = version < 12000 ? 12000 : version;
    }
    for (unsigned i = 0; function && *function && i < sizeof table / sizeof *table; i++) {
        const struct hooked *h = &table[i];
        if (strcmp(h->asked, name) || (h->launch && !kernels_hooked()))
            continue;
        known = true;
        if (version < h->since || version >= h->below || !streams_fit(h->streams, flags))
            continue;
        void *none = NULL;
        if (*function == h->ours) /* a driver whose own names are bound to what stands before it */
            return;
        __atomic_compare_exchange_n(h->real, &none, *function, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
        *function = h->ours;
        return;
    }
    if (known)
        note_left_alone(name, version, flags);
}

ST_EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    if (!CUDA(cuGetProcAddress_v2))
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult rc = cuda_real.cuGetProcAddress_v2(name, function, version, flags, status);
    if (rc == CUDA_SUCCESS && name)
        answer(name, function, version, flags);
    return rc;
}

ST_EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    if (!CUDA(cuGetProcAddress))
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult rc = cuda_real.cuGetProcAddress(name, function, version, flags);
    if (rc == CUDA_SUCCESS && name)
        answer(name, function, version, flags);
    return rc;
}

/* Tables of functions that only CUDA's own libraries know the layout of: named, and given as they are. */
ST_EXPORT CUresult cuGetExportTable(const void **functions, const uint8_t *uuid)
{
    if (!CUDA(cuGetExportTable))
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult rc = cuda_real.cuGetExportTable(functions, uuid);
    if (rc == CUDA_SUCCESS && uuid)
        note_export_table(uuid);
    return rc;
}

/* ---- registers that kernels ring -------------------------------------------------------------------------------------------------------- */

ST_EXPORT CUresult cuMemHostRegister_v2(void *p, size_t size, unsigned flags)
{
    if (!CUDA(cuMemHostRegister_v2))
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult rc = cuda_real.cuMemHostRegister_v2(p, size, flags);
    if (rc == CUDA_SUCCESS)
        registered(&devmem_cuda, p, size);
    return rc;
}

ST_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *p, unsigned flags)
{
    if (!CUDA(cuMemHostGetDevicePointer_v2))
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult rc = cuda_real.cuMemHostGetDevicePointer_v2(device, p, flags);
    if (rc == CUDA_SUCCESS)
        registered_address(&devmem_cuda, p, device);
    return rc;
}

ST_EXPORT CUresult cuMemHostUnregister(void *p)
{
    if (!CUDA(cuMemHostUnregister))
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult rc = cuda_real.cuMemHostUnregister(p);
    if (rc == CUDA_SUCCESS) /* else kernels ring on */
        registered_ends(&devmem_cuda, p);
    return rc;
}

/* ---- memory that queues may be in -------------------------------------------------------------------------------------------------------------- */

ST_EXPORT CUresult cuMemFree_v2(CUdeviceptr p)
{
    if (!CUDA(cuMemFree_v2))
        return CUDA_ERROR_NOT_INITIALIZED;
    doorbell_memory_goes(&devmem_cuda, p, 0);
    return cuda_real.cuMemFree_v2(p);
}

ST_EXPORT CUresult cuMemUnmap(CUdeviceptr p, size_t size)
{
    if (!CUDA(cuMemUnmap))
        return CUDA_ERROR_NOT_INITIALIZED;
    doorbell_memory_goes(&devmem_cuda, p, size);
    return cuda_real.cuMemUnmap(p, size);
}
