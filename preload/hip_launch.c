/* Launches of kernels by HIP, as kernels.c records CUDA's; when they ran is not told.
 *
 * Until ROCm 6 every call of HIP's replaces a thread's last error, which programs ask for after a launch: so whatever is asked here is asked before the launch, and nothing after it. */
#define _GNU_SOURCE
#include "cuda.h"
#include "hip.h"
#include "kernels.h"

#include <errno.h>
#include <stdio.h>

enum { PER_THREAD = 2 }; /* hipStreamPerThread */
static struct st_mutex mu = ST_MUTEX; /* one thread at a time makes an object */
static uint64_t unloaded;                              /* handles may be used again from here on */

/* Apart from CUDA's keys of the same kinds; the top byte is the kind's (st_name_key). */
static uint64_t key_of(uint64_t a, uint64_t b)
{
    uint64_t x = (a + 1) * 0xd6e8feb86659fd93ull + b;
    x = (x ^ x >> 32) * 0x9e3779b97f4a7c15ull;
    return (x ^ x >> 32) >> 8 | 1ull << 55;
}

static struct st_object *device_object(int device)
{
    struct st_object *o = st_find(ST_KIND_GPU_DEVICE, key_of((uint64_t)device, 0));
    if (o->id)
        return o;
    uint8_t uuid[16];
    char pci[32] = "";
    bool known = HIP(hipDeviceGetUuid) && hip_real.hipDeviceGetUuid(uuid, device) == HIP_SUCCESS;
    if (!HIP(hipDeviceGetPCIBusId) || hip_real.hipDeviceGetPCIBusId(pci, sizeof pci, device) != HIP_SUCCESS)
        *pci = 0;
    o = st_object_new(ST_KIND_GPU_DEVICE, key_of((uint64_t)device, 0));
    if (o->id)
        st_def_gpu_device(o->id, (uint64_t)device, uuid, known ? sizeof uuid : 0, pci, "");
    return o;
}

static struct st_object *stream_object(const struct st_thread *t, void *stream)
{
    int device = 0;
    if (!HIP(hipGetDevice) || hip_real.hipGetDevice(&device) != HIP_SUCCESS)
        return st_unknown;
    uint64_t key = key_of((uintptr_t)stream, (uint64_t)device << 32 | ((uintptr_t)stream == PER_THREAD ? t->index + 1 : 0));
    struct st_object *o = st_find(ST_KIND_GPU_STREAM, key);
    if (st_likely(o->id))
        return o;
    int saved = errno;
    st_mutex_lock(&mu);
    o = st_find(ST_KIND_GPU_STREAM, key);
    if (!o->id) {
        uint32_t gpu = device_object(device)->id;
        o = st_object_new(ST_KIND_GPU_STREAM, key);
        if (o->id)
            st_def_gpu_stream(o->id, gpu, 0, (uintptr_t)stream, 0, 0);
    }
    st_mutex_unlock(&mu);
    errno = saved;
    return o;
}

/* of_host: it is the function that stands for the kernel in the program, not one of a module. */
static struct st_object *function_object(const void *handle, void *stream, bool of_host)
{
    uint64_t key = key_of((uintptr_t)handle, __atomic_load_n(&unloaded, __ATOMIC_RELAXED));
    struct st_object *o = st_find(ST_KIND_GPU_HANDLE, key);
    if (st_likely(o->id))
        return o;
    const char *name = NULL;
    char text[32];
    int saved = errno;
    if (of_host && HIP(hipKernelNameRefByPtr))
        name = hip_real.hipKernelNameRefByPtr(handle, stream);
    else if (!of_host && HIP(hipKernelNameRef))
        name = hip_real.hipKernelNameRef(handle);
    if (!name) {
        snprintf(text, sizeof text, "function %p", handle);
        name = text;
    }
    o = gpu_function_named(name);
    st_mutex_lock(&mu);
    if (o->id && !st_find(ST_KIND_GPU_HANDLE, key)->id)
        st_object_alias(o, ST_KIND_GPU_HANDLE, key);
    st_mutex_unlock(&mu);
    errno = saved;
    return o;
}

struct launch {
    struct st_thread *t;
    struct st_object *stream, *function;
    uint64_t begin;
    unsigned form;
};

/* A stream that records a graph runs nothing of what is launched on it. */
static bool captures(void *stream)
{
    int state = 0;
    return stream && HIP(hipStreamIsCapturing) && hip_real.hipStreamIsCapturing(stream, &state) == HIP_SUCCESS && state != 0;
}

static bool enter(struct launch *l, const void *f, void *stream, bool of_host)
{
    if (!kernels_wanted())
        return false;
    doorbell_kernel_comes(f);
    if (!(l->t = st_enter(ST_LAYER_GPU)))
        return false;
    l->stream = stream_object(l->t, stream);
    l->function = function_object(f, stream, of_host);
    l->form = captures(stream) ? ST_GPU_LAUNCH_FORM_CAPTURED : 0;
    l->begin = st_clock();
    return true;
}

static int launched(struct launch *l, int rc, struct hip_dim grid, struct hip_dim block, size_t shared)
{
    if (rc == HIP_SUCCESS && st_mode != ST_AGGREGATE)
        st_rec_gpu_launch(l->t, l->begin, ST_EV_GPU_LAUNCH, gpu_track(l->t), l->stream->id, l->function->id, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, l->form, 0,
                          st_clock() - l->begin);
    if (rc == HIP_SUCCESS && !l->form)
        st_count(l->t, l->stream, ST_EV_GPU_LAUNCH, 0, 1);
    st_leave(l->t, ST_LAYER_GPU);
    return rc;
}

ST_EXPORT int hipLaunchKernel(const void *f, struct hip_dim grid, struct hip_dim block, void **arguments, size_t shared, void *stream)
{
    struct launch l;
    if (!HIP(hipLaunchKernel))
        return HIP_ERROR_NOT_INITIALIZED;
    bool seen = enter(&l, f, stream, true);
    int rc = hip_real.hipLaunchKernel(f, grid, block, arguments, shared, stream);
    return seen ? launched(&l, rc, grid, block, shared) : rc;
}

ST_EXPORT int hipExtLaunchKernel(const void *f, struct hip_dim grid, struct hip_dim block, void **arguments, size_t shared, void *stream, void *start, void *stop, int flags)
{
    struct launch l;
    if (!HIP(hipExtLaunchKernel))
        return HIP_ERROR_NOT_INITIALIZED;
    bool seen = enter(&l, f, stream, true);
    int rc = hip_real.hipExtLaunchKernel(f, grid, block, arguments, shared, stream, start, stop, flags);
    return seen ? launched(&l, rc, grid, block, shared) : rc;
}

ST_EXPORT int hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments, void **extra)
{
    struct launch l;
    if (!HIP(hipModuleLaunchKernel))
        return HIP_ERROR_NOT_INITIALIZED;
    bool seen = enter(&l, f, stream, false);
    int rc = hip_real.hipModuleLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);
    return seen ? launched(&l, rc, (struct hip_dim){gx, gy, gz}, (struct hip_dim){bx, by, bz}, shared) : rc;
}

ST_EXPORT int hipModuleUnload(void *module)
{
    if (!HIP(hipModuleUnload))
        return HIP_ERROR_NOT_INITIALIZED;
    __atomic_fetch_add(&unloaded, 1, __ATOMIC_RELAXED);
    doorbell_kernels_gone();
    return hip_real.hipModuleUnload(module);
}
