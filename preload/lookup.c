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

void *(*st_real_dlsym)(void *handle, const char *name);
void *(*st_real_dlvsym)(void *handle, const char *name, const char *version);

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

static int real_lookups(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size, (void)data;
    struct tables t;
    const char *base = strrchr(info->dlpi_name, '/');
    base = base ? base + 1 : info->dlpi_name;
    /* libdl.so.2 before glibc 2.34, libc.so.6 since */
    if ((strncmp(base, "libc.so", 7) && strncmp(base, "libdl.so", 8) && strncmp(base, "libc-2", 6) && strncmp(base, "libdl-2", 7)) || find_tables(info, &t))
        return 0;
    const ElfW(Sym) *s = find_symbol(&t, "dlsym"), *v = find_symbol(&t, "dlvsym");
    if (s && v) {
        __atomic_store_n(&st_real_dlvsym, (void *(*)(void *, const char *, const char *))(info->dlpi_addr + v->st_value), __ATOMIC_RELEASE);
        __atomic_store_n(&st_real_dlsym, (void *(*)(void *, const char *))(info->dlpi_addr + s->st_value), __ATOMIC_RELEASE);
        return 1;
    }
    return 0;
}

void st_resolve(void)
{
    if (!__atomic_load_n(&st_real_dlsym, __ATOMIC_ACQUIRE))
        dl_iterate_phdr(real_lookups, NULL);
}

struct local {
    const char *name;
    char path[PATH_MAX];
};

static int has_symbol(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct local *l = data;
    struct tables t;
    const char *base = strrchr(info->dlpi_name, '/');
    base = base ? base + 1 : info->dlpi_name;
    if (!*base || !strncmp(base, "provider-", 9) || !strncmp(base, "libsigmatrace", 13) || find_tables(info, &t) || !find_symbol(&t, l->name))
        return 0;
    snprintf(l->path, sizeof l->path, "%s", info->dlpi_name);
    return 1;
}

void *st_next_local(const char *name, const char *version)
{
    struct local l = {.name = name};
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

#define TABLES 8
static struct {
    const char *prefix;
    size_t length;
    const struct st_hook *hooks;
} registered[TABLES];
static unsigned tables;

void st_hooks(const char *prefix, const struct st_hook *table)
{
    unsigned n = __atomic_load_n(&tables, __ATOMIC_RELAXED);
    if (st_config.off || n == TABLES)
        return;
    registered[n].prefix = prefix;
    registered[n].length = strlen(prefix);
    registered[n].hooks = table;
    __atomic_store_n(&tables, n + 1, __ATOMIC_RELEASE);
}

struct caller {
    uintptr_t address;
    const char *name;
    int defines;
};

static int find_caller(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct caller *c = data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type != PT_LOAD || c->address - (info->dlpi_addr + h->p_vaddr) >= h->p_memsz)
            continue;
        struct tables t;
        c->defines = !find_tables(info, &t) && find_symbol(&t, c->name);
        return 1;
    }
    return 0;
}

/* Whether the object that a look-up comes from has a function of that name itself. */
static int is_wrapper(const void *caller, const char *name)
{
    struct caller c = {.address = (uintptr_t)caller, .name = name};
    dl_iterate_phdr(find_caller, &c);
    return c.defines;
}

/* What a look-up of name is to get: ours, or NULL to let the real function answer. A look-up in the default order finds the preloaded
 * symbol by itself, and one of the next definition wants just not ours. Another preload that looks for the function behind its own of that
 * name does not want ours either, which may have called it: the two would call each other without end. */
__attribute__((used, visibility("hidden"))) void *st_lookup_filter(void *handle, const char *name, const char *version, const void *caller)
{
    st_resolve();
    if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || !name)
        return NULL;
    unsigned n = __atomic_load_n(&tables, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < n; i++) {
        if (strncmp(name, registered[i].prefix, registered[i].length))
            continue;
        for (const struct st_hook *h = registered[i].hooks; h->name; h++) {
            if (strcmp(h->name, name) || (version && h->version && strcmp(h->version, version)))
                continue;
            void *real = version ? st_real_dlvsym(handle, name, version) : st_real_dlsym(handle, name);
            if (!real || is_wrapper(caller, name))
                return NULL; /* the real function answers again, and leaves its message for dlerror */
            if (real != h->ours) {
                void *none = NULL;
                __atomic_compare_exchange_n(h->real, &none, real, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
            }
            return h->ours;
        }
    }
    return NULL;
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
