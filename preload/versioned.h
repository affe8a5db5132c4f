/*
 * Finding functions of libraries that give their symbols versions (libibverbs, libmlx5, libefa). Included by the files that need it, and not a part of the recorder: RTLD_NEXT
 * goes by the address of its caller, which is to be the provider.
 */
#ifndef ST_VERSIONED_H
#define ST_VERSIONED_H

#include "recorder.h"

#include <dlfcn.h>

/* The next definition in the order of the loader. Not inlined and not a tail call: RTLD_NEXT goes by the address of its caller. */
static __attribute__((noinline)) void *st_in_order(const char *name, const char *version)
{
    void *p = version ? st_real_dlvsym(RTLD_NEXT, name, version) : st_real_dlsym(RTLD_NEXT, name);
    __asm__ volatile("" : "+r"(p) : : "memory");
    return p;
}

static int st_same_object(const void *a, const void *b)
{
    Dl_info i, j;
    return dladdr(a, &i) && dladdr(b, &j) && i.dli_fbase == j.dli_fbase;
}

/* The function of that version; or, where another preload has one of that name on the way to it, that one: preloads give their symbols no
 * versions, and dlvsym goes past them. */
static void *st_next_version(const char *name, const char *version, void *library)
{
    void *real_one = st_in_order(name, version), *other;
    if (!real_one && library) /* opened by a plugin, so not in the global order */
        real_one = st_real_dlvsym(library, name, version);
    if (!real_one)
        real_one = st_next_local(name, version);
    other = st_in_order(name, NULL);
    return real_one && other && !st_same_object(other, real_one) ? other : real_one;
}

/* Looks up what a table's functions stand for, as far as it is not known yet. */
static void st_find_versions(const struct st_hook *table, const char *soname)
{
    void *library = dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
    st_resolve();
    for (const struct st_hook *h = table; h->name; h++) {
        if (__atomic_load_n(h->real, __ATOMIC_RELAXED))
            continue;
        void *p = st_next_version(h->name, h->version, library);
        if (p && p != h->ours) {
            st_keep_loaded(p);
            __atomic_store_n(h->real, p, __ATOMIC_RELEASE);
        }
    }
    if (library)
        dlclose(library);
}

#endif
