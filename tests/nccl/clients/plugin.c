/*
 * A profiler plugin of somebody else's, in the versions that VERSIONS names, which checks that it gets what NCCL would give it: parents that are its own handles, only events of
 * its mask and their parents, each event ended once. PLUGIN_MASK: its mask; PLUGIN_LATER: the mask that it changes to at its 5th event; PLUGIN_REFUSE: its init fails. When the last communicator
 * ends it writes to the file PLUGIN_OUT what it got, a JSON line.
 */
#include "abi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>

enum { EVENTS = 1 << 17 };
static struct event { uint64_t type; bool open; } events[EVENTS];
static unsigned used, open_contexts, bad, states, finalized, inits;
static unsigned counts[16];
static int *mask_of;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
struct context { int version; };

static int number(const char *name) { const char *v = getenv(name); return v ? atoi(v) : 0; }

static void fault(const char *what, uint64_t type)
{
	fprintf(stderr, "plugin: %s (event type %u)\n", what, (unsigned)type);
	bad++;
}

static int begin(void **context, int *mask, int version)
{
	inits++;
	if (number("PLUGIN_REFUSE"))
		return 3;
	struct context *c = malloc(sizeof *c);
	c->version = version;
	*context = c;
	*mask = number("PLUGIN_MASK");
	mask_of = mask;
	open_contexts++;
	return 0;
}

static bool known(const void *handle, uint64_t type)
{
	const struct event *e = handle;
	return e >= events && e < events + EVENTS && (!type || e->type == type);
}

static int start(void *context, void **handle, uint64_t type, void *parent, uint64_t of)
{
	pthread_mutex_lock(&mu);
	if (!context || ((struct context *)context)->version < 2)
		fault("not my context", type);
	if (!(number("PLUGIN_MASK") & type) && !number("PLUGIN_LATER") && type != GROUP && type != GROUP_API && type != COLL_API && type != COLL && type != P2P && type != PROXY_OP)
		fault("I have not asked for it", type);
	if ((of && !known(parent, of)) || (!of && parent && !known(parent, 0)))
		fault("not my parent", type);
	struct event *e = &events[used++ % EVENTS];
	e->type = type;
	e->open = true;
	counts[__builtin_ctzll(type)]++;
	if (used == 5 && number("PLUGIN_LATER"))
		*mask_of = number("PLUGIN_LATER");
	*handle = e;
	pthread_mutex_unlock(&mu);
	return 0;
}

static int stop(void *handle)
{
	pthread_mutex_lock(&mu);
	struct event *e = handle;
	if (!known(handle, 0) || !e->open)
		fault("not my handle, or ended twice", 0);
	else
		e->open = false;
	pthread_mutex_unlock(&mu);
	return 0;
}

static int record(void *handle, int state, union args *args)
{
	(void)state, (void)args;
	if (!known(handle, 0))
		fault("not my handle", 0);
	__atomic_fetch_add(&states, 1, __ATOMIC_RELAXED);
	return 0;
}

static int finalize(void *context)
{
	const char *out = getenv("PLUGIN_OUT");
	unsigned left = 0;
	free(context);
	finalized++;
	if (--open_contexts || !out)
		return 0;
	for (unsigned i = 0; i < EVENTS; i++)
		left += events[i].open;
	FILE *f = fopen(out, "a");
	fprintf(f, "{\"bad\": %u, \"left\": %u, \"states\": %u, \"inits\": %u, \"finalized\": %u, \"group\": %u, \"coll\": %u, \"p2p\": %u, \"op\": %u, \"step\": %u, \"ctrl\": %u, \"group_api\": %u, \"coll_api\": %u}\n", bad, left,
		states, inits, finalized, counts[0], counts[1], counts[2], counts[3], counts[4], counts[5], counts[8], counts[9]);
	fclose(f);
	return 0;
}

/* The parent that an event has to have: tasks have their group before version 5, and the API's event from then on. */
#define START(v)                                                                                                                          \
	__attribute__((unused)) static int start_v##v(void *c, void **h, void *p)                                                         \
	{                                                                                                                                 \
		struct descr_v##v *d = p;                                                                                                 \
		uint64_t of = d->type == COLL || d->type == P2P ? (v < 5 ? GROUP : 0) : d->type == PROXY_STEP ? PROXY_OP : 0;             \
		return start(c, h, d->type, d->parent, of);                                                                               \
	}
START(2) START(3) START(4) START(5) START(6)

#define OLD(v) __attribute__((unused)) static int first_v##v(void **c, int *m) { return begin(c, m, v); }
#define NEW(v)                                                                                                                                                  \
	__attribute__((unused)) static int first_v##v(void **c, uint64_t hash, int *m, const char *name, int nodes, int ranks, int rank, logger *log)           \
	{                                                                                                                                                       \
		(void)name, (void)nodes, (void)log;                                                                                                             \
		if (hash != 0xfeed || ranks != 2 || rank < 0 || rank > 1)                                                                                       \
			fault("wrong communicator", 0);                                                                                                         \
		return begin(c, m, v);                                                                                                                          \
	}
OLD(2) OLD(3) NEW(5) NEW(6)
__attribute__((unused)) static int first_v4(void **c, int *m, const char *name, uint64_t hash, int nodes, int ranks, int rank, logger *log)
{
	return first_v5(c, hash, m, name, nodes, ranks, rank, log);
}

#define PROFILER(v) const struct profiler ncclProfiler_v##v = { "other", (void *)first_v##v, start_v##v, stop, record, finalize };
VERSIONS
