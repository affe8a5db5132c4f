/* What the counting preloads share: counters, the output file, and finding the next definition of a function.
 * They are the tests' second opinion, so they share nothing with the recorder: no file, no table, no idea of it. */
#ifndef SIGMATRACE_TESTS_COUNT_H
#define SIGMATRACE_TESTS_COUNT_H

#include <stdint.h>

/* Both preloads may be in one process, each with its own copy of what is declared here. */
#define HIDDEN __attribute__((visibility("hidden")))

struct counter {
	const char *name;
	uint64_t count;
	uint64_t bytes;
	uint64_t header_bytes; /* active messages: beside the payload */
};

static inline void count_add(struct counter *c, uint64_t count, uint64_t bytes)
{
	__atomic_fetch_add(&c->count, count, __ATOMIC_RELAXED);
	__atomic_fetch_add(&c->bytes, bytes, __ATOMIC_RELAXED);
}

/* Registers the table that is written to $COUNT_OUT.<layer>.<pid> when the process exits, if one of its counts is not 0.
 * A forked child starts from 0. */
HIDDEN void count_register(const char *layer, struct counter *table, int n);

/* The definition of name after this object's: by RTLD_NEXT, so another preload is passed through; a library that was
 * opened privately (an Open MPI component's libucp) is not on that path and is asked by its name, soname.
 * The process is ended when there is none. */
HIDDEN void *count_next(const char *name, const char *soname);

#define COUNT_REAL(name, soname) \
	static __typeof__(name) *real; \
	if (!real) \
	real = (__typeof__(name) *)count_next(#name, soname)

#endif
