/*
 * What a program has registered of pages of doorbells, so that kernels may ring them: only that may be rung. The same for every driver.
 */
#ifndef ST_REGISTERED_H
#define ST_REGISTERED_H

#include "devmem.h"

/* size bytes from p on were registered with a driver. */
void registered(const struct devmem *driver, void *p, size_t size);
/* The driver has given a device's address for p: another one, where a page of ours takes the place of what is registered there. */
void registered_address(const struct devmem *driver, void *p, uint64_t *device);
/* What was registered from p on is so no longer. */
void registered_ends(const struct devmem *driver, const void *p);

#endif
