/*
 * Independent counters of what the adapter did, for tests. With SOFTHCA_STATS
 * set each process appends one line of JSON there when it ends in order.
 */
#pragma once

#include "hca.h"

#include <infiniband/verbs.h>
#include <stdint.h>

enum { STATS_OPCODES = HCA_WR_END };

/* Of one queue pair; kept to the end of the process. */
struct qp_stats {
	struct qp_stats *next;
	uint32_t qpn, type;
	uint32_t peer_qpn; /* RC: as connected last */
	int peer_pid;
	int device;
	/* changed under the send queue's lock */
	uint64_t requests[STATS_OPCODES], bytes[STATS_OPCODES];
};

struct hca_qp;
struct wqe;

#pragma GCC visibility push(hidden)

/* NULL when there is no memory. */
struct qp_stats *stats_queue_pair(uint32_t qpn, uint32_t type, const struct ibv_context *c);
/* An accepted request; the send queue's lock held. */
void stats_posted(struct hca_qp *q, const struct wqe *w);
void stats_recv_posted(uint32_t n, int srq);
void stats_completion(const struct shm_cqe *e);
void stats_poll(uint32_t n);
void stats_flushed(void);
/* Bytes to or from another process's GPU: directly, or with its help. */
void stats_gpu(bool direct, uint64_t bytes);
void stats_write(void);
/* In a forked child: its parent's counts are not its own. */
void stats_reset(void);

#pragma GCC visibility pop
