/*
 * Launches kernels in every form, having found the driver's functions in one of the ways that programs find them, and says what ran when.
 *
 * client WAY [cuptiSubscribe|cuptiSubscribe_v2]    WAY: linked (built with it), dlsym, v1, v2, itself, threads; becomes a client of CUPTI half way
 *
 * Prints for each kernel that ran: ran NAME START END (CLOCK_REALTIME, ns); last: ok.
 */
#include "../../standin/standin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef CUresult (*launch_fn)(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **arguments, void **extra);
typedef CUresult (*cooperative_fn)(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **arguments);
typedef CUresult (*configured_fn)(const struct CUlaunchConfig *config, CUfunction f, void **arguments, void **extra);
typedef CUresult (*graph_fn)(CUgraphExec g, CUstream s);
typedef CUresult (*v1_fn)(const char *name, void **f, int version, uint64_t flags);
typedef CUresult (*v2_fn)(const char *name, void **f, int version, uint64_t flags, int *status);
typedef CUresult (*table_fn)(const void **table, const CUuuid *id);
typedef CUresult (*old_fn)(void *p, size_t n);
typedef CUresult (*new_fn)(void *everything);

static launch_fn launch;
static cooperative_fn cooperative;
static configured_fn configured;
static graph_fn graph_launch;
static table_fn export_table;

enum { MOST = 64 };
static struct {
	const char *name;
	uint64_t start, end;
} ran[MOST];
static int n;

#define CHECK(x)                                                         \
	do {                                                             \
		if (!(x)) {                                              \
			printf("FAIL %s:%d %s\n", __FILE__, __LINE__, #x); \
			exit(1);                                         \
		}                                                        \
	} while (0)

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void work(const char *name, uint64_t ns)
{
	const uint64_t start = now();
	int i;

	while (now() - start < ns)
		;
	i = __atomic_fetch_add(&n, 1, __ATOMIC_RELAXED);
	CHECK(i < MOST);
	ran[i].name = name;
	ran[i].start = start;
	ran[i].end = now();
}

static void run_short(void *argument)
{
	(void)argument;
	work("short_one", 200000);
}

static void run_long(void *argument)
{
	(void)argument;
	work("long_one(int)", 3000000);
}

static struct standin_kernel short_kernel = { run_short }, long_kernel = { run_long };

#ifdef LINKED
static void find(const char *way)
{
	CHECK(!strcmp(way, "linked"));
	launch = cuLaunchKernel;
	cooperative = cuLaunchCooperativeKernel;
	configured = cuLaunchKernelEx;
	graph_launch = cuGraphLaunch;
	export_table = cuGetExportTable;
}
#else
static void *lib;

static void *symbol(const char *name)
{
	void *p = dlsym(lib, name);

	CHECK(p);
	return p;
}

static void find_by_v1(v1_fn get)
{
	CHECK(!get("cuLaunchKernel", (void **)&launch, 12080, 0));
	CHECK(!get("cuLaunchCooperativeKernel", (void **)&cooperative, 9000, 1));
	CHECK(!get("cuLaunchKernelEx", (void **)&configured, 11060, 0));
	CHECK(!get("cuGraphLaunch", (void **)&graph_launch, 10000, 0));
	CHECK(!get("cuGetExportTable", (void **)&export_table, 3000, 0));
}

static void find_by_v2(v2_fn get, uint64_t flags)
{
	int status;

	CHECK(!get("cuLaunchKernel", (void **)&launch, flags == 2 ? 7000 : 4000, flags, &status));
	CHECK(!get("cuLaunchCooperativeKernel", (void **)&cooperative, 9000, flags, &status));
	CHECK(!get("cuLaunchKernelEx", (void **)&configured, 11060, flags, &status));
	CHECK(!get("cuGraphLaunch", (void **)&graph_launch, 10000, flags, &status));
	CHECK(!get("cuGetExportTable", (void **)&export_table, 3000, flags, &status));
}

/* Of names that have had other meanings, each version is to be the driver's own. */
static void versions(v2_fn get)
{
	old_fn old = NULL;
	new_fn new = NULL;
	void *f = NULL;
	int status;
	char page[64];

	CHECK(!get("cuMemHostRegister", (void **)&old, 4000, 0, &status));
	CHECK(old(page, sizeof page) == STANDIN_OLD);
	CHECK(!get("cuLaunchKernel", (void **)&new, 14000, 0, &status));
	CHECK(new(NULL) == STANDIN_NEW);
	CHECK(get("cuLaunchKernel", &f, 4000, 2, &status) && !f);
	CHECK(get("cuLaunchKernel", &f, 3000, 0, &status) && !f);
	CHECK(get("cuLaunchKernel_v2", &f, 13000, 0, &status) && !f);
}

static void find(const char *way)
{
	v1_fn v1;
	v2_fn v2;

	lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(lib);
	v1 = symbol("cuGetProcAddress");
	v2 = symbol("cuGetProcAddress_v2");
	CHECK(!dlvsym(lib, "cuLaunchKernel", "NO_SUCH_1.0"));
	if (!strcmp(way, "dlsym")) {
		launch = symbol("cuLaunchKernel");
		cooperative = symbol("cuLaunchCooperativeKernel");
		configured = symbol("cuLaunchKernelEx");
		graph_launch = symbol("cuGraphLaunch");
		export_table = symbol("cuGetExportTable");
	} else if (!strcmp(way, "v1")) {
		find_by_v1(v1);
	} else if (!strcmp(way, "v2")) {
		versions(v2);
		find_by_v2(v2, 0);
	} else if (!strcmp(way, "itself")) {
		/* before anything else, cuInit too: both of its versions by one name, each with its own arguments */
		v1_fn own1 = NULL;
		v2_fn own2 = NULL;
		int status;

		CHECK(!v1("cuGetProcAddress", (void **)&own1, 11030, 0) && own1);
		CHECK(!own1("cuGetProcAddress", (void **)&own2, 12000, 0) && own2);
		CHECK(!own2("cuGetProcAddress", (void **)&own1, 11030, 0, &status) && own1);
		CHECK(!own2("cuGetProcAddress", (void **)&own2, 13000, 0, &status) && own2);
		CHECK((void *)own1 != (void *)own2);
		CHECK(!v1("cuGetProcAddress_v2", (void **)&own2, 11030, 0) && own2);
		find_by_v2(own2, 1);
	} else {
		CHECK(!strcmp(way, "threads"));
		find_by_v2(v2, 2);
	}
}
#endif

static void subscribe(const char *name)
{
	void *cupti = dlopen("libcupti.so.13", RTLD_NOW), *subscriber = NULL, *f;

	CHECK(cupti);
	f = dlsym(cupti, name);
	CHECK(f);
	if (strstr(name, "_v2"))
		CHECK(!((int (*)(void **, void *, void *, void *))f)(&subscriber, NULL, NULL, NULL) && subscriber);
	else
		CHECK(!((int (*)(void **, void *, void *))f)(&subscriber, NULL, NULL) && subscriber);
}

int main(int argc, char **argv)
{
	static const unsigned char id[16] = { 0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93 };
	struct CUlaunchConfig c = { { 5, 1, 1 }, { 64, 2, 1 }, 256, NULL, NULL, 0 };
	const void *table = NULL;
	CUgraphExec exec;
	CUcontext context;
	CUstream s;
	CUgraph g;

	CHECK(argc >= 2);
	find(argv[1]);
	CHECK(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxPushCurrent_v2(context) && !cuStreamCreate(&s, 1));
	CHECK(!export_table(&table, (const CUuuid *)(const void *)id) && table);
	standin_name(&short_kernel, "short_one");
	standin_name(&long_kernel, "_Z8long_onei");
	for (int i = 0; i < 4; i++)
		CHECK(!launch(&short_kernel, 2, 3, 4, 32, 1, 1, 128, s, NULL, NULL));
	CHECK(launch(&short_kernel, 0, 1, 1, 32, 1, 1, 0, s, NULL, NULL));
	CHECK(!cuStreamSynchronize(s));
	if (argc > 2)
		subscribe(argv[2]);
	c.stream = s;
	CHECK(!configured(&c, &long_kernel, NULL, NULL));
	CHECK(!cooperative(&short_kernel, 1, 1, 1, 1024, 1, 1, 0, s, NULL));
	CHECK(!launch(&long_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	CHECK(!cuStreamBeginCapture_v2(s, 0));
	CHECK(!launch(&short_kernel, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL) && !launch(&short_kernel, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
	CHECK(!cuStreamEndCapture(s, &g) && !cuGraphInstantiateWithFlags(&exec, g, 0));
	CHECK(!graph_launch(exec, s));
	CHECK(!graph_launch(exec, s));
	CHECK(!cuStreamSynchronize(s) && !cuStreamSynchronize(NULL) && !cuStreamSynchronize((CUstream)2));
	for (int i = 0; i < n; i++)
		printf("ran %s %llu %llu\n", ran[i].name, (unsigned long long)ran[i].start, (unsigned long long)ran[i].end);
	printf("ok\n");
	return 0;
}
