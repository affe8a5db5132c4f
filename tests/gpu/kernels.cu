// Kernels of known length: each tells by the GPU's globaltimer when it began and ended, and the host when it was launched and done with.
// Prints for each kernel: ran NAME BEFORE AFTER START END EVENT_NS (CLOCK_REALTIME, globaltimer; ns, event -1 where it has none), and what a launch costs.
#include "program.h"

#include <algorithm>
#include <cooperative_groups.h>
#include <vector>

static __device__ uint64_t timer()
{
	uint64_t t;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	return t;
}

static __device__ void spin(uint64_t ns, uint64_t *stamps)
{
	const uint64_t start = timer();

	while (timer() - start < ns)
		;
	stamps[0] = start;
	stamps[1] = timer();
}

__global__ void plain_spin(uint64_t ns, uint64_t *stamps) { spin(ns, stamps); }
__global__ void cooperative_spin(uint64_t ns, uint64_t *stamps)
{
	spin(ns, stamps);
	cooperative_groups::this_grid().sync();
}
__global__ void graph_spin(uint64_t ns, uint64_t *stamps) { spin(ns, stamps); }
__global__ void nothing() {}

static uint64_t stamp()
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t *stamps, before;
static cudaEvent_t first, last;

static void begin(cudaStream_t s)
{
	before = stamp();
	cudaEventRecord(first, s);
}

static void ended(const char *name, cudaStream_t s, int kernels)
{
	float ms = -1;

	cudaEventRecord(last, s);
	finish(name);
	const uint64_t after = stamp();

	cudaEventElapsedTime(&ms, first, last);
	for (int i = 0; i < kernels; i++)
		printf("ran %s %llu %llu %llu %llu %lld\n", name, (unsigned long long)before, (unsigned long long)after, (unsigned long long)stamps[2 * i],
		       (unsigned long long)stamps[2 * i + 1], kernels == 1 ? (long long)(ms * 1e6) : -1ll);
}

int main()
{
	static const uint64_t lengths[] = { 20000, 200000, 2000000, 20000000 };
	cudaStream_t s;
	cudaGraph_t graph;
	cudaGraphExec_t exec;

	cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
	cudaHostAlloc(&stamps, 4096, cudaHostAllocMapped);
	cudaEventCreate(&first);
	cudaEventCreate(&last);
	for (int round = 0; round < 5; round++)
		for (uint64_t ns : lengths) {
			begin(s);
			plain_spin<<<2, 1, 128, s>>>(ns, stamps);
			ended("plain_spin", s, 1);
			begin(0);
			plain_spin<<<1, 32>>>(ns, stamps);
			ended("plain_spin", 0, 1);
			void *arguments[] = { &ns, &stamps };

			begin(s);
			cudaLaunchCooperativeKernel((void *)cooperative_spin, dim3(1), dim3(64), arguments, 0, s);
			ended("cooperative_spin", s, 1);
		}
	cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
	graph_spin<<<1, 1, 0, s>>>(100000, stamps);
	graph_spin<<<1, 1, 0, s>>>(300000, stamps + 2);
	cudaStreamEndCapture(s, &graph);
	cudaGraphInstantiateWithFlags(&exec, graph, 0);
	for (int i = 0; i < 5; i++) {
		begin(s);
		cudaGraphLaunch(exec, s);
		ended("graph_spin", s, 2);
	}

	std::vector<uint64_t> cost;

	for (int i = 0; i < 20000; i++) {
		const uint64_t start = stamp();

		nothing<<<1, 1, 0, s>>>();
		cost.push_back(stamp() - start);
		if (i % 200 == 199)
			cudaStreamSynchronize(s);
	}
	std::sort(cost.begin(), cost.end());
	measured("launch_median", (double)cost[cost.size() / 2], "ns");
	measured("launch_p99", (double)cost[cost.size() * 99 / 100], "ns");
	finish("all");
	return 0;
}
