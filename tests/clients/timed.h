/* What the clients share that time each call. */
#ifndef SIGMATRACE_TESTS_TIMED_H
#define SIGMATRACE_TESTS_TIMED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CHECK(x)                                                                      \
	do {                                                                          \
		if (!(x)) {                                                           \
			fprintf(stderr, "%s: line %d: %s\n", __FILE__, __LINE__, #x); \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

static inline uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint32_t since(uint64_t begin)
{
	uint64_t ns = now() - begin;
	return ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
}

static inline int less(const void *a, const void *b)
{
	return (*(const uint32_t *)a > *(const uint32_t *)b) - (*(const uint32_t *)a < *(const uint32_t *)b);
}

/* Median and p99, in nanoseconds. */
static inline void print_times(uint32_t *took, size_t count)
{
	qsort(took, count, sizeof *took, less);
	printf("%u %u\n", took[count / 2], took[count / 100 * 99]);
}

#endif
