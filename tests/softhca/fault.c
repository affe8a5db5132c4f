/* Faults on demand: SOFTHCA_FAULT=NAME=N[,NAME=N...]. */
#include "fault.h"
#include "hca.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct {
	const char *name;
	unsigned long n;
	_Atomic unsigned long seen;
} faults[] = {
	[FAULT_DELAY_US] = { .name = "delay_us" },
	[FAULT_ERROR] = { .name = "error_every" },
	[FAULT_LOST_DOORBELL] = { .name = "lost_doorbell_every" },
	[FAULT_RNR] = { .name = "rnr_every" },
	[FAULT_REUSE] = { .name = "reuse_numbers" },
	[FAULT_BUSY] = { .name = "busy_every" },
};

__attribute__((constructor)) static void read_faults(void)
{
	const char *e = getenv("SOFTHCA_FAULT");
	char *copy = e ? strdup(e) : NULL, *rest = NULL;

	for (char *word = copy ? strtok_r(copy, ",", &rest) : NULL; word; word = strtok_r(NULL, ",", &rest)) {
		char *value = strchr(word, '=');
		size_t i = 0;

		if (value)
			*value++ = 0;
		while (i < sizeof faults / sizeof *faults && strcmp(faults[i].name, word))
			i++;
		if (!value || i == sizeof faults / sizeof *faults || !(faults[i].n = strtoul(value, NULL, 10))) {
			fprintf(stderr, "softhca: SOFTHCA_FAULT: '%s' is none of delay_us, error_every, lost_doorbell_every, rnr_every, reuse_numbers, busy_every with a number\n", word);
			exit(1);
		}
	}
	free(copy);
}

bool fault(enum fault f)
{
	return faults[f].n && (atomic_fetch_add(&faults[f].seen, 1) + 1) % faults[f].n == 0;
}

void fault_delay(void)
{
	const unsigned long us = faults[FAULT_DELAY_US].n;
	const struct timespec t = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };

	if (us)
		nanosleep(&t, NULL);
}
