/*
 * Independent counters of what the adapter did, for tests. With SOFTHCA_STATS
 * set each process appends one line of JSON there when it ends in order.
 */
#pragma once

#include "shm.h"

#include <stdint.h>

struct wqe;

#pragma GCC visibility push(hidden)

void stats_posted(const struct wqe *w);
void stats_recv_posted(uint32_t n, int srq);
void stats_completion(const struct shm_cqe *e);
void stats_poll(uint32_t n);
void stats_flushed(void);
void stats_write(void);
void stats_reset(void);

#pragma GCC visibility pop
