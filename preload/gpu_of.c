/* Whose memory an address is, by the CUDA or HIP driver that the process has loaded, if it has one. It is never loaded from here. */
#define _GNU_SOURCE
#include "gpu_of.h"

#include "recorder.h"

#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

/* cuda.h of CUDA 13, unchanged since 4.0, and hip_runtime_api.h since ROCm 6: the same numbers and, of these functions, the same arguments. */
enum { ATTRIBUTE_CONTEXT = 1, ATTRIBUTE_MEMORY_TYPE = 2, ATTRIBUTE_DEVICE_ORDINAL = 9, MEMORY_OF_DEVICE = 2, ROCM_6 = 60000000 };
static struct driver {
    int (*attribute)(void *out, int attribute, uint64_t p);
    int (*device_get)(int *device, int ordinal);
    int (*device_uuid)(uint8_t *uuid, int device);
    /* HIP only */
    int (*version)(int *version);
    int (*peek)(void), (*take)(void);
} cuda, hip;

static void find(void *to, const char *name)
{
    void **function = to;
    if (!__atomic_load_n(function, __ATOMIC_RELAXED))
        __atomic_store_n(function, st_next(name, NULL), __ATOMIC_RELEASE);
}

static int count_loaded(struct dl_phdr_info *info, size_t size, void *out)
{
    *(unsigned long long *)out = size >= offsetof(struct dl_phdr_info, dlpi_adds) + sizeof info->dlpi_adds ? info->dlpi_adds : 0;
    return 1;
}

/* What is missing is looked up again when the process has loaded something since: programs register memory a million times. */
static void find_drivers(void)
{
    static unsigned long long looked_at;
    unsigned long long loaded = 0;
    dl_iterate_phdr(count_loaded, &loaded);
    if (loaded && loaded == __atomic_load_n(&looked_at, __ATOMIC_ACQUIRE))
        return;
    find(&cuda.attribute, "cuPointerGetAttribute");
    find(&cuda.device_get, "cuDeviceGet");
    find(&cuda.device_uuid, "cuDeviceGetUuid");
    find(&hip.attribute, "hipPointerGetAttribute");
    find(&hip.device_get, "hipDeviceGet");
    find(&hip.device_uuid, "hipDeviceGetUuid");
    find(&hip.version, "hipRuntimeGetVersion");
    find(&hip.peek, "hipPeekAtLastError");
    find(&hip.take, "hipGetLastError");
    __atomic_store_n(&looked_at, loaded, __ATOMIC_RELEASE);
}

static bool ask(const struct driver *d, const void *p, struct gpu *out)
{
    int ordinal = 0, device;
    unsigned type = 0;
    /* an address that the driver does not know is refused */
    if (!d->attribute || d->attribute(&type, ATTRIBUTE_MEMORY_TYPE, (uintptr_t)p) || type != MEMORY_OF_DEVICE)
        return false;
    if (d->attribute(&ordinal, ATTRIBUTE_DEVICE_ORDINAL, (uintptr_t)p))
        return true;
    out->ordinal = (unsigned)ordinal;
    if (d->device_get && d->device_uuid && !d->device_get(&device, ordinal) && !d->device_uuid(out->uuid, device))
        out->uuid_size = sizeof out->uuid;
    return true;
}

static bool by_cuda(const void *p, struct gpu *out)
{
    void *context = NULL;
    if (!ask(&cuda, p, out))
        return false;
    if (!cuda.attribute(&context, ATTRIBUTE_CONTEXT, (uintptr_t)p))
        out->context = (uintptr_t)context;
    return true;
}

/* HIP keeps a thread's last error for it to ask: one of the program's is left alone, and none of ours is left there. */
static bool by_hip(const void *p, struct gpu *out)
{
    int version = 0;
    if (!hip.version || !hip.peek || !hip.take || hip.peek() || hip.version(&version) || version < ROCM_6)
        return false;
    bool found = ask(&hip, p, out);
    if (hip.peek())
        (void)hip.take();
    return found;
}

bool gpu_of(const void *p, struct gpu *out)
{
    int saved = errno;
    memset(out, 0, sizeof *out);
    find_drivers();
    bool found = p && (by_cuda(p, out) || by_hip(p, out));
    errno = saved;
    return found;
}
