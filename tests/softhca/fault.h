/* Faults that a test asks for. */
#pragma once

#include <stdbool.h>

enum fault {
	FAULT_DELAY_US,      /* each request takes so long more */
	FAULT_ERROR,         /* every n-th request fails at the other side */
	FAULT_LOST_DOORBELL, /* every n-th doorbell is not seen */
	FAULT_RNR,           /* every n-th look for a receive finds none */
	FAULT_REUSE,         /* the number of a queue pair that is gone comes back at once */
	FAULT_BUSY,          /* every n-th object of DEVX that is to be destroyed is not */
};

#pragma GCC visibility push(hidden)

/* Whether it strikes this time. */
bool fault(enum fault f);
void fault_delay(void);

#pragma GCC visibility pop
