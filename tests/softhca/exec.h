/* The two halves of a request's execution: what the initiator does (exec.c), and what happens where it is addressed to (target.c). */
#pragma once

#include "hca.h"

enum outcome {
	DONE,         /* completed, with a status */
	RNR,          /* the target has no receive posted */
	UNREACHABLE,  /* the target does not exist, or is not connected yet */
	HELD,         /* waits for a completion queue, as it asked to */
};

/* The queue pair a request comes from, as its target sees it. */
struct source {
	uint32_t type, qpn;
	uint16_t lid;
	uint32_t rnr_timer; /* out: how long the target asks to pause */
};

#pragma GCC visibility push(hidden)

/* `loc`: the data of the initiator, to be read, or written for reads and atomics. */
enum outcome target_rc(struct source *from, uint32_t dest, const struct wqe *w, const struct span *loc, int nloc, enum ibv_wc_status *status);
/* `src` begins with the 40 bytes of the global route. */
void target_ud(const struct source *from, const struct wqe *w, const struct span *src, int nsrc);

static inline bool wqe_is_atomic(const struct wqe *w)
{
	return w->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || w->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || w->opcode == HCA_WR_MASKED_CAS || w->opcode == HCA_WR_MASKED_FA;
}

/* tcp.c */
bool tcp_is_far(uint32_t qpn);
enum outcome tcp_rc(struct source *from, uint32_t dest, const struct wqe *w, const struct span *loc, int nloc, enum ibv_wc_status *status);
void tcp_ud(const struct source *from, const struct wqe *w, const struct span *src, int nsrc);

#pragma GCC visibility pop
