/* Counters and their line of JSON; the log. */
#include "stats.h"
#include "hca.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPCODES = IBV_WR_ATOMIC_FETCH_AND_ADD + 1 };

static const char *const opcode_names[OPCODES] = {
	[IBV_WR_RDMA_WRITE] = "write",
	[IBV_WR_RDMA_WRITE_WITH_IMM] = "write_imm",
	[IBV_WR_SEND] = "send",
	[IBV_WR_SEND_WITH_IMM] = "send_imm",
	[IBV_WR_RDMA_READ] = "read",
	[IBV_WR_ATOMIC_CMP_AND_SWP] = "compare_swap",
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = "fetch_add",
};

static struct {
	_Atomic uint64_t requests[OPCODES], bytes[OPCODES];
	_Atomic uint64_t signaled, inlined, flushed;
	_Atomic uint64_t recv_posted, srq_recv_posted;
	_Atomic uint64_t send_cqes, recv_cqes, error_cqes, recv_bytes;
	_Atomic uint64_t polls, empty_polls;
} count;

static inline void add(_Atomic uint64_t *c, uint64_t n)
{
	atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}

void stats_posted(const struct wqe *w)
{
	add(&count.requests[w->opcode], 1);
	add(&count.bytes[w->opcode], w->length);
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

void stats_reset(void)
{
	memset(&count, 0, sizeof count);
}

static int append(char *b, size_t size, int at, const char *format, ...)
{
	va_list ap;
	int n;

	va_start(ap, format);
	n = vsnprintf(b + at, size - at, format, ap);
	va_end(ap);
	return at + n < (int)size ? at + n : (int)size - 1;
}

static int append_table(char *b, size_t size, int at, const char *name, _Atomic uint64_t *v)
{
	const char *comma = "";

	at = append(b, size, at, ",\"%s\":{", name);
	for (int i = 0; i < OPCODES; i++)
		if (opcode_names[i]) {
			at = append(b, size, at, "%s\"%s\":%lu", comma, opcode_names[i], (unsigned long)v[i]);
			comma = ",";
		}
	return append(b, size, at, "}");
}

void stats_write(void)
{
	const char *name = getenv("SOFTHCA_STATS");
	char b[2048], program[64] = "";
	int fd, n;

	if (!name)
		return;
	for (size_t i = 0; i + 1 < sizeof program && program_invocation_short_name[i]; i++) {
		char ch = program_invocation_short_name[i];

		program[i] = ch < 0x20 || ch == '"' || ch == '\\' || ch == 0x7f ? '?' : ch;
	}
	n = append(b, sizeof b, 0, "{\"pid\":%d,\"program\":\"%s\"", (int)getpid(), program);
	n = append_table(b, sizeof b, n, "requests", count.requests);
	n = append_table(b, sizeof b, n, "bytes", count.bytes);
	n = append(b, sizeof b, n,
		   ",\"signaled\":%lu,\"inline\":%lu,\"flushed\":%lu,\"recv_posted\":%lu,\"srq_recv_posted\":%lu,\"send_cqes\":%lu,\"recv_cqes\":%lu,\"error_cqes\":%lu,\"recv_bytes\":%lu,\"polls\":%lu,\"empty_polls\":%lu}\n",
		   (unsigned long)count.signaled, (unsigned long)count.inlined, (unsigned long)count.flushed,
		   (unsigned long)count.recv_posted, (unsigned long)count.srq_recv_posted,
		   (unsigned long)count.send_cqes, (unsigned long)count.recv_cqes, (unsigned long)count.error_cqes,
		   (unsigned long)count.recv_bytes, (unsigned long)count.polls, (unsigned long)count.empty_polls);
	fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, b, n) != n)
		fprintf(stderr, "softhca: cannot write %s: %s\n", name, strerror(errno));
	if (fd >= 0)
		close(fd);
}

void hca_log_line(const char *format, ...)
{
	char b[512];
	va_list ap;
	int n, e = errno;

	n = snprintf(b, sizeof b, "[softhca %d] ", (int)getpid());
	va_start(ap, format);
	n += vsnprintf(b + n, sizeof b - n, format, ap);
	va_end(ap);
	if (n > (int)sizeof b - 2)
		n = sizeof b - 2;
	b[n++] = '\n';
	if (write(STDERR_FILENO, b, n) < 0)
		errno = e;
	errno = e;
}
