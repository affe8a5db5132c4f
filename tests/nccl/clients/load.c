/* NCCL's side of the profiler interface, as its source has it (src/plugin/profiler.cc and plugin_open.cc, 2.28): which library, which version, which events. */
#include "client.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct loaded profiler;

static void *open_plugin(const char *name)
{
	char path[255];
	void *h;
	snprintf(path, sizeof path, "%s", name && *name ? name : "libnccl-profiler.so");
	h = dlopen(strncasecmp(path, "STATIC_PLUGIN", strlen(path)) ? path : NULL, RTLD_NOW | RTLD_LOCAL);
	if (!h && name && *name && !strchr(name, '/')) {
		snprintf(path, sizeof path, "libnccl-profiler-%s.so", name);
		h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	}
	return h;
}

void load(int newest)
{
	const char *name = getenv("NCCL_PROFILER_PLUGIN");
	if (name && !strcasecmp(name, "none"))
		return;
	void *h = open_plugin(name);
	for (int v = newest; h && v >= 1 && !profiler.plugin; v--) {
		char symbol[32];
		snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", v);
		profiler.plugin = dlsym(h, symbol);
		profiler.version = v;
	}
}

static void quiet(int level, unsigned long flags, const char *file, int line, const char *format, ...)
{
	(void)level, (void)flags, (void)file, (void)line, (void)format;
}

int begin(void **context, uint64_t hash, const char *name, int rank)
{
	*context = NULL;
	if (!profiler.plugin)
		return 0;
	if (profiler.version < 4)
		return ((init_v2 *)profiler.plugin->init)(context, &profiler.mask);
	if (profiler.version == 4)
		return ((init_v4 *)profiler.plugin->init)(context, &profiler.mask, name, hash, 2, 2, rank, quiet);
	return ((init_v5 *)profiler.plugin->init)(context, hash, &profiler.mask, name, 2, 2, rank, quiet);
}

static void *start(void *context, void *descr)
{
	void *h = NULL;
	profiler.plugin->start(context, &h, descr);
	return h;
}

static bool wants(int events) { return profiler.plugin && __atomic_load_n(&profiler.mask, __ATOMIC_RELAXED) & events; }

/* The descriptor of the version, filled in by the statements that follow, which name it d. What pads the type before version 5 is not zero, as on NCCL's stack it need not be. */
#define DESCRIBE(v, what, parent_, rank_, ...)             \
	case v: {                                          \
		struct descr_v##v d;                       \
		memset(&d, 0xa5, sizeof d);                \
		d.type = what;                             \
		d.parent = parent_;                        \
		d.rank = rank_;                            \
		__VA_ARGS__;                               \
		return start(context, &d);                 \
	}
#define EVERY(what, parent, rank, ...)                                                                                              \
	switch (profiler.version) {                                                                                                \
		DESCRIBE(2, what, parent, rank, __VA_ARGS__) DESCRIBE(3, what, parent, rank, __VA_ARGS__) DESCRIBE(4, what, parent, rank, __VA_ARGS__) \
		DESCRIBE(5, what, parent, rank, __VA_ARGS__) DESCRIBE(6, what, parent, rank, __VA_ARGS__)                           \
	}                                                                                                                          \
	return NULL

enum { STEPS = PROXY_STEP | 128, OPS = PROXY_OP | STEPS, TASKS = OPS | 64, ALL = GROUP | COLL | P2P | TASKS };

void *begin_group(void *context)
{
	if (!wants(ALL))
		return NULL;
	EVERY(GROUP, NULL, 0, (void)0);
}

void *begin_api(void *context, void *parent)
{
	if (!wants(COLL_API | COLL | TASKS))
		return NULL;
	switch (profiler.version) {
		DESCRIBE(5, COLL_API, parent, 0, d.coll_api.func = "AllReduce") DESCRIBE(6, COLL_API, parent, 0, d.coll_api.func = "AllReduce")
	}
	return NULL;
}

void *begin_ctrl(void *context)
{
	if (!wants(PROXY_CTRL))
		return NULL;
	EVERY(PROXY_CTRL, NULL, 0, (void)0);
}

#define FILL(x) x.func = "AllReduce", x.send = x.recv = NULL, x.count = count, x.root = 0, x.datatype = "ncclFloat32", x.channels = (uint8_t)channels, x.warps = 16, \
	x.algo = "RING", x.proto = "SIMPLE", x.seq = seq
#define FILL_P2P(x) x.func = "Send", x.buff = NULL, x.count = count, x.datatype = "ncclInt8", x.peer = peer
#define NAMED(x) x.name = "world", x.hash = 0xfeed

void *begin_task(void *context, void *group, void *api, bool collective, uint64_t seq, size_t count, int rank, int peer, int channels)
{
	if (!wants(TASKS | (collective ? COLL : P2P)))
		return NULL;
	if (collective)
		switch (profiler.version) {
			DESCRIBE(2, COLL, group, rank, FILL(d.coll); NAMED(d.coll); d.coll.traffic = 0)
			DESCRIBE(3, COLL, group, rank, FILL(d.coll); NAMED(d.coll))
			DESCRIBE(4, COLL, group, rank, FILL(d.coll))
			DESCRIBE(5, COLL, api, rank, FILL(d.coll); d.coll.group = group)
			DESCRIBE(6, COLL, api, rank, FILL(d.coll); d.coll.group = group)
		}
	else
		switch (profiler.version) {
			DESCRIBE(2, P2P, group, rank, FILL_P2P(d.p2p); NAMED(d.p2p))
			DESCRIBE(3, P2P, group, rank, FILL_P2P(d.p2p); NAMED(d.p2p))
			DESCRIBE(4, P2P, group, rank, FILL_P2P(d.p2p); d.p2p.channels = (uint8_t)channels)
			DESCRIBE(5, P2P, api, rank, FILL_P2P(d.p2p); d.p2p.channels = (uint8_t)channels; d.p2p.group = group)
			DESCRIBE(6, P2P, api, rank, FILL_P2P(d.p2p); d.p2p.channels = (uint8_t)channels; d.p2p.group = group)
		}
	return NULL;
}

void *begin_op(void *context, void *task, pid_t pid, int rank, int channel, int peer, int steps, int chunk, bool send)
{
	struct proxy_op op = { pid, (uint8_t)channel, peer, steps, chunk, send };
	if (!wants(OPS))
		return NULL;
	EVERY(PROXY_OP, task, rank, d.op = op);
}

void *begin_step(void *context, void *op, int rank, int step)
{
	struct proxy_step s = { step };
	if (!op || !wants(STEPS))
		return NULL;
	EVERY(PROXY_STEP, op, rank, d.step = s);
}

void state(void *handle, int state, size_t moved, int steps)
{
	union args a;
	memset(&a, 0xa5, sizeof a);
	if (profiler.version < 4) {
		a.op.moved = moved;
		a.op.steps = steps;
	} else {
		a.step.moved = moved;
	}
	if (handle)
		profiler.plugin->record(handle, state, &a);
}

void end(void *handle)
{
	if (handle)
		profiler.plugin->stop(handle);
}
