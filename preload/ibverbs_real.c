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

/* The next definition in the order of the loader. Not inlined and not a tail call: RTLD_NEXT goes by the address of its caller. */
static __attribute__((noinline)) void *in_order(const char *name, const char *version)
{
    void *p = version ? st_real_dlvsym(RTLD_NEXT, name, version) : st_real_dlsym(RTLD_NEXT, name);
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}

static int same_object(const void *a, const void *b)
{
    Dl_info i, j;
    return dladdr(a, &i) && dladdr(b, &j) && i.dli_fbase == j.dli_fbase;
}

/* The function of that version; or, where another preload has one of that name on the way to it, that one: preloads give their symbols no
 * versions, and dlvsym goes past them. */
static void *next(const char *name, const char *version, void *library)
{
    void *real_one = in_order(name, version), *other;
    if (!real_one && library) /* opened by a plugin, so not in the global order */
        real_one = st_real_dlvsym(library, name, version);
    if (!real_one)
        real_one = st_next_local(name, version);
    other = in_order(name, NULL);
    return real_one && other && !same_object(other, real_one) ? other : real_one;
}

static void find(const struct st_hook *table, const char *soname)
{
    void *library = dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
    st_resolve();
    for (const struct st_hook *h = table; h->name; h++) {
        if (__atomic_load_n(h->real, __ATOMIC_RELAXED))
            continue;
        void *p = next(h->name, h->version, library);
        if (p && p != h->ours) {
            st_keep_loaded(p);
            __atomic_store_n(h->real, p, __ATOMIC_RELEASE);
        }
    }
    if (library)
        dlclose(library);
}

void find_real(void)
{
    int saved = errno;
    find(ibv_hooks, "libibverbs.so.1");
    find(called, "libibverbs.so.1");
    find(mlx5dv_hooks, "libmlx5.so.1");
    find(efadv_hooks, "libefa.so.1");
    errno = saved;
}

__attribute__((constructor)) static void start(void)
{
    st_hooks("ibv_", ibv_hooks);
    st_hooks("mlx5dv_", mlx5dv_hooks);
    st_hooks("efadv_", efadv_hooks);
}
