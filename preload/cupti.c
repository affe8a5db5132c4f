/*
 * The times of kernels, by the activity interface of CUPTI, NVIDIA's library for tools. It serves one client in a process: where there is another, or one comes,
 * ours is not there, or goes. Kernels carry CUPTI's number of the call that launched them; a second kind of record gives ours for it.
 */
#define _GNU_SOURCE
#include "cupti.h"

#include "cuda.h"
#include "kernels.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
#define X(name, arguments) int(*name) arguments;
    CUPTI_FUNCTIONS(X)
#undef X
} cupti;

static const int kinds[] = {CUPTI_DRIVER, CUPTI_EXTERNAL_CORRELATION, CUPTI_CONCURRENT_KERNEL};
enum { KINDS = sizeof kinds / sizeof *kinds, BUFFERS = 16, BUFFER = 256 << 10, BRACKETS = 9 };

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static bool tried;
static pid_t starter; /* a forked child has no CUPTI, and nothing of its parent's to tell */
static _Atomic int running, foreign; /* foreign: the program is a client of CUPTI itself */
static _Atomic uint64_t numbers, untold;
static uint64_t looked; /* ticks of the last reading of its clock */

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

enum { CALLS = 1 << 16, WAITING = 4096 };
static struct call {
    uint32_t correlation;
    uint64_t number;
} calls[CALLS]; /* by the low bits of CUPTI's number */
static struct waiting {
    struct cupti_kernel k;
    struct st_object *function; /* its name may go with its module */
} waiting[WAITING]; /* kernels whose launch was not told yet */
static unsigned waits;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* of these. Nothing of CUPTI's is called under it */

static uint64_t number_of(uint32_t correlation)
{
    const struct call *c = &calls[correlation % CALLS];
    return c->correlation == correlation ? c->number : 0;
}

static void record(struct st_thread *t, const struct cupti_kernel *k, const struct st_object *function, uint64_t number)
{
    struct st_object *stream = gpu_queue(k->device, k->context, k->stream);
    if (st_mode != ST_AGGREGATE)
        st_rec_gpu_kernel(t, st_clock(), ST_EV_GPU_KERNEL, stream, function->id, (uint32_t)k->grid[0], (uint32_t)k->grid[1], (uint32_t)k->grid[2], (uint32_t)k->block[0],
                          (uint32_t)k->block[1], (uint32_t)k->block[2], (uint32_t)k->static_shared, (uint32_t)k->dynamic_shared, k->registers, number, k->start, k->end - k->start);
}

/* Records the waiting kernels whose launch is known by now, and of the others those beyond what may wait. */
static void settle(struct st_thread *t, unsigned most)
{
    unsigned n = waits, kept = 0;
    for (unsigned i = 0; i < n; i++) {
        const struct waiting *w = &waiting[i];
        uint64_t number = number_of(w->k.correlation);
        if (number || n - i > most)
            record(t, &w->k, w->function, number);
        else
            waiting[kept++] = *w;
    }
    waits = kept;
}

static void take_kernel(struct st_thread *t, const struct cupti_kernel *k)
{
    uint64_t number = number_of(k->correlation);
    struct st_object *function = gpu_function_named(k->name ? k->name : "");
    if (number) {
        record(t, k, function, number);
        return;
    }
    if (waits == WAITING)
        settle(t, WAITING / 2);
    waiting[waits++] = (struct waiting){*k, function};
}

/* The records of a buffer of one kind; the least distance of two records is what one of them takes. */
static void walk(struct st_thread *t, uint8_t *buffer, size_t valid, uint32_t kind)
{
    void *next = NULL;
    while (cupti.cuptiActivityGetNextRecord(buffer, valid, &next) == CUPTI_SUCCESS && next) {
        const uint8_t *r = next;
        size_t left = (size_t)(buffer + valid - r);
        if (r < buffer || r >= buffer + valid || *(const uint32_t *)r != kind)
            continue;
        pthread_mutex_lock(&mu);
        if (kind == CUPTI_EXTERNAL_CORRELATION && left >= sizeof(struct cupti_correlation)) {
            const struct cupti_correlation *c = (const void *)r;
            if (c->external_kind == CUPTI_CUSTOM0)
                calls[c->correlation % CALLS] = (struct call){c->correlation, c->external};
        } else if (kind == CUPTI_CONCURRENT_KERNEL) {
            const struct cupti_kernel *k = (const void *)r;
            if (left < CUPTI_KERNEL_BYTES || !k->start || k->end < k->start)
                __atomic_fetch_add(&untold, 1, __ATOMIC_RELAXED); /* still running at the end, or without times */
            else
                take_kernel(t, k);
        }
        pthread_mutex_unlock(&mu);
    }
}

/* ---- buffers ---------------------------------------------------------------------------------------------------------------------------------- */

static uint8_t *buffers;
static uint32_t free_buffers; /* a bit for each */

static void requested(uint8_t **buffer, size_t *size, size_t *records)
{
    uint32_t free = __atomic_load_n(&free_buffers, __ATOMIC_ACQUIRE);
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
        walk(t, buffer, valid, CUPTI_EXTERNAL_CORRELATION);
        walk(t, buffer, valid, CUPTI_CONCURRENT_KERNEL);
        pthread_mutex_lock(&mu);
        settle(t, WAITING);
        pthread_mutex_unlock(&mu);
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

/* ---- start and end ---------------------------------------------------------------------------------------------------------------------------- */

static void end(void)
{
    int saved = errno, was = 1;
    if (starter != getpid() || !__atomic_compare_exchange_n(&running, &was, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return;
    read_clock();
    cupti.cuptiActivityFlushAll(CUPTI_FLUSH_FORCED);
    for (unsigned i = 0; i < KINDS; i++)
        cupti.cuptiActivityDisable(kinds[i]);
    struct st_thread *t = st_enter(ST_LAYER_GPU);
    if (t) {
        pthread_mutex_lock(&mu);
        settle(t, 0);
        pthread_mutex_unlock(&mu);
        st_leave(t, ST_LAYER_GPU);
    }
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

static void nobody(void *user, int domain, uint32_t id, const void *data) { (void)user, (void)domain, (void)id, (void)data; }

/* Why kernels are not timed; NULL: they are. */
static const char *try_start(uint32_t *version)
{
    void *subscriber = NULL;
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
    if (cupti.cuptiSubscribe(&subscriber, (void *)nobody, NULL) != CUPTI_SUCCESS)
        return "another client has subscribed to CUPTI";
    cupti.cuptiUnsubscribe(subscriber);
    buffers = mmap(NULL, (size_t)BUFFERS * BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffers == MAP_FAILED)
        return "no memory for records";
    free_buffers = (1u << BUFFERS) - 1;
    if (cupti.cuptiActivityRegisterCallbacks((void *)requested, (void *)completed) != CUPTI_SUCCESS)
        return "CUPTI takes no buffers";
    read_clock();
    for (unsigned i = 0; i < KINDS; i++)
        if (cupti.cuptiActivityEnable(kinds[i]) != CUPTI_SUCCESS) {
            while (i--)
                cupti.cuptiActivityDisable(kinds[i]);
            return "CUPTI refuses to record kernels";
        }
    for (int i = 0; CUDA(cuDeviceGetCount) && cuda_real.cuDeviceGetCount(&n) == CUDA_SUCCESS && i < n; i++)
        gpu_device(i);
    return NULL;
}

void cupti_start(void)
{
    uint32_t version;
    pthread_mutex_lock(&starting);
    if (!tried) {
        tried = true;
        starter = getpid();
        const char *reason = try_start(&version);
        if (reason) {
            note(ST_GPU_TOPIC_NO_TIMES, version, reason);
        } else {
            note(ST_GPU_TOPIC_TIMES, version, "");
            atexit(end); /* before those of the libraries that were loaded by now */
            __atomic_store_n(&running, 1, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&starting);
}

uint64_t cupti_enter(void)
{
    if (st_likely(!__atomic_load_n(&running, __ATOMIC_ACQUIRE)))
        return 0;
    uint64_t number = __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED);
    return cupti.cuptiActivityPushExternalCorrelationId(CUPTI_CUSTOM0, number) == CUPTI_SUCCESS ? number : 0;
}

void cupti_leave(uint64_t number)
{
    uint64_t last;
    if (number)
        cupti.cuptiActivityPopExternalCorrelationId(CUPTI_CUSTOM0, &last);
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

/* A client that comes would get our buffers, and we its: ours goes first. */
static void make_room(void)
{
    if (!__atomic_exchange_n(&foreign, 1, __ATOMIC_ACQ_REL) && __atomic_load_n(&running, __ATOMIC_ACQUIRE)) {
        note(ST_GPU_TOPIC_TIMES_ENDED, 0, "the program uses CUPTI itself from here on");
        end();
    }
}

static struct {
    int (*cuptiSubscribe)(void **subscriber, void *callback, void *user);
    int (*cuptiActivityRegisterCallbacks)(void *requested, void *completed);
} others;

#define OTHERS(name) (__atomic_load_n(&others.name, __ATOMIC_RELAXED) || (others.name = (__typeof__(others.name))st_next(#name, NULL)))

ST_EXPORT int cuptiSubscribe(void **subscriber, void *callback, void *user)
{
    if (!OTHERS(cuptiSubscribe))
        return CUPTI_ERROR_NOT_INITIALIZED;
    make_room();
    return others.cuptiSubscribe(subscriber, callback, user);
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
    {"cuptiActivityRegisterCallbacks", NULL, (void *)cuptiActivityRegisterCallbacks, (void **)(void *)&others.cuptiActivityRegisterCallbacks},
    {0},
};

__attribute__((constructor)) static void start(void) { st_hooks("cupti", hooks); }
