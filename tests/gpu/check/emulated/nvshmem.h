// What the programs need of NVSHMEM, between processes that share a file ($HEAP) with each one's symmetric memory. A block's puts that are not waited for are done when they are, not before.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>
#include <fcntl.h>
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

inline void quiet()
{
	std::lock_guard<std::mutex> lock(mu);

	for (const late &l : puts)
		memcpy(l.to, l.from, l.bytes);
	puts.clear();
}

inline void barrier()
{
	quiet();
	reinterpret_cast<waiting *>(heaps)->wait(pes);
}

template <typename T> void put_block(T *to, const T *from, size_t n, int pe)
{
	sync_block();
	if (thread_index.x == 0) {
		std::lock_guard<std::mutex> lock(mu);

		puts.push_back({at(to, pe), from, n * sizeof *to});
	}
	sync_block();
}

template <typename T> T &of(T *p, int pe) { return *reinterpret_cast<T *>(at(p, pe)); }

template <typename T> void wait_until(T *p, T value)
{
	while (__atomic_load_n(p, __ATOMIC_SEQ_CST) < value)
		usleep(20);
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
inline void nvshmem_quiet() { emulated::quiet(); }

#define EMULATED_P(name, type)                                                                                        \
	inline void nvshmem_##name##_p(type *p, type value, int pe) { __atomic_store_n(&emulated::of(p, pe), value, __ATOMIC_SEQ_CST); }
EMULATED_P(int, int)
EMULATED_P(uint64, uint64_t)
EMULATED_P(ulonglong, unsigned long long)

inline unsigned nvshmem_uint_atomic_fetch_add(unsigned *p, unsigned n, int pe) { return __atomic_fetch_add(&emulated::of(p, pe), n, __ATOMIC_SEQ_CST); }
inline unsigned long nvshmem_ulong_atomic_fetch_add(unsigned long *p, unsigned long n, int pe) { return __atomic_fetch_add(&emulated::of(p, pe), n, __ATOMIC_SEQ_CST); }
inline void nvshmem_ulong_atomic_add(unsigned long *p, unsigned long n, int pe) { nvshmem_ulong_atomic_fetch_add(p, n, pe); }
inline unsigned nvshmem_uint_atomic_compare_swap(unsigned *p, unsigned old, unsigned now, int pe) { return atomicCAS(&emulated::of(p, pe), old, now); }

inline void nvshmemx_uint32_put_nbi_block(unsigned *to, const unsigned *from, size_t n, int pe) { emulated::put_block(to, from, n, pe); }
inline void nvshmemx_double_put_nbi_block(double *to, const double *from, size_t n, int pe) { emulated::put_block(to, from, n, pe); }
inline void nvshmemx_double_get_block(double *to, const double *from, size_t n, int pe)
{
	if (threadIdx.x == 0)
		memcpy(to, emulated::at(from, pe), n * sizeof *to);
	emulated::sync_block();
}

enum { NVSHMEM_SIGNAL_SET, NVSHMEM_CMP_GE };
inline void nvshmemx_double_put_signal_nbi_block(double *to, const double *from, size_t n, uint64_t *signal, uint64_t value, int, int pe)
{
	emulated::sync_block();
	if (threadIdx.x == 0) {
		memcpy(emulated::at(to, pe), from, n * sizeof *to);
		__atomic_store_n(&emulated::of(signal, pe), value, __ATOMIC_SEQ_CST);
	}
	emulated::sync_block();
}
inline void nvshmem_signal_wait_until(uint64_t *p, int, uint64_t value) { emulated::wait_until(p, value); }
inline void nvshmem_uint64_wait_until(uint64_t *p, int, uint64_t value) { emulated::wait_until(p, value); }
