/* What the client's files share. */
#ifndef TESTS_NCCL_CLIENT_H
#define TESTS_NCCL_CLIENT_H

#include "abi.h"

/* The profiler plugin, as NCCL keeps it. */
struct loaded {
	const struct profiler *plugin; /* NULL: none */
	int version;
	int mask; /* of events that it wants, which it may change */
};
extern struct loaded profiler;

void load(int newest);
int begin(void **context, uint64_t hash, const char *name, int rank);

/* One event of each kind, with what the plugin's version has in its descriptor. NULL handles end nothing. */
void *begin_group(void *context);
void *begin_api(void *context, void *parent);
void *begin_task(void *context, void *group, void *api, bool collective, uint64_t seq, size_t count, int rank, int peer, int channels);
void *begin_op(void *context, void *task, pid_t pid, int rank, int channel, int peer, int steps, int chunk, bool send);
void *begin_step(void *context, void *op, int rank, int step);
void *begin_ctrl(void *context);
void state(void *handle, int state, size_t moved, int steps);
void end(void *handle);

#endif
