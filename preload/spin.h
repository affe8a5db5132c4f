/* How a thread waits for a word of memory to change: by what the processor has for it. */
#ifndef ST_SPIN_H
#define ST_SPIN_H

#include <stdbool.h>
#include <stdint.h>

enum spin { SPIN_AUTO, SPIN_PAUSE, SPIN_UMWAIT, SPIN_MWAITX, SPIN_YIELD };

/* What CPUID says: of leaf 7 and of leaf 0x80000001, register ECX. */
struct spin_cpu {
    uint32_t features, extended;
};
void spin_cpu(struct spin_cpu *c);
/* The way that is possible: the wanted one, else SPIN_PAUSE; for SPIN_AUTO the best. */
enum spin spin_choose(enum spin wanted, const struct spin_cpu *c);
const char *spin_name(enum spin way);
/* Waits a while, or until the word may have changed from 0. alone: there is no other to be looked at. */
void spin_wait(enum spin way, const volatile uint64_t *word, bool alone);

#endif
