/* HIP's functions as programs find them (linked, looked up, asked of HIP itself), and those of the runtime below it that map memory for GPUs: rocSHMEM has its doorbells from there. */
#define _GNU_SOURCE
#include "hip.h"
#include "doorbell.h"
#include "registered.h"

#include <errno.h>
#include <string.h>

struct hip_real hip_real;

#define X(name) {#name, NULL, (void *)name, (void **)(void *)&hip_real.name},
static const struct st_hook hip_hooks[] = {HIP_HOOKED(X){0}};
static const struct st_hook hsa_hooks[] = {HSA_HOOKED(X){0}};
#undef X

__attribute__((constructor)) static void start(void)
{
    st_hooks("hip", hip_hooks);
    st_hooks("hsa_", hsa_hooks);
}

void hip_find(void)
{
    int saved = errno;
    void *p;
#define X(name)                                                                          \
    if (!__atomic_load_n(&hip_real.name, __ATOMIC_RELAXED) && (p = st_next(#name, NULL))) \
        __atomic_store_n(&hip_real.name, (__typeof__(name) *)p, __ATOMIC_RELEASE);
    HIP_HOOKED(X) HSA_HOOKED(X) HIP_CALLED(X) HIP_OPTIONAL(X)
#undef X
    errno = saved;
}

ST_EXPORT int hipGetProcAddress(const char *name, void **function, int version, uint64_t flags, int *status)
{
    if (!HIP(hipGetProcAddress))
        return HIP_ERROR_NOT_INITIALIZED;
    int rc = hip_real.hipGetProcAddress(name, function, version, flags, status);
    for (const struct st_hook *h = hip_hooks; rc == HIP_SUCCESS && name && *function && h->name; h++)
        if (!strcmp(h->name, name)) {
            void *none = NULL;
            if (*function != h->ours)
                __atomic_compare_exchange_n(h->real, &none, *function, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
            *function = h->ours;
            break;
        }
    return rc;
}

/* ---- registers that kernels ring -------------------------------------------------------------------------------------------------------- */

__thread unsigned hip_inside;

ST_EXPORT int hipHostRegister(void *p, size_t size, unsigned flags)
{
    if (!HIP(hipHostRegister))
        return HIP_ERROR_NOT_INITIALIZED;
    hip_inside++;
    int rc = hip_real.hipHostRegister(p, size, flags);
    hip_inside--;
    if (rc == HIP_SUCCESS)
        registered(&devmem_hip, p, size);
    return rc;
}

ST_EXPORT int hipHostGetDevicePointer(void **device, void *p, unsigned flags)
{
    if (!HIP(hipHostGetDevicePointer))
        return HIP_ERROR_NOT_INITIALIZED;
    int rc = hip_real.hipHostGetDevicePointer(device, p, flags);
    if (rc == HIP_SUCCESS) {
        uint64_t given = (uintptr_t)*device;
        registered_address(&devmem_hip, p, &given);
        *device = (void *)given;
    }
    return rc;
}

ST_EXPORT int hipHostUnregister(void *p)
{
    if (!HIP(hipHostUnregister))
        return HIP_ERROR_NOT_INITIALIZED;
    hip_inside++;
    int rc = hip_real.hipHostUnregister(p);
    hip_inside--;
    if (rc == HIP_SUCCESS) /* else kernels ring on */
        registered_ends(&devmem_hip, p);
    return rc;
}

ST_EXPORT int hipFree(void *p)
{
    if (!HIP(hipFree))
        return HIP_ERROR_NOT_INITIALIZED;
    if (!hip_inside)
        doorbell_memory_goes(&devmem_hip, (uintptr_t)p, 0);
    return hip_real.hipFree(p);
}

static int locked(int rc, void *p, size_t size, void **device)
{
    if (rc != HSA_SUCCESS || hip_inside)
        return rc;
    uint64_t given = (uintptr_t)*device;
    registered(&devmem_hsa, p, size);
    registered_address(&devmem_hsa, p, &given);
    *device = (void *)given;
    return rc;
}

ST_EXPORT int hsa_amd_memory_lock(void *p, size_t size, struct hsa_agent *agents, int n, void **device)
{
    return HIP(hsa_amd_memory_lock) ? locked(hip_real.hsa_amd_memory_lock(p, size, agents, n, device), p, size, device) : HSA_ERROR_NOT_INITIALIZED;
}

ST_EXPORT int hsa_amd_memory_lock_to_pool(void *p, size_t size, struct hsa_agent *agents, int n, uint64_t pool, uint32_t flags, void **device)
{
    return HIP(hsa_amd_memory_lock_to_pool) ? locked(hip_real.hsa_amd_memory_lock_to_pool(p, size, agents, n, pool, flags, device), p, size, device) : HSA_ERROR_NOT_INITIALIZED;
}

ST_EXPORT int hsa_amd_memory_unlock(void *p)
{
    if (!HIP(hsa_amd_memory_unlock))
        return HSA_ERROR_NOT_INITIALIZED;
    int rc = hip_real.hsa_amd_memory_unlock(p);
    if (rc == HSA_SUCCESS && !hip_inside)
        registered_ends(&devmem_hsa, p);
    return rc;
}
