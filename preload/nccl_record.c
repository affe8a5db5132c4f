/* What is written of NCCL's events. */
#include "nccl.h"

#include <errno.h>

static struct st_object *object_of(uint32_t index) { return st_find(ST_KIND_NCCL_COMMUNICATOR, index + 1u); }

void nccl_record_communicator(uint32_t index, uint64_t hash, const char *name, int rank, int ranks, int nodes)
{
    struct st_thread *t = st_enter(ST_LAYER_NCCL);
    int saved = errno;
    if (!t)
        return;
    struct st_object *o = st_object_new(ST_KIND_NCCL_COMMUNICATOR, index + 1u);
    st_def_nccl_communicator(o->id, hash, name ? name : "", rank, (uint64_t)ranks, (uint64_t)nodes);
    st_leave(t, ST_LAYER_NCCL);
    errno = saved;
}

void nccl_record_plugin(unsigned version, int events, int refused)
{
    struct st_thread *t = st_enter(ST_LAYER_NCCL);
    int saved = errno;
    if (!t)
        return;
    const struct nccl_plugin *p = nccl_chain.plugin;
    st_def_nccl_plugin(version, (uint64_t)(unsigned)events, p && p->name ? p->name : "", (uint64_t)(unsigned)nccl_chain.events, refused);
    st_leave(t, ST_LAYER_NCCL);
    errno = saved;
}

void nccl_record_end(uint32_t index)
{
    struct st_object *o = object_of(index);
    struct st_thread *t = o == st_unknown ? NULL : st_enter(ST_LAYER_NCCL);
    int saved = errno;
    if (!t)
        return;
    st_def_nccl_communicator_end(o->id, nccl_communicators[index].unrecorded, nccl_communicators[index].unrelated);
    st_object_end(o);
    st_leave(t, ST_LAYER_NCCL);
    errno = saved;
}

/* The number of a text, told at its first use. Beyond the application's own names (ST_KIND_NCCL_NAME). */
enum { NAMES = 1 << 16 };
static uint64_t number_of(const char *text)
{
    uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a */
    if (!text)
        return 0;
    for (const char *c = text; *c; c++)
        h = (h ^ (unsigned char)*c) * 0x100000001b3ull;
    h >>= 8;
    struct st_object *o = st_find(ST_KIND_NCCL_NAME, h);
    if (o == st_unknown) {
        o = st_object_new(ST_KIND_NCCL_NAME, h);
        if (o == st_unknown)
            return 0;
        st_def_nccl_name(NAMES + o->id, text);
    }
    return NAMES + o->id;
}

/* Bytes of an element by the number of bits that its type's name has: ncclFloat32, ncclBfloat16, ncclFloat8e4m3. */
static uint64_t size_of(const char *datatype)
{
    unsigned bits = 0;
    for (const char *c = datatype ? datatype : ""; *c; c++)
        if (*c >= '0' && *c <= '9')
            bits = bits * 10 + (unsigned)(*c - '0');
        else if (bits)
            break;
    return bits / 8;
}

/* What all versions say of a task. */
struct told {
    uint64_t sequence, count;
    const char *function, *datatype, *algorithm, *protocol;
    int peer;
    unsigned channels;
};

static struct told read_task(const struct nccl_descriptor *d, unsigned version, bool collective)
{
    struct told a = {0};
#define ALL(x, rank)          \
    do {                      \
        a.count = (x).count;  \
        a.function = (x).function; \
        a.datatype = (x).datatype; \
        a.peer = (x).rank;    \
    } while (0)
#define MANNER(x)                   \
    do {                            \
        a.algorithm = (x).algorithm; \
        a.protocol = (x).protocol;  \
        a.channels = (x).channels;  \
    } while (0)
    if (version < 4 && collective) {
        ALL(d->named.collective, root);
        a.sequence = d->named.collective.sequence;
        if (version == 2)
            MANNER(d->named.collective.v2);
        else
            MANNER(d->named.collective.v3);
    } else if (version < 4) {
        ALL(d->named.p2p, peer);
    } else if (collective) {
        ALL(d->collective, root);
        a.sequence = d->collective.sequence;
        MANNER(d->collective);
    } else {
        ALL(d->p2p, peer);
        a.channels = d->p2p.channels;
    }
    return a;
}

void nccl_record_task(const struct nccl_slot *s, const struct nccl_descriptor *d, unsigned version, bool collective)
{
    struct st_object *o = object_of(s->communicator);
    if (version < 4 && o == st_unknown) {
        nccl_record_communicator(s->communicator, d->named.hash, d->named.name, d->rank, 0, 0);
        o = object_of(s->communicator);
    }
    struct st_thread *t = st_enter(ST_LAYER_NCCL);
    if (!t)
        return;
    if (st_mode != ST_AGGREGATE) {
        int saved = errno;
        uint64_t now = st_clock();
        struct told a = read_task(d, version, collective);
        st_rec_nccl_task(t, now, collective ? ST_EV_NCCL_COLLECTIVE : ST_EV_NCCL_POINT_TO_POINT, o, s->number, a.sequence, number_of(a.function), number_of(a.datatype),
                         a.count, a.count * size_of(a.datatype), a.peer, number_of(a.algorithm), number_of(a.protocol), a.channels);
        errno = saved;
    }
    st_leave(t, ST_LAYER_NCCL);
}

void nccl_record_task_end(const struct nccl_slot *s)
{
    struct st_thread *t = st_enter(ST_LAYER_NCCL);
    if (!t)
        return;
    if (st_mode != ST_AGGREGATE)
        st_rec_nccl_task_end(t, st_clock(), ST_EV_NCCL_TASK_END, object_of(s->communicator), s->number);
    st_leave(t, ST_LAYER_NCCL);
}

void nccl_record_proxy(const struct nccl_slot *s, const struct nccl_descriptor *d, uint64_t task, bool elsewhere)
{
    struct st_thread *t = st_enter(ST_LAYER_NCCL);
    if (!t)
        return;
    if (st_mode != ST_AGGREGATE)
        st_rec_nccl_proxy(t, st_clock(), ST_EV_NCCL_PROXY, object_of(s->communicator), s->number, task, elsewhere ? (uint64_t)(unsigned)d->proxy.pid : 0, d->proxy.channel,
                          d->proxy.peer, (uint64_t)d->proxy.steps, (uint64_t)d->proxy.chunk, d->proxy.is_send ? ST_NCCL_DIRECTION_SEND : ST_NCCL_DIRECTION_RECEIVE);
    st_leave(t, ST_LAYER_NCCL);
}

void nccl_record_state(unsigned event, const struct nccl_slot *s)
{
    struct st_thread *t = st_enter(ST_LAYER_NCCL);
    if (!t)
        return;
    if (st_mode != ST_AGGREGATE)
        st_rec_nccl_proxy_state(t, st_clock(), event, object_of(s->communicator), s->number, s->moved);
    st_leave(t, ST_LAYER_NCCL);
}

void nccl_record_step(const struct nccl_slot *proxy, uint64_t step, uint64_t bytes)
{
    struct st_thread *t = st_enter(ST_LAYER_NCCL);
    if (!t)
        return;
    if (st_mode != ST_AGGREGATE)
        st_rec_nccl_step(t, st_clock(), ST_EV_NCCL_STEP_POSTED, object_of(proxy->communicator), proxy->number, step, bytes);
    st_leave(t, ST_LAYER_NCCL);
}
