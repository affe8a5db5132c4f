/* What differs by processor: clock read, spin-wait, stores to devices. The recording clock: the TSC on x86-64, CNTVCT_EL0 on aarch64. */
#ifndef ST_CLOCK_H
#define ST_CLOCK_H

#include <stdint.h>

#if defined(__x86_64__)
#define ST_ARCHITECTURE 1
#define ST_CLOCK_DOMAIN 1 /* events.toml enum domain: tsc */
#elif defined(__aarch64__)
#define ST_ARCHITECTURE 2
#define ST_CLOCK_DOMAIN 2 /* cntvct */
#else
#error "sigmatrace records on x86-64 and aarch64 only"
#endif

/* Ticks of the recording clock. Not ordered with the surrounding loads: a stamp may be early by a few nanoseconds, which is less
 * than the cost of a fence (rdtscp: twice the time). */
static inline uint64_t st_clock(void)
{
#if defined(__x86_64__)
    uint32_t lo, hi;
    __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
    return (uint64_t)hi << 32 | lo;
#else
    uint64_t v;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(v));
    return v;
#endif
}

static inline void st_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

/* What was stored is on its way to the device before anything else is stored. */
static inline void st_flush_stores(void)
{
#if defined(__x86_64__)
    __asm__ volatile("sfence" : : : "memory");
#else
    __asm__ volatile("dsb st" : : : "memory");
#endif
}

#endif
