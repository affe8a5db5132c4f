/* The functions of the real libraries: where they are, and which of ours a program gets that looks them up itself. */
#define _GNU_SOURCE
#include "ibverbs.h"
#include "versioned.h"

#include <errno.h>

struct real real;

static const struct st_hook ibv_hooks[] = {
#define X(name, version) {#name, version, (void *)name, (void **)(void *)&real.name},
    IBV_HOOKED(X) {0}};
static const struct st_hook efadv_hooks[] = {EFADV_HOOKED(X) {0}};
#undef X
#define X(name, version) {#name, version, NULL, (void **)(void *)&real.name},
static const struct st_hook called[] = {IBV_CALLED(X) {0}};
#undef X

void find_real(void)
{
    int saved = errno;
    st_find_versions(ibv_hooks, "libibverbs.so.1");
    st_find_versions(called, "libibverbs.so.1");
    st_find_versions(efadv_hooks, "libefa.so.1");
    errno = saved;
}

__attribute__((constructor)) static void start(void)
{
    st_hooks("ibv_", ibv_hooks);
    st_hooks("efadv_", efadv_hooks);
}
