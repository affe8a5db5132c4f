/* Ranges of pages of doorbells that are registered with a driver: registered.h. */
#include "registered.h"
#include "doorbell.h"
#include "libc.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { RANGES = 4096 };
static struct range {
    const struct devmem *driver;
    void *p;
    size_t size;
    unsigned times;
    uint64_t device; /* given in its place; 0: the register itself */
} ranges[RANGES];
static unsigned used; /* none is in use from here on: programs ask for addresses of memory that has nothing to do with it */
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static __thread bool inside; /* the thread has the lock: a handler that interrupted it, and ends the process, is not to wait for it */
static pid_t locked_in; /* a forked child does not have the thread that may have held the lock, and what its parent has registered is not its own */

/* Drivers are called with the lock, and may end a thread that is to end. false: this thread has it. */
static bool lock(int *cancel)
{
    if (inside)
        return false;
    inside = true;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    *cancel = st_uncancelled();
    pid_t me = getpid(), was = __atomic_exchange_n(&locked_in, me, __ATOMIC_ACQ_REL);
    if (was && was != me) {
        pthread_mutex_init(&mu, NULL);
        memset(ranges, 0, sizeof ranges);
        __atomic_store_n(&used, 0, __ATOMIC_RELEASE);
    }
    pthread_mutex_lock(&mu);
    return true;
}

static void give(void)
{
    pthread_mutex_unlock(&mu);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    inside = false;
}

static void unlock(int cancel)
{
    give();
    st_cancelled(cancel);
}

static struct range *range_of(const struct devmem *driver, const void *p)
{
    for (unsigned i = 0; i < used; i++)
        if (ranges[i].p && ranges[i].driver == driver && (const char *)p >= (const char *)ranges[i].p && (const char *)p < (const char *)ranges[i].p + ranges[i].size)
            return &ranges[i];
    return NULL;
}

/* A program may give a page back, and never take it back from its driver: a range of the same addresses is another page's then. */
static void page_goes(uint64_t reg, uint64_t size)
{
    int saved = errno, cancel;
    if (!bell_mine() || !lock(&cancel)) /* none was taken, or a forked child's parent has them, and the lock perhaps */
        return;
    for (unsigned i = 0; i < used; i++)
        if (ranges[i].p && ranges[i].device && (uintptr_t)ranges[i].p - reg < size) {
            doorbell_release(ranges[i].p, true);
            ranges[i].device = 0;
        }
    unlock(cancel);
    errno = saved;
}

void registered(const struct devmem *driver, void *p, size_t size)
{
    struct st_page page;
    int saved = errno, cancel;
    if (!st_page_of((uintptr_t)p, &page))
        return;
    __atomic_store_n(&st_page_goes, page_goes, __ATOMIC_RELEASE);
    if (!lock(&cancel))
        return;
    struct range *again = range_of(driver, p);
    if (again && again->p == p) { /* or what it was before has gone with its context */
        again->size = size;
        again->times = driver->nests ? again->times + 1 : 1;
    }
    for (unsigned i = 0; i < RANGES && !(again && again->p == p); i++)
        if (!ranges[i].p) {
            ranges[i] = (struct range){driver, p, size, 1, 0};
            if (i >= used)
                __atomic_store_n(&used, i + 1, __ATOMIC_RELEASE);
            break;
        }
    unlock(cancel);
    errno = saved;
}

void registered_address(const struct devmem *driver, void *p, uint64_t *device)
{
    if (!__atomic_load_n(&used, __ATOMIC_ACQUIRE))
        return;
    int saved = errno, cancel;
    if (!lock(&cancel))
        return;
    struct range *r = range_of(driver, p);
    if (r) {
        uint64_t ours = r->device;
        if (ours && !doorbell_alive(r->p)) { /* it went with its context, and was registered again in another */
            doorbell_release(r->p, false);
            ours = r->device = 0;
        }
        if (ours || doorbell_interpose(driver, r->p, r->size, &ours)) {
            r->device = ours;
            *device = ours + (uint64_t)((char *)p - (char *)r->p);
        }
    }
    unlock(cancel);
    errno = saved;
}

void registered_ends(const struct devmem *driver, const void *p)
{
    if (!__atomic_load_n(&used, __ATOMIC_ACQUIRE))
        return;
    int saved = errno, cancel;
    if (!lock(&cancel))
        return;
    struct range *r = range_of(driver, p);
    void *start = r && r->p == p && !--r->times ? r->p : NULL;
    bool ours = start && r->device;
    if (start)
        r->p = NULL;
    give();
    if (ours)
        doorbell_release(start, true);
    st_cancelled(cancel);
    errno = saved;
}
