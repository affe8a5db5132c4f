/*
 * The times of kernels, by the activity interface of CUPTI, NVIDIA's library for tools. It serves one client in a process: where there is another, or one comes,
 * ours is not there, or goes. Kernels carry CUPTI's number of the call that launched them. It is told as the driver's call begins, and is that of the call of CUDA's
 * runtime around it where there is one.
 */
#define _GNU_SOURCE
#include "cupti.h"

#include "cuda.h"
#include "kernels.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct {
#define X(name, arguments) int(*name) arguments;
    CUPTI_FUNCTIONS(X)
#undef X
} cupti;

enum { BUFFERS = 16, BUFFER = 256 << 10, BRACKETS = 9 };

static int starting; /* 1: a thread has it */
static bool tried;
static pid_t starter; /* a forked child has no CUPTI, and nothing of its parent's to tell */
static _Atomic int running, foreign; /* foreign: the program is a client of CUPTI itself */
static void *subscriber;
static _Atomic uint64_t latest, untold; /* latest: number of a call */
static uint64_t looked; /* ticks of the last reading of its clock */

/* ---- one at a time -------------------------------------------------------------------------------------------------------------------------- */

static __thread bool changes; /* the thread has `starting` */

/* Not for ever: who has it may wait for the loader, which has the caller wait if that is a constructor; or it is a thread that a forked child does not have. */
static bool take(void)
{
    enum { LONGEST = 20000 };
    const struct timespec while_ = {0, 100000};
    int saved = errno, cancel = st_uncancelled();
    for (unsigned i = 0; i < LONGEST && !changes; i++) {
        int free = 0;
        if (__atomic_compare_exchange_n(&starting, &free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            changes = true;
            break;
        }
        nanosleep(&while_, NULL);
    }
    st_cancelled(cancel);
    errno = saved;
    return changes;
}

static void give(void)
{
    changes = false;
    __atomic_store_n(&starting, 0, __ATOMIC_RELEASE);
}

/* ---- its clock ------------------------------------------------------------------------------------------------------------------------------ */

static void read_clock(void)
{
    uint64_t best = ~0ull, before = 0, after = 0, time = 0;
    for (int i = 0; i < BRACKETS; i++) {
        uint64_t t = 0, a = st_clock();
        int rc = cupti.cuptiGetTimestamp(&t);
        uint64_t b = st_clock();
        if (rc == CUPTI_SUCCESS && b - a < best) {
            best = b - a;
            before = a;
            after = b;
            time = t;
        }
    }
    if (best != ~0ull)
        st_def_gpu_clock(before, after, time);
    __atomic_store_n(&looked, st_clock(), __ATOMIC_RELAXED);
}

/* ---- records ---------------------------------------------------------------------------------------------------------------------------------- */

/* A number of 32 bits as one that does not go round: the nearest to the latest. */
static uint64_t widened(uint32_t number)
{
    uint64_t l = __atomic_load_n(&latest, __ATOMIC_RELAXED);
    return l + (uint64_t)(int64_t)(int32_t)(number - (uint32_t)l);
}

static void record(struct st_thread *t, const struct cupti_kernel *k)
{
    struct st_object *stream = gpu_queue(k->device, k->context, k->stream);
    struct st_object *function = gpu_function_named(k->name ? k->name : ""); /* now: it may go with its module */
    if (st_mode != ST_AGGREGATE)
        st_rec_gpu_kernel(t, st_clock(), ST_EV_GPU_KERNEL, stream, function->id, (uint32_t)k->grid[0], (uint32_t)k->grid[1], (uint32_t)k->grid[2], (uint32_t)k->block[0],
                          (uint32_t)k->block[1], (uint32_t)k->block[2], (uint32_t)k->static_shared, (uint32_t)k->dynamic_shared, k->registers, widened(k->correlation), k->start,
                          k->end - k->start);
}

/* The records of a buffer. */
static void walk(struct st_thread *t, uint8_t *buffer, size_t valid)
{
    void *next = NULL;
    while (cupti.cuptiActivityGetNextRecord(buffer, valid, &next) == CUPTI_SUCCESS && next) {
        const uint8_t *r = next;
        size_t left = (size_t)(buffer + valid - r);
        if (r < buffer || r >= buffer + valid || *(const uint32_t *)r != CUPTI_CONCURRENT_KERNEL)
            continue;
        const struct cupti_kernel *k = (const void *)r;
        if (left < CUPTI_KERNEL_BYTES || !k->start || k->end < k->start)
            __atomic_fetch_add(&untold, 1, __ATOMIC_RELAXED); /* still running at the end, or without times */
        else
            record(t, k);
    }
}

/* ---- buffers ---------------------------------------------------------------------------------------------------------------------------------- */

static uint8_t *buffers;
static uint32_t free_buffers; /* a bit for each */
static bool closed;           /* there are none any more */

static void requested(uint8_t **buffer, size_t *size, size_t *records)
{
    uint32_t free = __atomic_load_n(&closed, __ATOMIC_ACQUIRE) ? 0 : __atomic_load_n(&free_buffers, __ATOMIC_ACQUIRE);
    *buffer = NULL;
    *size = *records = 0;
    while (free) {
        unsigned i = (unsigned)__builtin_ctz(free);
        if (__atomic_compare_exchange_n(&free_buffers, &free, free & ~(1u << i), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            *buffer = buffers + (size_t)i * BUFFER;
            *size = BUFFER;
            return;
        }
    }
}

/* Called by a thread of CUPTI's, or by one of the program's within any call, a launch too. */
static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    int saved = errno;
    size_t dropped = 0;
    struct st_thread *before = st_self;
    uint8_t was = st_open(ST_LAYER_GPU);
    struct st_thread *t = st_enter(ST_LAYER_GPU);
    (void)size;
    if (t) {
        enum { OFTEN = 1 << 27 }; /* ticks */
        if (st_clock() - __atomic_load_n(&looked, __ATOMIC_RELAXED) > OFTEN)
            read_clock();
        walk(t, buffer, valid);
        st_leave(t, ST_LAYER_GPU);
    }
    if (before == st_self)
        st_close(ST_LAYER_GPU, was);
    if (cupti.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS && dropped)
        __atomic_fetch_add(&untold, dropped, __ATOMIC_RELAXED);
    if (buffer >= buffers && buffer < buffers + (size_t)BUFFERS * BUFFER)
        __atomic_fetch_or(&free_buffers, 1u << (size_t)(buffer - buffers) / BUFFER, __ATOMIC_RELEASE);
    errno = saved;
}

/* ---- end ---------------------------------------------------------------------------------------------------------------------------------------- */

static void end(void)
{
    int saved = errno, was = 1;
    if (starter != getpid() || !__atomic_compare_exchange_n(&running, &was, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return;
    read_clock();
    cupti.cuptiActivityFlushAll(CUPTI_FLUSH_FORCED);
    cupti.cuptiActivityDisable(CUPTI_CONCURRENT_KERNEL);
    __atomic_store_n(&closed, true, __ATOMIC_RELEASE);
    cupti.cuptiActivityFlushAll(CUPTI_FLUSH_FORCED); /* kernels that ended meanwhile: another client would get the buffer that they are in */
    cupti.cuptiUnsubscribe(subscriber);
    uint64_t lost = __atomic_load_n(&untold, __ATOMIC_RELAXED);
    if (lost)
        note(ST_GPU_TOPIC_KERNELS_LOST, lost, "records that found no room, or had no times");
    notes_tell();
    errno = saved;
}

static bool library(void)
{
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12"};
    void *h = NULL;
    /* the one that is there already: two of them would not know of each other */
    for (unsigned i = 0; i < 2 && !h; i++)
        h = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD);
    for (unsigned i = 0; i < sizeof names / sizeof *names && !h; i++)
        h = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL);
    if (!h)
        return false;
#define X(name, arguments) cupti.name = (int(*) arguments)st_real_dlsym(h, #name);
    CUPTI_FUNCTIONS(X)
#undef X
    return true;
}

static bool whole(void)
{
#define X(name, arguments)       \
    if (!cupti.name)             \
        return false;
    CUPTI_FUNCTIONS(X)
#undef X
    return true;
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------------------------ */

static __thread uint32_t told; /* number of the launch that the thread is in; 0: not told yet */

static void called(void *user, int domain, uint32_t id, const struct cupti_call *c)
{
    (void)user, (void)domain, (void)id;
    if (c->site == CUPTI_API_ENTER && !told) /* not what the driver may call itself */
        told = c->correlation;
}

/* Whether CUPTI tells the numbers of all launches. */
static bool follow_calls(void)
{
#define X(name, id)                                                                                    \
    if (cupti.cuptiEnableCallback(1, subscriber, CUPTI_DRIVER_API, id) != CUPTI_SUCCESS)               \
        return false;
    CUPTI_LAUNCHES(X)
#undef X
    return true;
}

/* ---- start -------------------------------------------------------------------------------------------------------------------------------------- */

/* Why kernels are not timed; NULL: they are. */
static const char *try_start(uint32_t *version)
{
    int n = 0;
    *version = 0;
    if (getenv("CUDA_INJECTION64_PATH"))
        return "CUDA_INJECTION64_PATH names another tool";
    if (getenv("NSYS_PROFILING_SESSION_ID"))
        return "the program runs under Nsight Systems";
    if (__atomic_load_n(&foreign, __ATOMIC_ACQUIRE))
        return "the program uses CUPTI itself";
    if (!library())
        return "no libcupti.so.13 or libcupti.so.12";
    if (!whole())
        return "this CUPTI has not all the functions that are needed";
    if (cupti.cuptiGetVersion(version) != CUPTI_SUCCESS || !cupti_known(*version))
        return "records of this version of CUPTI are not known";
    buffers = mmap(NULL, (size_t)BUFFERS * BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffers == MAP_FAILED)
        return "no memory for records";
    free_buffers = (1u << BUFFERS) - 1;
    if (cupti.cuptiSubscribe(&subscriber, (void *)called, NULL) != CUPTI_SUCCESS)
        return "another client has subscribed to CUPTI";
    if (cupti.cuptiActivityRegisterCallbacks((void *)requested, (void *)completed) != CUPTI_SUCCESS || !follow_calls() ||
        cupti.cuptiActivityEnable(CUPTI_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
        cupti.cuptiUnsubscribe(subscriber);
        return "CUPTI refuses to record kernels";
    }
    read_clock();
    for (int i = 0; CUDA(cuDeviceGetCount) && cuda_real.cuDeviceGetCount(&n) == CUDA_SUCCESS && i < n; i++)
        gpu_device(i);
    return NULL;
}

void cupti_start(void)
{
    uint32_t version;
    if (changes || (__atomic_load_n(&tried, __ATOMIC_ACQUIRE) && starter != getpid()) || !take())
        return;
    if (!tried) {
        starter = getpid();
        __atomic_store_n(&tried, true, __ATOMIC_RELEASE);
        const char *reason = try_start(&version);
        if (reason) {
            note(ST_GPU_TOPIC_NO_TIMES, version, reason);
        } else {
            note(ST_GPU_TOPIC_TIMES, version, "");
            atexit(end); /* before those of the libraries that were loaded by now */
            __atomic_store_n(&running, 1, __ATOMIC_RELEASE);
        }
    }
    give();
}

void cupti_enter(void) { told = 0; }

uint64_t cupti_leave(void)
{
    if (!told)
        return 0;
    uint64_t number = widened(told);
    __atomic_store_n(&latest, number, __ATOMIC_RELAXED);
    return number;
}

bool cupti_numbers(void *context, void *stream, uint32_t *of_context, uint32_t *of_stream)
{
    if (!__atomic_load_n(&running, __ATOMIC_ACQUIRE))
        return false;
    void *handle = stream == LEGACY_STREAM || stream == STREAM_OF_THREAD ? NULL : stream;
    return cupti.cuptiGetContextId(context, of_context) == CUPTI_SUCCESS &&
           cupti.cuptiGetStreamIdEx(context, handle, stream == STREAM_OF_THREAD, of_stream) == CUPTI_SUCCESS;
}

/* ---- other clients ---------------------------------------------------------------------------------------------------------------------------- */

/* A client that comes would get our buffers, and we its: ours goes first, and is not begun meanwhile. */
static void make_room(void)
{
    if (changes) /* CUPTI itself */
        return;
    __atomic_store_n(&foreign, 1, __ATOMIC_RELEASE);
    bool taken = take();
    if (__atomic_load_n(&running, __ATOMIC_ACQUIRE) && starter == getpid()) {
        note(ST_GPU_TOPIC_TIMES_ENDED, 0, "the program uses CUPTI itself from here on");
        end();
    }
    if (taken)
        give();
}

static struct {
    int (*cuptiSubscribe)(void **subscriber, void *callback, void *user);
    int (*cuptiSubscribe_v2)(void **subscriber, void *callback, void *user, void *parameters);
    int (*cuptiActivityRegisterCallbacks)(void *requested, void *completed);
} others;

#define OTHERS(name) (__atomic_load_n(&others.name, __ATOMIC_RELAXED) || (others.name = (__typeof__(others.name))st_next(#name, NULL)))

ST_EXPORT int cuptiSubscribe(void **theirs, void *callback, void *user)
{
    if (!OTHERS(cuptiSubscribe))
        return CUPTI_ERROR_NOT_INITIALIZED;
    make_room();
    return others.cuptiSubscribe(theirs, callback, user);
}

/* Of CUPTI 13; it may take clients beside each other one day, but buffers are one client's. */
ST_EXPORT int cuptiSubscribe_v2(void **theirs, void *callback, void *user, void *parameters)
{
    if (!OTHERS(cuptiSubscribe_v2))
        return CUPTI_ERROR_NOT_INITIALIZED;
    make_room();
    return others.cuptiSubscribe_v2(theirs, callback, user, parameters);
}

ST_EXPORT int cuptiActivityRegisterCallbacks(void *requested, void *completed)
{
    if (!OTHERS(cuptiActivityRegisterCallbacks))
        return CUPTI_ERROR_NOT_INITIALIZED;
    make_room();
    return others.cuptiActivityRegisterCallbacks(requested, completed);
}

static const struct st_hook hooks[] = {
    {"cuptiSubscribe", NULL, (void *)cuptiSubscribe, (void **)(void *)&others.cuptiSubscribe},
    {"cuptiSubscribe_v2", NULL, (void *)cuptiSubscribe_v2, (void **)(void *)&others.cuptiSubscribe_v2},
    {"cuptiActivityRegisterCallbacks", NULL, (void *)cuptiActivityRegisterCallbacks, (void **)(void *)&others.cuptiActivityRegisterCallbacks},
    {0},
};

__attribute__((constructor)) static void start(void) { st_hooks("cupti", hooks); }
