// NVSHMEM from inside kernels, two or more processing elements: every operation with its result checked, and what it took.
// usage: nvshmem FILE, the environment as ranks.sh makes it; FILE is where the first rank leaves the job's id
#include "nvshmem_job.h"

#include "issued.h"

#include <device_host_transport/nvshmem_common_ibgda.h>

static const size_t COUNT = 1 << 20; // of doubles in each buffer
static const int THREADS = 256;

__global__ void store(int *to, int value, int peer)
{
	issued(WRITE, peer, to, sizeof *to);
	nvshmem_int_p(to, value, peer);
	nvshmem_quiet();
}

__global__ void put(double *to, const double *from, size_t n, int peer, int times)
{
	for (int i = 0; i < times; i++) {
		if (threadIdx.x == 0)
			issued(WRITE, peer, to, n * sizeof *to);
		nvshmemx_double_put_nbi_block(to, from, n, peer);
		if (threadIdx.x == 0)
			nvshmem_quiet();
		__syncthreads();
	}
}

__global__ void get(double *to, const double *from, size_t n, int peer)
{
	if (threadIdx.x == 0)
		issued(READ, peer, from, n * sizeof *from);
	nvshmemx_double_get_block(to, from, n, peer);
}

__global__ void put_signal(double *to, const double *from, size_t n, uint64_t *signal, int me, int next)
{
	if (threadIdx.x == 0) {
		issued(WRITE, next, to, n * sizeof *to);
		issued(ATOMIC, next, signal, sizeof *signal);
	}
	nvshmemx_double_put_signal_nbi_block(to, from, n, signal, 1000 + me, NVSHMEM_SIGNAL_SET, next);
	if (threadIdx.x == 0) {
		nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, 1000);
		nvshmem_quiet();
	}
	__syncthreads();
}

struct words {
	unsigned long eight;
	unsigned four;
};

struct olds {
	unsigned long added;
	unsigned added4, swapped4;
};

__global__ void atomics(words *at, int peer, olds *old)
{
	for (int i = 0; i < 2; i++) {
		issued(ATOMIC, peer, &at->eight, sizeof at->eight);
		issued(ATOMIC, peer, &at->four, sizeof at->four);
	}
	old->added = nvshmem_ulong_atomic_fetch_add(&at->eight, 5, peer);
	nvshmem_ulong_atomic_add(&at->eight, 2, peer);
	old->added4 = nvshmem_uint_atomic_fetch_add(&at->four, 3, peer);
	old->swapped4 = nvshmem_uint_atomic_compare_swap(&at->four, 3, 77, peer);
	nvshmem_quiet();
}

// Every thread adds to one word of the first element, which does so to its own as well, over a dynamically connected queue: the sum tells whether all were atomic, and none lost.
__global__ void count_up(unsigned long *word, int times)
{
	for (int i = 0; i < times; i++) {
		issued(ATOMIC, 0, word, sizeof *word);
		nvshmem_ulong_atomic_add(word, 1, 0);
	}
	nvshmem_quiet();
}

// A whole warp's stores side by side are one element where an element names its peer in short (InfiniBand), else one each (RoCE, whose addresses are long).
__global__ void scatter(int *to, int peer, int times, int me)
{
	const int id = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x, together = nvshmemi_ibgda_device_state_d.support_half_av_seg ? 32 : 1;

	for (int i = 0; i < times; i++) {
		if (threadIdx.x % together == 0)
			issued(WRITE, peer, to + id + n * i, together * sizeof *to);
		__syncwarp();
		nvshmem_int_p(to + id + n * i, id * 1000 + i + me, peer);
	}
	nvshmem_quiet();
}

__global__ void store_and_quiet(int *to, int peer, int times, long long *cycles)
{
	for (int i = 0; i < times; i++) {
		const long long begin = clock64();

		nvshmem_int_p(to, i, peer);
		nvshmem_quiet();
		cycles[i] = clock64() - begin;
		issued(WRITE, peer, to, sizeof *to);
	}
}

__global__ void ping_pong(uint64_t *mine, int peer, int times, bool first, long long *cycles)
{
	for (int i = 1; i <= times; i++) {
		const long long begin = clock64();

		if (first)
			nvshmem_uint64_p(mine, i, peer);
		nvshmem_uint64_wait_until(mine, NVSHMEM_CMP_GE, i);
		if (!first)
			nvshmem_uint64_p(mine, i, peer);
		cycles[i - 1] = clock64() - begin;
	}
	for (int i = 0; i < times; i++)
		issued(WRITE, peer, mine, sizeof *mine);
	nvshmem_quiet();
}

static long wrong(const double *got, size_t n, int from)
{
	double *h = host_copy(got, n);
	long bad = 0;

	for (size_t i = 0; i < n; i++)
		bad += h[i] != from * 1e7 + i;
	free(h);
	return bad;
}

static int by_value(const void *a, const void *b)
{
	const long long x = *static_cast<const long long *>(a), y = *static_cast<const long long *>(b);

	return x < y ? -1 : x > y;
}

static void times_of(const char *name, const long long *cycles, int n)
{
	int khz = 0;
	char full[64];
	long long *h = host_copy(cycles, n);

	cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0);
	qsort(h, n, sizeof *h, by_value);
	snprintf(full, sizeof full, "%s median", name);
	measured(full, h[n / 2] * 1e3 / khz, "us");
	snprintf(full, sizeof full, "%s p99", name);
	measured(full, h[n * 99 / 100] * 1e3 / khz, "us");
	free(h);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	initialize(argv[1]);
	const int me = nvshmem_my_pe(), next = (me + 1) % ranks, previous = (me + ranks - 1) % ranks;
	double *to = everywhere<double>(COUNT), *from = everywhere<double>(COUNT), *h = static_cast<double *>(malloc(COUNT * sizeof *h));
	int *one = everywhere<int>(1), *many = everywhere<int>(64 * 32 * 8);
	uint64_t *signal = everywhere<uint64_t>(1), *ball = everywhere<uint64_t>(1);
	words *word = everywhere<words>(1);
	unsigned long *counter = everywhere<unsigned long>(1);
	long long *cycles;
	olds *old;

	log_issued(1 << 16);
	cudaMalloc(&cycles, 1000 * sizeof *cycles);
	cudaMalloc(&old, sizeof *old);
	for (size_t i = 0; i < COUNT; i++)
		h[i] = me * 1e7 + i;
	cudaMemcpy(from, h, COUNT * sizeof *h, cudaMemcpyHostToDevice);
	nvshmem_barrier_all();

	store<<<1, 1>>>(one, 100 + me, next);
	finish("store");
	nvshmem_barrier_all();
	int *got = host_copy(one, 1);
	result(*got == 100 + previous, "store", "%ld", *got);

	for (size_t n = 1; n <= COUNT; n *= 32) {
		char name[64];

		put<<<1, THREADS>>>(to, from, n, next, 1);
		finish("put");
		nvshmem_barrier_all();
		snprintf(name, sizeof name, "put of %zu bytes", n * sizeof(double));
		const long bad = wrong(to, n, previous);
		result(bad == 0, name, "%ld of %ld wrong", bad, n);
		nvshmem_barrier_all();
	}
	get<<<1, THREADS>>>(to, from, 4096, previous);
	finish("get");
	const long bad = wrong(to, 4096, previous);
	result(bad == 0, "get", "%ld wrong", bad);
	nvshmem_barrier_all();

	put_signal<<<1, THREADS>>>(to, from, 4096, signal, me, next);
	finish("put_signal");
	const long late = wrong(to, 4096, previous);
	result(late == 0, "data before its signal", "%ld wrong", late);
	nvshmem_barrier_all();

	atomics<<<1, 1>>>(word, next, old);
	finish("atomics");
	nvshmem_barrier_all();
	words *w = host_copy(word, 1);
	olds *o = host_copy(old, 1);
	result(w->eight == 7 && o->added == 0, "atomics of 8 bytes", "%ld, was %ld", w->eight, o->added);
	result(w->four == 77 && o->added4 == 0 && o->swapped4 == 3, "atomics of 4 bytes", "%ld, was %ld", w->four, o->swapped4);

	count_up<<<4, 8>>>(counter, 10);
	finish("count_up");
	nvshmem_barrier_all();
	unsigned long *sum = host_copy(counter, 1);
	result(me != 0 || *sum == 320ul * ranks, "sum", "%ld", *sum);

	double begin = now();
	scatter<<<64, 32>>>(many, next, 8, me);
	finish("scatter");
	measured("16384 stores", (now() - begin) * 1e3, "ms");
	nvshmem_barrier_all();
	int *z = host_copy(many, 64 * 32 * 8);
	long off = 0;
	for (int i = 0; i < 8; i++)
		for (int k = 0; k < 64 * 32; k++)
			off += z[k + 64 * 32 * i] != k * 1000 + i + previous;
	result(off == 0, "scatter", "%ld wrong", off);
	nvshmem_barrier_all();

	if (me == 0) {
		store_and_quiet<<<1, 1>>>(one, next, 1000, cycles);
		finish("store_and_quiet");
		times_of("store and quiet", cycles, 1000);
		begin = now();
		put<<<1, THREADS>>>(to, from, COUNT, next, 10);
		finish("put");
		measured("put of 8 MB", COUNT * sizeof(double) * 10 / (now() - begin) / 1e9, "GB/s");
	}
	nvshmem_barrier_all();
	if (me < 2) {
		ping_pong<<<1, 1>>>(ball, 1 - me, 200, me == 0, cycles);
		finish("ping_pong");
		if (me == 0)
			times_of("ping-pong", cycles, 200);
	}
	nvshmem_barrier_all();
	print_issued({{"to", to, COUNT * sizeof *to},
		      {"from", from, COUNT * sizeof *from},
		      {"one", one, sizeof *one},
		      {"many", many, 64 * 32 * 8 * sizeof *many},
		      {"signal", signal, sizeof *signal},
		      {"ball", ball, sizeof *ball},
		      {"word", word, sizeof *word},
		      {"counter", counter, sizeof *counter}});
	nvshmem_finalize();
	return failures != 0;
}
