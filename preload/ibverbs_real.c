/* The functions of the real libraries: where they are, and which of ours a program gets that looks them up itself. */
#define _GNU_SOURCE
#include "ibverbs.h"

#include <dlfcn.h>
#include <errno.h>

struct real real;

static const struct st_hook ibv_hooks[] = {
#define X(name, version) {#name, version, (void *)name, (void **)(void *)&real.name},
    IBV_HOOKED(X) {0}};
static const struct st_hook mlx5dv_hooks[] = {MLX5DV_HOOKED(X) {0}};
static const struct st_hook efadv_hooks[] = {EFADV_HOOKED(X) {0}};
#undef X
#define X(name, version) {#name, version, NULL, (void **)(void *)&real.name},
static const struct st_hook called[] = {IBV_CALLED(X) {0}};
#undef X

static void find(const struct st_hook *table)
{
    for (const struct st_hook *h = table; h->name; h++) {
        if (__atomic_load_n(h->real, __ATOMIC_RELAXED))
            continue;
        void *p = st_next(h->name, h->version);
        if (p && p != h->ours)
            __atomic_store_n(h->real, p, __ATOMIC_RELEASE);
    }
}

void find_real(void)
{
    int saved = errno;
    find(ibv_hooks);
    find(called);
    find(mlx5dv_hooks);
    find(efadv_hooks);
    errno = saved;
}

void keep_loaded(void *function)
{
    int saved = errno;
    Dl_info i;
    if (function && dladdr(function, &i) && i.dli_fname) {
        void *h = dlopen(i.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
        if (h)
            dlclose(h);
    }
    errno = saved;
}

__attribute__((constructor)) static void start(void)
{
    st_hooks("ibv_", ibv_hooks);
    st_hooks("mlx5dv_", mlx5dv_hooks);
    st_hooks("efadv_", efadv_hooks);
}
