/* How long single records take: pauses record|none SECONDS GAP_NS. A record with its count, as a provider makes them, every GAP_NS or as fast
 * as they go, each between two reads of the clock; `none`: the two reads alone, what the machine itself does to a loop. Prints one line:
 * records, median, p99.99 and worst in nanoseconds, how many took more than 1 ms and the worst of the rest, both without those in which the
 * scheduler gave the processor to another thread against this one's will, and how often the thread slept in the kernel. */
#define _GNU_SOURCE
#include "recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* counts of times by size, 16 to an octave */
enum { FINE = 16, BINS = 64 * FINE };
static uint64_t bins[BINS];

static unsigned bin_of(uint64_t v)
{
    unsigned octave = v < FINE ? 0 : 63 - (unsigned)__builtin_clzll(v);
    return v < FINE ? (unsigned)v : (octave - 3) * FINE + ((v >> (octave - 4)) & (FINE - 1));
}

static double least_of(unsigned bin)
{
    unsigned octave = bin / FINE + 3;
    return bin < FINE ? bin : (double)((1ull << octave) | (uint64_t)(bin % FINE) << (octave - 4));
}

static double quantile(uint64_t n, double q)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < BINS; i++)
        if ((double)(sum += bins[i]) >= q * (double)n)
            return least_of(i);
    return 0;
}

static uint64_t ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct rusage usage(void)
{
    struct rusage r;
    getrusage(RUSAGE_THREAD, &r);
    return r;
}

static double ticks_per_ns(void)
{
    uint64_t begin = ns(), ticks = st_clock(), end;
    while ((end = ns()) - begin < 50000000)
        ;
    return (double)(st_clock() - ticks) / (double)(end - begin);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    int record = !strcmp(argv[1], "record");
    setpriority(PRIO_PROCESS, 0, -20); /* where that is allowed: what is asked is what recording does, not what other programs do */
    double rate = ticks_per_ns();
    uint64_t end = (uint64_t)(atof(argv[2]) * 1e9 * rate), gap = (uint64_t)(atof(argv[3]) * rate), n = 0, over = 0, worst = 0, own = 0, own_worst = 0, seed = 88172645463325252ull;
    struct st_thread *t = record ? st_enter(ST_LAYER_VERBS) : NULL;
    struct st_object *o = record ? st_object_new(ST_KIND_QP, 1) : NULL;
    if (record && !t)
        return 1;
    long before = usage().ru_nvcsw;
    uint64_t now = st_clock();
    for (end += now; now < end; n++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        long switched = usage().ru_nivcsw;
        uint64_t begin = st_clock();
        if (record) {
            st_rec_verbs_request(t, begin, ST_EV_VERBS_WRITE, o, n, seed & 0xffff, ST_VERBS_OPCODE_RDMA_WRITE, 2, 1, 0x7f0000000000 + seed % 4096 * 4096, 0x1234,
                                 0x7e0000000000 + n * 4096, 0x5678, 0, 0);
            st_count(t, o, ST_EV_VERBS_WRITE, seed & 0xffff, 1);
        }
        now = st_clock();
        uint64_t took = now - begin;
        bins[bin_of(took)]++;
        over += (double)took > 1e6 * rate;
        worst = took > worst ? took : worst;
        if (took > own_worst && usage().ru_nivcsw == switched)
            own_worst = took;
        if ((double)took > 1e6 * rate)
            own += usage().ru_nivcsw == switched;
        while (gap && now - begin < gap)
            now = st_clock();
    }
    printf("%lu %.1f %.1f %.1f %lu %.1f %lu %ld\n", (unsigned long)n, quantile(n, 0.5) / rate, quantile(n, 0.9999) / rate, (double)worst / rate,
           (unsigned long)over, (double)own_worst / rate, (unsigned long)own, usage().ru_nvcsw - before);
    return 0;
}
