/* count-ofi.so: counts the accepted data transfer calls of libfabric, and the entries read from completion queues.
 *
 * The calls go through function tables that a provider's objects share. They are changed in place here, with the originals kept by the
 * table's address and by the object's; the program's objects keep the tables that they had. What a layered provider calls below while
 * the program is in a call counts nothing. Bytes are those the caller names; of a receive, those posted.
 */
#define _GNU_SOURCE
#include "count.h"

#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SEND, RECV, TAGGED_SEND, TAGGED_RECV, WRITE, READ, ATOMIC, COMPLETION, OPS };
static struct counter ops[OPS] = {
	[SEND] = { .name = "send" },		   [RECV] = { .name = "recv" },	  [TAGGED_SEND] = { .name = "tagged_send" },
	[TAGGED_RECV] = { .name = "tagged_recv" }, [WRITE] = { .name = "write" }, [READ] = { .name = "read" },
	[ATOMIC] = { .name = "atomic" },	   [COMPLETION] = { .name = "completion" },
};

static __thread int depth; /* calls of this API that this thread is in */

__attribute__((constructor)) static void init(void) { count_register("ofi", ops, OPS); }

/* ---- originals ---- */

enum kind { FID, FABRIC, DOMAIN, EP, MSG, TAGGED, RMA, ATOMICS, CQ, KINDS };
enum { ENTRIES = 24, TABLES = 8192, OBJECTS = 8192 };
static struct table {
	const void *at;
	void *original[ENTRIES];
} tables[TABLES];
static struct object {
	const void *fid;
	struct table *table[KINDS];
} objects[OBJECTS];
static int n_tables, n_objects;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct table *table_at(const void *at)
{
	for (int i = __atomic_load_n(&n_tables, __ATOMIC_ACQUIRE) - 1; i >= 0; i--)
		if (tables[i].at == at)
			return &tables[i];
	return NULL;
}

/* The original of an entry of a table of an object: by the table, or by the object, whose pointer another preload may have led to a copy. */
static void *original(const void *fid, enum kind kind, const void *table, size_t offset)
{
	struct table *t = table_at(table);
	for (int i = __atomic_load_n(&n_objects, __ATOMIC_ACQUIRE) - 1; !t && i >= 0; i--)
		if (objects[i].fid == fid)
			t = objects[i].table[kind];
	if (!t) {
		fprintf(stderr, "count: an object of libfabric with unknown functions\n");
		abort();
	}
	return t->original[offset / sizeof(void *)];
}

struct hook {
	size_t offset;
	void *ours;
};

static void take(const void *fid, enum kind kind, void *table, const struct hook *h, int n)
{
	size_t size, page = (size_t)sysconf(_SC_PAGESIZE);
	int i;
	if (!table)
		return;
	memcpy(&size, table, sizeof size);
	pthread_mutex_lock(&lock);
	struct table *t = table_at(table);
	int ours = 0;
	for (i = 0; i < n; i++)
		if (h[i].offset < size && ((void **)table)[h[i].offset / sizeof(void *)] == h[i].ours)
			ours = 1;
	if (!t || !ours) {
		if (!t && n_tables < TABLES)
			t = &tables[n_tables];
		if (!t)
			abort();
		t->at = table;
		memcpy(t->original, table, size < sizeof t->original ? size : sizeof t->original);
		__atomic_store_n(&n_tables, t == &tables[n_tables] ? n_tables + 1 : n_tables, __ATOMIC_RELEASE);
		uintptr_t from = (uintptr_t)table & ~(page - 1), to = ((uintptr_t)table + size + page - 1) & ~(page - 1);
		if (mprotect((void *)from, to - from, PROT_READ | PROT_WRITE))
			abort();
		for (i = 0; i < n; i++) {
			void **entry = &((void **)table)[h[i].offset / sizeof(void *)];
			if (h[i].offset < size && *entry)
				*entry = h[i].ours;
		}
	}
	for (i = 0; i < n_objects && objects[i].fid != fid; i++)
		;
	if (i == OBJECTS)
		abort();
	objects[i].fid = fid;
	objects[i].table[kind] = t;
	if (i == n_objects)
		__atomic_store_n(&n_objects, i + 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
}

#define N(h) (int)(sizeof(h) / sizeof *(h))
#define ORIGINAL(type, member, kind, fid, table) \
	((__typeof__(((struct type *)0)->member))original(fid, kind, table, offsetof(struct type, member)))

/* Calls `call` with `real` as the original, and counts it when it was accepted and is no call within a call. */
#define COUNT(type, member, kind, table, op, n, call) \
	do { \
		__typeof__(((struct type *)0)->member) real = ORIGINAL(type, member, kind, ep, ep->table); \
		uint64_t bytes_ = (n); \
		depth++; \
		ssize_t rc_ = (call); \
		if (--depth == 0 && rc_ == 0) \
			count_add(&ops[op], 1, bytes_); \
		return rc_; \
	} while (0)

static uint64_t sum(const struct iovec *v, size_t n)
{
	uint64_t s = 0;
	while (n--)
		s += v[n].iov_len;
	return s;
}

/* ---- msg and tagged ---- */

#define M(member, op, n, ...) COUNT(fi_ops_msg, member, MSG, msg, op, n, real(ep, __VA_ARGS__))
static ssize_t m_recv(struct fid_ep *ep, void *b, size_t n, void *d, fi_addr_t a, void *c) { M(recv, RECV, n, b, n, d, a, c); }
static ssize_t m_recvv(struct fid_ep *ep, const struct iovec *v, void **d, size_t n, fi_addr_t a, void *c) { M(recvv, RECV, sum(v, n), v, d, n, a, c); }
static ssize_t m_recvmsg(struct fid_ep *ep, const struct fi_msg *m, uint64_t f) { M(recvmsg, RECV, sum(m->msg_iov, m->iov_count), m, f); }
static ssize_t m_send(struct fid_ep *ep, const void *b, size_t n, void *d, fi_addr_t a, void *c) { M(send, SEND, n, b, n, d, a, c); }
static ssize_t m_sendv(struct fid_ep *ep, const struct iovec *v, void **d, size_t n, fi_addr_t a, void *c) { M(sendv, SEND, sum(v, n), v, d, n, a, c); }
static ssize_t m_sendmsg(struct fid_ep *ep, const struct fi_msg *m, uint64_t f) { M(sendmsg, SEND, sum(m->msg_iov, m->iov_count), m, f); }
static ssize_t m_inject(struct fid_ep *ep, const void *b, size_t n, fi_addr_t a) { M(inject, SEND, n, b, n, a); }
static ssize_t m_senddata(struct fid_ep *ep, const void *b, size_t n, void *d, uint64_t x, fi_addr_t a, void *c) { M(senddata, SEND, n, b, n, d, x, a, c); }
static ssize_t m_injectdata(struct fid_ep *ep, const void *b, size_t n, uint64_t x, fi_addr_t a) { M(injectdata, SEND, n, b, n, x, a); }
#define H(type, prefix, member) { offsetof(struct type, member), (void *)prefix##member }
static const struct hook msg_hooks[] = {
	H(fi_ops_msg, m_, recv), H(fi_ops_msg, m_, recvv), H(fi_ops_msg, m_, recvmsg), H(fi_ops_msg, m_, send), H(fi_ops_msg, m_, sendv),
	H(fi_ops_msg, m_, sendmsg), H(fi_ops_msg, m_, inject), H(fi_ops_msg, m_, senddata), H(fi_ops_msg, m_, injectdata),
};

#define T(member, op, n, ...) COUNT(fi_ops_tagged, member, TAGGED, tagged, op, n, real(ep, __VA_ARGS__))
static ssize_t t_recv(struct fid_ep *ep, void *b, size_t n, void *d, fi_addr_t a, uint64_t t, uint64_t i, void *c) { T(recv, TAGGED_RECV, n, b, n, d, a, t, i, c); }
static ssize_t t_recvv(struct fid_ep *ep, const struct iovec *v, void **d, size_t n, fi_addr_t a, uint64_t t, uint64_t i, void *c)
{
	T(recvv, TAGGED_RECV, sum(v, n), v, d, n, a, t, i, c);
}
static ssize_t t_recvmsg(struct fid_ep *ep, const struct fi_msg_tagged *m, uint64_t f)
{
	if (!(f & FI_PEEK)) /* which looks for a message, and receives none */
		T(recvmsg, TAGGED_RECV, sum(m->msg_iov, m->iov_count), m, f);
	depth++;
	ssize_t rc = ORIGINAL(fi_ops_tagged, recvmsg, TAGGED, ep, ep->tagged)(ep, m, f);
	depth--;
	return rc;
}
static ssize_t t_send(struct fid_ep *ep, const void *b, size_t n, void *d, fi_addr_t a, uint64_t t, void *c) { T(send, TAGGED_SEND, n, b, n, d, a, t, c); }
static ssize_t t_sendv(struct fid_ep *ep, const struct iovec *v, void **d, size_t n, fi_addr_t a, uint64_t t, void *c)
{
	T(sendv, TAGGED_SEND, sum(v, n), v, d, n, a, t, c);
}
static ssize_t t_sendmsg(struct fid_ep *ep, const struct fi_msg_tagged *m, uint64_t f) { T(sendmsg, TAGGED_SEND, sum(m->msg_iov, m->iov_count), m, f); }
static ssize_t t_inject(struct fid_ep *ep, const void *b, size_t n, fi_addr_t a, uint64_t t) { T(inject, TAGGED_SEND, n, b, n, a, t); }
static ssize_t t_senddata(struct fid_ep *ep, const void *b, size_t n, void *d, uint64_t x, fi_addr_t a, uint64_t t, void *c)
{
	T(senddata, TAGGED_SEND, n, b, n, d, x, a, t, c);
}
static ssize_t t_injectdata(struct fid_ep *ep, const void *b, size_t n, uint64_t x, fi_addr_t a, uint64_t t) { T(injectdata, TAGGED_SEND, n, b, n, x, a, t); }
static const struct hook tagged_hooks[] = {
	H(fi_ops_tagged, t_, recv), H(fi_ops_tagged, t_, recvv), H(fi_ops_tagged, t_, recvmsg), H(fi_ops_tagged, t_, send), H(fi_ops_tagged, t_, sendv),
	H(fi_ops_tagged, t_, sendmsg), H(fi_ops_tagged, t_, inject), H(fi_ops_tagged, t_, senddata), H(fi_ops_tagged, t_, injectdata),
};

/* ---- rma and atomic ---- */

#define R(member, op, n, ...) COUNT(fi_ops_rma, member, RMA, rma, op, n, real(ep, __VA_ARGS__))
#define AT fi_addr_t a, uint64_t p, uint64_t k
static ssize_t r_read(struct fid_ep *ep, void *b, size_t n, void *d, AT, void *c) { R(read, READ, n, b, n, d, a, p, k, c); }
static ssize_t r_readv(struct fid_ep *ep, const struct iovec *v, void **d, size_t n, AT, void *c) { R(readv, READ, sum(v, n), v, d, n, a, p, k, c); }
static ssize_t r_readmsg(struct fid_ep *ep, const struct fi_msg_rma *m, uint64_t f) { R(readmsg, READ, sum(m->msg_iov, m->iov_count), m, f); }
static ssize_t r_write(struct fid_ep *ep, const void *b, size_t n, void *d, AT, void *c) { R(write, WRITE, n, b, n, d, a, p, k, c); }
static ssize_t r_writev(struct fid_ep *ep, const struct iovec *v, void **d, size_t n, AT, void *c) { R(writev, WRITE, sum(v, n), v, d, n, a, p, k, c); }
static ssize_t r_writemsg(struct fid_ep *ep, const struct fi_msg_rma *m, uint64_t f) { R(writemsg, WRITE, sum(m->msg_iov, m->iov_count), m, f); }
static ssize_t r_inject(struct fid_ep *ep, const void *b, size_t n, AT) { R(inject, WRITE, n, b, n, a, p, k); }
static ssize_t r_writedata(struct fid_ep *ep, const void *b, size_t n, void *d, uint64_t x, AT, void *c) { R(writedata, WRITE, n, b, n, d, x, a, p, k, c); }
static ssize_t r_injectdata(struct fid_ep *ep, const void *b, size_t n, uint64_t x, AT) { R(injectdata, WRITE, n, b, n, x, a, p, k); }
static const struct hook rma_hooks[] = {
	H(fi_ops_rma, r_, read), H(fi_ops_rma, r_, readv), H(fi_ops_rma, r_, readmsg), H(fi_ops_rma, r_, write), H(fi_ops_rma, r_, writev),
	H(fi_ops_rma, r_, writemsg), H(fi_ops_rma, r_, inject), H(fi_ops_rma, r_, writedata), H(fi_ops_rma, r_, injectdata),
};

/* Bytes of n elements, of the types that the tests use. */
static uint64_t wide(enum fi_datatype t, size_t n)
{
	switch (t) {
	case FI_INT8: case FI_UINT8: return n;
	case FI_INT16: case FI_UINT16: return 2 * n;
	case FI_INT32: case FI_UINT32: case FI_FLOAT: return 4 * n;
	case FI_INT64: case FI_UINT64: case FI_DOUBLE: return 8 * n;
	default: abort();
	}
}
static size_t all(const struct fi_ioc *v, size_t n)
{
	size_t s = 0;
	while (n--)
		s += v[n].count;
	return s;
}
static uint64_t of(const struct fi_msg_atomic *m)
{
	size_t s = 0;
	for (size_t i = 0; i < m->rma_iov_count; i++)
		s += m->rma_iov[i].count;
	return wide(m->datatype, s);
}
#define A(member, n, ...) COUNT(fi_ops_atomic, member, ATOMICS, atomic, ATOMIC, n, real(ep, __VA_ARGS__))
#define OP enum fi_datatype t, enum fi_op o
static ssize_t a_write(struct fid_ep *ep, const void *b, size_t n, void *d, AT, OP, void *c) { A(write, wide(t, n), b, n, d, a, p, k, t, o, c); }
static ssize_t a_writev(struct fid_ep *ep, const struct fi_ioc *v, void **d, size_t n, AT, OP, void *c) { A(writev, wide(t, all(v, n)), v, d, n, a, p, k, t, o, c); }
static ssize_t a_writemsg(struct fid_ep *ep, const struct fi_msg_atomic *m, uint64_t f) { A(writemsg, of(m), m, f); }
static ssize_t a_inject(struct fid_ep *ep, const void *b, size_t n, AT, OP) { A(inject, wide(t, n), b, n, a, p, k, t, o); }
static ssize_t a_readwrite(struct fid_ep *ep, const void *b, size_t n, void *d, void *r, void *rd, AT, OP, void *c)
{
	A(readwrite, wide(t, n), b, n, d, r, rd, a, p, k, t, o, c);
}
static ssize_t a_readwritev(struct fid_ep *ep, const struct fi_ioc *v, void **d, size_t n, struct fi_ioc *r, void **rd, size_t rn, AT, OP, void *c)
{
	A(readwritev, wide(t, all(r, rn)), v, d, n, r, rd, rn, a, p, k, t, o, c);
}
static ssize_t a_readwritemsg(struct fid_ep *ep, const struct fi_msg_atomic *m, struct fi_ioc *r, void **rd, size_t rn, uint64_t f)
{
	A(readwritemsg, of(m), m, r, rd, rn, f);
}
static ssize_t a_compwrite(struct fid_ep *ep, const void *b, size_t n, void *d, const void *x, void *xd, void *r, void *rd, AT, OP, void *c)
{
	A(compwrite, wide(t, n), b, n, d, x, xd, r, rd, a, p, k, t, o, c);
}
static ssize_t a_compwritev(struct fid_ep *ep, const struct fi_ioc *v, void **d, size_t n, const struct fi_ioc *x, void **xd, size_t xn, struct fi_ioc *r,
			    void **rd, size_t rn, AT, OP, void *c)
{
	A(compwritev, wide(t, all(v, n)), v, d, n, x, xd, xn, r, rd, rn, a, p, k, t, o, c);
}
static ssize_t a_compwritemsg(struct fid_ep *ep, const struct fi_msg_atomic *m, const struct fi_ioc *x, void **xd, size_t xn, struct fi_ioc *r, void **rd,
			      size_t rn, uint64_t f)
{
	A(compwritemsg, of(m), m, x, xd, xn, r, rd, rn, f);
}
static const struct hook atomic_hooks[] = {
	H(fi_ops_atomic, a_, write), H(fi_ops_atomic, a_, writev), H(fi_ops_atomic, a_, writemsg), H(fi_ops_atomic, a_, inject),
	H(fi_ops_atomic, a_, readwrite), H(fi_ops_atomic, a_, readwritev), H(fi_ops_atomic, a_, readwritemsg), H(fi_ops_atomic, a_, compwrite),
	H(fi_ops_atomic, a_, compwritev), H(fi_ops_atomic, a_, compwritemsg),
};

/* ---- completion queues ---- */

#define LOOK(member, ...) \
	do { \
		__typeof__(((struct fi_ops_cq *)0)->member) real = ORIGINAL(fi_ops_cq, member, CQ, cq, cq->ops); \
		depth++; \
		ssize_t rc_ = real(cq, __VA_ARGS__); \
		if (--depth == 0 && rc_ > 0) \
			count_add(&ops[COMPLETION], (uint64_t)rc_, 0); \
		return rc_; \
	} while (0)
static ssize_t c_read(struct fid_cq *cq, void *b, size_t n) { LOOK(read, b, n); }
static ssize_t c_readfrom(struct fid_cq *cq, void *b, size_t n, fi_addr_t *a) { LOOK(readfrom, b, n, a); }
static ssize_t c_readerr(struct fid_cq *cq, struct fi_cq_err_entry *e, uint64_t f) { LOOK(readerr, e, f); }
static ssize_t c_sread(struct fid_cq *cq, void *b, size_t n, const void *c, int t) { LOOK(sread, b, n, c, t); }
static ssize_t c_sreadfrom(struct fid_cq *cq, void *b, size_t n, fi_addr_t *a, const void *c, int t) { LOOK(sreadfrom, b, n, a, c, t); }
static const struct hook cq_hooks[] = {
	H(fi_ops_cq, c_, read), H(fi_ops_cq, c_, readfrom), H(fi_ops_cq, c_, readerr), H(fi_ops_cq, c_, sread), H(fi_ops_cq, c_, sreadfrom),
};

/* ---- what makes objects ---- */

/* Calls the original, and takes what it made for the program. */
#define MADE(type, member, kind, fid, table, args, taking) \
	do { \
		__typeof__(((struct type *)0)->member) real = ORIGINAL(type, member, kind, fid, table); \
		depth++; \
		int rc_ = real args; \
		if (--depth == 0 && !rc_) \
			taking; \
		return rc_; \
	} while (0)

static void take_ep(struct fid_ep *ep);

/* Enabling may give an endpoint other tables; an alias is another endpoint to whoever calls. */
static int f_control(struct fid *fid, int command, void *arg)
{
	int (*real)(struct fid *, int, void *) = ORIGINAL(fi_ops, control, FID, fid, fid->ops);
	depth++;
	int rc = real(fid, command, arg);
	if (--depth == 0 && !rc && command == FI_ENABLE && fid->fclass == FI_CLASS_EP)
		take_ep((struct fid_ep *)fid);
	if (!depth && !rc && command == FI_ALIAS)
		take_ep((struct fid_ep *)*((struct fi_alias *)arg)->fid);
	return rc;
}
static const struct hook fid_hooks[] = { H(fi_ops, f_, control) };

static int e_tx_ctx(struct fid_ep *sep, int index, struct fi_tx_attr *attr, struct fid_ep **ep, void *context)
{
	MADE(fi_ops_ep, tx_ctx, EP, sep, sep->ops, (sep, index, attr, ep, context), take_ep(*ep));
}
static int e_rx_ctx(struct fid_ep *sep, int index, struct fi_rx_attr *attr, struct fid_ep **ep, void *context)
{
	MADE(fi_ops_ep, rx_ctx, EP, sep, sep->ops, (sep, index, attr, ep, context), take_ep(*ep));
}
static const struct hook ep_hooks[] = { H(fi_ops_ep, e_, tx_ctx), H(fi_ops_ep, e_, rx_ctx) };

static void take_ep(struct fid_ep *ep)
{
	take(ep, FID, ep->fid.ops, fid_hooks, N(fid_hooks));
	take(ep, EP, ep->ops, ep_hooks, N(ep_hooks));
	take(ep, MSG, ep->msg, msg_hooks, N(msg_hooks));
	take(ep, TAGGED, ep->tagged, tagged_hooks, N(tagged_hooks));
	take(ep, RMA, ep->rma, rma_hooks, N(rma_hooks));
	take(ep, ATOMICS, ep->atomic, atomic_hooks, N(atomic_hooks));
}

static int d_endpoint(struct fid_domain *d, struct fi_info *i, struct fid_ep **ep, void *c)
{
	MADE(fi_ops_domain, endpoint, DOMAIN, d, d->ops, (d, i, ep, c), take_ep(*ep));
}
static int d_scalable_ep(struct fid_domain *d, struct fi_info *i, struct fid_ep **ep, void *c)
{
	MADE(fi_ops_domain, scalable_ep, DOMAIN, d, d->ops, (d, i, ep, c), take(*ep, EP, (*ep)->ops, ep_hooks, N(ep_hooks)));
}
static int d_srx_ctx(struct fid_domain *d, struct fi_rx_attr *a, struct fid_ep **ep, void *c)
{
	MADE(fi_ops_domain, srx_ctx, DOMAIN, d, d->ops, (d, a, ep, c), take_ep(*ep));
}
static int d_cq_open(struct fid_domain *d, struct fi_cq_attr *a, struct fid_cq **cq, void *c)
{
	MADE(fi_ops_domain, cq_open, DOMAIN, d, d->ops, (d, a, cq, c), take(*cq, CQ, (*cq)->ops, cq_hooks, N(cq_hooks)));
}
static const struct hook domain_hooks[] = {
	H(fi_ops_domain, d_, endpoint), H(fi_ops_domain, d_, scalable_ep), H(fi_ops_domain, d_, srx_ctx), H(fi_ops_domain, d_, cq_open),
};

static int b_domain(struct fid_fabric *f, struct fi_info *i, struct fid_domain **d, void *c)
{
	MADE(fi_ops_fabric, domain, FABRIC, f, f->ops, (f, i, d, c), take(*d, DOMAIN, (*d)->ops, domain_hooks, N(domain_hooks)));
}
static const struct hook fabric_hooks[] = { H(fi_ops_fabric, b_, domain) };

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **f, void *context)
{
	COUNT_REAL(fi_fabric, "libfabric.so.1");
	depth++;
	int rc = real(attr, f, context);
	if (--depth == 0 && !rc)
		take(*f, FABRIC, (*f)->ops, fabric_hooks, N(fabric_hooks));
	return rc;
}
