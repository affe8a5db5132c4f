/* Counters and their line of JSON. */
#include "stats.h"
#include "hca.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const opcode_names[STATS_OPCODES] = {
	[IBV_WR_RDMA_WRITE] = "write",
	[IBV_WR_RDMA_WRITE_WITH_IMM] = "write_imm",
	[IBV_WR_SEND] = "send",
	[IBV_WR_SEND_WITH_IMM] = "send_imm",
	[IBV_WR_RDMA_READ] = "read",
	[IBV_WR_ATOMIC_CMP_AND_SWP] = "compare_swap",
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = "fetch_add",
	[HCA_WR_MASKED_CAS] = "masked_compare_swap",
	[HCA_WR_MASKED_FA] = "masked_fetch_add",
	[HCA_WR_NOP] = "nop",
	[HCA_WR_WAIT] = "wait",
	[HCA_WR_UNKNOWN] = "unknown",
};

static struct {
	_Atomic uint64_t signaled, inlined, flushed;
	_Atomic uint64_t recv_posted, srq_recv_posted;
	_Atomic uint64_t send_cqes, recv_cqes, error_cqes, recv_bytes;
	_Atomic uint64_t polls, empty_polls, gpu_direct, gpu_staged;
	struct qp_stats *_Atomic queue_pairs;
} count;

static inline void add(_Atomic uint64_t *c, uint64_t n)
{
	atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}

struct qp_stats *stats_queue_pair(uint32_t qpn, uint32_t type, const struct ibv_context *c)
{
	struct qp_stats *s = calloc(1, sizeof *s);

	if (!s)
		return NULL;
	s->qpn = qpn;
	s->type = type;
	s->device = ibv_get_device_index(c->device);
	s->next = atomic_load(&count.queue_pairs);
	while (!atomic_compare_exchange_weak(&count.queue_pairs, &s->next, s))
		;
	return s;
}

void stats_posted(struct hca_qp *q, const struct wqe *w)
{
	q->stats->requests[w->opcode]++;
	q->stats->bytes[w->opcode] += w->length;
	if (w->flags & IBV_SEND_SIGNALED)
		add(&count.signaled, 1);
	if (w->flags & IBV_SEND_INLINE)
		add(&count.inlined, 1);
}

void stats_recv_posted(uint32_t n, int srq)
{
	add(srq ? &count.srq_recv_posted : &count.recv_posted, n);
}

void stats_completion(const struct shm_cqe *e)
{
	add(e->is_recv ? &count.recv_cqes : &count.send_cqes, 1);
	if (e->status)
		add(&count.error_cqes, 1);
	else if (e->is_recv)
		add(&count.recv_bytes, e->byte_len);
}

void stats_poll(uint32_t n)
{
	add(&count.polls, 1);
	if (!n)
		add(&count.empty_polls, 1);
}

void stats_flushed(void)
{
	add(&count.flushed, 1);
}

void stats_gpu(bool direct, uint64_t bytes)
{
	add(direct ? &count.gpu_direct : &count.gpu_staged, bytes);
}

void stats_reset(void)
{
	for (struct qp_stats *s = count.queue_pairs, *next; s; s = next) {
		next = s->next;
		free(s);
	}
	memset(&count, 0, sizeof count);
}

static void print_program(FILE *f)
{
	fputs(",\"program\":\"", f);
	for (const char *p = program_invocation_short_name; *p; p++)
		fputc((unsigned char)*p < 0x20 || *p == '"' || *p == '\\' ? '?' : *p, f);
	fputc('"', f);
}

/* One object with a number for each operation. */
static void print_operations(FILE *f, const char *name, const uint64_t *v)
{
	const char *comma = "";

	fprintf(f, ",\"%s\":{", name);
	for (int i = 0; i < STATS_OPCODES; i++)
		if (opcode_names[i]) {
			fprintf(f, "%s\"%s\":%lu", comma, opcode_names[i], (unsigned long)v[i]);
			comma = ",";
		}
	fputc('}', f);
}

static const char *type_name(uint32_t type)
{
	switch (type) {
	case IBV_QPT_UD:
		return "UD";
	case HCA_QPT_DCI:
		return "DCI";
	case HCA_QPT_DCT:
		return "DCT";
	default:
		return "RC";
	}
}

static void print_queue_pairs(FILE *f)
{
	const char *comma = "";

	fputs(",\"queue_pairs\":[", f);
	for (const struct qp_stats *s = count.queue_pairs; s; s = s->next) {
		fprintf(f, "%s{\"qpn\":%u,\"type\":\"%s\",\"peer_qpn\":%u,\"peer_pid\":%d,\"device\":%d", comma, s->qpn,
			type_name(s->type), s->peer_qpn, s->peer_pid, s->device);
		for (int i = 0; i < STATS_OPCODES; i++)
			if (s->requests[i])
				fprintf(f, ",\"%s\":[%lu,%lu]", opcode_names[i], (unsigned long)s->requests[i], (unsigned long)s->bytes[i]);
		fputc('}', f);
		comma = ",";
	}
	fputc(']', f);
}

static void print(FILE *f)
{
	uint64_t requests[STATS_OPCODES] = { 0 }, bytes[STATS_OPCODES] = { 0 };

	for (const struct qp_stats *s = count.queue_pairs; s; s = s->next)
		for (int i = 0; i < STATS_OPCODES; i++) {
			requests[i] += s->requests[i];
			bytes[i] += s->bytes[i];
		}
	fprintf(f, "{\"pid\":%d", (int)getpid());
	print_program(f);
	print_operations(f, "requests", requests);
	print_operations(f, "bytes", bytes);
	const struct {
		const char *name;
		uint64_t value;
	} plain[] = {
		{ "signaled", count.signaled },       { "inline", count.inlined },
		{ "flushed", count.flushed },         { "recv_posted", count.recv_posted },
		{ "srq_recv_posted", count.srq_recv_posted }, { "send_cqes", count.send_cqes },
		{ "recv_cqes", count.recv_cqes },     { "error_cqes", count.error_cqes },
		{ "recv_bytes", count.recv_bytes },   { "polls", count.polls },
		{ "empty_polls", count.empty_polls }, { "gpu_direct", count.gpu_direct },
		{ "gpu_staged", count.gpu_staged },
	};
	for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
		fprintf(f, ",\"%s\":%lu", plain[i].name, (unsigned long)plain[i].value);
	print_queue_pairs(f);
	fputs("}\n", f);
}

void stats_write(void)
{
	const char *name = getenv("SOFTHCA_STATS");
	char *line = NULL;
	size_t n = 0;
	FILE *f;
	int fd;

	if (!name)
		return;
	f = open_memstream(&line, &n);
	if (!f)
		return;
	print(f);
	fclose(f);
	/* one write: lines of several processes do not mix */
	fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, line, n) != (ssize_t)n)
		fprintf(stderr, "softhca: cannot write %s: %s\n", name, strerror(errno));
	if (fd >= 0)
		close(fd);
	free(line);
}
