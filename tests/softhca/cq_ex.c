/* The extended way to poll: start_poll, next_poll, end_poll, read_*. */
#include "hca.h"
#include "stats.h"

#include <errno.h>
#include <time.h>

static struct hca_cq *of(struct ibv_cq_ex *x)
{
	return (struct hca_cq *)x;
}

static int advance(struct hca_cq *c)
{
	if (!cq_next(c, &c->current))
		return ENOENT;
	c->taken++;
	c->ex.wr_id = c->current.wr_id;
	c->ex.status = c->current.status;
	return 0;
}

static int start_poll(struct ibv_cq_ex *x, struct ibv_poll_cq_attr *attr)
{
	struct hca_cq *c = of(x);
	int rc;

	if (attr->comp_mask)
		return EINVAL;
	if (c->epoch != hca.epoch)
		return EIO;
	if (atomic_load_explicit(&hca.pending_count, memory_order_relaxed))
		exec_pending(false);
	pthread_mutex_lock(&c->mu);
	c->taken = 0;
	rc = advance(c);
	cq_pause_if_empty(c, rc != 0);
	if (rc) { /* end_poll is not called then */
		stats_poll(0);
		pthread_mutex_unlock(&c->mu);
	}
	return rc;
}

static int next_poll(struct ibv_cq_ex *x)
{
	return advance(of(x));
}

static void end_poll(struct ibv_cq_ex *x)
{
	stats_poll(of(x)->taken);
	pthread_mutex_unlock(&of(x)->mu);
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *x)
{
	return of(x)->current.opcode;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *x)
{
	return of(x)->current.status ? 0x80u + of(x)->current.status : 0;
}

static uint32_t read_byte_len(struct ibv_cq_ex *x)
{
	return of(x)->current.byte_len;
}

static __be32 read_imm_data(struct ibv_cq_ex *x)
{
	return of(x)->current.imm;
}

static uint32_t read_qp_num(struct ibv_cq_ex *x)
{
	return of(x)->current.qpn;
}

static uint32_t read_src_qp(struct ibv_cq_ex *x)
{
	return of(x)->current.src_qp;
}

static unsigned read_wc_flags(struct ibv_cq_ex *x)
{
	return of(x)->current.flags;
}

static uint32_t read_slid(struct ibv_cq_ex *x)
{
	return of(x)->current.slid;
}

static uint8_t read_sl(struct ibv_cq_ex *x)
{
	return of(x)->current.sl;
}

static uint8_t read_dlid_path_bits(struct ibv_cq_ex *x)
{
	(void)x;
	return 0;
}

/* The adapter's clock is CLOCK_MONOTONIC in ns (hca_core_clock 1 GHz). */
static uint64_t read_completion_ts(struct ibv_cq_ex *x)
{
	return of(x)->current.timestamp_ns;
}

static uint64_t read_completion_wallclock_ns(struct ibv_cq_ex *x)
{
	struct timespec wall;

	clock_gettime(CLOCK_REALTIME, &wall);
	return of(x)->current.timestamp_ns + (uint64_t)wall.tv_sec * 1000000000u + wall.tv_nsec - now_ns();
}

void cq_ex_methods(struct hca_cq *c)
{
	struct ibv_cq_ex *x = &c->ex;

	x->start_poll = start_poll;
	x->next_poll = next_poll;
	x->end_poll = end_poll;
	x->read_opcode = read_opcode;
	x->read_vendor_err = read_vendor_err;
	x->read_byte_len = read_byte_len;
	x->read_imm_data = read_imm_data;
	x->read_qp_num = read_qp_num;
	x->read_src_qp = read_src_qp;
	x->read_wc_flags = read_wc_flags;
	x->read_slid = read_slid;
	x->read_sl = read_sl;
	x->read_dlid_path_bits = read_dlid_path_bits;
	x->read_completion_ts = read_completion_ts;
	x->read_completion_wallclock_ns = read_completion_wallclock_ns;
}
