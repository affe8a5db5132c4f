/* Finding the real functions, and handing ours to programs that look symbols up themselves. */
#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

/* Before glibc 2.34 a process may be without libdl.so.2, where both are. */
static void *no_dlsym(void *handle, const char *name) { return (void)handle, (void)name, NULL; }
static void *no_dlvsym(void *handle, const char *name, const char *version) { return (void)handle, (void)name, (void)version, NULL; }
void *(*st_real_dlsym)(void *handle, const char *name) = no_dlsym;
void *(*st_real_dlvsym)(void *handle, const char *name, const char *version) = no_dlvsym;
/* What answers a program's look-up after us: another preload's, or the real ones. */
__attribute__((visibility("hidden"))) void *(*st_next_dlsym)(void *handle, const char *name) = no_dlsym;
__attribute__((visibility("hidden"))) void *(*st_next_dlvsym)(void *handle, const char *name, const char *version) = no_dlvsym;

/* ---- symbols of loaded objects, without dlsym: it is one of the functions we replace, and it allocates on failure --------------- */

struct tables {
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint32_t *sysv_hash;
};

static int find_tables(const struct dl_phdr_info *info, struct tables *t)
{
    const ElfW(Dyn) *d = NULL;
    memset(t, 0, sizeof *t);
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    for (; d && d->d_tag != DT_NULL; d++) {
        /* glibc relocates these in place, except for the vDSO: take either */
        uintptr_t p = d->d_un.d_ptr;
        if (p < info->dlpi_addr)
            p += info->dlpi_addr;
        switch (d->d_tag) {
        case DT_SYMTAB: t->symbols = (const void *)p; break;
        case DT_STRTAB: t->strings = (const void *)p; break;
        case DT_GNU_HASH: t->gnu_hash = (const void *)p; break;
        case DT_HASH: t->sysv_hash = (const void *)p; break;
        }
    }
    return t->symbols && t->strings && (t->gnu_hash || t->sysv_hash) ? 0 : -1;
}

static const ElfW(Sym) *defined(const struct tables *t, uint32_t i, const char *name)
{
    const ElfW(Sym) *s = &t->symbols[i];
    return s->st_shndx != SHN_UNDEF && s->st_value && !strcmp(t->strings + s->st_name, name) ? s : NULL;
}

static const ElfW(Sym) *find_symbol(const struct tables *t, const char *name)
{
    const ElfW(Sym) *s;
    if (!t->gnu_hash) {
        for (uint32_t i = 0; i < t->sysv_hash[1]; i++)
            if ((s = defined(t, i, name)))
                return s;
        return NULL;
    }
    uint32_t hash = 5381, buckets = t->gnu_hash[0], offset = t->gnu_hash[1], bloom = t->gnu_hash[2];
    for (const char *c = name; *c; c++)
        hash = hash * 33 + (uint8_t)*c;
    const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)(t->gnu_hash + 4) + bloom), *chain = bucket + buckets;
    uint32_t i = bucket[hash % buckets];
    if (i < offset)
        return NULL;
    for (;; i++) {
        if ((chain[i - offset] | 1) == (hash | 1) && (s = defined(t, i, name)))
            return s;
        if (chain[i - offset] & 1)
            return NULL;
    }
}

static int holds(const struct dl_phdr_info *info, uintptr_t p)
{
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && p - info->dlpi_addr - info->dlpi_phdr[i].p_vaddr < info->dlpi_phdr[i].p_memsz)
            return 1;
    return 0;
}

static int find_own(struct dl_phdr_info *info, size_t size, void *name)
{
    (void)size;
    int ours = holds(info, (uintptr_t)&st_next_dlsym);
    if (ours)
        *(const char **)name = info->dlpi_name;
    return ours;
}

const char *st_own_file(void)
{
    const char *name = "";
    dl_iterate_phdr(find_own, &name);
    return name;
}

static const char *base_name(const struct dl_phdr_info *info)
{
    const char *base = strrchr(info->dlpi_name, '/');
    return base ? base + 1 : info->dlpi_name;
}

static void *address(const struct dl_phdr_info *info, const ElfW(Sym) *s) { return s ? (void *)(info->dlpi_addr + s->st_value) : NULL; }

/* The libraries that glibc's functions are in. Where those that are never unloaded are is kept, since the loader's list of objects has a lock, which in a forked child may be taken by a
 * thread that it does not have. */
enum { STAY = 4, LIBRARIES = 6, EMPTY = 0, FILLING, KEPT };
static const char *const libraries[LIBRARIES] = {"libc.so", "libc-2", "libpthread.so", "libpthread-2", "libdl.so", "libdl-2"};
static struct kept {
    int state;
    ElfW(Addr) base;
    struct tables tables;
} kept[STAY];

struct libc_name {
    const char *name;
    void *found;
};

static void keep(struct kept *k, const struct dl_phdr_info *info, const struct tables *t)
{
    int state = EMPTY;
    if (!__atomic_compare_exchange_n(&k->state, &state, FILLING, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    k->base = info->dlpi_addr;
    k->tables = *t;
    __atomic_store_n(&k->state, KEPT, __ATOMIC_RELEASE);
}

static int find_in_libc(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct libc_name *n = data;
    struct tables t;
    const char *base = base_name(info);
    for (unsigned i = 0; i < LIBRARIES; i++) {
        if (strncmp(base, libraries[i], strlen(libraries[i])) || find_tables(info, &t))
            continue;
        if (i < STAY)
            keep(&kept[i], info, &t);
        if ((n->found = address(info, find_symbol(&t, n->name))))
            return 1;
    }
    return 0;
}

void *st_libc(const char *name)
{
    for (unsigned i = 0; i < STAY; i++) {
        const struct kept *k = &kept[i];
        const ElfW(Sym) *s = __atomic_load_n(&k->state, __ATOMIC_ACQUIRE) == KEPT ? find_symbol(&k->tables, name) : NULL;
        if (s)
            return (void *)(k->base + s->st_value);
    }
    struct libc_name n = {.name = name};
    dl_iterate_phdr(find_in_libc, &n);
    return n.found;
}

/* While the process has one thread. */
__attribute__((constructor)) static void keep_libc(void) { st_libc(""); }

struct next_lookups {
    int behind; /* our own object has been seen */
    void *dlsym, *dlvsym;
};

static int find_next_lookups(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct next_lookups *n = data;
    struct tables t;
    if (!n->behind) {
        n->behind = holds(info, (uintptr_t)&st_next_dlsym); /* not &st_real_dlsym, which may be that of another recorder */
        return 0;
    }
    if (find_tables(info, &t))
        return 0;
    if (!n->dlsym)
        n->dlsym = address(info, find_symbol(&t, "dlsym"));
    if (!n->dlvsym)
        n->dlvsym = address(info, find_symbol(&t, "dlvsym"));
    return n->dlsym && n->dlvsym;
}

void st_resolve(void)
{
    static int resolved;
    if (__atomic_load_n(&resolved, __ATOMIC_ACQUIRE))
        return;
    void *s = st_libc("dlsym"), *v = st_libc("dlvsym");
    if (!s || !v)
        return;
    struct next_lookups n = {0};
    dl_iterate_phdr(find_next_lookups, &n);
    __atomic_store_n(&st_real_dlsym, (void *(*)(void *, const char *))s, __ATOMIC_RELEASE);
    __atomic_store_n(&st_real_dlvsym, (void *(*)(void *, const char *, const char *))v, __ATOMIC_RELEASE);
    __atomic_store_n(&st_next_dlsym, (void *(*)(void *, const char *))(n.dlsym ? n.dlsym : s), __ATOMIC_RELEASE);
    __atomic_store_n(&st_next_dlvsym, (void *(*)(void *, const char *, const char *))(n.dlvsym ? n.dlvsym : v), __ATOMIC_RELEASE);
    __atomic_store_n(&resolved, 1, __ATOMIC_RELEASE);
}

bool st_defines(const struct dl_phdr_info *info, const char *name)
{
    struct tables t;
    return !find_tables(info, &t) && find_symbol(&t, name);
}

struct local {
    const char *name;
    uintptr_t caller;
    int behind; /* the caller's object has been seen */
    char path[PATH_MAX];
};

static int has_symbol(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct local *l = data;
    const char *base = base_name(info);
    l->behind |= holds(info, l->caller);
    if (!l->behind || !*base || !strncmp(base, "provider-", 9) || !strncmp(base, "libsigmatrace", 13) || !st_defines(info, l->name))
        return 0;
    snprintf(l->path, sizeof l->path, "%s", info->dlpi_name);
    return 1;
}

void *st_next_local(const char *name, const char *version)
{
    struct local l = {.name = name, .caller = (uintptr_t)__builtin_return_address(0)};
    if (!dl_iterate_phdr(has_symbol, &l))
        return NULL;
    void *h = dlopen(l.path, RTLD_LAZY | RTLD_NOLOAD), *p = NULL;
    if (h) {
        p = version ? st_real_dlvsym(h, name, version) : st_real_dlsym(h, name);
        dlclose(h);
    }
    return p;
}

/* ---- dlsym and dlvsym ----------------------------------------------------------------------------------------------------------- */

#define TABLES 16
static struct {
    const char *prefix;
    const struct st_hook *hooks;
} registered[TABLES];
static unsigned tables;

void st_hooks(const char *prefix, const struct st_hook *table)
{
    unsigned n = __atomic_load_n(&tables, __ATOMIC_RELAXED);
    if ((st_config.off && table->real) || n == TABLES)
        return;
    registered[n].prefix = prefix;
    registered[n].hooks = table;
    __atomic_store_n(&tables, n + 1, __ATOMIC_RELEASE);
}

void st_keep_loaded(const void *function)
{
    static void *last; /* most are functions of one library */
    int saved = errno;
    Dl_info i;
    if (function && dladdr(function, &i) && i.dli_fname && i.dli_fbase != __atomic_exchange_n(&last, i.dli_fbase, __ATOMIC_RELAXED)) {
        void *h = dlopen(i.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
        if (h)
            dlclose(h);
    }
    errno = saved;
}

enum place { NOWHERE, BEFORE, BEHIND };
struct order {
    uintptr_t ours, caller;
    const char *name;
    int ours_seen, defines;
    enum place place;
};

static int find_caller(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct order *o = data;
    o->ours_seen |= holds(info, o->ours);
    if (!holds(info, o->caller))
        return 0;
    o->place = o->ours_seen ? BEHIND : BEFORE;
    o->defines = st_defines(info, o->name);
    return 1;
}

static struct order order(const void *ours, const void *caller, const char *name)
{
    struct order o = {.ours = (uintptr_t)ours, .caller = (uintptr_t)caller, .name = name};
    dl_iterate_phdr(find_caller, &o);
    return o;
}

struct lookups {
    void *(*dlsym)(void *handle, const char *name);
    void *(*dlvsym)(void *handle, const char *name, const char *version);
};

/* What a look-up of one of our names is to get. Not ours: an object behind ours with a function of that name itself is another preload,
 * which was called by ours and looks for what it has to call (with a handle, where the library is not in the global order); ours would
 * call it again. Nor the next definition of one behind ours. */
static void *choose(const struct st_hook *h, const struct lookups *l, void *handle, const char *version, const void *caller)
{
    struct order o = order(h->ours, caller, h->name);
    if (o.place == BEHIND && (o.defines || handle == RTLD_NEXT))
        return NULL;
    void *real = version ? l->dlvsym(handle, h->name, version) : l->dlsym(handle, h->name), *none = NULL;
    if (!real)
        return NULL; /* the real function says so again, and leaves its message for dlerror */
    /* one before ours that another preload names as its own would come back to us */
    if (real != h->ours && order(h->ours, real, h->name).place != BEFORE && __atomic_compare_exchange_n(h->real, &none, real, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        st_keep_loaded(real);
    return h->ours;
}

/* A preload before ours that hooks dlsym finds the real one by dlvsym, since dlsym is its own. It is to find ours. */
extern const char st_glibc_dlsym[] __attribute__((weak, visibility("hidden"))), st_glibc_dlvsym[] __attribute__((weak, visibility("hidden")));
static void *choose_lookup(const char *name, const void *caller)
{
    const char *ours = !strcmp(name, "dlsym") ? st_glibc_dlsym : !strcmp(name, "dlvsym") ? st_glibc_dlvsym : NULL;
    return ours && order(ours, caller, name).place == BEFORE ? (void *)ours : NULL;
}

/* What a look-up of name is to get: ours, or NULL to let the real function answer. One without a version in the default order, or of the
 * next definition, goes past nothing and finds the preloaded symbol by itself; one with a version passes it by, since ours has none. */
static void *filter(const struct lookups *l, void *handle, const char *name, const char *version, const void *caller)
{
    if (!name || (!version && (handle == RTLD_NEXT || handle == RTLD_DEFAULT)))
        return NULL;
    unsigned n = __atomic_load_n(&tables, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < n; i++) {
        if (strncmp(name, registered[i].prefix, strlen(registered[i].prefix)))
            continue;
        for (const struct st_hook *h = registered[i].hooks; h->name; h++)
            if (!strcmp(h->name, name) && (!version || !h->version || !strcmp(h->version, version)))
                return h->real ? choose(h, l, handle, version, caller)
                               : ((st_pick *)h->ours)(h, version ? l->dlvsym(handle, name, version) : l->dlsym(handle, name), handle, caller);
    }
    return version && handle == RTLD_NEXT ? choose_lookup(name, caller) : NULL;
}

__attribute__((used, visibility("hidden"))) void *st_lookup_filter(void *handle, const char *name, const char *version, const void *caller)
{
    st_resolve();
    return filter(&(struct lookups){st_next_dlsym, st_next_dlvsym}, handle, name, version, caller);
}

__attribute__((used, visibility("hidden"))) void *st_lookup_filter_glibc(void *handle, const char *name, const char *version, const void *caller)
{
    st_resolve();
    return filter(&(struct lookups){st_real_dlsym, st_real_dlvsym}, handle, name, version, caller);
}

/* ---- memory of unknown extent ------------------------------------------------------------------------------------------------------ */

size_t st_peek(void *to, const void *p, size_t size)
{
    int saved = errno;
    struct iovec local = {to, size}, remote[8];
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)p;
    size_t left = size;
    unsigned k = 0;
    /* an element is copied whole or not at all (process_vm_readv(2)): one for each page */
    for (; left && k < sizeof remote / sizeof *remote; k++) {
        size_t part = page - at % page < left ? page - at % page : left;
        remote[k] = (struct iovec){(void *)at, part};
        at += part;
        left -= part;
    }
    ssize_t n = process_vm_readv(getpid(), &local, 1, remote, k, 0);
    if (n <= 0) { /* refused by a sandbox: page by page, what is mapped */
        size_t done = 0;
        at = (uintptr_t)p;
        while (done < size) {
            unsigned char in_core;
            size_t part = page - at % page;
            if (part > size - done)
                part = size - done;
            if (done && mincore((void *)(at & ~(page - 1)), 1, &in_core))
                break;
            memcpy((char *)to + done, (const void *)at, part);
            done += part;
            at += part;
        }
        n = (ssize_t)done;
    }
    errno = saved;
    return (size_t)n;
}
