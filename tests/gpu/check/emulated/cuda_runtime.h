// CUDA's kernels on processors: a block is a thread, and its threads take turns there wherever they wait for each other. Memory of the GPU is the process's own, and who starts a
// kernel waits for it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#define __global__
#define __device__
#define __shared__ static thread_local

struct dim3 {
	unsigned x;
	dim3(unsigned n = 1) : x(n) {}
};

namespace emulated
{
struct waiting { // a barrier of so many, of one process or of several
	std::atomic<unsigned> arrived{0}, round{0};
	void wait(unsigned of)
	{
		const unsigned now = round;

		if (++arrived == of) {
			arrived = 0;
			round++;
		}
		while (round == now)
			usleep(20);
	}
};

struct block {
	std::vector<ucontext_t> threads;
	std::vector<std::vector<char>> stacks;
	std::vector<bool> ended;
	ucontext_t back;
	unsigned current, arrived, round; // those that wait for the others, and how often all have
};

inline thread_local block *here;
inline thread_local dim3 thread_index, block_index;
inline dim3 block_size, grid_size;
inline waiting grid;
inline std::function<void()> kernel;

inline void enter()
{
	kernel();
	here->ended[here->current] = true;
	swapcontext(&here->threads[here->current], &here->back);
}

// Until all threads of the block have come here.
inline void sync_block()
{
	block *b = here;
	const unsigned me = b->current, now = b->round;

	if (++b->arrived == b->threads.size()) {
		b->arrived = 0;
		b->round++;
	}
	while (b->round == now)
		swapcontext(&b->threads[me], &b->back);
}

inline void sync_grid()
{
	sync_block();
	if (here->current == 0)
		grid.wait(grid_size.x);
	sync_block();
}

inline void run_block(unsigned index)
{
	block b{};
	const unsigned n = block_size.x;

	b.threads.resize(n);
	b.stacks.assign(n, std::vector<char>(64 << 10));
	b.ended.assign(n, false);
	here = &b;
	block_index = dim3(index);
	for (unsigned i = 0; i < n; i++) {
		getcontext(&b.threads[i]);
		b.threads[i].uc_stack.ss_sp = b.stacks[i].data();
		b.threads[i].uc_stack.ss_size = b.stacks[i].size();
		b.threads[i].uc_link = nullptr;
		makecontext(&b.threads[i], enter, 0);
	}
	for (bool any = true; any;) {
		any = false;
		for (unsigned i = 0; i < n; i++)
			if (!b.ended[i]) {
				any = true;
				b.current = i;
				thread_index = dim3(i);
				swapcontext(&b.back, &b.threads[i]);
			}
	}
}

inline void launch(dim3 blocks, dim3 threads, std::function<void()> k)
{
	std::vector<std::thread> all;

	grid_size = blocks;
	block_size = threads;
	kernel = k;
	for (unsigned i = 0; i < blocks.x; i++)
		all.emplace_back(run_block, i);
	for (std::thread &t : all)
		t.join();
}
}

#define threadIdx emulated::thread_index
#define blockIdx emulated::block_index
#define blockDim emulated::block_size
#define gridDim emulated::grid_size

inline void __syncthreads() { emulated::sync_block(); }
inline void __syncwarp() {}

template <typename T> T atomicAdd(T *p, T n) { return __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST); }
template <typename T> T atomicOr(T *p, T n) { return __atomic_fetch_or(p, n, __ATOMIC_SEQ_CST); }
template <typename T> T atomicCAS(T *p, T old, T now)
{
	__atomic_compare_exchange_n(p, &old, now, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return old;
}
template <typename T> T __ldcg(const T *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }

enum cudaError_t { cudaSuccess };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum { cudaDevAttrClockRate };
typedef void *cudaStream_t;

inline long long clock64()
{
	timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

inline const char *cudaGetErrorString(cudaError_t) { return "emulated"; }
inline cudaError_t cudaGetDeviceCount(int *n) { return *n = 1, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int *value, int, int) { return *value = 1000000, cudaSuccess; }
template <typename T> cudaError_t cudaMalloc(T **p, size_t n) { return *p = static_cast<T *>(malloc(n)), cudaSuccess; }
inline cudaError_t cudaMemset(void *p, int value, size_t n) { return memset(p, value, n), cudaSuccess; }
inline cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind) { return memcpy(to, from, n), cudaSuccess; }
template <typename T> cudaError_t cudaMemcpyToSymbol(T &to, const void *from, size_t n) { return memcpy(&to, from, n), cudaSuccess; }
template <typename T> cudaError_t cudaMemcpyFromSymbol(void *to, const T &from, size_t n) { return memcpy(to, &from, n), cudaSuccess; }

void run_kernel(void **arguments) __attribute__((weak)); // of a program that starts one with an array of arguments

// Fewer blocks and threads than asked for, to be quick.
inline cudaError_t cudaLaunchCooperativeKernel(const void *, dim3 blocks, dim3 threads, void **arguments, size_t, cudaStream_t)
{
	emulated::launch(std::min(blocks.x, 6u), std::min(threads.x, 64u), [=] { run_kernel(arguments); });
	return cudaSuccess;
}
