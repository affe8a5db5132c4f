/* NCCL's profiler plugin: each event is recorded, and passed on to the plugin that the program has beside us. */
#define _GNU_SOURCE
#include "nccl.h"

#include <errno.h>
#include <unistd.h>

struct nccl_communicator nccl_communicators[NCCL_COMMUNICATORS + 1];
static int asked_for; /* events that we want */
static int *mask;     /* NCCL's own: one for the process */
static pid_t process; /* as NCCL names it in proxy operations */

/* The other plugin may change its mask at any time, which NCCL knows by a pointer: it has one of ours instead. */
static void pass_mask_on(void)
{
    int events = __atomic_load_n(&nccl_chain.events, __ATOMIC_RELAXED);
    if (st_unlikely(events != nccl_chain.seen) && mask) {
        nccl_chain.seen = events;
        __atomic_store_n(mask, asked_for | events, __ATOMIC_RELAXED);
    }
}

static struct nccl_communicator *communicator_of(void *context)
{
    struct nccl_communicator *c = context;
    return (uintptr_t)c - (uintptr_t)nccl_communicators < NCCL_COMMUNICATORS * sizeof *c ? c : NULL;
}

/* ---- communicators ---------------------------------------------------------------------------------------------------------------------- */

/* A communicator has begun; result, events: what the other plugin's init returned. Returns what NCCL is to get. */
static int begin(void **context, int *events, unsigned version, void *theirs, int result, nccl_log *log)
{
    struct nccl_communicator *c = NULL;
    bool other = nccl_chain.plugin;
    for (unsigned i = 0; !c && i < NCCL_COMMUNICATORS; i++) {
        uint32_t none = 0;
        if (__atomic_compare_exchange_n(&nccl_communicators[i].used, &none, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            c = &nccl_communicators[i];
    }
    mask = events;
    process = getpid();
    asked_for = st_nccl_events();
    nccl_chain.seen = nccl_chain.events;
    *events = asked_for | nccl_chain.seen;
    if (!c) {
        *context = theirs;
        return result;
    }
    c->chained = other && !result;
    c->theirs = theirs;
    c->unrecorded = c->unrelated = 0;
    *context = c;
    if (log && other && result)
        log(3, 1, __FILE__, __LINE__, "PROFILER/Plugin: %s refused with %d; sigmatrace goes on without it", nccl_chain.plugin->name, result); /* NCCL_LOG_INFO, NCCL_INIT */
    nccl_record_plugin(version, *events, result);
    return 0;
}

static int init_old(void **context, int *events, unsigned version)
{
    int saved = errno, result = 0;
    void *theirs = NULL;
    if (nccl_in_plugin)
        return NCCL_INTERNAL_ERROR;
    if (nccl_chain.plugin) {
        nccl_in_plugin++;
        result = ((nccl_init_2 *)nccl_chain.plugin->init)(&theirs, &nccl_chain.events);
        nccl_in_plugin--;
    }
    result = begin(context, events, version, theirs, result, NULL);
    errno = saved;
    return result;
}

static void describe(void *context, uint64_t hash, const char *name, int nodes, int ranks, int rank)
{
    struct nccl_communicator *c = communicator_of(context);
    if (c)
        nccl_record_communicator((uint32_t)(c - nccl_communicators), hash, name, rank, ranks, nodes);
}

static int init_v2(void **context, int *events) { return init_old(context, events, 2); }
static int init_v3(void **context, int *events) { return init_old(context, events, 3); }

static int init_v4(void **context, int *events, const char *name, uint64_t hash, int nodes, int ranks, int rank, nccl_log *log)
{
    int saved = errno, result = 0;
    void *theirs = NULL;
    if (nccl_in_plugin)
        return NCCL_INTERNAL_ERROR;
    if (nccl_chain.plugin) {
        nccl_in_plugin++;
        result = ((nccl_init_4 *)nccl_chain.plugin->init)(&theirs, &nccl_chain.events, name, hash, nodes, ranks, rank, log);
        nccl_in_plugin--;
    }
    result = begin(context, events, 4, theirs, result, log);
    describe(*context, hash, name, nodes, ranks, rank);
    errno = saved;
    return result;
}

static int init_new(void **context, uint64_t hash, int *events, const char *name, int nodes, int ranks, int rank, nccl_log *log, unsigned version)
{
    int saved = errno, result = 0;
    void *theirs = NULL;
    if (nccl_in_plugin)
        return NCCL_INTERNAL_ERROR;
    if (nccl_chain.plugin) {
        nccl_in_plugin++;
        result = ((nccl_init_5 *)nccl_chain.plugin->init)(&theirs, hash, &nccl_chain.events, name, nodes, ranks, rank, log);
        nccl_in_plugin--;
    }
    result = begin(context, events, version, theirs, result, log);
    describe(*context, hash, name, nodes, ranks, rank);
    errno = saved;
    return result;
}

static int init_v5(void **context, uint64_t hash, int *events, const char *name, int nodes, int ranks, int rank, nccl_log *log)
{
    return init_new(context, hash, events, name, nodes, ranks, rank, log, 5);
}

static int init_v6(void **context, uint64_t hash, int *events, const char *name, int nodes, int ranks, int rank, nccl_log *log)
{
    return init_new(context, hash, events, name, nodes, ranks, rank, log, 6);
}

static int finalize(void *context)
{
    struct nccl_communicator *c = communicator_of(context);
    if (!c)
        return nccl_chain.plugin ? nccl_chain.plugin->finalize(context) : 0;
    void *theirs = c->theirs; /* NCCL ends none that has no context */
    bool chained = c->chained && theirs;
    nccl_record_end((uint32_t)(c - nccl_communicators));
    __atomic_store_n(&c->used, 0, __ATOMIC_RELEASE);
    return chained ? nccl_chain.plugin->finalize(theirs) : 0;
}

/* ---- events ----------------------------------------------------------------------------------------------------------------------------- */

static struct nccl_slot *begin_task(struct nccl_communicator *c, void **handle, const struct nccl_descriptor *d, bool collective)
{
    struct nccl_slot *s = nccl_take(NCCL_TASK, (uint32_t)(c - nccl_communicators), handle);
    if (s)
        nccl_record_task(s, d, nccl_chain.version, collective);
    return s;
}

/* elsewhere: its task and communicator are another process's, and so is the number in the handle of its parent. */
static struct nccl_slot *begin_proxy(struct nccl_communicator *c, void **handle, const struct nccl_descriptor *d, bool elsewhere)
{
    enum nccl_kind kind;
    struct nccl_slot *parent = elsewhere ? NULL : nccl_slot(d->parent, &kind), *s = nccl_take(NCCL_PROXY, (uint32_t)(c - nccl_communicators), handle);
    uint64_t task = elsewhere && nccl_is_ours(d->parent) ? (uintptr_t)d->parent & ((1ull << 52) - 1) : parent && kind == NCCL_TASK ? parent->number : 0;
    if (!task)
        c->unrelated++;
    if (s)
        nccl_record_proxy(s, d, task, elsewhere);
    return s;
}

static struct nccl_slot *begin_step(struct nccl_communicator *c, void **handle, const struct nccl_descriptor *d)
{
    enum nccl_kind kind;
    struct nccl_slot *parent = nccl_slot(d->parent, &kind), *s = parent && kind == NCCL_PROXY ? nccl_take(NCCL_STEP, (uint32_t)(c - nccl_communicators), handle) : NULL;
    if (s) {
        s->of = (uintptr_t)d->parent;
        s->step = (uint32_t)d->step.step;
    }
    return s;
}

static int start(void *context, void **handle, void *descriptor)
{
    const struct nccl_descriptor *d = descriptor;
    struct nccl_communicator *c = communicator_of(context);
    uint64_t type = nccl_chain.version < 5 ? (uint8_t)d->type : d->type;
    bool elsewhere = type == NCCL_PROXY_OP && d->proxy.pid != process; /* so is its context */
    struct nccl_slot *s = NULL;
    void *theirs = NULL;
    int result = 0;
    if (elsewhere)
        c = &nccl_communicators[NCCL_COMMUNICATORS];
    else if (c)
        context = c->theirs;
    pass_mask_on();
    if (nccl_chain.plugin && (!c || elsewhere || c->chained))
        result = nccl_chain_start(context, &theirs, d, type, elsewhere);
    *handle = theirs;
    if (!c || !nccl_delivers(type, asked_for)) /* there was no room for the communicator */
        return result;
    switch (type) {
    case NCCL_COLL: s = begin_task(c, handle, d, true); break;
    case NCCL_P2P: s = begin_task(c, handle, d, false); break;
    case NCCL_PROXY_OP: s = begin_proxy(c, handle, d, elsewhere); break;
    case NCCL_PROXY_STEP: s = begin_step(c, handle, d); break;
    default: return result;
    }
    if (s)
        s->theirs = theirs;
    else
        c->unrecorded++;
    return result;
}

static int stop(void *handle)
{
    enum nccl_kind kind;
    struct nccl_slot *s = nccl_slot(handle, &kind);
    void *theirs = s ? s->theirs : nccl_is_ours(handle) ? NULL : handle;
    if (s) {
        if (kind == NCCL_TASK)
            nccl_record_task_end(s);
        else if (kind == NCCL_PROXY)
            nccl_record_state(ST_EV_NCCL_PROXY_END, s);
        __atomic_store_n(&s->live, 0, __ATOMIC_RELEASE);
    }
    return theirs && nccl_chain.plugin ? nccl_chain.plugin->stop(theirs) : 0;
}

static void begun(struct nccl_slot *s)
{
    if (!s->begun)
        nccl_record_state(ST_EV_NCCL_PROXY_PROGRESS, s);
    s->begun = 1;
}

/* Versions 2 and 3 tell all of an operation, and what it has moved so far; a state comes just after what it names. */
static void proxy_state(struct nccl_slot *s, int state, const union nccl_arguments *a)
{
    switch (state) {
    case NCCL_IN_PROGRESS: begun(s); break;
    case NCCL_SEND_POSTED: begun(s); break;
    case NCCL_RECV_POSTED:
        begun(s);
        nccl_record_step(s, ++s->step, 0);
        break;
    case NCCL_SEND_TRANSMITTED:
        nccl_record_step(s, ++s->step, a ? a->moved - s->moved : 0);
        s->moved = a ? a->moved : s->moved;
        break;
    case NCCL_RECV_RECEIVED: s->moved = a ? a->moved : s->moved; break;
    }
}

/* From version 4 on, of a step: its bytes are told when they are known, and left over from another one before. */
static void step_state(const struct nccl_slot *s, int state, const union nccl_arguments *a)
{
    enum nccl_kind kind;
    struct nccl_slot *proxy = nccl_slot((void *)(uintptr_t)s->of, &kind);
    uint64_t bytes = a && (state == NCCL_STEP_SEND_WAIT || state == NCCL_STEP_RECV_FLUSH_WAIT) ? a->moved : 0;
    if (!proxy)
        return;
    proxy->moved += bytes;
    if (state == NCCL_STEP_SEND_WAIT || state == NCCL_STEP_RECV_WAIT)
        nccl_record_step(proxy, s->step, bytes);
}

static int record(void *handle, int state, void *arguments)
{
    enum nccl_kind kind;
    struct nccl_slot *s = nccl_slot(handle, &kind);
    void *theirs = s ? s->theirs : nccl_is_ours(handle) ? NULL : handle;
    if (s && kind == NCCL_PROXY)
        proxy_state(s, state, arguments);
    else if (s && kind == NCCL_STEP && nccl_chain.version >= 4)
        step_state(s, state, arguments);
    return theirs && nccl_chain.plugin ? nccl_chain.plugin->record(theirs, state, arguments) : 0;
}

#define PLUGIN(version) [version] = {"sigmatrace", (void (*)(void))init_v##version, start, stop, record, finalize}
const struct nccl_plugin nccl_plugins[NCCL_NEWEST + 1] = {PLUGIN(2), PLUGIN(3), PLUGIN(4), PLUGIN(5), PLUGIN(6)};

/* The versions that are not here are looked up in a library that we stand before (nccl_chain.c). */
#define HOOK(version) {"ncclProfiler_v" #version, NULL, (void *)nccl_pick, NULL}
static const struct st_hook hooks[] = {HOOK(1), HOOK(2), HOOK(3), HOOK(4), HOOK(5), HOOK(6), HOOK(7), HOOK(8), HOOK(9), {NULL, NULL, NULL, NULL}};

__attribute__((constructor)) static void offer(void) { st_hooks("ncclProfiler_v", hooks); }
