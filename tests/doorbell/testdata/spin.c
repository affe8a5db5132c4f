/* Prints which way of waiting is chosen for a processor: WANTED FEATURES EXTENDED; wait: waits by this one's. */
#include "spin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    static uint64_t word;
    struct spin_cpu cpu;
    enum spin wanted = SPIN_AUTO;
    if (argc == 2) {
        spin_cpu(&cpu);
        for (int i = 0; i < 1000; i++)
            spin_wait(spin_choose(SPIN_AUTO, &cpu), &word, i % 2);
        return 0;
    }
    while (strcmp(spin_name(wanted), argv[1]))
        wanted++;
    cpu = (struct spin_cpu){(uint32_t)strtoul(argv[2], NULL, 0), (uint32_t)strtoul(argv[3], NULL, 0)};
    puts(spin_name(spin_choose(wanted, &cpu)));
    return 0;
}
