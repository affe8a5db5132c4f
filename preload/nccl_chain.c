/* The profiler plugin that a program has beside us, and how both are found. */
#define _GNU_SOURCE
#include "nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/*
 * NCCL opens the library that NCCL_PROFILER_PLUGIN (the environment or nccl.conf) names, else libnccl-profiler.so, and looks ncclProfiler_vN up in it from the newest version
 * down to the first it finds. Objects with this provider have that name as theirs (DT_SONAME), so that an NCCL for which nothing is set finds them; and they export none of those symbols:
 * each look-up comes here, is answered with ours, and what the library itself has is called through it. So a version that the other plugin does not speak is not
 * offered, and one that we do not speak is left to it alone.
 */
struct nccl_chain nccl_chain;
__thread unsigned nccl_in_plugin;
static const char default_name[] = "libnccl-profiler.so";

/* Whether a handle is of an object of ours: this one, or another that stands before it. */
static bool is_ours(void *handle)
{
    struct link_map *m = NULL;
    if (!handle || dlinfo(handle, RTLD_DI_LINKMAP, &m) || !m || !m->l_name)
        return false;
    const char *slash = strrchr(m->l_name, '/'), *base = slash ? slash + 1 : m->l_name;
    return !strncmp(base, "libsigmatrace.", 14) || !strcmp(base, "provider-nccl.so");
}

/* The library of the usual name that the caller would have found without us, by its own search path. NULL: none. */
static void *find_hidden(const void *caller)
{
    static Dl_serinfo size; /* the list is as long as its first two fields say */
    union {
        Dl_serinfo info;
        char room[16384];
    } list;
    char path[PATH_MAX];
    Dl_info who;
    void *found = NULL, *h = dladdr(caller, &who) && who.dli_fname ? dlopen(who.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (!h)
        h = dlopen(NULL, RTLD_LAZY); /* the program itself is not found by its name */
    if (h && !dlinfo(h, RTLD_DI_SERINFOSIZE, &size) && size.dls_size <= sizeof list) {
        list.info = size;
        if (!dlinfo(h, RTLD_DI_SERINFO, &list.info))
            for (unsigned i = 0; !found && i < list.info.dls_cnt; i++) {
                int n = snprintf(path, sizeof path, "%s/%s", list.info.dls_serpath[i].dls_name, default_name);
                if (n > 0 && (size_t)n < sizeof path && !access(path, R_OK))
                    found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
                if (found && is_ours(found)) {
                    dlclose(found);
                    found = NULL;
                }
            }
    }
    if (h)
        dlclose(h);
    return found;
}

static bool in_use(void)
{
    for (unsigned i = 0; i < NCCL_COMMUNICATORS; i++)
        if (__atomic_load_n(&nccl_communicators[i].used, __ATOMIC_ACQUIRE))
            return true;
    return false;
}

/* Whether it is a plugin that looks up: one may pass its events on to others, which it finds as NCCL has found it. The program itself may have NCCL in it as well. */
static bool is_plugin(const void *caller)
{
    char name[] = "ncclProfiler_v0";
    Dl_info who;
    struct link_map *m = NULL;
    void *h = dladdr(caller, &who) && who.dli_fname ? dlopen(who.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    bool plugin = false;
    if (h && !dlinfo(h, RTLD_DI_LINKMAP, &m) && m && m->l_prev) /* the first of the list is the program */
        for (char v = '1'; v <= '9' && !plugin; v++) {
            name[sizeof name - 2] = v;
            void *p = st_real_dlsym(h, name);
            Dl_info whose;
            plugin = p && dladdr(p, &whose) && whose.dli_fbase == who.dli_fbase; /* and not a library that it needs */
        }
    if (h)
        dlclose(h);
    return plugin;
}

/* What NCCL is to get for ncclProfiler_vN: NULL leaves it with what the library has. NCCL holds a lock meanwhile. */
void *nccl_pick(const struct st_hook *h, void *real, void *handle, const void *caller)
{
    static void *hidden;
    static int looked;
    int saved = errno;
    unsigned version = (unsigned)(h->name[strlen(h->name) - 1] - '0');
    bool known = version >= NCCL_OLDEST && version <= NCCL_NEWEST, ours = is_ours(handle);
    void *answer = NULL;
    if (ours && !real) {
        if (!looked) {
            hidden = find_hidden(caller);
            looked = 1;
        }
        if (hidden)
            real = st_real_dlsym(hidden, h->name);
        answer = real;
    }
    if (known && !nccl_in_plugin && !is_plugin(caller) && st_nccl_events() && (real || (ours && !hidden)) && (real == nccl_chain.plugin || !in_use())) {
        nccl_chain.plugin = real;
        nccl_chain.version = version;
        answer = (void *)&nccl_plugins[version];
    }
    errno = saved;
    return answer;
}

/* Whether NCCL passes events of a type to a plugin with a mask: parents go with their children. */
bool nccl_delivers(uint64_t type, int events)
{
    enum {
        OF_STEPS = NCCL_PROXY_STEP | NCCL_NET_PLUGIN,
        OF_PROXY = NCCL_PROXY_OP | OF_STEPS,
        OF_TASKS = OF_PROXY | NCCL_KERNEL_CH,
        OF_CE = NCCL_CE_COLL | NCCL_CE_SYNC | NCCL_CE_BATCH,
        OF_GROUP = NCCL_GROUP | NCCL_COLL | NCCL_P2P | OF_TASKS,
    };
    int by = (int)type;
    switch (type) {
    case NCCL_GROUP: by = OF_GROUP; break;
    case NCCL_COLL: by = NCCL_COLL | OF_TASKS; break;
    case NCCL_P2P: by = NCCL_P2P | OF_TASKS; break;
    case NCCL_PROXY_OP: by = OF_PROXY; break;
    case NCCL_PROXY_STEP: by = OF_STEPS; break;
    case NCCL_GROUP_API: by = OF_GROUP | NCCL_GROUP_API | NCCL_COLL_API | NCCL_P2P_API | NCCL_KERNEL_LAUNCH | OF_CE; break;
    case NCCL_COLL_API: by = NCCL_COLL_API | NCCL_COLL | OF_TASKS | OF_CE; break;
    case NCCL_P2P_API: by = NCCL_P2P_API | NCCL_P2P | OF_TASKS; break;
    case NCCL_CE_COLL: by = OF_CE; break;
    }
    return events & by;
}

/* The other plugin's handle for one that NCCL has. */
static void *translate(void *handle)
{
    enum nccl_kind kind;
    struct nccl_slot *s = nccl_slot(handle, &kind);
    return s ? s->theirs : nccl_is_ours(handle) ? NULL : handle;
}

/* Passes an event on with the parents that the other plugin knows; those of another process as they are. */
int nccl_chain_start(void *context, void **handle, const struct nccl_descriptor *d, uint64_t type, bool elsewhere)
{
    if (!nccl_delivers(type, __atomic_load_n(&nccl_chain.events, __ATOMIC_RELAXED)))
        return 0;
    struct nccl_descriptor theirs;
    memcpy(&theirs, d, nccl_descriptor_size[nccl_chain.version]);
    theirs.parent = elsewhere ? d->parent : translate(d->parent);
    if (type == NCCL_PROXY_STEP && !theirs.parent)
        return 0; /* it wanted nothing of the operation */
    if (nccl_chain.version >= 5 && type == NCCL_COLL)
        theirs.collective.group = translate(d->collective.group);
    if (nccl_chain.version >= 5 && type == NCCL_P2P)
        theirs.p2p.group = translate(d->p2p.group);
    return nccl_chain.plugin->start(context, handle, &theirs);
}
