/*
 * Memory of GPUs, as those need it who read queues that lie there: a row of functions for each driver. Contexts and streams are the driver's own, and mean
 * nothing to anybody else. The calling thread's context is as it was when a function returns.
 */
#ifndef ST_DEVMEM_H
#define ST_DEVMEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct devmem {
    bool nests; /* memory may be registered more than once, and is so until as many times unregistered */
    /* Whether all that the others need is there. */
    bool (*ready)(void);
    /* What to copy from an address with: NULL for the host's memory. false: not to be known. */
    bool (*context_of)(uint64_t address, void **context);
    /* The memory that is given back with an address: how much of it there is from there on; 0: not known. */
    uint64_t (*size_at)(uint64_t address);
    /* The calling thread's context. */
    void *(*current)(void);
    /* A stream of its own, which waits for no other, in a context; NULL: the calling thread's. A kernel that runs may keep a driver from making one. */
    void *(*open)(void *context);
    void (*close)(void *context, void *stream);
    /* Starts a copy to the host, and does not wait for it. What is not pinned may be waited for by the driver. */
    bool (*copy)(void *context, void *stream, void *to, uint64_t from, size_t n);
    /* Whether the copies that were started have ended: 1 yes, 0 not yet, -1 they have failed. */
    int (*done)(void *context, void *stream);
    /* Waits for them. */
    bool (*wait)(void *context, void *stream);
    /* Pins memory of the host's; device: its address for kernels, or NULL. */
    bool (*pin)(void *host, size_t size, uint64_t *device);
    void (*unpin)(void *host);
    /* Whether pinned memory is so still, where the calling thread has just asked the driver for such an address with success. */
    bool (*alive)(void *host);
};

extern const struct devmem devmem_cuda;

#endif
