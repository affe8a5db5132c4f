/*
 * NCCL's profiler interface, versions 2 to 6: what a plugin exports, and what NCCL passes to it. Facts are those of NCCL's headers (src/include/plugin/profiler,
 * releases 2.24 to 2.29), which is where the names in comments are from. A version that is not here is not ours to speak.
 */
#ifndef NCCL_H
#define NCCL_H

#include "recorder.h"

#include <sys/types.h>

enum { NCCL_OLDEST = 2, NCCL_NEWEST = 6 };

/* ncclProfiler_vN_t: the same in all versions but for the arguments of init and the descriptor of start. */
struct nccl_plugin {
    const char *name;
    void (*init)(void);
    int (*start)(void *context, void **handle, void *descriptor);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, void *arguments);
    int (*finalize)(void *context);
};

typedef void nccl_log(int level, unsigned long flags, const char *file, int line, const char *format, ...);
typedef int nccl_init_2(void **context, int *events);
typedef int nccl_init_4(void **context, int *events, const char *name, uint64_t hash, int nodes, int ranks, int rank, nccl_log *log);
typedef int nccl_init_5(void **context, uint64_t hash, int *events, const char *name, int nodes, int ranks, int rank, nccl_log *log);

enum nccl_type {
    NCCL_GROUP = 1, NCCL_COLL = 2, NCCL_P2P = 4, NCCL_PROXY_OP = 8, NCCL_PROXY_STEP = 16, NCCL_PROXY_CTRL = 32, NCCL_KERNEL_CH = 64, NCCL_NET_PLUGIN = 128,
    NCCL_GROUP_API = 256, NCCL_COLL_API = 512, NCCL_P2P_API = 1024, NCCL_KERNEL_LAUNCH = 2048, NCCL_CE_COLL = 4096, NCCL_CE_SYNC = 8192, NCCL_CE_BATCH = 16384,
};

enum nccl_state {
    NCCL_SEND_POSTED = 0, NCCL_SEND_TRANSMITTED = 2, NCCL_RECV_POSTED = 4, NCCL_RECV_RECEIVED = 5, /* of a proxy operation, versions 2 and 3 */
    NCCL_STEP_SEND_WAIT = 9, NCCL_STEP_RECV_WAIT = 10, NCCL_STEP_RECV_FLUSH_WAIT = 11,           /* of a step */
    NCCL_IN_PROGRESS = 19,                                                                      /* of a proxy operation, from version 4 */
};

/* What begins a descriptor; then comes a union by type. The type is a byte before version 5, and what pads it is not set. */
struct nccl_descriptor {
    uint64_t type;
    void *parent;
    int rank;
    union {
        struct nccl_named { /* versions 2 and 3 name the communicator in each task */
            const char *name;
            uint64_t hash;
            union {
                struct {
                    uint64_t sequence;
                    const char *function;
                    const void *send_buffer;
                    void *receive_buffer;
                    size_t count;
                    int root;
                    const char *datatype;
                    union {
                        struct {
                            size_t traffic_bytes;
                            uint8_t channels, warps;
                            const char *algorithm, *protocol;
                        } v2;
                        struct {
                            uint8_t channels, warps;
                            const char *algorithm, *protocol;
                        } v3;
                    };
                } collective;
                struct {
                    const char *function;
                    void *buffer;
                    const char *datatype;
                    size_t count;
                    int peer;
                } p2p;
            };
        } named;
        struct {
            uint64_t sequence;
            const char *function;
            const void *send_buffer;
            void *receive_buffer;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels, warps;
            const char *algorithm, *protocol;
            void *group; /* from version 5 */
        } collective;
        struct {
            const char *function;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
            void *group; /* from version 5 */
        } p2p;
        struct {
            pid_t pid;
            uint8_t channel;
            int peer, steps, chunk, is_send;
        } proxy;
        struct {
            int step;
        } step;
    };
};
_Static_assert(offsetof(struct nccl_descriptor, parent) == 8 && offsetof(struct nccl_descriptor, rank) == 16 && offsetof(struct nccl_descriptor, collective) == 24, "ncclProfilerEventDescr");
_Static_assert(offsetof(struct nccl_descriptor, named.collective.v2.channels) == 104 && offsetof(struct nccl_descriptor, named.collective.v2.protocol) == 120, "ncclProfilerEventDescr_v2_t.coll");
_Static_assert(offsetof(struct nccl_descriptor, named.collective.v3.channels) == 96 && offsetof(struct nccl_descriptor, named.collective.v3.protocol) == 112, "ncclProfilerEventDescr_v3_t.coll");
_Static_assert(offsetof(struct nccl_descriptor, collective.channels) == 80 && offsetof(struct nccl_descriptor, collective.group) == 104, "ncclProfilerEventDescr_v5_t.coll");
_Static_assert(offsetof(struct nccl_descriptor, p2p.channels) == 60 && offsetof(struct nccl_descriptor, p2p.group) == 64, "ncclProfilerEventDescr_v5_t.p2p");
_Static_assert(offsetof(struct nccl_descriptor, proxy.is_send) == 44, "ncclProfilerEventDescr.proxyOp");

/* Bytes of a descriptor by version. */
static const uint8_t nccl_descriptor_size[] = {[2] = 128, [3] = 120, [4] = 104, [5] = 112, [6] = 112};

/* ncclProfilerEventStateArgs: what is read of it. */
union nccl_arguments {
    size_t moved; /* of a proxy operation, versions 2 and 3: so far; of a step: its own */
};

/* A communicator as NCCL's context. Lies in ordinary memory: what the recorder knows of it is an object by its place here. */
struct nccl_communicator {
    uint32_t used;
    bool chained; /* the other plugin has it too */
    void *theirs; /* the other plugin's context */
    uint64_t unrecorded, unrelated;
};

/* What is remembered of a task, proxy operation or step between its start and stop, and of tasks as parents beyond that. */
enum nccl_kind { NCCL_TASK, NCCL_PROXY, NCCL_STEP };
struct nccl_slot {
    uint64_t number; /* 0: nothing yet */
    uint32_t live;
    uint32_t communicator;
    void *theirs; /* the other plugin's handle */
    uint64_t of;  /* of a step: number of its proxy operation */
    uint64_t moved;
    uint32_t step;
    uint32_t begun; /* of a proxy operation: it has been said to be in progress */
};

/* nccl_chain.c: the plugin that a program has beside us. */
extern struct nccl_chain {
    const struct nccl_plugin *plugin; /* NULL: none */
    unsigned version;
    int events, seen; /* its mask, which it may change at any time; what was last passed on to NCCL */
} nccl_chain;
enum { NCCL_INTERNAL_ERROR = 3 };
/* The thread is in the other plugin's init: what that looks up is for itself. Nor is ours to be called from there, as one that it has found in a way that was not seen might be: it would call that plugin again. */
extern __thread unsigned nccl_in_plugin;
st_pick nccl_pick;
bool nccl_delivers(uint64_t type, int events);
int nccl_chain_start(void *context, void **handle, const struct nccl_descriptor *d, uint64_t type, bool elsewhere);

/* nccl_slots.c */
struct nccl_slot *nccl_take(enum nccl_kind kind, uint32_t communicator, void **handle);
struct nccl_slot *nccl_slot(const void *handle, enum nccl_kind *kind);
bool nccl_is_ours(const void *handle);

/* nccl_record.c */
void nccl_record_communicator(uint32_t index, uint64_t hash, const char *name, int rank, int ranks, int nodes);
void nccl_record_plugin(unsigned version, int events, int refused);
void nccl_record_end(uint32_t index);
void nccl_record_task(const struct nccl_slot *s, const struct nccl_descriptor *d, unsigned version, bool collective);
void nccl_record_task_end(const struct nccl_slot *s);
void nccl_record_proxy(const struct nccl_slot *s, const struct nccl_descriptor *d, uint64_t task, bool elsewhere);
void nccl_record_state(unsigned event, const struct nccl_slot *s);
void nccl_record_step(const struct nccl_slot *proxy, uint64_t step, uint64_t bytes);

/* nccl.c */
enum { NCCL_COMMUNICATORS = 1024 };
extern struct nccl_communicator nccl_communicators[NCCL_COMMUNICATORS + 1]; /* the last stands for those of other processes, whose proxy operations are worked on here */
extern const struct nccl_plugin nccl_plugins[NCCL_NEWEST + 1];

#endif
