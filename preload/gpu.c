/* GPUs, streams and functions as objects, each told at its first use. */
#define _GNU_SOURCE
#include "cuda.h"
#include "kernels.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 1000 };

static struct st_mutex mu = ST_MUTEX; /* one thread at a time makes an object */
static uint64_t unloaded;

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15ull + b;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
    return (x ^ x >> 32) >> 8; /* the top byte is the kind's (st_name_key) */
}

/* An object that look-ups have not found: found after all, now that no other thread makes one; else a new one, and *made is true. */
static struct st_object *make(enum st_kind kind, uint64_t key, bool *made)
{
    struct st_object *o = st_find(kind, key);
    *made = o == st_unknown;
    return *made ? st_object_new(kind, key) : o;
}

/* What is asked of the driver is asked before the lock is taken: a thread of CUPTI's, which may hold locks of theirs, takes it too. */
struct st_object *gpu_device(int ordinal)
{
    bool made;
    uint8_t uuid[16];
    char pci[32] = "", name[96] = "";
    struct st_object *o = st_find(ST_KIND_GPU_DEVICE, (uint64_t)ordinal + 1);
    if (o != st_unknown)
        return o;
    bool known = (CUDA(cuDeviceGetUuid_v2) && cuda_real.cuDeviceGetUuid_v2(uuid, ordinal) == CUDA_SUCCESS) ||
                 (CUDA(cuDeviceGetUuid) && cuda_real.cuDeviceGetUuid(uuid, ordinal) == CUDA_SUCCESS);
    if (!CUDA(cuDeviceGetPCIBusId) || cuda_real.cuDeviceGetPCIBusId(pci, sizeof pci, ordinal) != CUDA_SUCCESS)
        *pci = 0;
    if (!CUDA(cuDeviceGetName) || cuda_real.cuDeviceGetName(name, sizeof name, ordinal) != CUDA_SUCCESS)
        *name = 0;
    st_mutex_lock(&mu);
    o = make(ST_KIND_GPU_DEVICE, (uint64_t)ordinal + 1, &made);
    if (made && o != st_unknown)
        st_def_gpu_device(o->id, (uint64_t)ordinal, uuid, known ? sizeof uuid : 0, pci, name);
    st_mutex_unlock(&mu);
    return o;
}

static uint64_t queue_key(uint32_t context, uint32_t stream) { return mix(context, stream) | 1; }

struct st_object *gpu_stream(const struct st_thread *t, void *stream)
{
    void *context = NULL;
    int ordinal;
    if (!CUDA(cuCtxGetCurrent) || cuda_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
        return st_unknown;
    uint64_t key = mix((uintptr_t)context, (uintptr_t)stream) + (stream == STREAM_OF_THREAD ? t->index : 0);
    struct st_object *o = st_find(ST_KIND_GPU_STREAM, key);
    if (st_likely(o != st_unknown))
        return o;
    bool made;
    int saved = errno;
    uint32_t of_context = 0, of_stream = 0;
    struct st_object *gpu = CUDA(cuCtxGetDevice) && cuda_real.cuCtxGetDevice(&ordinal) == CUDA_SUCCESS ? gpu_device(ordinal) : st_unknown;
    bool numbered = cupti_numbers(context, stream, &of_context, &of_stream);
    st_mutex_lock(&mu);
    o = make(ST_KIND_GPU_STREAM, key, &made);
    if (made && o != st_unknown) {
        if (numbered)
            st_object_alias(o, ST_KIND_GPU_QUEUE, queue_key(of_context, of_stream));
        st_def_gpu_stream(o->id, gpu->id, (uintptr_t)context, (uintptr_t)stream, of_context, of_stream);
    }
    st_mutex_unlock(&mu);
    errno = saved;
    return o;
}

struct st_object *gpu_queue(uint32_t ordinal, uint32_t context, uint32_t stream)
{
    bool made;
    struct st_object *o = st_find(ST_KIND_GPU_QUEUE, queue_key(context, stream));
    if (o != st_unknown)
        return o;
    st_mutex_lock(&mu);
    o = make(ST_KIND_GPU_QUEUE, queue_key(context, stream), &made);
    if (made && o != st_unknown)
        st_def_gpu_stream(o->id, st_find(ST_KIND_GPU_DEVICE, (uint64_t)ordinal + 1)->id, 0, 0, context, stream);
    st_mutex_unlock(&mu);
    return o;
}

static struct st_object *function_named(const char *name)
{
    bool made;
    uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a */
    char kept[NAME_BYTES + 1];
    for (const char *c = name; *c; c++)
        h = (h ^ (unsigned char)*c) * 0x100000001b3ull;
    struct st_object *o = make(ST_KIND_GPU_FUNCTION, mix(h, 0), &made);
    if (made && o != st_unknown) {
        snprintf(kept, sizeof kept, "%s", name);
        st_def_gpu_function(o->id, kept);
    }
    return o;
}

struct st_object *gpu_function_named(const char *name)
{
    st_mutex_lock(&mu);
    struct st_object *o = function_named(name);
    st_mutex_unlock(&mu);
    return o;
}

/* By its handle, of a function or of a kernel that is of no context (CUkernel), which launches take too. One without a name is known by its handle alone. */
struct st_object *gpu_function(void *handle)
{
    uint64_t key = mix((uintptr_t)handle, __atomic_load_n(&unloaded, __ATOMIC_RELAXED));
    struct st_object *o = st_find(ST_KIND_GPU_HANDLE, key);
    if (st_likely(o != st_unknown))
        return o;
    const char *name = NULL;
    char text[32];
    int saved = errno;
    if (!CUDA(cuFuncGetName) || cuda_real.cuFuncGetName(&name, handle) != CUDA_SUCCESS || !name)
        if (!CUDA(cuKernelGetName) || cuda_real.cuKernelGetName(&name, handle) != CUDA_SUCCESS || !name) {
            snprintf(text, sizeof text, "function %p", handle);
            name = text;
        }
    st_mutex_lock(&mu);
    o = function_named(name);
    st_object_alias(o, ST_KIND_GPU_HANDLE, key);
    st_mutex_unlock(&mu);
    errno = saved;
    return o;
}

void gpu_unloaded(void) { __atomic_fetch_add(&unloaded, 1, __ATOMIC_RELAXED); }

struct st_object *gpu_track(const struct st_thread *t)
{
    struct st_object *o = st_find(ST_KIND_GPU_TRACK, t->index);
    if (st_likely(o != st_unknown))
        return o;
    o = st_object_new(ST_KIND_GPU_TRACK, t->index); /* no other thread has this index now */
    if (o != st_unknown)
        st_def_gpu_thread(o->id, t->index);
    return o;
}
