/* N full-field requests through LTTng-UST; prints nanoseconds an event. */
#define TRACEPOINT_CREATE_PROBES
#define TRACEPOINT_DEFINE
#include "lttng.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv)
{
    uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 0) : 0;
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t f[] = {4096, 0, 2, 1, 0x7f0000000000 + i * 4096, 0x1234, 0x7e0000000000 + i * 4096, 0x5678, 0};
        tracepoint(sigmatrace_bench, request, 1, i, f);
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%.3f\n", ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / (double)n);
    return 0;
}
