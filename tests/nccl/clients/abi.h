/*
 * NCCL's profiler interface as NCCL has it, version by version (facts of its src/include/plugin/profiler/profiler_v*.h): what the client fills in and the second plugin
 * reads. Apart from the recorder's own declarations, so that a mistake in these shows.
 */
#ifndef TESTS_NCCL_ABI_H
#define TESTS_NCCL_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { GROUP = 1, COLL = 2, P2P = 4, PROXY_OP = 8, PROXY_STEP = 16, PROXY_CTRL = 32, GROUP_API = 256, COLL_API = 512, P2P_API = 1024, KERNEL_LAUNCH = 2048 };

struct proxy_op { pid_t pid; uint8_t channel; int peer, steps, chunk, is_send; };
struct proxy_step { int step; };
struct named_p2p { const char *name; uint64_t hash; const char *func; void *buff; const char *datatype; size_t count; int peer; };

struct descr_v2 {
	uint8_t type; void *parent; int rank;
	union {
		struct { const char *name; uint64_t hash, seq; const char *func; const void *send; void *recv; size_t count; int root; const char *datatype;
			size_t traffic; uint8_t channels, warps; const char *algo, *proto; } coll;
		struct named_p2p p2p; struct proxy_op op; struct proxy_step step;
	};
};
struct descr_v3 {
	uint8_t type; void *parent; int rank;
	union {
		struct { const char *name; uint64_t hash, seq; const char *func; const void *send; void *recv; size_t count; int root; const char *datatype;
			uint8_t channels, warps; const char *algo, *proto; } coll;
		struct named_p2p p2p; struct proxy_op op; struct proxy_step step;
		struct { int64_t id; void *data; } net;
	};
};
struct descr_v4 {
	uint8_t type; void *parent; int rank;
	union {
		struct { uint64_t seq; const char *func; const void *send; void *recv; size_t count; int root; const char *datatype; uint8_t channels, warps;
			const char *algo, *proto; } coll;
		struct { const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t channels; } p2p;
		struct proxy_op op; struct proxy_step step;
	};
};
#define NEW_UNION                                                                                                                                                       \
	struct { bool captured; int depth; } group_api;                                                                                                                 \
	struct { const char *func; size_t count; const char *datatype; int root; void *stream; bool captured; } coll_api;                                               \
	struct { uint64_t seq; const char *func; const void *send; void *recv; size_t count; int root; const char *datatype; uint8_t channels, warps;                   \
		const char *algo, *proto; void *group; } coll;                                                                                                         \
	struct { const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t channels; void *group; } p2p;                                      \
	struct proxy_op op; struct proxy_step step;
struct descr_v5 { uint64_t type; void *parent; int rank; union { NEW_UNION }; };
struct descr_v6 {
	uint64_t type; void *parent; int rank;
	union {
		NEW_UNION
		struct { uint64_t seq; const char *func; const void *send; void *recv; size_t count; int root; const char *datatype, *sync; bool intra;
			uint32_t size, batches, number; void *stream; } ce_coll;
	};
};

/* State arguments: {transSize, steps} of an operation up to version 3, {transSize} of a step from 4 on. */
union args { struct { size_t moved; int steps; } op; struct { size_t moved; } step; };

typedef void logger(int level, unsigned long flags, const char *file, int line, const char *format, ...);
typedef int init_v2(void **context, int *mask);
typedef int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank, logger *log);
typedef int init_v5(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank, logger *log);

struct profiler {
	const char *name;
	void *init;
	int (*start)(void *context, void **handle, void *descr);
	int (*stop)(void *handle);
	int (*record)(void *handle, int state, union args *args);
	int (*finalize)(void *context);
};

#endif
