// What bfs.cu needs of NVSHMEM, between processes that share a file ($HEAP) with each one's symmetric memory. Puts that are not waited for are done at the barrier, not before.
#pragma once

#include <cuda_runtime.h>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <sys/mman.h>

namespace emulated
{
const size_t HEAP = 64 << 20;
inline char *heaps;
inline size_t used = 4096; // its first page has the barrier
inline int pe, pes;
struct late {
	void *to;
	const void *from;
	size_t bytes;
};
inline std::vector<late> puts;
inline std::mutex mu;

inline char *at(const void *mine, int of) { return (char *)mine - pe * HEAP + of * HEAP; }

inline void barrier()
{
	{
		std::lock_guard<std::mutex> lock(mu);

		for (const late &l : puts)
			memcpy(l.to, l.from, l.bytes);
		puts.clear();
	}
	reinterpret_cast<waiting *>(heaps)->wait(pes);
}
}

struct nvshmemx_init_attr_t {
};
struct nvshmemx_uniqueid_t {
	char bytes[8];
};
#define NVSHMEMX_INIT_ATTR_INITIALIZER {}
#define NVSHMEMX_UNIQUEID_INITIALIZER {}
enum { NVSHMEMX_INIT_WITH_UNIQUEID };

inline void nvshmemx_get_uniqueid(nvshmemx_uniqueid_t *) {}
inline void nvshmemx_set_attr_uniqueid_args(int pe, int pes, nvshmemx_uniqueid_t *, nvshmemx_init_attr_t *)
{
	emulated::pe = pe;
	emulated::pes = pes;
}
inline int nvshmemx_init_attr(int, nvshmemx_init_attr_t *)
{
	const int fd = open(getenv("HEAP"), O_RDWR | O_CREAT, 0600);
	const size_t size = emulated::pes * emulated::HEAP;

	if (fd < 0 || ftruncate(fd, size))
		return 1;
	emulated::heaps = static_cast<char *>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	return emulated::heaps == MAP_FAILED;
}
inline int nvshmem_my_pe() { return emulated::pe; }
inline int nvshmem_n_pes() { return emulated::pes; }
inline void *nvshmem_malloc(size_t n)
{
	const size_t at = emulated::used;

	emulated::used += (n + 63) / 64 * 64;
	return emulated::used > emulated::HEAP ? nullptr : emulated::heaps + emulated::pe * emulated::HEAP + at;
}
inline void nvshmem_barrier_all() { emulated::barrier(); }
inline void nvshmem_finalize() {}

inline void nvshmemx_barrier_all_block()
{
	emulated::sync_block();
	if (threadIdx.x == 0)
		emulated::barrier();
	emulated::sync_block();
}
inline unsigned nvshmem_uint_atomic_fetch_add(unsigned *p, unsigned n, int pe) { return __atomic_fetch_add((unsigned *)emulated::at(p, pe), n, __ATOMIC_SEQ_CST); }
inline void nvshmem_ulonglong_p(unsigned long long *p, unsigned long long value, int pe)
{
	std::lock_guard<std::mutex> lock(emulated::mu);
	static std::vector<std::unique_ptr<unsigned long long>> values;

	values.emplace_back(new unsigned long long(value));
	emulated::puts.push_back({emulated::at(p, pe), values.back().get(), sizeof value});
}
inline void nvshmemx_uint32_put_nbi_block(unsigned *to, const unsigned *from, size_t n, int pe)
{
	emulated::sync_block();
	if (threadIdx.x == 0) {
		std::lock_guard<std::mutex> lock(emulated::mu);

		emulated::puts.push_back({emulated::at(to, pe), from, n * sizeof *to});
	}
	emulated::sync_block();
}
