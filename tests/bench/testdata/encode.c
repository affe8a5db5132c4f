/* What one record costs: our encoder, a fixed-size record, and nothing, on the same full-field request. encode WHAT N */
#define _GNU_SOURCE
#include "recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct fixed {
    uint64_t time, event, fields[11];
};

static uint64_t ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    uint64_t n = strtoull(argv[2], NULL, 0), begin;
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    if (!t)
        return 1;
    struct st_object *o = st_object_new(ST_KIND_QP, 1);
    if (!strcmp(argv[1], "record")) {
        begin = ns();
        for (uint64_t i = 0; i < n; i++)
            st_rec_verbs_request(t, st_clock(), ST_EV_VERBS_WRITE, o, i, 4096, ST_VERBS_OPCODE_RDMA_WRITE, 2, 1, 0x7f0000000000 + i * 4096, 0x1234,
                                 0x7e0000000000 + i * 4096, 0x5678, 0, 0);
    } else if (!strcmp(argv[1], "fixed")) { /* the same 13 numbers into a shared mapping of 16 MiB, over and over */
        size_t room = (16u << 20) / sizeof(struct fixed);
        struct fixed *f = mmap(NULL, room * sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        begin = ns();
        for (uint64_t i = 0, k = 0; i < n; i++, k = k + 1 < room ? k + 1 : 0)
            *(volatile struct fixed *)&f[k] = (struct fixed){st_clock(), ST_EV_VERBS_WRITE,
                {1, i, 4096, 0, 2, 1, 0x7f0000000000 + i * 4096, 0x1234, 0x7e0000000000 + i * 4096, 0x5678, 0}};
    } else {
        begin = ns();
        for (volatile uint64_t i = 0; i < n; i++)
            __asm__ volatile("" : : "r"(st_clock()));
    }
    printf("%.3f\n", (double)(ns() - begin) / (double)n);
    return 0;
}
