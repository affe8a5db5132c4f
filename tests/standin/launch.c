/* Kernels' names, graphs, and those launches of the stand-in CUDA driver that are made of others. */
#include "cuda.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES = 64, NODES = 64 };

static struct {
	const struct standin_kernel *kernel;
	const char *name;
} names[NAMES];
static unsigned named;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

FREE_IN_CHILD(mu)

void standin_name(const struct standin_kernel *k, const char *name)
{
	pthread_mutex_lock(&mu);
	if (named < NAMES) {
		names[named].kernel = k;
		names[named++].name = name;
	}
	pthread_mutex_unlock(&mu);
}

CUresult cuFuncGetName(const char **name, CUfunction f)
{
	*name = NULL;
	pthread_mutex_lock(&mu);
	for (unsigned i = 0; i < named; i++)
		if (names[i].kernel == f)
			*name = names[i].name;
	pthread_mutex_unlock(&mu);
	return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuDeviceGetPCIBusId(char *to, int size, CUdevice d)
{
	snprintf(to, (size_t)size, "0000:%02X:00.0", 0x18 + d);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *to, int size, CUdevice d)
{
	(void)d;
	snprintf(to, (size_t)size, "stand-in GPU");
	return CUDA_SUCCESS;
}

CUresult cuModuleUnload(void *module)
{
	(void)module;
	return CUDA_SUCCESS;
}

/* A graph is a list of kernels, which run one after the other. */
struct graph {
	unsigned n;
	struct launch nodes[NODES];
};

static struct capture {
	CUstream stream;
	struct graph *graph;
} capture; /* one at a time */

bool standin_captured(const struct launch *l)
{
	bool taken;

	pthread_mutex_lock(&mu);
	taken = capture.graph && l->stream == capture.stream && capture.graph->n < NODES;
	if (taken)
		capture.graph->nodes[capture.graph->n++] = *l;
	pthread_mutex_unlock(&mu);
	return taken;
}

CUresult cuStreamBeginCapture_v2(CUstream s, int mode)
{
	struct graph *g = calloc(1, sizeof *g);

	(void)mode;
	if (!g)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&mu);
	capture = (struct capture){ s, g };
	pthread_mutex_unlock(&mu);
	return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream s, CUgraph *g)
{
	(void)s;
	pthread_mutex_lock(&mu);
	*g = capture.graph;
	capture = (struct capture){ 0 };
	pthread_mutex_unlock(&mu);
	return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream s, int *state)
{
	pthread_mutex_lock(&mu);
	*state = capture.graph && capture.stream == s;
	pthread_mutex_unlock(&mu);
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *e, CUgraph g, uint64_t flags)
{
	(void)flags;
	*e = g;
	return CUDA_SUCCESS;
}

static CUresult launch_graph(uint32_t function, CUgraphExec g, CUstream s)
{
	const struct standin_observer *o = __atomic_load_n(&standin_observer, __ATOMIC_ACQUIRE);
	const uint32_t call = o ? o->call(function) : 0;
	CUresult rc = CUDA_SUCCESS;

	for (unsigned i = 0; i < g->n && !rc; i++) {
		struct launch l = g->nodes[i];

		l.stream = s;
		l.call = call;
		rc = standin_launch(&l);
	}
	if (o)
		o->called(function, call);
	return rc;
}

CUresult cuGraphLaunch(CUgraphExec g, CUstream s)
{
	return g ? launch_graph(514, g, s) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphLaunch_ptsz(CUgraphExec g, CUstream s)
{
	return g ? launch_graph(515, g, standin_of_thread(s)) : CUDA_ERROR_INVALID_VALUE;
}

/* function: CUPTI's number of it */
static CUresult launch(uint32_t function, CUfunction f, const unsigned *grid, const unsigned *block, unsigned shared, CUstream s, void **arguments, void **extra)
{
	struct launch l = { .kernel = f, .stream = s, .shared = shared };
	const struct standin_observer *o = __atomic_load_n(&standin_observer, __ATOMIC_ACQUIRE);
	CUresult rc;

	for (int i = 0; i < 3; i++)
		if (!grid[i] || !block[i])
			return CUDA_ERROR_INVALID_VALUE;
	if (!f || extra)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(l.grid, grid, sizeof l.grid);
	memcpy(l.block, block, sizeof l.block);
	l.argument = arguments ? *(void **)arguments[0] : NULL;
	if (standin_captured(&l))
		return CUDA_SUCCESS;
	l.call = o ? o->call(function) : 0;
	rc = standin_launch(&l);
	if (o)
		o->called(function, l.call);
	return rc;
}

#define DIMENSIONS unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz
#define GRID (unsigned[]){ gx, gy, gz }, (unsigned[]){ bx, by, bz }

CUresult cuLaunchKernel(CUfunction f, DIMENSIONS, unsigned shared, CUstream s, void **arguments, void **extra)
{
	return launch(307, f, GRID, shared, s, arguments, extra);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, DIMENSIONS, unsigned shared, CUstream s, void **arguments, void **extra)
{
	return launch(442, f, GRID, shared, standin_of_thread(s), arguments, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, DIMENSIONS, unsigned shared, CUstream s, void **arguments)
{
	return launch(477, f, GRID, shared, s, arguments, NULL);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, DIMENSIONS, unsigned shared, CUstream s, void **arguments)
{
	return launch(478, f, GRID, shared, standin_of_thread(s), arguments, NULL);
}

CUresult cuLaunchKernelEx(const struct CUlaunchConfig *c, CUfunction f, void **arguments, void **extra)
{
	return launch(652, f, c->grid, c->block, c->shared, c->stream, arguments, extra);
}

CUresult cuLaunchKernelEx_ptsz(const struct CUlaunchConfig *c, CUfunction f, void **arguments, void **extra)
{
	return launch(653, f, c->grid, c->block, c->shared, standin_of_thread(c->stream), arguments, extra);
}

/* What names meant before, and may mean after: these say that they were called. */
CUresult standin_old_register(void *p, size_t n)
{
	(void)p;
	(void)n;
	return STANDIN_OLD;
}

CUresult standin_new_launch(void *everything)
{
	(void)everything;
	return STANDIN_NEW;
}
