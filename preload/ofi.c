/* Provider libfabric: fi_fabric, and how function tables are replaced and objects' records kept. */
#define _GNU_SOURCE
#include "ofi.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

__thread uint32_t ofi_inside __attribute__((tls_model("initial-exec")));

/* ---- the real library ---------------------------------------------------------------------------------------------------------- */

static struct {
    __typeof__(&fi_fabric) fi_fabric;
    __typeof__(&fi_fabric2) fi_fabric2;
} real;

static const struct st_hook table[] = {
    {"fi_fabric", "FABRIC_1.1", (void *)fi_fabric, (void **)(void *)&real.fi_fabric},
    {"fi_fabric2", "FABRIC_1.8", (void *)fi_fabric2, (void **)(void *)&real.fi_fabric2},
    {NULL, NULL, NULL, NULL},
};

__attribute__((constructor)) static void init(void) { st_hooks("fi_", table); }

static bool same_object(const void *a, const void *b)
{
    Dl_info i, j;
    return dladdr(a, &i) && dladdr(b, &j) && i.dli_fbase == j.dli_fbase;
}

/* The function of that version; or, where another preload has one of that name on the way to it, that one: preloads give their symbols no
 * versions, and dlvsym goes past them. NULL: there is none. */
static void *find(unsigned i)
{
    void *p = __atomic_load_n(table[i].real, __ATOMIC_ACQUIRE);
    if (p)
        return p;
    int saved = errno;
    void *other = st_next(table[i].name, NULL);
    p = st_next(table[i].name, table[i].version);
    if (p && other && other != table[i].ours && !same_object(p, other))
        p = other;
    if (p)
        __atomic_store_n(table[i].real, p, __ATOMIC_RELEASE);
    errno = saved;
    return p;
}

struct caller {
    uintptr_t at;
    bool internal;
};

static int find_caller(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct caller *c = data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type != PT_LOAD || c->at - info->dlpi_addr - h->p_vaddr >= h->p_memsz)
            continue;
        c->internal = st_defines(info, "fi_param_define") || st_defines(info, "fi_prov_ini");
        return 1;
    }
    return 0;
}

/* Whether libfabric itself, or a provider in a library of its own, calls: a layered provider makes the fabric of the one below. */
static bool is_internal(const void *caller)
{
    struct caller c = {(uintptr_t)caller, false};
    int saved = errno;
    dl_iterate_phdr(find_caller, &c);
    errno = saved;
    return c.internal;
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
    __typeof__(&fi_fabric) f = (__typeof__(f))find(0);
    if (!f)
        return -FI_ENOSYS;
    if (is_internal(__builtin_return_address(0)))
        return f(attr, fabric, context);
    struct ofi_slow s = ofi_begin();
    int rc = f(attr, fabric, context);
    if (!rc && s.mine)
        ofi_take_fabric(*fabric);
    ofi_end(s);
    return rc;
}

int fi_fabric2(struct fi_info *info, struct fid_fabric **fabric, uint64_t flags, void *context)
{
    __typeof__(&fi_fabric2) f = (__typeof__(f))find(1);
    if (!f)
        return -FI_ENOSYS;
    if (is_internal(__builtin_return_address(0)))
        return f(info, fabric, flags, context);
    struct ofi_slow s = ofi_begin();
    int rc = f(info, fabric, flags, context);
    if (!rc && s.mine)
        ofi_take_fabric(*fabric);
    ofi_end(s);
    return rc;
}

void ofi_define_version(void)
{
    static pid_t defined; /* a forked child has a file of its own */
    if (__atomic_exchange_n(&defined, getpid(), __ATOMIC_RELAXED) == getpid())
        return;
    __typeof__(&fi_version) version = (__typeof__(version))st_next("fi_version", NULL);
    if (version)
        st_def_ofi_version(version());
}

void ofi_blind(const char *reason) { st_def_ofi_blind(0, reason); }

/* ---- tables -------------------------------------------------------------------------------------------------------------------- */

bool ofi_copy(void *copy, size_t room, const void *from, const struct ofi_hook *hooks, unsigned n)
{
    size_t size;
    if (!from)
        return false;
    memcpy(&size, from, sizeof size);
    if (size < 2 * sizeof(void *) || size % sizeof(void *))
        return false;
    if (size > room) {
        ofi_blind("function table longer than any known");
        return false;
    }
    memcpy(copy, from, size);
    for (unsigned i = 0; i < n; i++) {
        void **entry = (void **)((char *)copy + hooks[i].offset);
        if (hooks[i].offset < size && *entry)
            *entry = hooks[i].ours;
    }
    return true;
}

/* ---- records -------------------------------------------------------------------------------------------------------------------- */

static int holder;

void ofi_lock(void)
{
    int saved = errno, pid = getpid(), was = 0;
    while (!__atomic_compare_exchange_n(&holder, &was, pid, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        if (was == pid) { /* another thread; any other number is left over from before a fork */
            was = 0;
            sched_yield();
        }
    errno = saved;
}

void ofi_unlock(void) { __atomic_store_n(&holder, 0, __ATOMIC_RELEASE); }

/* Records of closed objects are used again, those of each class of sizes apart; their memory is never given back. */
#define POOLS 9
static const size_t pool_sizes[POOLS] = {
    sizeof(struct ofi_mr), sizeof(struct ofi_fabric), sizeof(struct ofi_domain), sizeof(struct ofi_eq), sizeof(struct ofi_av),
    sizeof(struct ofi_cq), sizeof(struct ofi_counter), sizeof(struct ofi_ep),
};
static struct ofi_record *pools[POOLS];
#define REFILL (256 << 10)

struct ofi_record *ofi_new(unsigned class, size_t size, struct fid *fid, void (*tables)(struct ofi_record *, bool))
{
    unsigned pool = 0;
    while (pool_sizes[pool] != size)
        pool++;
    int saved = errno;
    size_t step = (size + 63) & ~(size_t)63;
    ofi_lock();
    if (!pools[pool]) {
        char *p = mmap(NULL, REFILL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t at = 0; p != MAP_FAILED && at + step <= REFILL; at += step) {
            struct ofi_record *r = (struct ofi_record *)(void *)(p + at);
            r->next = pools[pool];
            pools[pool] = r;
        }
    }
    struct ofi_record *r = pools[pool];
    if (r)
        pools[pool] = r->next;
    ofi_unlock();
    errno = saved;
    if (!r) {
        ofi_blind("no memory for an object's record");
        return NULL;
    }
    memset(r, 0, size);
    r->fid = fid;
    r->tables = tables;
    r->class = (uint16_t)class;
    r->pool = (uint16_t)pool;
    return r;
}

void ofi_free(struct ofi_record *r)
{
    ofi_lock();
    r->next = pools[r->pool];
    pools[r->pool] = r;
    ofi_unlock();
}

static void gone(struct ofi_record *r)
{
    struct st_object *o = st_unknown;
    switch (r->class) {
    case FI_CLASS_EP: case FI_CLASS_SEP: case FI_CLASS_RX_CTX: case FI_CLASS_SRX_CTX: case FI_CLASS_TX_CTX:
        ofi_endpoint_gone((struct ofi_ep *)r);
        break;
    case FI_CLASS_CQ: o = st_find(ST_KIND_OFI_CQ, (uintptr_t)r); break;
    case FI_CLASS_CNTR: o = st_find(ST_KIND_OFI_COUNTER, (uintptr_t)r); break;
    case FI_CLASS_MR: o = st_find(ST_KIND_OFI_MR, (uintptr_t)r); break;
    }
    if (o->id)
        st_object_end(o);
}

/* The tables go back first: the object's memory may be gone afterwards, and be another object's. */
int ofi_close(struct fid *fid)
{
    struct ofi_record *r = OFI_OF(fid->ops, ofi_record, ops);
    struct ofi_slow s = ofi_begin();
    r->tables(r, false);
    int rc = r->ops.real->close(fid);
    if (rc) {
        r->tables(r, true);
    } else {
        if (r->class == FI_CLASS_CQ && s.t)
            st_polls_end(s.t, st_find(ST_KIND_OFI_CQ, (uintptr_t)r));
        gone(r);
        ofi_free(r);
    }
    ofi_end(s);
    return rc;
}
