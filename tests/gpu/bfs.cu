// Breadth-first search, level by level, in one kernel for each search: frontiers, the exchange of what was found for others and the barriers of a level are all inside it.
// usage: bfs FILE SCALE SEARCHES [QUEUES], the environment as ranks.sh makes it. A vertex belongs to processing element v % their number. With QUEUES each root is searched from
// as often, the n-th search sending from the blocks b with b % QUEUES == n % QUEUES alone: NVSHMEM takes the queue by the number of the block.
#include "nvshmem_job.h"

#include "graph.h"
#include "issued.h"

#include <algorithm>
#include <cooperative_groups.h>

static const int BLOCKS = 24, THREADS = 256, CHUNK = 64, LEVELS = 64;

struct search_state {
	unsigned vertices; // of all
	const unsigned long long *first;
	const unsigned *neighbours;
	int *distance;
	unsigned *frontier[2], *size; // size of each; and of what was found for others
	unsigned *told;               // a bit for each vertex: its owner is told already
	// symmetric
	unsigned *out, *inbox, *arrived; // arrived: how many are in the inbox
	unsigned long long *sizes;       // of the frontiers: [level][processing element]
	unsigned room;                   // of out for each of the others
	unsigned long long *times, *levels;
};

__device__ static void reach(const search_state &s, unsigned own, int level, int next)
{
	if (atomicCAS(&s.distance[own], -1, level) == -1)
		s.frontier[next][atomicAdd(&s.size[next], 1u)] = own;
}

// A warp for each vertex of the frontier.
__device__ static void expand(const search_state &s, int me, int pes, int level, int now)
{
	const unsigned warps = gridDim.x * blockDim.x / 32, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
	const unsigned n = *(volatile unsigned *)&s.size[now];

	for (unsigned i = warp; i < n; i += warps) {
		const unsigned u = __ldcg(&s.frontier[now][i]);

		for (unsigned long long e = s.first[u] + lane; e < s.first[u + 1]; e += 32) {
			const unsigned v = s.neighbours[e], owner = v % pes;

			if (owner == (unsigned)me)
				reach(s, v / pes, level, 1 - now);
			else if (!(atomicOr(&s.told[v / 32], 1u << v % 32) & 1u << v % 32))
				s.out[(size_t)owner * s.room + atomicAdd(&s.size[2 + owner], 1u)] = v / pes;
		}
	}
}

// A block takes a place in the other's inbox, then puts a chunk there.
__device__ static void tell(const search_state &s, int me, int pes, unsigned sender, unsigned senders)
{
	__shared__ unsigned at;

	for (int i = 1; i < pes; i++) {
		const int owner = (me + i) % pes;
		const unsigned n = *(volatile unsigned *)&s.size[2 + owner];

		for (unsigned k = sender * CHUNK; k < n; k += senders * CHUNK) {
			const unsigned count = n - k < CHUNK ? n - k : CHUNK;

			if (threadIdx.x == 0) {
				issued(ATOMIC, owner, s.arrived, sizeof(unsigned));
				at = nvshmem_uint_atomic_fetch_add(s.arrived, count, owner);
				issued(WRITE, owner, s.inbox + at, count * sizeof(unsigned));
			}
			__syncthreads();
			nvshmemx_uint32_put_nbi_block(s.inbox + at, s.out + (size_t)owner * s.room + k, count, owner);
			__syncthreads();
		}
	}
}

__global__ void bfs(search_state s, unsigned root, int me, int pes, int every, int which)
{
	cooperative_groups::grid_group grid = cooperative_groups::this_grid();
	const unsigned id = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
	const bool sends = (int)blockIdx.x % every == which, leads = (int)blockIdx.x == which;
	unsigned taken = 0;
	int now = 0, level;

	if (id == 0 && root % pes == (unsigned)me) {
		s.distance[root / pes] = 0;
		s.frontier[0][0] = root / pes;
		s.size[0] = 1;
	}
	if (leads)
		nvshmemx_barrier_all_block();
	grid.sync();
	if (id == 0)
		s.times[0] = clock64();
	for (level = 1; level < LEVELS; level++) {
		expand(s, me, pes, level, now);
		grid.sync();
		if (sends)
			tell(s, me, pes, blockIdx.x / every, gridDim.x / every);
		grid.sync();
		if (leads)
			nvshmemx_barrier_all_block();
		grid.sync();
		const unsigned until = *(volatile unsigned *)s.arrived;

		for (unsigned i = taken + id; i < until; i += all)
			reach(s, __ldcg(&s.inbox[i]), level, 1 - now);
		taken = until;
		if (id < 2u + pes && id != 1u - now)
			s.size[id] = 0; // of this frontier, and of what others were told
		grid.sync();
		const unsigned long long size = *(volatile unsigned *)&s.size[1 - now];

		if (leads && (int)threadIdx.x < pes) {
			const int to = threadIdx.x;

			if (to == me) {
				*(volatile unsigned long long *)&s.sizes[level * pes + me] = size;
			} else {
				issued(WRITE, to, &s.sizes[level * pes + me], sizeof(unsigned long long));
				nvshmem_ulonglong_p(&s.sizes[level * pes + me], size, to);
			}
		}
		if (leads)
			nvshmemx_barrier_all_block();
		grid.sync();
		unsigned long long total = 0;

		for (int p = 0; p < pes; p++)
			total += *(volatile unsigned long long *)&s.sizes[level * pes + p];
		now = 1 - now;
		if (!total)
			break;
	}
	if (id == 0) {
		s.times[1] = clock64();
		*s.levels = level;
	}
}

template <typename T> static T *here(size_t n)
{
	T *p;

	if (cudaMalloc(&p, n * sizeof(T)) != cudaSuccess) {
		printf("FAIL no memory\n");
		exit(1);
	}
	return p;
}

template <typename T> static T *copied(const std::vector<T> &v)
{
	T *p = here<T>(v.size() + 1);

	cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice);
	return p;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	const unsigned scale = atoi(argv[2]), searches = atoi(argv[3]), queues = argc > 4 ? atoi(argv[4]) : 1;
	initialize(argv[1]);
	const int me = nvshmem_my_pe(), pes = nvshmem_n_pes();
	const graph whole = rmat(scale, 16), mine = share_of(whole, me, pes);
	const size_t most = (whole.vertices + pes - 1) / pes, level_words = (size_t)LEVELS * pes;
	search_state s;

	s.vertices = whole.vertices;
	s.first = copied(std::vector<unsigned long long>(mine.first.begin(), mine.first.end()));
	s.neighbours = copied(mine.neighbours);
	s.distance = here<int>(most);
	s.frontier[0] = here<unsigned>(most);
	s.frontier[1] = here<unsigned>(most);
	s.size = here<unsigned>(2 + pes);
	s.told = here<unsigned>(whole.vertices / 32 + 1);
	s.times = here<unsigned long long>(2);
	s.levels = here<unsigned long long>(1);
	s.room = most;
	s.out = everywhere<unsigned>(most * pes);
	s.inbox = everywhere<unsigned>(most * pes);
	s.arrived = everywhere<unsigned>(1);
	s.sizes = everywhere<unsigned long long>(level_words);
	log_issued(1ull << 22);
	int khz = 0;
	cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0);

	unsigned long long reached = 0, levels = 0;
	long wrong = 0;
	for (unsigned n = 0; n < searches; n++) {
		unsigned from = root(whole, n / queues);
		int every = queues, which = n % queues, me_ = me, pes_ = pes;
		void *arguments[] = {&s, &from, &me_, &pes_, &every, &which};
		unsigned long long times[2];

		cudaMemset(s.distance, 0xff, most * sizeof(int));
		cudaMemset(s.size, 0, (2 + pes) * sizeof(unsigned));
		cudaMemset(s.told, 0, (whole.vertices / 32 + 1) * sizeof(unsigned));
		cudaMemset(s.arrived, 0, sizeof(unsigned));
		cudaMemset(s.sizes, 0, level_words * sizeof(unsigned long long));
		finish("memset");
		nvshmem_barrier_all();
		const cudaError_t e = cudaLaunchCooperativeKernel((const void *)bfs, dim3(BLOCKS), dim3(THREADS), arguments, (size_t)0, (cudaStream_t)0);

		if (e != cudaSuccess) {
			printf("FAIL cudaLaunchCooperativeKernel: %s\n", cudaGetErrorString(e));
			return 1;
		}
		finish("bfs");
		nvshmem_barrier_all();
		cudaMemcpy(times, s.times, sizeof times, cudaMemcpyDeviceToHost);
		cudaMemcpy(&levels, s.levels, sizeof levels, cudaMemcpyDeviceToHost);
		int *distance = host_copy(s.distance, most);
		const std::vector<int> expected = search(whole, from);

		reached = 0;
		for (unsigned v = me; v < whole.vertices; v += pes) {
			wrong += distance[v / pes] != expected[v];
			reached += distance[v / pes] >= 0;
		}
		free(distance);
		printf("{\"name\":\"search\",\"value\":%.2f,\"unit\":\"us\",\"rank\":%d,\"search\":%u,\"queue\":%d,\"root\":%u,\"levels\":%llu,\"reached\":%llu}\n", (times[1] - times[0]) * 1e3 / khz, rank, n,
			which, from, levels, reached);
	}
	result(wrong == 0, "distances", "%ld wrong", wrong);
	result(reached > 1 && levels > 2, "the last search reached others", "%ld in %ld levels", reached, levels);
	print_issued({{"inbox", s.inbox, most * pes * sizeof(unsigned)}, {"arrived", s.arrived, sizeof(unsigned)}, {"sizes", s.sizes, level_words * sizeof(unsigned long long)}});
	nvshmem_barrier_all();
	nvshmem_finalize();
	return failures != 0;
}
