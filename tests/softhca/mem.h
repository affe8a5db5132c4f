/*
 * Memory regions and the one way in which data moves. A file for another kind
 * of memory adds its kind here and its branch in mem_copy.
 */
#pragma once

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

enum mem_kind { MEM_HOST, MEM_GPU };

/* A piece of memory of one process, with the address valid there. */
struct span {
	uint64_t addr;
	uint32_t len;
	uint32_t proc; /* slot */
	uint32_t kind; /* enum mem_kind */
	uint32_t device;
	uint32_t share; /* of a GPU's memory: by which others may reach it, 0: not */
};

/*
 * What an atomic does to a word of `size` bytes. add: operand is added, and no carry passes a bit that is set in operand_mask. Else: where
 * the bits of compare_mask are those of compare, the bits of operand_mask become those of operand.
 */
struct mem_atomic {
	bool add, big_endian_result;
	uint8_t size;
	uint64_t operand, operand_mask, compare, compare_mask;
};

#pragma GCC visibility push(hidden)

/* Which kind of memory of this process it is, and of which device. */
enum mem_kind mem_kind_of(const void *addr, uint32_t *device);

/*
 * Checks a key of process `proc` and domain `pdn` for `len` bytes at `addr`
 * with all of the rights `access` (enum ibv_access_flags), and gives the span.
 * Returns 0, or -1 when the key does not allow it.
 */
int mem_resolve(uint32_t proc, uint32_t pdn, uint32_t key, uint64_t addr, uint32_t len, uint32_t access, struct span *out);

/*
 * Copies the bytes of `src` in order into `dst`, which is at least as long.
 * One side at least is of this process. Returns 0, or an errno: ESRCH when the
 * other process is gone, EFAULT when memory is not there.
 */
int mem_copy(const struct span *dst, int ndst, const struct span *src, int nsrc);

/* What becomes of a word. */
uint64_t mem_updated(const struct mem_atomic *a, uint64_t word);

/* Atomic among all RDMA atomics on that process's memory; `target` is aligned.
 * Returns as mem_copy; `*old` gets the former value. */
int mem_update(const struct span *target, const struct mem_atomic *a, uint64_t *old);

#pragma GCC visibility pop
