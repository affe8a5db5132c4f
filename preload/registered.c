/* Ranges of pages of doorbells that are registered with a driver: registered.h. */
#include "registered.h"
#include "doorbell.h"

#include <errno.h>
#include <pthread.h>

enum { RANGES = 4096 };
static struct range {
    const struct devmem *driver;
    void *p;
    size_t size;
    uint64_t device; /* given in its place; 0: the register itself */
} ranges[RANGES];
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

static struct range *range_of(const struct devmem *driver, const void *p)
{
    for (unsigned i = 0; i < RANGES; i++)
        if (ranges[i].p && ranges[i].driver == driver && (const char *)p >= (const char *)ranges[i].p && (const char *)p < (const char *)ranges[i].p + ranges[i].size)
            return &ranges[i];
    return NULL;
}

/* A program may give a page back, and never take it back from its driver: a range of the same addresses is another page's then. */
static void page_goes(uint64_t reg, uint64_t size)
{
    int saved = errno;
    if (!bell_mine()) /* none was taken, or a forked child's parent has them, and the lock perhaps */
        return;
    pthread_mutex_lock(&mu);
    for (unsigned i = 0; i < RANGES; i++)
        if (ranges[i].p && ranges[i].device && (uintptr_t)ranges[i].p - reg < size) {
            doorbell_release(ranges[i].p);
            ranges[i].device = 0;
        }
    pthread_mutex_unlock(&mu);
    errno = saved;
}

void registered(const struct devmem *driver, void *p, size_t size)
{
    struct st_page page;
    int saved = errno;
    if (!st_page_of((uintptr_t)p, &page))
        return;
    __atomic_store_n(&st_page_goes, page_goes, __ATOMIC_RELEASE);
    pthread_mutex_lock(&mu);
    for (unsigned i = 0; i < RANGES; i++)
        if (!ranges[i].p) {
            ranges[i] = (struct range){driver, p, size, 0};
            break;
        }
    pthread_mutex_unlock(&mu);
    errno = saved;
}

void registered_address(const struct devmem *driver, void *p, uint64_t *device)
{
    int saved = errno;
    pthread_mutex_lock(&mu);
    struct range *r = range_of(driver, p);
    if (r) {
        uint64_t ours = r->device;
        if (ours || doorbell_interpose(driver, r->p, r->size, &ours)) {
            r->device = ours;
            *device = ours + (uint64_t)((char *)p - (char *)r->p);
        }
    }
    pthread_mutex_unlock(&mu);
    errno = saved;
}

void registered_ends(const struct devmem *driver, const void *p)
{
    int saved = errno;
    pthread_mutex_lock(&mu);
    struct range *r = range_of(driver, p);
    void *start = r && r->p == p ? r->p : NULL;
    bool ours = start && r->device;
    if (start)
        r->p = NULL;
    pthread_mutex_unlock(&mu);
    if (ours)
        doorbell_release(start);
    errno = saved;
}
