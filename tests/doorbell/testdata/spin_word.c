/* spin.c of a processor that waits until a word changes: it takes longer than those, and touches the word at the end. */
#define spin_choose choose
#define spin_wait wait_of_this
#include "../../../preload/spin.c"
#undef spin_choose
#undef spin_wait

#include <unistd.h>

enum spin spin_choose(enum spin wanted, const struct spin_cpu *c)
{
    (void)choose(wanted, c);
    return SPIN_UMWAIT;
}

void spin_wait(enum spin way, const volatile uint64_t *word, bool alone)
{
    if (!word) {
        wait_of_this(way, word, alone);
        return;
    }
    usleep(300);
    (void)*word;
}
