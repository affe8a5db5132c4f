/* How a thread waits for a word of memory to change: spin.h. */
#define _GNU_SOURCE
#include "spin.h"
#include "clock.h"

#include <sched.h>
#include <stddef.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Intel SDM, CPUID leaf 7, ECX bit 5 (WAITPKG); AMD APM volume 3, Fn8000_0001 ECX bit 29 (MONITORX). */
enum { WAITPKG = 1u << 5, MONITORX = 1u << 29 };
/* Ticks after which a wait ends by itself: there may be other pages to look at, or somebody who waits for the lock. */
enum { ALONE = 20000, AMONG_OTHERS = 1000 };

void spin_cpu(struct spin_cpu *c)
{
    *c = (struct spin_cpu){0, 0};
#if defined(__x86_64__)
    unsigned a, b, d;
    __get_cpuid_count(7, 0, &a, &b, &c->features, &d);
    __get_cpuid(0x80000001, &a, &b, &c->extended, &d);
#endif
}

enum spin spin_choose(enum spin wanted, const struct spin_cpu *c)
{
    bool umwait = c->features & WAITPKG, mwaitx = c->extended & MONITORX;
    switch (wanted) {
    case SPIN_AUTO: return umwait ? SPIN_UMWAIT : mwaitx ? SPIN_MWAITX : SPIN_PAUSE;
    case SPIN_UMWAIT: return umwait ? SPIN_UMWAIT : SPIN_PAUSE;
    case SPIN_MWAITX: return mwaitx ? SPIN_MWAITX : SPIN_PAUSE;
    default: return wanted;
    }
}

const char *spin_name(enum spin way)
{
    static const char *const names[] = {"auto", "pause", "umwait", "mwaitx", "yield"};
    return names[way];
}

#if defined(__x86_64__)
static void umwait(const volatile uint64_t *word, uint64_t ticks)
{
    __asm__ volatile("umonitor %0" : : "r"(word) : "memory");
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE))
        return;
    uint64_t until = st_clock() + ticks;
    __asm__ volatile("umwait %0" : : "r"(1u), "a"((uint32_t)until), "d"((uint32_t)(until >> 32)) : "memory", "cc"); /* 1: state C0.1, from which it wakes sooner */
}

static void mwaitx(const volatile uint64_t *word, uint32_t ticks)
{
    __asm__ volatile("monitorx" : : "a"(word), "c"(0), "d"(0) : "memory");
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE))
        return;
    __asm__ volatile("mwaitx" : : "a"(0xf0), "b"(ticks), "c"(2) : "memory"); /* no deeper state; 2: not longer than ticks */
}
#endif

void spin_wait(enum spin way, const volatile uint64_t *word, bool alone)
{
#if defined(__x86_64__)
    if (way == SPIN_UMWAIT && word) {
        umwait(word, alone ? ALONE : AMONG_OTHERS);
        return;
    }
    if (way == SPIN_MWAITX && word) {
        mwaitx(word, alone ? ALONE : AMONG_OTHERS);
        return;
    }
#else
    (void)word, (void)alone;
#endif
    if (way == SPIN_YIELD)
        sched_yield();
    else
        st_pause();
}
