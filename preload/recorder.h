/*
 * What a provider needs to record. A hook looks like this:
 *
 *     int hook(struct thing *x, ...)
 *     {
 *         struct st_thread *t = st_enter(ST_LAYER_VERBS);       NULL: off, or called from inside another hook of this layer
 *         uint64_t begin = st_clock();
 *         int rc = original(x, ...);
 *         if (t) {
 *             if (rc == 0) record(t, ...);                      st_count() in every mode, st_rec_LAYOUT() as st_mode says
 *             st_leave(t, ST_LAYER_VERBS);
 *         }
 *         return rc;
 *     }
 *
 * Rules. Nothing here fails: what cannot be recorded is counted as lost. errno is as it was: the fast paths make no system call, the
 * slow ones save and restore it. Everything reached through struct st_thread and struct st_object lies in memory that is wiped in
 * a forked child (st_find then finds nothing and st_enter starts a new file at the child's first call); so originals of patched
 * function tables are kept in ordinary static memory of the provider, never in an object.
 */
#ifndef ST_RECORDER_H
#define ST_RECORDER_H

#include "clock.h"
#include "format.h"
#include "libc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_EXPORT __attribute__((visibility("default"))) /* the program, or a library of its, may look it up */
#ifdef ST_WHOLE /* recorder and providers are one object */
#define ST_PUBLIC __attribute__((visibility("hidden")))
#else
#define ST_PUBLIC __attribute__((visibility("default")))
#endif
#define st_likely(x) __builtin_expect(!!(x), 1)
#define st_unlikely(x) __builtin_expect(!!(x), 0)

enum st_mode { ST_AGGREGATE, ST_SIMPLE, ST_FULL };
enum st_layer { ST_LAYER_UCP = 0, ST_LAYER_VERBS = 1, ST_LAYER_UCT = 2, ST_LAYER_OFI = 3, ST_LAYER_APP = 4, ST_LAYER_DOORBELL = 5, ST_LAYER_GPU = 6, ST_LAYER_NCCL = 7, ST_LAYERS = 8 };

#define ST_FIELDS 16 /* most fields of a layout */
#define ST_SLOTS 60
#define ST_SEEN 1024
#define ST_WAYS 8      /* templates of one event, chosen by the object's id */
#define ST_EVENT_IDS 160
#define ST_OBJECT_AGGREGATES 16
#define ST_PHASES 64 /* deeper ones are recorded, but make no epoch */

/* A template: what the encoder expects next (FORMAT.md, Event chunks). */
struct st_slot {
    uint32_t event;
    uint32_t used; /* in this chunk */
    uint64_t next[ST_FIELDS];
    uint64_t stride[ST_FIELDS];
    uint64_t candidate[ST_FIELDS];
};

/* A run of polls that found nothing on one queue. */
struct st_polls {
    struct st_object *queue;
    uint32_t id;
    uint64_t count, first, last;
};
#define ST_POLLED 8
#define ST_POLLS_LONGEST (1u << 24) /* ticks: a longer run is recorded in pieces */

/* A thread's recording state. */
struct st_thread {
    uint8_t gate[ST_LAYERS]; /* 1: the next call of this layer is recorded. 0: inside a hook, or this state is not ready */
    uint8_t busy; /* what is recorded is half written, or the lock is held: a signal's handler must not touch it (st_busy) */
    uint32_t index;
    uint32_t ready;
    uint32_t look;  /* counts until the next look at what is due (st_look): ST_LOOK to 1 */
    uint64_t owner; /* of the aggregate entries it counts on: thread index, epoch above; other threads set it */
    uint8_t *cur;   /* where the next record goes */
    uint8_t *limit; /* end of the payload; NULL: no chunk, or it is to be ended: other threads set it */
    uint8_t *base;  /* first payload byte */
    uint64_t last;  /* time of the previous record */
    uint64_t records;
    struct st_block *block;
    uint8_t slot_of[ST_EVENT_IDS][ST_WAYS]; /* 1 + slot, 0: none */
    struct st_slot slots[ST_SLOTS + 1];     /* [0] never matches: no object has its next[0] */
    uint32_t slots_used;
    struct st_polls polls[ST_POLLED]; /* open runs of empty polls, by the queue's id */
    /* slow-path state */
    uint32_t sequence;
    uint32_t evict;
    uint32_t lowered; /* ticks by which a record preceded the chunk's first time */
    uint64_t highest; /* latest time in the chunk */
    uint64_t opened;  /* time of the last clock pair */
    uint64_t place;   /* the chunk's offset in the file */
    uint64_t looked; /* monotonic time of the last look */
    uint32_t generation;      /* of the window that the chunk was begun in */
    uint32_t depth;           /* phases that the thread is in */
    struct st_phase {
        uint32_t name, epoch;
        const void *domain;
    } phases[ST_PHASES];
    struct st_object *track;  /* of its phases */
    uint32_t seen[ST_SEEN]; /* 1 + id of the objects that last had a counters record in this chunk, by id */
    struct st_thread *next, *all; /* idle states; all states */
};

/* A thing that operations belong to: endpoint, worker, queue pair, completion queue ... */
struct st_object {
    uint32_t id;
    uint16_t kind; /* enum st_kind */
    uint16_t flags; /* provider's own */
    uint64_t key;
    struct st_aggregate *aggregate[ST_OBJECT_AGGREGATES]; /* by event id modulo 16: the entry last used */
    struct st_entry *entries;                             /* all entries, any thread */
    uint64_t user[4];                                     /* provider's own */
};

enum st_kind {
    ST_KIND_WORKER = 1, ST_KIND_ENDPOINT,
    ST_KIND_DEVICE, ST_KIND_PD, ST_KIND_MR, ST_KIND_CQ, ST_KIND_QP, ST_KIND_SRQ, ST_KIND_AH,
    ST_KIND_QPN, /* second name of a queue pair: key = context's object id << 24 | qpn */
    ST_KIND_UAR, ST_KIND_UMEM,
    ST_KIND_UAR_NUMBER, ST_KIND_UMEM_NUMBER, ST_KIND_CQN, /* second names of those and of completion queues: mlx5dv_devx.c */
    ST_KIND_UCT_INTERFACE = 20, ST_KIND_UCT_ENDPOINT,
    ST_KIND_OFI_ENDPOINT = 30, ST_KIND_OFI_PEER, ST_KIND_OFI_CQ, ST_KIND_OFI_COUNTER, ST_KIND_OFI_MR,
    ST_KIND_TRACK = 40, /* key: thread index, 0 of the process */
    ST_KIND_GPU_DEVICE = 50, ST_KIND_GPU_STREAM, ST_KIND_GPU_FUNCTION, ST_KIND_GPU_TRACK, ST_KIND_GPU_QUEUE, /* as CUPTI numbers streams */
    ST_KIND_GPU_HANDLE, /* of a function */
    ST_KIND_NCCL_COMMUNICATOR = 60, /* key: its place in the provider, from 1 */
    ST_KIND_NCCL_NAME, /* key: hash of a text */
};

extern ST_PUBLIC __thread struct st_thread *st_self __attribute__((tls_model("initial-exec")));
extern ST_PUBLIC _Atomic uint32_t st_mode; /* enum st_mode: the profile's while the window is open, else ST_AGGREGATE. It may change within a hook */
extern ST_PUBLIC struct st_object *st_unknown; /* id 0: stands for an object whose creation was not seen */

/* ---- entering and leaving ------------------------------------------------------------------------------------------------ */

ST_PUBLIC struct st_thread *st_enter_slow(enum st_layer layer);

/* Opens a hook of the layer: the calling thread's state, or NULL when this call is not to be recorded. Makes the capture file and
 * the thread's state at the first call. */
static inline struct st_thread *st_enter(enum st_layer layer)
{
    struct st_thread *t = st_self;
    if (st_unlikely(!t->gate[layer] || t->busy))
        return st_enter_slow(layer);
    t->gate[layer] = 0;
    return t;
}

static inline void st_leave(struct st_thread *t, enum st_layer layer) { t->gate[layer] = t->ready; }

/* A signal's handler may call any layer, and finds the thread wherever it is. Between these two it records nothing (st_enter counts what is
 * lost): the thread's state is not whole there. They nest. */
static inline void st_busy(struct st_thread *t)
{
    *(volatile uint8_t *)&t->busy += 1;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
static inline void st_idle(struct st_thread *t)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    *(volatile uint8_t *)&t->busy -= 1;
}

/* For a callback of the application that is run from inside a hook: lets its calls be recorded. Returns what st_close takes. */
static inline uint8_t st_open(enum st_layer layer)
{
    struct st_thread *t = st_self;
    uint8_t was = t->gate[layer];
    t->gate[layer] = t->ready;
    return was;
}
static inline void st_close(enum st_layer layer, uint8_t was) { st_self->gate[layer] = was; }

/* Whether the profile wants UCX recorded down to UCT (ucx.level). Reads the configuration, but makes no file. */
ST_PUBLIC bool st_wants_uct(void);
/* What the profile wants of kernels (gpu.kernels), as it is for the mode. Reads the configuration, but makes no file. */
enum st_kernels { ST_KERNELS_OFF, ST_KERNELS_LAUNCHES, ST_KERNELS_TIMES };
ST_PUBLIC enum st_kernels st_wants_kernels(void);
/* The events of NCCL's profiler interface that the profile asks for (nccl.events); 0 where nothing is recorded. */
ST_PUBLIC int st_nccl_events(void);

/* What the profile says of doorbells ([doorbell]). */
struct st_doorbells {
    bool enabled;
    uint32_t threads;   /* at most */
    uint8_t poll;       /* enum spin */
    uint32_t threshold; /* elements: batch_threshold */
    const char *cpus;   /* ranges; "": any */
};
/* false: nothing is recorded. Reads the configuration, but makes no file. */
ST_PUBLIC bool st_doorbells(struct st_doorbells *out);
/* Whether n is in a list of ranges such as "0-7,16"; -1 where it is none. */
ST_PUBLIC int st_in_ranges(const char *list, uint64_t n);

/* ---- objects ------------------------------------------------------------------------------------------------------------- */

struct st_name {
    uint64_t key; /* the key with the kind in its top byte */
    struct st_object *object;
    struct st_name *next;
};
#define ST_BUCKETS 65536
extern ST_PUBLIC struct st_name **st_buckets;

static inline uint64_t st_name_key(enum st_kind kind, uint64_t key) { return key ^ (uint64_t)kind << 56; }
static inline unsigned st_bucket(uint64_t key) { return (unsigned)(key * 0x9e3779b97f4a7c15ull >> 48); }

/* Looks up an object by its kind and key (a pointer or number). Never NULL: st_unknown when there is none. Lock-free. */
static inline struct st_object *st_find(enum st_kind kind, uint64_t key)
{
    key = st_name_key(kind, key);
    struct st_name *n = __atomic_load_n(&st_buckets[st_bucket(key)], __ATOMIC_ACQUIRE);
    for (; n; n = __atomic_load_n(&n->next, __ATOMIC_RELAXED))
        if (n->key == key)
            return n->object;
    return st_unknown;
}
/* Makes an object; replaces one of the same kind and key. Never NULL: st_unknown when the table is full (counted). */
ST_PUBLIC struct st_object *st_object_new(enum st_kind kind, uint64_t key);
/* Gives an object a second name. */
ST_PUBLIC void st_object_alias(struct st_object *o, enum st_kind kind, uint64_t key);
/* Forgets one name of an object without ending it. */
ST_PUBLIC void st_object_forget(enum st_kind kind, uint64_t key);
/* Ends an object (records object_end) and forgets its first name. Its aggregates stay in the file. */
ST_PUBLIC void st_object_end(struct st_object *o);

/* ---- aggregates: in every mode --------------------------------------------------------------------------------------------- */

ST_PUBLIC void st_count_slow(struct st_thread *t, struct st_object *o, unsigned event, uint64_t peer, uint64_t bytes, unsigned calls);

static inline unsigned st_size_class(uint64_t bytes)
{
    unsigned c = bytes ? 64 - (unsigned)__builtin_clzll(bytes) : 0;
    return c < 31 ? c : 31;
}

#define ST_LOOK 1024 /* counts of a thread between looks at what is due, at most */
ST_PUBLIC void st_look(struct st_thread *t);

static inline uint64_t st_owner(const struct st_thread *t) { return __atomic_load_n(&t->owner, __ATOMIC_RELAXED); }

static inline void st_add(struct st_thread *t, struct st_aggregate *a, uint64_t bytes, unsigned calls)
{
    a->count++;
    a->bytes += bytes;
    a->calls += calls;
    a->sizes[st_size_class(bytes)]++;
    if (st_unlikely(!--t->look))
        st_look(t);
}

/* Counts one accepted request (or completion) of `event` on o. calls: 1 for the first request of a posting call, else 0. Call it
 * after the request's st_rec_...: the counters that precede an object's first record in a chunk leave that record out. */
static inline void st_count(struct st_thread *t, struct st_object *o, unsigned event, uint64_t bytes, unsigned calls)
{
    struct st_aggregate *a = __atomic_load_n(&o->aggregate[event % ST_OBJECT_AGGREGATES], __ATOMIC_ACQUIRE);
    if (st_unlikely(!a || a->owner != st_owner(t) || a->peer)) {
        st_count_slow(t, o, event, 0, bytes, calls);
        return;
    }
    st_add(t, a, bytes, calls);
}

/* The same for an unconnected queue pair: the peer is part of the key (FORMAT.md, Aggregate blocks). */
static inline void st_count_peer(struct st_thread *t, struct st_object *o, unsigned event, uint64_t peer, uint64_t bytes, unsigned calls)
{
    struct st_aggregate *a = __atomic_load_n(&o->aggregate[event % ST_OBJECT_AGGREGATES], __ATOMIC_ACQUIRE);
    if (st_unlikely(!a || a->owner != st_owner(t) || a->peer != peer)) {
        st_count_slow(t, o, event, peer, bytes, calls);
        return;
    }
    st_add(t, a, bytes, calls);
}

/* ---- events: st_rec_LAYOUT(t, now, event, object, fields...) and definitions: st_def_NAME(fields...) -------------------------- */

struct st_layout {
    uint8_t fields;
    uint8_t predicted;
    uint16_t always;      /* bit per field */
    uint16_t stride;      /* bit per field */
    uint16_t is_signed;   /* bit per field */
    uint16_t raw;         /* bit per field: v[i] is a pointer to struct st_raw */
    uint8_t bytes;        /* index of the field that says how many bytes of payload; 0: none */
    uint8_t apart;        /* index of the field whose values have templates of their own; 0: none */
};

struct st_raw {
    const void *data;
    size_t size; /* at most 256 in an event, 8192 in a definition */
};

static inline uint8_t *st_limit(const struct st_thread *t) { return __atomic_load_n(&t->limit, __ATOMIC_RELAXED); }

/* Which of an event's templates a record goes by: value is that of the field `apart`. */
static inline unsigned st_way(const struct st_object *o, uint64_t value) { return (o->id + (unsigned)(value * 0x9e3779b97f4a7c15ull >> 61)) % ST_WAYS; }

/* The whole path of a record that is not a plain hit: opens chunks, replaces templates, counts what finds no room. Where `now` is 0,
 * nothing is recorded: hooks read no clock in ST_AGGREGATE, and the window may open before they record. */
ST_PUBLIC void st_record(struct st_thread *t, uint64_t now, unsigned event, struct st_object *o, const struct st_layout *l, const uint64_t *v);
/* Writes a time record, so that a record whose own time does not fit can be a hit: each call that others were recorded within, since it is
 * stamped before them. Returns the ticks that are left: 0, or now less the last time where there is no room for it. */
ST_PUBLIC uint64_t st_step(struct st_thread *t, uint64_t now);
/* Counts requests that were made and could not be read: totals are a lower bound then. */
ST_PUBLIC void st_missed(uint64_t now, uint64_t requests);
/* Records an open run of empty polls and ends it. */
ST_PUBLIC void st_polls_flush(struct st_thread *t, struct st_polls *run);

/* Counts a poll of queue that found nothing. Programs poll several queues in turn: each has a run of its own. */
static inline void st_polls_empty(struct st_thread *t, struct st_object *queue, uint64_t now)
{
    struct st_polls *r = &t->polls[queue->id % ST_POLLED];
    st_busy(t);
    if (st_unlikely(!r->count || r->id != queue->id || now - r->first > ST_POLLS_LONGEST)) {
        if (r->count)
            st_polls_flush(t, r);
        r->queue = queue;
        r->id = queue->id;
        r->first = now;
    }
    r->count++;
    r->last = now;
    st_idle(t);
}

/* Ends the run of queue, if there is one: call before recording what a poll found, and when the queue is armed or ends. */
static inline void st_polls_end(struct st_thread *t, struct st_object *queue)
{
    struct st_polls *r = &t->polls[queue->id % ST_POLLED];
    if (r->count && r->id == queue->id)
        st_polls_flush(t, r);
}

struct st_definition {
    uint8_t *buffer; /* NULL: nowhere to write */
    size_t used, size;
};
ST_PUBLIC struct st_definition st_define_begin(unsigned id, size_t size);
ST_PUBLIC void st_define_end(struct st_definition *d);

static inline uint8_t *st_varint(uint8_t *p, uint64_t v)
{
    while (v >= 0x80) {
        *p++ = (uint8_t)v | 0x80;
        v >>= 7;
    }
    *p++ = (uint8_t)v;
    return p;
}

static inline uint8_t *st_bytes(uint8_t *p, const void *data, size_t size)
{
    p = st_varint(p, size);
    if (size)
        __builtin_memcpy(p, data, size);
    return p + size;
}

/* ---- hooking ----------------------------------------------------------------------------------------------------------------- */

extern ST_PUBLIC void *(*st_real_dlsym)(void *handle, const char *name);
extern ST_PUBLIC void *(*st_real_dlvsym)(void *handle, const char *name, const char *version);
/* Finds the two above, which until then find nothing. */
ST_PUBLIC void st_resolve(void);
/* Whether a loaded object defines a symbol. */
struct dl_phdr_info;
ST_PUBLIC bool st_defines(const struct dl_phdr_info *info, const char *name);
/* A symbol of a library that is loaded but not in the global scope (opened by dlopen without RTLD_GLOBAL): of the first one behind the
 * caller, since what stands before it may be another preload. */
ST_PUBLIC void *st_next_local(const char *name, const char *version);
/* Keeps the library that a function is in loaded, whatever the program closes: its address is kept here. */
ST_PUBLIC void st_keep_loaded(const void *function);

/* The next definition of a symbol after the calling provider: by name, or by name and version where version is not NULL; NULL when
 * there is none. Never calls a hooked dlsym. Not inlined and not a tail call: RTLD_NEXT goes by the address of its caller. */
static __attribute__((noinline, unused)) void *st_next(const char *name, const char *version)
{
    st_resolve();
    void *p = version ? st_real_dlvsym((void *)-1l, name, version) : st_real_dlsym((void *)-1l, name);
    __asm__ volatile("" : "+r"(p) : : "memory");
    if (!p)
        p = st_next_local(name, version);
    st_keep_loaded(p);
    return p;
}

/* A symbol that programs may look up by dlsym or dlvsym with a handle of the library (and so pass round the preload). When such a
 * look-up finds the real symbol, *real is set to it unless it is set already, and the program gets ours. version: NULL = any. Where real
 * is NULL, ours is a function that answers: st_pick. */
struct st_hook {
    const char *name;
    const char *version;
    void *ours;
    void **real;
};
/* What a look-up of h's name is to get; NULL leaves it with `found`, the real answer, which is NULL where there is no such symbol. A table of these is asked in a
 * process that is off, too. */
typedef void *st_pick(const struct st_hook *h, void *found, void *handle, const void *caller);
/* Registers a table of hooks, ended by a NULL name; it must stay in place. prefix: all its names begin with it. Called from a provider's constructor. */
ST_PUBLIC void st_hooks(const char *prefix, const struct st_hook *table);

/* Safe copy of up to size bytes of this process's memory of unknown extent: what is readable from p on; returns how many. Slow. */
ST_PUBLIC size_t st_peek(void *to, const void *p, size_t size);

/* Hash that stored keys go through: not reversible by looking at the trace, equal for equal keys within the run. */
static inline uint64_t st_hash_key(uint64_t key)
{
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdull;
    key ^= key >> 33;
    key *= 0xc4ceb9fe1a85ec53ull;
    key ^= key >> 33;
    return key & 0xffffffff;
}

#include "events.gen.h"

#endif
