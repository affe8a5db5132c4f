/* Launches of kernels and graphs: each of the driver's functions for that, and its twin for programs whose default stream is one of the thread. */
#define _GNU_SOURCE
#include "cuda.h"
#include "kernels.h"

#include <errno.h>

static unsigned wanted = ~0u; /* ~0: not known yet */
static bool begun;           /* constructors of libraries may run before those of the recorder, which finds its configuration then */

__attribute__((constructor)) static void begin(void) { begun = true; }

unsigned kernels_wanted(void)
{
    unsigned w = __atomic_load_n(&wanted, __ATOMIC_RELAXED);
    if (st_unlikely(w == ~0u)) {
        if (!begun)
            return ST_KERNELS_OFF;
        w = st_wants_kernels();
        __atomic_store_n(&wanted, w, __ATOMIC_RELAXED);
    }
    return w;
}

bool kernels_hooked(void) { return !begun || kernels_wanted(); }

struct launch {
    struct st_thread *t;
    struct st_object *stream;
    uint64_t begin;
    unsigned form;
};

/* A stream that records a graph runs nothing of what is launched on it. */
static bool captures(void *stream)
{
    int state = 0;
    return stream != LEGACY_STREAM && CUDA(cuStreamIsCapturing) && cuda_real.cuStreamIsCapturing(stream, &state) == CUDA_SUCCESS && state != 0;
}

static __attribute__((noinline)) void first_of_process(struct st_thread *t)
{
    int saved = errno;
    if (kernels_wanted() == ST_KERNELS_TIMES)
        cupti_start();
    gpu_track(t);
    notes_tell();
    errno = saved;
}

static inline bool enter(struct launch *l, const void *what, void *stream, void *default_stream)
{
    if (!kernels_wanted())
        return false;
    doorbell_kernel_comes(what);
    if (!(l->t = st_enter(ST_LAYER_GPU)))
        return false;
    if (st_unlikely(st_find(ST_KIND_GPU_TRACK, l->t->index) == st_unknown))
        first_of_process(l->t);
    stream = stream ? stream : default_stream;
    l->stream = gpu_stream(l->t, stream);
    l->form = captures(stream) ? ST_GPU_LAUNCH_FORM_CAPTURED : 0;
    cupti_enter();
    l->begin = st_mode == ST_AGGREGATE ? 0 : st_clock();
    return true;
}

static inline void leave(struct launch *l, unsigned event)
{
    if (!(l->form & ST_GPU_LAUNCH_FORM_CAPTURED))
        st_count(l->t, l->stream, event, 0, 1);
    st_leave(l->t, ST_LAYER_GPU);
}

static inline void launched(struct launch *l, CUresult rc, void *f, const unsigned *grid, const unsigned *block, unsigned shared)
{
    uint64_t duration = l->begin ? st_clock() - l->begin : 0;
    uint64_t number = l->form & ST_GPU_LAUNCH_FORM_CAPTURED ? 0 : cupti_leave();
    if (rc != CUDA_SUCCESS) {
        st_leave(l->t, ST_LAYER_GPU);
        return;
    }
    if (l->begin)
        st_rec_gpu_launch(l->t, l->begin, ST_EV_GPU_LAUNCH, gpu_track(l->t), l->stream->id, gpu_function(f)->id, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                          shared, l->form, number, duration);
    leave(l, ST_EV_GPU_LAUNCH);
}

static inline void graph_launched(struct launch *l, CUresult rc, void *graph)
{
    uint64_t duration = l->begin ? st_clock() - l->begin : 0;
    uint64_t number = l->form & ST_GPU_LAUNCH_FORM_CAPTURED ? 0 : cupti_leave();
    if (rc != CUDA_SUCCESS) {
        st_leave(l->t, ST_LAYER_GPU);
        return;
    }
    if (l->begin)
        st_rec_gpu_graph_launch(l->t, l->begin, ST_EV_GPU_GRAPH_LAUNCH, gpu_track(l->t), l->stream->id, (uintptr_t)graph, l->form, number, duration);
    leave(l, ST_EV_GPU_GRAPH_LAUNCH);
}

static unsigned form_of(const struct cuda_config *c)
{
    enum { COOPERATIVE = 2, MOST = 64 };
    for (unsigned i = 0; c->attributes && i < c->n && i < MOST; i++)
        if (c->attributes[i].id == COOPERATIVE && c->attributes[i].value.cooperative)
            return ST_GPU_LAUNCH_FORM_COOPERATIVE;
    return 0;
}

#define KERNEL(name, default_stream)                                                                                                                         \
    ST_EXPORT CUresult name(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) \
    {                                                                                                                                                        \
        struct launch l;                                                                                                                                     \
        if (!CUDA(name))                                                                                                                                     \
            return CUDA_ERROR_NOT_INITIALIZED;                                                                                                               \
        if (!enter(&l, f, stream, default_stream))                                                                                                           \
            return cuda_real.name(f, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);                                                              \
        CUresult rc = cuda_real.name(f, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);                                                           \
        launched(&l, rc, f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared);                                                                     \
        return rc;                                                                                                                                           \
    }
KERNEL(cuLaunchKernel, LEGACY_STREAM)
KERNEL(cuLaunchKernel_ptsz, STREAM_OF_THREAD)

#define COOPERATIVE(name, default_stream)                                                                                                                    \
    ST_EXPORT CUresult name(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments) \
    {                                                                                                                                                        \
        struct launch l;                                                                                                                                     \
        if (!CUDA(name))                                                                                                                                     \
            return CUDA_ERROR_NOT_INITIALIZED;                                                                                                               \
        if (!enter(&l, f, stream, default_stream))                                                                                                           \
            return cuda_real.name(f, gx, gy, gz, bx, by, bz, shared, stream, arguments);                                                                     \
        CUresult rc = cuda_real.name(f, gx, gy, gz, bx, by, bz, shared, stream, arguments);                                                                  \
        l.form |= ST_GPU_LAUNCH_FORM_COOPERATIVE;                                                                                                            \
        launched(&l, rc, f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared);                                                                     \
        return rc;                                                                                                                                           \
    }
COOPERATIVE(cuLaunchCooperativeKernel, LEGACY_STREAM)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, STREAM_OF_THREAD)

#define CONFIGURED(name, default_stream)                                                                       \
    ST_EXPORT CUresult name(const struct cuda_config *c, void *f, void **arguments, void **extra)              \
    {                                                                                                          \
        struct launch l;                                                                                       \
        if (!CUDA(name))                                                                                       \
            return CUDA_ERROR_NOT_INITIALIZED;                                                                 \
        if (!c || !enter(&l, f, c->stream, default_stream))                                                    \
            return cuda_real.name(c, f, arguments, extra);                                                     \
        CUresult rc = cuda_real.name(c, f, arguments, extra);                                                  \
        l.form |= form_of(c);                                                                                  \
        launched(&l, rc, f, c->grid, c->block, c->shared);                                                     \
        return rc;                                                                                             \
    }
CONFIGURED(cuLaunchKernelEx, LEGACY_STREAM)
CONFIGURED(cuLaunchKernelEx_ptsz, STREAM_OF_THREAD)

#define GRAPH(name, default_stream)                                 \
    ST_EXPORT CUresult name(void *graph, void *stream)              \
    {                                                               \
        struct launch l;                                            \
        if (!CUDA(name))                                            \
            return CUDA_ERROR_NOT_INITIALIZED;                      \
        if (!enter(&l, graph, stream, default_stream))              \
            return cuda_real.name(graph, stream);                   \
        CUresult rc = cuda_real.name(graph, stream);                \
        graph_launched(&l, rc, graph);                              \
        return rc;                                                  \
    }
GRAPH(cuGraphLaunch, LEGACY_STREAM)
GRAPH(cuGraphLaunch_ptsz, STREAM_OF_THREAD)

#define UNLOAD(name)                               \
    ST_EXPORT CUresult name(void *what)            \
    {                                              \
        if (!CUDA(name))                           \
            return CUDA_ERROR_NOT_INITIALIZED;     \
        gpu_unloaded();                            \
        doorbell_kernels_gone();                   \
        return cuda_real.name(what);               \
    }
UNLOAD(cuModuleUnload)
UNLOAD(cuLibraryUnload)
