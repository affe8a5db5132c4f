/* What the cases of bell_check have in common. */
#include "bell.h"

#include <stdlib.h>
#include <unistd.h>

struct how how = { 20000, 10, 1, 256, &gpu_memory };

__attribute__((constructor)) static void read_how(void)
{
	const char *e = getenv("BELL");
	char word[8] = "";

	if (!e)
		return;
	CHECK(sscanf(e, "%u,%u,%u,%u,%7s", &how.total, &how.log, &how.batch, &how.window, word) >= 4, "BELL=%s", e);
	if (!strcmp(word, "host"))
		how.memory = &host_memory;
}

void open_loop(struct loop *l, struct end *e, unsigned log, struct mlx5dv_devx_uar *uar)
{
	alarm(60 + how.total / 5000);
	memset(l, 0, sizeof *l);
	l->e = e;
	l->total = how.total;
	l->to = (struct remote){ .addr = e->buf + END_HALF, .key = e->mr->rkey };
	queue_open(&l->q, e->ctx, e->pdn, log, QUEUE_RC, true, uar, how.memory);
	queue_open(&l->peer, e->ctx, e->pdn, 2, QUEUE_RC, true, NULL, how.memory);
	queue_connect(&l->q, l->peer.qpn);
	queue_connect(&l->peer, l->q.qpn);
}

void close_loop(struct loop *l)
{
	queue_close(&l->q);
	queue_close(&l->peer);
}

uint32_t put_number(struct loop *l, uint32_t i, bool signaled)
{
	return put_inline(&l->q, &l->to, &i, sizeof i, signaled);
}

void stream_of(void *argument)
{
	struct loop *l = argument;
	const uint32_t ring_size = 1u << l->q.log, window = how.window < ring_size ? how.window : ring_size;

	for (uint32_t i = 0; i < l->total; i += how.batch) {
		if (i + how.batch > window) {
			l->bad += wait_for(&l->q, i + how.batch - window - 1) != 0;
			if (l->progress)
				atomic_store(l->progress, i + how.batch - window);
		}
		for (uint32_t k = 0; k < how.batch; k++)
			put_number(l, i + k, true);
		ring(&l->q);
	}
	l->bad += wait_for(&l->q, l->q.next - 1) != 0;
}
