/* Whose memory an address is, by the CUDA driver that the process has loaded, if it has one. It is never loaded from here. */
#define _GNU_SOURCE
#include "mlx5dv.h"

#include <errno.h>
#include <string.h>

/* cuda.h of CUDA 13; unchanged since 4.0, the identifier's function since 9.2. */
enum { ATTRIBUTE_CONTEXT = 1, ATTRIBUTE_MEMORY_TYPE = 2, ATTRIBUTE_DEVICE_ORDINAL = 9, MEMORY_OF_DEVICE = 2 };
static int (*attribute)(void *out, int attribute, uint64_t p);
static int (*device_get)(int *device, int ordinal);
static int (*device_uuid)(uint8_t *uuid, int device);

#define FIND(function, name) \
    (__atomic_load_n(&(function), __ATOMIC_RELAXED) ? 0 : (__atomic_store_n(&(function), (__typeof__(function))st_next(name, NULL), __ATOMIC_RELEASE), 0))

bool gpu_of(const void *p, struct gpu *out)
{
    int saved = errno, ordinal = 0, device;
    unsigned type = 0;
    void *context = NULL;
    memset(out, 0, sizeof *out);
    FIND(attribute, "cuPointerGetAttribute");
    FIND(device_get, "cuDeviceGet");
    FIND(device_uuid, "cuDeviceGetUuid");
    /* an address that CUDA does not know is refused */
    bool found = attribute && !attribute(&type, ATTRIBUTE_MEMORY_TYPE, (uintptr_t)p) && type == MEMORY_OF_DEVICE;
    if (found && !attribute(&context, ATTRIBUTE_CONTEXT, (uintptr_t)p))
        out->context = (uintptr_t)context;
    if (found && !attribute(&ordinal, ATTRIBUTE_DEVICE_ORDINAL, (uintptr_t)p)) {
        out->ordinal = (unsigned)ordinal;
        if (device_get && device_uuid && !device_get(&device, ordinal) && !device_uuid(out->uuid, device))
            out->uuid_size = sizeof out->uuid;
    }
    errno = saved;
    return found;
}
