/* Work queue elements of programs' own queues: read, decoded, completed in their own completion queues. */
#include "devx.h"
#include "stats.h"

#include <stdlib.h>
#include <string.h>

enum { CE_ALWAYS = 8, CE_MASK = 0xc, SOLICITED = 2, INLINE = 0x80, OPMOD_4_BYTES = 8, OPCODE_WAIT = 0x0f, OPCODE_DUMP = 0x23 };

int devx_queue_init(struct devx_queue *d)
{
	d->copy = malloc((size_t)WQE_BLOCK << d->log);
	d->current = malloc(sizeof *d->current + WQE_MAX / 16 * sizeof(struct ibv_sge));
	d->raw = malloc(WQE_MAX);
	return d->copy && d->current && d->raw ? 0 : -1;
}

void devx_queue_free(struct devx_queue *d)
{
	free(d->copy);
	free(d->current);
	free(d->raw);
	free(d);
}

/* Pointers and bytes of the element itself, in any order. */
static void elements(struct wqe *w, const uint8_t *p, const uint8_t *end)
{
	for (; p + 16 <= end; p += 16) {
		const uint32_t count = get32(p);
		uint32_t n = count & 0x3ff;

		if (!(p[0] & INLINE)) {
			w->sge[w->num_sge++] = (struct ibv_sge){ .addr = get64(p + 8), .length = count, .lkey = get32(p + 4) };
			w->length += count;
			continue;
		}
		/* its bytes follow the count, and fill up to the next 16 */
		if (n > (size_t)(end - p - 4))
			n = end - p - 4;
		w->pieces |= 1ull << w->num_sge;
		w->sge[w->num_sge++] = (struct ibv_sge){ .addr = (uintptr_t)p + 4, .length = n };
		w->flags |= IBV_SEND_INLINE;
		w->length += n;
		p += (4 + n + 15) / 16 * 16 - 16;
	}
}

static const uint8_t *atomic_segment(struct wqe *w, unsigned opcode, unsigned opmod, const uint8_t *p, const uint8_t *end)
{
	const bool four = opmod == OPMOD_4_BYTES;

	w->atomic = (struct mem_atomic){ .size = four ? 4 : 8 };
	w->length = w->atomic.size;
	switch (opcode) {
	case MLX5_OPCODE_ATOMIC_CS:
		w->opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
		w->atomic.operand = get64(p);
		w->atomic.compare = get64(p + 8);
		w->atomic.operand_mask = w->atomic.compare_mask = UINT64_MAX;
		return p + 16;
	case MLX5_OPCODE_ATOMIC_FA:
		w->opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		w->atomic.add = true;
		w->atomic.operand = get64(p);
		return p + 16;
	case MLX5_OPCODE_ATOMIC_MASKED_FA:
		w->opcode = HCA_WR_MASKED_FA;
		w->atomic.add = true;
		w->atomic.operand = four ? get32(p) : get64(p);
		w->atomic.operand_mask = four ? get32(p + 4) : get64(p + 8);
		break;
	default:
		w->opcode = HCA_WR_MASKED_CAS;
		if (four) {
			w->atomic.operand = get32(p);
			w->atomic.compare = get32(p + 4);
			w->atomic.operand_mask = get32(p + 8);
			w->atomic.compare_mask = get32(p + 12);
		} else if (p + 32 <= end) {
			w->atomic.operand = get64(p);
			w->atomic.compare = get64(p + 8);
			w->atomic.operand_mask = get64(p + 16);
			w->atomic.compare_mask = get64(p + 24);
			return p + 32;
		}
	}
	w->atomic.big_endian_result = four;
	return p + 16;
}

/* The address vector of a dynamically connected request: 16 bytes, or 48 with its last bit of the target's word set. */
static const uint8_t *dc_address(struct wqe *w, const uint8_t *p)
{
	w->dc_key = get64(p);
	w->dc_target = get24(p + 9);
	return p + (p[8] & 0x80 ? 48 : 16);
}

/* That of a datagram: its handle's, as mlx5dv_init_obj gives it. */
static const uint8_t *ud_address(struct wqe *w, const uint8_t *p)
{
	const bool whole = p[8] & 0x80;

	w->remote_qkey = get32(p);
	w->remote_qpn = get24(p + 9);
	w->ah = (struct ibv_ah_attr){ .sl = p[12] & 0xf, .src_path_bits = p[13] & 0x7f, .dlid = get16(p + 14), .port_num = 1 };
	if (whole) {
		const uint32_t g = get32(p + 28);

		w->ah.is_global = g >> 30 & 1;
		w->ah.grh.sgid_index = g >> 20 & 0xff;
		w->ah.grh.flow_label = g & 0xfffff;
		w->ah.grh.traffic_class = p[26];
		w->ah.grh.hop_limit = p[27];
		memcpy(w->ah.grh.dgid.raw, p + 32, 16);
	}
	return p + (whole ? 48 : 16);
}

static void decode(struct hca_qp *q, const uint8_t *raw, struct wqe *w)
{
	const uint16_t index = get16(raw + 1);
	const unsigned opcode = raw[3], ds = raw[7] & 0x3f;
	const uint8_t *p = raw + 16, *end = raw + ds * 16;

	memset(w, 0, sizeof *w);
	w->blocks = ds ? (ds * 16 + WQE_BLOCK - 1) / WQE_BLOCK : 1;
	w->wr_id = (uint64_t)opcode << 16 | (uint16_t)q->executed;
	w->flags = ((raw[11] & CE_MASK) == CE_ALWAYS ? IBV_SEND_SIGNALED : 0) | (raw[11] & SOLICITED ? IBV_SEND_SOLICITED : 0);
	memcpy(&w->imm, raw + 12, sizeof w->imm);
	w->opcode = HCA_WR_UNKNOWN;
	if (index != (uint16_t)q->executed || get24(raw + 4) != q->qp.qp_num || !ds || w->blocks > q->depth) {
		hca_log("queue %#x: element %u says queue %#x, index %u, size %u", q->qp.qp_num, (uint16_t)q->executed, get24(raw + 4), index, ds);
		return;
	}
	if (opcode == MLX5_OPCODE_NOP || opcode == OPCODE_DUMP) {
		w->opcode = HCA_WR_NOP;
		return;
	}
	if (opcode == OPCODE_WAIT) {
		w->opcode = HCA_WR_WAIT;
		w->wait_index = get32(raw + 24);
		w->wait_cqn = get24(raw + 29);
		return;
	}
	if (q->sh->type == HCA_QPT_DCI)
		p = dc_address(w, p);
	if (q->sh->type == IBV_QPT_UD)
		p = ud_address(w, p);
	if (opcode != MLX5_OPCODE_SEND && opcode != MLX5_OPCODE_SEND_IMM) {
		w->remote_addr = get64(p);
		w->rkey = get32(p + 8);
		p += 16;
	}
	switch (opcode) {
	case MLX5_OPCODE_SEND:
		w->opcode = IBV_WR_SEND;
		break;
	case MLX5_OPCODE_SEND_IMM:
		w->opcode = IBV_WR_SEND_WITH_IMM;
		break;
	case MLX5_OPCODE_RDMA_WRITE:
		w->opcode = IBV_WR_RDMA_WRITE;
		break;
	case MLX5_OPCODE_RDMA_WRITE_IMM:
		w->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		break;
	case MLX5_OPCODE_RDMA_READ:
		w->opcode = IBV_WR_RDMA_READ;
		break;
	case MLX5_OPCODE_ATOMIC_CS:
	case MLX5_OPCODE_ATOMIC_FA:
	case MLX5_OPCODE_ATOMIC_MASKED_CS:
	case MLX5_OPCODE_ATOMIC_MASKED_FA:
		p = atomic_segment(w, opcode, raw[0], p, end);
		if (p + 16 <= end) {
			w->sge[0] = (struct ibv_sge){ .addr = get64(p + 8), .length = w->atomic.size, .lkey = get32(p + 4) };
			w->num_sge = 1;
		}
		return;
	default:
		hca_log("queue %#x: opcode %#x is not emulated", q->qp.qp_num, opcode);
		return;
	}
	elements(w, p, end);
}

struct wqe *devx_next(struct hca_qp *q)
{
	struct devx_queue *d = q->devx;
	const uint32_t mask = q->depth - 1, at = q->executed & mask;

	if (d->decoded && d->decoded_at == q->executed)
		return d->current;
	for (uint32_t i = 0; i < WQE_BLOCKS && i < q->depth; i++) /* elements may go on at the ring's start */
		memcpy(d->raw + i * WQE_BLOCK, d->copy + (size_t)((at + i) & mask) * WQE_BLOCK, WQE_BLOCK);
	decode(q, d->raw, d->current);
	stats_posted(q, d->current);
	d->decoded = true;
	d->decoded_at = q->executed;
	return d->current;
}

bool devx_wait_over(const struct wqe *w)
{
	const struct devx_cq *c = devx_find_cq(w->wait_cqn);

	return c && (int32_t)(atomic_load(&c->produced) - w->wait_index) > 0;
}

uint8_t devx_syndrome(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_LOC_LEN_ERR:
		return 0x01;
	case IBV_WC_LOC_QP_OP_ERR:
		return 0x02;
	case IBV_WC_LOC_PROT_ERR:
		return 0x04;
	case IBV_WC_WR_FLUSH_ERR:
		return 0x05;
	case IBV_WC_REM_INV_REQ_ERR:
		return 0x12;
	case IBV_WC_REM_ACCESS_ERR:
		return 0x13;
	case IBV_WC_REM_OP_ERR:
		return 0x14;
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return 0x16;
	default:
		return 0x15; /* transport retries */
	}
}

static void produce(struct devx_cq *c, uint8_t *e)
{
	pthread_mutex_lock(&c->mu);
	const uint32_t n = atomic_load(&c->produced), slot = c->collapsed ? 0 : n & ((1u << c->log) - 1);
	const uint64_t to = c->ring.addr + slot * 64ull;

	e[63] |= c->collapsed ? 0 : (n >> c->log) & 1; /* whose turn it is: the program tells new entries by it */
	if (c->ring.kind == MEM_HOST) {
		rings_write_entry((uint8_t *)(uintptr_t)to, e);
	} else {
		const struct span dst = { .addr = to, .len = 64, .proc = hca.slot, .kind = c->ring.kind, .device = c->ring.device };
		const struct span src = { .addr = (uintptr_t)e, .len = 64, .proc = hca.slot };

		mem_copy(&dst, 1, &src, 1);
	}
	atomic_store(&c->produced, n + 1);
	pthread_mutex_unlock(&c->mu);
}

void devx_complete(struct hca_qp *q, const struct wqe *w, enum ibv_wc_status status)
{
	uint8_t e[64] = { 0 };

	if (!status && !(w->flags & IBV_SEND_SIGNALED))
		return;
	e[56] = (uint8_t)(w->wr_id >> 16);
	put24(e + 57, q->qp.qp_num);
	put16(e + 60, (uint16_t)w->wr_id);
	if (status) {
		e[54] = 0x80;
		e[55] = devx_syndrome(status);
		e[63] = 0xd0;
	}
	produce(q->devx->cq, e);
}

void devx_ring(struct devx_queue *d, uint16_t to)
{
	struct hca_qp *q = d->q;
	const uint32_t mask = q->depth - 1;

	pthread_mutex_lock(&q->mu);
	const uint16_t n = to - (uint16_t)q->posted;

	if (n >= 0x8000) { /* an older value */
		pthread_mutex_unlock(&q->mu);
		return;
	}
	if (n > q->depth - (q->posted - q->executed)) {
		hca_log("queue %#x of %u: rung to %u with %u done: overrun", q->qp.qp_num, q->depth, to, (uint16_t)q->executed);
		exec_enter_error(q);
		pthread_mutex_unlock(&q->mu);
		return;
	}
	for (uint32_t done = 0; done < n;) {
		const uint32_t at = (q->posted + done) & mask;
		const uint32_t k = n - done < q->depth - at ? n - done : q->depth - at;
		const struct span src = { .addr = d->ring.addr + (uint64_t)at * WQE_BLOCK, .len = k * WQE_BLOCK, .proc = hca.slot, .kind = d->ring.kind, .device = d->ring.device };
		const struct span dst = { .addr = (uintptr_t)d->copy + (size_t)at * WQE_BLOCK, .len = k * WQE_BLOCK, .proc = hca.slot };

		mem_copy(&dst, 1, &src, 1);
		done += k;
	}
	q->posted += n;
	exec_queue(q, false);
	pthread_mutex_unlock(&q->mu);
}
