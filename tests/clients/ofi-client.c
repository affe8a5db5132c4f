/* ofi-client [-p PROVIDER] [-e rdm|msg] [-s SEED] [-n MAX] [-t THREADS]: two processes that send each other random numbers (1 to MAX,
 * default 6) of every libfabric operation that the provider has, through every form of the call, check all data that arrives, and print
 * what they sent. "completion" counts the entries read from completion queues. They are ranks 0 and 1 by RANK and WORLD_SIZE.
 *
 * Transmits are bound with FI_SELECTIVE_COMPLETION, so that the msg forms go with and without a completion of their own. -t: after that,
 * so many threads send tagged messages on the same endpoint.
 */
#define _GNU_SOURCE
#include "tally.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { SEND, RECV, TAGGED_SEND, TAGGED_RECV, WRITE, READ, ATOMIC, COMPLETION, OPS };
static struct tally sent[OPS] = {
	[SEND] = { .name = "send" },		   [RECV] = { .name = "recv" },	  [TAGGED_SEND] = { .name = "tagged_send" },
	[TAGGED_RECV] = { .name = "tagged_recv" }, [WRITE] = { .name = "write" }, [READ] = { .name = "read" },
	[ATOMIC] = { .name = "atomic" },	   [COMPLETION] = { .name = "completion" },
};
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

#define OK(call) \
	do { \
		int rc_ = (int)(call); \
		if (rc_) { \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, fi_strerror(-rc_)); \
			exit(1); \
		} \
	} while (0)

enum { ROOM = 4096, AREA = 1 << 20, BIG = 200000 };
/* the registered area: local buffers, what the peer writes to and reads from, words for its atomics */
enum { OUT = 0, IN = 262144, TARGET = 524288, SOURCE = 532480, WORDS = 540672, RESULT = 544768, MULTI = 548864 };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_av *av;
static struct fid_cq *tx, *rx;
static struct fid_cntr *counter;
static struct fid_ep *ep;
static struct fid_mr *mr;
static void *desc;
static uint8_t *area;
static uint64_t remote_base, remote_key;
static fi_addr_t ways[4] = { FI_ADDR_UNSPEC };
static int n_ways = 1, way, rank, sock, can_wait, remote_data;
static uint32_t seed;
static uint64_t waited_for; /* by counter */

/* One request: what libfabric gives back as its context. */
struct request {
	struct fi_context2 own;
	int done, error;
	uint64_t flags, data, tag;
	size_t len;
};

static uint32_t mix(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x7feb352d;
	x ^= x >> 15;
	x *= 0x846ca68b;
	return x ^ x >> 16;
}
static uint32_t draw(void) { return seed = mix(seed + 0x9e3779b9); }
static fi_addr_t to(void) { return ways[way++ % n_ways]; }

static void did(int op, uint64_t bytes)
{
	pthread_mutex_lock(&counting);
	sent[op].count++;
	sent[op].bytes += bytes;
	pthread_mutex_unlock(&counting);
}

/* ---- completions ---- */

static void entries(const struct fi_cq_tagged_entry *e, ssize_t n)
{
	for (ssize_t i = 0; i < n; i++) {
		did(COMPLETION, 0);
		if (e[i].flags & FI_REMOTE_WRITE || (!e[i].op_context && e[i].flags & FI_REMOTE_CQ_DATA)) {
			CHECK(e[i].data == 77);
			remote_data++;
			continue;
		}
		struct request *r = e[i].op_context;
		if (!r) { /* only the flag that a buffer is given back, on some providers */
			if (!(e[i].flags & FI_MULTI_RECV)) {
				fprintf(stderr, "rank %d: a completion of nothing, flags %#lx\n", rank, (unsigned long)e[i].flags);
				exit(1);
			}
			continue;
		}
		r->flags |= e[i].flags;
		r->len = e[i].len;
		r->data = e[i].data;
		r->tag = e[i].tag;
		__atomic_fetch_add(&r->done, 1, __ATOMIC_RELEASE);
	}
}

static void look(struct fid_cq *cq)
{
	static __thread unsigned turn;
	struct fi_cq_tagged_entry e[4];
	fi_addr_t from[4];
	ssize_t n;
	turn++;
	if (cq == rx && can_wait && turn % 16 == 0)
		n = fi_cq_sread(cq, e, 1, NULL, 1);
	else if (cq == rx && can_wait && turn % 16 == 8)
		n = fi_cq_sreadfrom(cq, e, 1, from, NULL, 1);
	else if (turn & 2)
		n = fi_cq_readfrom(cq, e, 4, from);
	else
		n = fi_cq_read(cq, e, 4);
	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry x = { 0 };
		CHECK(fi_cq_readerr(cq, &x, 0) == 1);
		did(COMPLETION, 0);
		struct request *r = x.op_context;
		r->error = x.err;
		r->tag = x.tag;
		__atomic_fetch_add(&r->done, 1, __ATOMIC_RELEASE);
		return;
	}
	CHECK(n > 0 || n == -FI_EAGAIN || n == -EINTR);
	entries(e, n);
}

static void progress(void)
{
	look(tx);
	look(rx);
}
static void wait_for(struct request *r)
{
	while (!__atomic_load_n(&r->done, __ATOMIC_ACQUIRE))
		progress();
	if (r->error) {
		fprintf(stderr, "rank %d: a request failed: %s\n", rank, fi_strerror(r->error));
		exit(1);
	}
}
/* Waits for the peer, which may need our progress to arrive. */
static void barrier(void)
{
	char c = 'b';
	struct pollfd pf = { .fd = sock, .events = POLLIN };
	CHECK(write(sock, &c, 1) == 1);
	while (poll(&pf, 1, 0) == 0)
		progress();
	CHECK(read(sock, &c, 1) == 1 && c == 'b');
}
static void swap(void *mine, void *theirs, size_t size)
{
	CHECK(write(sock, mine, size) == (ssize_t)size);
	struct pollfd pf = { .fd = sock, .events = POLLIN };
	CHECK(poll(&pf, 1, 60000) == 1);
	CHECK(recv(sock, theirs, size, MSG_WAITALL) == (ssize_t)size);
}

/* Posts until the provider takes it. */
#define POST(op, bytes, call) \
	do { \
		ssize_t rc_; \
		while ((rc_ = (call)) == -FI_EAGAIN) \
			progress(); \
		if (rc_) { \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, fi_strerror(-(int)rc_)); \
			exit(1); \
		} \
		did(op, bytes); \
	} while (0)

static int has(uint64_t caps) { return (info->caps & caps) == caps; }

/* ---- messages: form f of 10, both sides at once ---- */

enum { FORMS = 9 };
static size_t form_size(int f)
{
	size_t most = f == 2 || f == 3 || f == 7 ? info->tx_attr->inject_size : ROOM;
	uint32_t r = draw();
	if (most > 64 && r & 1)
		most = 64;
	return most ? 1 + (r >> 4) % most : 0;
}

static void send_form(int tagged, int f, size_t size, uint64_t tag, struct request *r)
{
	uint8_t *b = area + OUT;
	struct iovec v[2] = { { b, size / 2 }, { b + size / 2, size - size / 2 } };
	void *d[2] = { desc, desc };
	size_t parts = info->tx_attr->iov_limit > 1 ? 2 : 1;
	if (parts == 1)
		v[0].iov_len = size;
	fi_addr_t a = to();
	struct fi_msg m = { v, d, parts, a, r, 77 };
	struct fi_msg_tagged t = { v, d, parts, a, tag, 0, r, 77 };
	static const uint64_t flags[] = { [4] = FI_COMPLETION, [5] = 0, [6] = FI_COMPLETION | FI_REMOTE_CQ_DATA, [7] = FI_INJECT | FI_COMPLETION };
	int op = tagged ? TAGGED_SEND : SEND;
	switch (f) {
	case 0:
		if (tagged)
			POST(op, size, fi_tsend(ep, b, size, desc, a, tag, r));
		else
			POST(op, size, fi_send(ep, b, size, desc, a, r));
		break;
	case 1:
		if (tagged)
			POST(op, size, fi_tsendv(ep, v, d, parts, a, tag, r));
		else
			POST(op, size, fi_sendv(ep, v, d, parts, a, r));
		break;
	case 2:
		if (tagged)
			POST(op, size, fi_tinject(ep, b, size, a, tag));
		else
			POST(op, size, fi_inject(ep, b, size, a));
		return;
	case 3:
		if (tagged)
			POST(op, size, fi_tinjectdata(ep, b, size, 77, a, tag));
		else
			POST(op, size, fi_injectdata(ep, b, size, 77, a));
		return;
	case 8:
		if (tagged)
			POST(op, size, fi_tsenddata(ep, b, size, desc, 77, a, tag, r));
		else
			POST(op, size, fi_senddata(ep, b, size, desc, 77, a, r));
		break;
	default:
		if (tagged)
			POST(op, size, fi_tsendmsg(ep, &t, flags[f]));
		else
			POST(op, size, fi_sendmsg(ep, &m, flags[f]));
		if (!(flags[f] & FI_COMPLETION))
			return;
	}
	wait_for(r);
}

static void receive_form(int tagged, int f, uint64_t tag, struct request *r)
{
	uint8_t *b = area + IN;
	size_t room = ROOM;
	struct iovec v = { b, room };
	struct fi_msg m = { &v, &desc, 1, FI_ADDR_UNSPEC, r, 0 };
	struct fi_msg_tagged t = { &v, &desc, 1, FI_ADDR_UNSPEC, tag & ~0xfull, 0xf, r, 0 };
	switch (f % 3) {
	case 0:
		if (tagged)
			POST(TAGGED_RECV, room, fi_trecv(ep, b, room, desc, FI_ADDR_UNSPEC, tag, 0, r));
		else
			POST(RECV, room, fi_recv(ep, b, room, desc, FI_ADDR_UNSPEC, r));
		break;
	case 1:
		if (tagged)
			POST(TAGGED_RECV, room, fi_trecvv(ep, &v, &desc, 1, FI_ADDR_UNSPEC, tag, 0, r));
		else
			POST(RECV, room, fi_recvv(ep, &v, &desc, 1, FI_ADDR_UNSPEC, r));
		break;
	default:
		if (tagged)
			POST(TAGGED_RECV, room, fi_trecvmsg(ep, &t, FI_COMPLETION));
		else
			POST(RECV, room, fi_recvmsg(ep, &m, FI_COMPLETION));
	}
}

static void message(int tagged, int f, int i)
{
	struct request out = { 0 }, in = { 0 };
	uint64_t tag = 0x1000 + f * 16 + i % 4;
	size_t size = form_size(f);
	if ((f == 2 || f == 3 || f == 7) && !info->tx_attr->inject_size)
		return;
	for (size_t k = 0; k < size; k++)
		area[OUT + k] = (uint8_t)(k * 3 + i + f);
	memset(area + IN, 0, ROOM);
	receive_form(tagged, f + i, tag, &in);
	barrier();
	send_form(tagged, f, size, tag, &out);
	wait_for(&in);
	CHECK(in.len == size && in.flags & FI_RECV && (!tagged || in.tag == tag));
	CHECK((f != 3 && f != 6 && f != 8) || (in.flags & FI_REMOTE_CQ_DATA && in.data == 77));
	for (size_t k = 0; k < size; k++)
		CHECK(area[IN + k] == (uint8_t)(k * 3 + i + f));
	barrier();
}

static void big(int tagged)
{
	struct request out = { 0 }, in = { 0 };
	if (tagged) {
		POST(TAGGED_RECV, BIG, fi_trecv(ep, area + IN, BIG, desc, FI_ADDR_UNSPEC, 9, 0, &in));
		barrier();
		POST(TAGGED_SEND, BIG, fi_tsend(ep, area + OUT, BIG, desc, to(), 9, &out));
	} else {
		POST(RECV, BIG, fi_recv(ep, area + IN, BIG, desc, FI_ADDR_UNSPEC, &in));
		barrier();
		POST(SEND, BIG, fi_send(ep, area + OUT, BIG, desc, to(), &out));
	}
	wait_for(&out);
	wait_for(&in);
	CHECK(in.len == BIG);
	barrier();
}

/* A buffer for several messages. */
static void multi(int n)
{
	struct request in = { 0 };
	struct iovec v = { area + MULTI, 16 * 1024 };
	struct fi_msg m = { &v, &desc, 1, FI_ADDR_UNSPEC, &in, 0 };
	size_t least = 8 * 1024;
	OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
	POST(RECV, v.iov_len, fi_recvmsg(ep, &m, FI_MULTI_RECV | FI_COMPLETION));
	barrier();
	for (int i = 0; !i || i < n; i++) { /* 9 KiB use the buffer up */
		struct request out = { 0 };
		size_t size = i + 1 < n ? 100 : 9 * 1024;
		POST(SEND, size, fi_send(ep, area + OUT, size, desc, to(), &out));
		wait_for(&out);
	}
	while (in.done < n)
		progress();
	for (int i = 0; i < 1000 && !(in.flags & FI_MULTI_RECV); i++)
		progress();
	barrier();
}

/* ---- errors ---- */

static void cancelled(void)
{
	struct request in = { 0 };
	POST(TAGGED_RECV, 64, fi_trecv(ep, area + IN, 64, desc, FI_ADDR_UNSPEC, 0xdead, 0, &in));
	OK(fi_cancel(&ep->fid, &in));
	while (!in.done)
		progress();
	CHECK(in.error == FI_ECANCELED);
	barrier();
}

static void truncated(void)
{
	struct request out = { 0 }, in = { 0 };
	POST(TAGGED_RECV, 16, fi_trecv(ep, area + IN, 16, desc, FI_ADDR_UNSPEC, 5, 0, &in));
	barrier();
	POST(TAGGED_SEND, 64, fi_tsend(ep, area + OUT, 64, desc, to(), 5, &out));
	wait_for(&out);
	while (!in.done)
		progress();
	CHECK(in.error == FI_ETRUNC || in.error == -FI_ETRUNC); /* shm 1.17 */
	barrier();
}

static void peek(void)
{
	struct request r = { 0 };
	struct fi_msg_tagged t = { NULL, NULL, 0, FI_ADDR_UNSPEC, 0xbeef, 0, &r, 0 };
	ssize_t rc = fi_trecvmsg(ep, &t, FI_PEEK | FI_COMPLETION); /* no receive: counts as none */
	if (rc == -FI_ENOMSG)
		return;
	OK(rc);
	while (!r.done)
		progress();
	CHECK(r.error == FI_ENOMSG);
}

/* ---- memory ---- */

/* Waits until every request counted by now is complete. */
static void by_counter(void)
{
	waited_for = sent[WRITE].count + sent[READ].count + sent[ATOMIC].count;
	while (fi_cntr_read(counter) < waited_for)
		progress();
	OK(fi_cntr_wait(counter, waited_for, -1));
	CHECK(fi_cntr_readerr(counter) == 0);
}

static void access_form(int f)
{
	size_t size = form_size(f);
	struct request r = { 0 };
	uint8_t *out = area + OUT, *in = area + RESULT;
	struct iovec v[2] = { { out, size / 2 }, { out + size / 2, size - size / 2 } };
	void *d[2] = { desc, desc };
	fi_addr_t a = to();
	uint64_t addr = remote_base + TARGET;
	size_t parts = info->tx_attr->iov_limit > 1 ? 2 : 1;
	if (parts == 1)
		v[0].iov_len = size;
	struct fi_rma_iov rv = { addr, size, remote_key };
	struct fi_msg_rma m = { v, d, parts, a, &rv, 1, &r, 77 };
	static int told;
	if ((f == 2 || f == 3 || f == 7) && !info->tx_attr->inject_size)
		return;
	for (size_t k = 0; k < size; k++)
		out[k] = (uint8_t)(k * 5 + f);
	switch (f) {
	case 0: POST(WRITE, size, fi_write(ep, out, size, desc, a, addr, remote_key, &r)); break;
	case 1: POST(WRITE, size, fi_writev(ep, v, d, parts, a, addr, remote_key, &r)); break;
	case 2: POST(WRITE, size, fi_inject_write(ep, out, size, a, addr, remote_key)); break;
	case 3: POST(WRITE, size, fi_inject_writedata(ep, out, size, 77, a, addr, remote_key)); break;
	case 4: POST(WRITE, size, fi_writemsg(ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE)); break;
	case 5: POST(WRITE, size, fi_writemsg(ep, &m, 0)); break;
	case 6: POST(WRITE, size, fi_writemsg(ep, &m, FI_COMPLETION | FI_REMOTE_CQ_DATA)); break;
	case 7: POST(WRITE, size, fi_writemsg(ep, &m, FI_INJECT | FI_COMPLETION)); break;
	default: POST(WRITE, size, fi_writedata(ep, out, size, desc, 77, a, addr, remote_key, &r));
	}
	if (f != 2 && f != 3 && f != 5)
		wait_for(&r);
	told += f == 3 || f == 6 || f == 8;
	while (remote_data < told)
		progress();
	if (counter)
		by_counter();
	barrier();
	/* what was written is read back from there, by the three forms */
	struct iovec in_v = { in, size };
	struct request q = { 0 };
	struct fi_msg_rma n = { &in_v, &desc, 1, a, &rv, 1, &q, 0 };
	memset(in, 0, size);
	switch (f % 3) {
	case 0: POST(READ, size, fi_read(ep, in, size, desc, a, addr, remote_key, &q)); break;
	case 1: POST(READ, size, fi_readv(ep, &in_v, &desc, 1, a, addr, remote_key, &q)); break;
	default: POST(READ, size, fi_readmsg(ep, &n, FI_COMPLETION));
	}
	wait_for(&q);
	for (size_t k = 0; k < size; k++)
		CHECK(in[k] == (uint8_t)(k * 5 + f));
	barrier();
}

static void atomics(void)
{
	struct request r[9] = { 0 };
	uint64_t *op = (void *)(area + OUT), *result = (void *)(area + RESULT), *compare = op + 8;
	uint64_t addr = remote_base + WORDS;
	fi_addr_t a = to();
	struct fi_ioc v = { op, 1 }, res = { result, 1 }, cmp = { compare, 1 };
	struct fi_rma_ioc rv = { addr, 1, remote_key };
	struct fi_msg_atomic m = { &v, &desc, 1, a, &rv, 1, FI_UINT64, FI_SUM, NULL, 0 };
	uint64_t *words = (void *)(area + WORDS);
	words[0] = 0;
	words[1] = 5;
	*op = 3;
	barrier();
	POST(ATOMIC, 8, fi_atomic(ep, op, 1, desc, a, addr, remote_key, FI_UINT64, FI_SUM, &r[0]));
	wait_for(&r[0]);
	POST(ATOMIC, 8, fi_atomicv(ep, &v, &desc, 1, a, addr, remote_key, FI_UINT64, FI_SUM, &r[1]));
	wait_for(&r[1]);
	m.context = &r[2];
	POST(ATOMIC, 8, fi_atomicmsg(ep, &m, FI_COMPLETION));
	wait_for(&r[2]);
	POST(ATOMIC, 8, fi_inject_atomic(ep, op, 1, a, addr, remote_key, FI_UINT64, FI_SUM));
	POST(ATOMIC, 8, fi_fetch_atomic(ep, op, 1, desc, result, desc, a, addr, remote_key, FI_UINT64, FI_SUM, &r[3]));
	wait_for(&r[3]);
	CHECK(*result == 12);
	POST(ATOMIC, 8, fi_fetch_atomicv(ep, &v, &desc, 1, &res, &desc, 1, a, addr, remote_key, FI_UINT64, FI_SUM, &r[4]));
	wait_for(&r[4]);
	CHECK(*result == 15);
	m.context = &r[5];
	POST(ATOMIC, 8, fi_fetch_atomicmsg(ep, &m, &res, &desc, 1, FI_COMPLETION));
	wait_for(&r[5]);
	CHECK(*result == 18);
	*compare = 21;
	*op = 100;
	POST(ATOMIC, 8, fi_compare_atomic(ep, op, 1, desc, compare, desc, result, desc, a, addr, remote_key, FI_UINT64, FI_CSWAP, &r[6]));
	wait_for(&r[6]);
	CHECK(*result == 21);
	*compare = 100;
	POST(ATOMIC, 8, fi_compare_atomicv(ep, &v, &desc, 1, &cmp, &desc, 1, &res, &desc, 1, a, addr, remote_key, FI_UINT64, FI_CSWAP, &r[7]));
	wait_for(&r[7]);
	CHECK(*result == 100);
	m.context = &r[8];
	m.op = FI_CSWAP;
	POST(ATOMIC, 8, fi_compare_atomicmsg(ep, &m, &cmp, &desc, 1, &res, &desc, 1, FI_COMPLETION));
	wait_for(&r[8]);
	CHECK(*result == 100);
	/* two elements of four bytes */
	uint32_t *two = (void *)op;
	struct request x = { 0 };
	two[0] = two[1] = 1;
	POST(ATOMIC, 8, fi_atomic(ep, two, 2, desc, a, addr + 8, remote_key, FI_UINT32, FI_SUM, &x));
	wait_for(&x);
	if (counter)
		by_counter();
	barrier();
	volatile uint64_t *changed = words; /* by this side's own progress, on some providers */
	while (changed[0] != 100 || changed[1] != (1ull << 32) + 5 + 1)
		progress();
	barrier();
}

/* ---- threads ---- */

static void *sender(void *arg)
{
	int n = (int)(intptr_t)arg;
	for (int i = 0; i < 50; i++) {
		struct request out = { 0 }, in = { 0 };
		uint64_t tag = 0x80000 + n;
		uint8_t *o = area + OUT + n * 256, *b = area + IN + n * 256;
		memset(o, i + n, 100);
		POST(TAGGED_RECV, 200, fi_trecv(ep, b, 200, desc, FI_ADDR_UNSPEC, tag, 0, &in));
		POST(TAGGED_SEND, 100, fi_tsend(ep, o, 100, desc, ways[0], tag, &out));
		wait_for(&out);
		wait_for(&in);
		CHECK(b[0] == i + n && b[99] == i + n);
	}
	return NULL;
}

/* ---- set-up ---- */

static void await(uint32_t want, struct fi_eq_cm_entry *e)
{
	uint32_t event;
	ssize_t n = fi_eq_sread(eq, &event, e, sizeof *e, 60000, 0);
	CHECK(n >= (ssize_t)sizeof e->fid && event == want);
}

static void open_ep(struct fi_info *i)
{
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_TAGGED, .size = 512, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr aa = { .type = FI_AV_UNSPEC };
	OK(fi_domain(fabric, i, &domain, NULL));
	can_wait = !strstr(i->fabric_attr->prov_name, "shm") && !fi_cq_open(domain, &ca, &rx, NULL); /* shm waits for ever */
	ca.wait_obj = FI_WAIT_NONE;
	if (!can_wait)
		OK(fi_cq_open(domain, &ca, &rx, NULL));
	OK(fi_cq_open(domain, &ca, &tx, NULL));
	OK(fi_endpoint(domain, i, &ep, NULL));
	OK(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION));
	OK(fi_ep_bind(ep, &rx->fid, FI_RECV));
	if (i->ep_attr->type == FI_EP_MSG) {
		OK(fi_ep_bind(ep, &eq->fid, 0));
	} else {
		OK(fi_av_open(domain, &aa, &av, NULL));
		OK(fi_ep_bind(ep, &av->fid, 0));
		if (fi_cntr_open(domain, &na, &counter, NULL) && (na.wait_obj = FI_WAIT_NONE, fi_cntr_open(domain, &na, &counter, NULL)))
			counter = NULL;
		if (counter)
			OK(fi_ep_bind(ep, &counter->fid, FI_READ | FI_WRITE));
	}
	OK(fi_enable(ep));
	OK(fi_mr_reg(domain, area, AREA, FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1 + rank, 0, &mr, NULL));
	if (i->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		OK(fi_mr_bind(mr, &ep->fid, 0));
		OK(fi_mr_enable(mr));
	}
	desc = fi_mr_desc(mr);
}

static void connect_msg(void)
{
	struct fi_eq_attr ea = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_eq_cm_entry e;
	uint8_t name[64] = { 0 }, other[64];
	size_t size = sizeof name;
	OK(fi_eq_open(fabric, &ea, &eq, NULL));
	if (rank == 0) {
		struct fid_pep *pep;
		OK(fi_passive_ep(fabric, info, &pep, NULL));
		OK(fi_pep_bind(pep, &eq->fid, 0));
		OK(fi_listen(pep));
		OK(fi_getname(&pep->fid, name, &size));
		swap(name, other, sizeof name);
		await(FI_CONNREQ, &e);
		open_ep(e.info);
		OK(fi_accept(ep, NULL, 0));
		fi_freeinfo(e.info);
		await(FI_CONNECTED, &e);
		OK(fi_close(&pep->fid));
	} else {
		swap(name, other, sizeof name);
		free(info->dest_addr);
		info->dest_addr = malloc(sizeof other);
		memcpy(info->dest_addr, other, sizeof other);
		info->dest_addrlen = info->src_addrlen ? info->src_addrlen : 16;
		open_ep(info);
		OK(fi_connect(ep, other, NULL, 0));
		await(FI_CONNECTED, &e);
	}
}

static void connect_rdm(void)
{
	uint8_t name[256] = { 0 }, other[256];
	size_t size = sizeof name;
	open_ep(info);
	OK(fi_getname(&ep->fid, name, &size));
	swap(name, other, sizeof name);
	CHECK(fi_av_insert(av, other, 1, &ways[0], 0, NULL) == 1);
	if (info->addr_format == FI_SOCKADDR_IN) {
		char node[32], service[16];
		snprintf(node, sizeof node, "%u.%u.%u.%u", other[4], other[5], other[6], other[7]);
		snprintf(service, sizeof service, "%u", other[2] << 8 | other[3]);
		if (fi_av_insertsvc(av, node, service, &ways[n_ways], 0, NULL) == 1)
			n_ways++;
		if (fi_av_insertsym(av, node, 1, service, 1, &ways[n_ways], 0, NULL) == 1)
			n_ways++;
	}
}

static int run(const char *provider, int msg, int max, int threads)
{
	struct fi_info *hints = fi_allocinfo();
	alarm(120);
	area = aligned_alloc(4096, AREA);
	memset(area, 0, AREA);
	hints->fabric_attr->prov_name = strdup(provider);
	hints->ep_attr->type = msg ? FI_EP_MSG : FI_EP_RDM;
	hints->caps = FI_MSG | (msg ? FI_RMA : FI_TAGGED | FI_RMA | FI_ATOMIC | FI_MULTI_RECV);
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->tx_attr->op_flags = FI_COMPLETION;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	hints->domain_attr->threading = FI_THREAD_SAFE;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	const char *node = strstr(provider, "shm") ? NULL : getenv("OFI_NODE") ? getenv("OFI_NODE") : "127.0.0.1";
	int rc = fi_getinfo(FI_VERSION(1, 17), node, NULL, node ? FI_SOURCE : 0, hints, &info);
	if (rc) {
		fprintf(stderr, "no provider %s for this: %s\n", provider, fi_strerror(-rc));
		return 77;
	}
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	if (msg)
		connect_msg();
	else
		connect_rdm();
	uint64_t mine[2] = { info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)area : 0, fi_mr_key(mr) }, theirs[2];
	swap(mine, theirs, sizeof mine);
	remote_base = theirs[0];
	remote_key = theirs[1];
	barrier();
	for (int tagged = 0; tagged < 2; tagged++) {
		if (!has(tagged ? FI_TAGGED : FI_MSG) || (tagged && msg))
			continue;
		for (int f = 0; f < FORMS; f++)
			for (int n = 1 + draw() % max, i = 0; i < n; i++)
				message(tagged, f, i);
		big(tagged);
	}
	/* libfabric 2.1's tcp never completes them when both sides send at once, traced or not */
	if (has(FI_MULTI_RECV) && !msg && !(FI_MAJOR(fi_version()) > 1 && strstr(provider, "tcp")))
		multi(2 + draw() % max);
	if (has(FI_TAGGED) && !msg) {
		cancelled();
		if (!strstr(provider, "tcp")) /* which gives the connection up */
			truncated();
		if (strcmp(provider, "shm")) /* which tells nothing */
			peek();
		barrier();
	}
	if (has(FI_RMA))
		for (int f = 0; f < FORMS; f++)
			for (int n = 1 + draw() % max, i = 0; i < n; i++)
				access_form(f);
	size_t count = 0;
	if (has(FI_ATOMIC) && !fi_atomicvalid(ep, FI_UINT64, FI_SUM, &count) && count)
		atomics();
	pthread_t t[16];
	for (int i = 0; i < threads; i++)
		CHECK(!pthread_create(&t[i], NULL, sender, (void *)(intptr_t)i));
	for (int i = 0; i < threads; i++)
		CHECK(!pthread_join(t[i], NULL));
	barrier();
	if (av)
		OK(fi_av_remove(av, ways, 1, 0));
	OK(fi_close(&ep->fid));
	OK(fi_close(&mr->fid));
	if (av)
		OK(fi_close(&av->fid));
	if (counter)
		OK(fi_close(&counter->fid));
	OK(fi_close(&tx->fid));
	OK(fi_close(&rx->fid));
	OK(fi_close(&domain->fid));
	if (eq)
		OK(fi_close(&eq->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(hints);
	fi_freeinfo(info);
	tally_report(sent, OPS);
	return 0;
}

int main(int argc, char **argv)
{
	const char *provider = "tcp";
	int c, msg = 0, max = 6, threads = 0, pair[2], status = 0, worst = 0;
	while ((c = getopt(argc, argv, "p:e:s:n:t:")) != -1) {
		switch (c) {
		case 'p': provider = optarg; break;
		case 'e': msg = !strcmp(optarg, "msg"); break;
		case 's': seed = (uint32_t)atoi(optarg); break;
		case 'n': max = atoi(optarg); break;
		case 't': threads = atoi(optarg); break;
		default: return 2;
		}
	}
	CHECK(threads <= 16 && max > 0);
	if (getenv("OFI_CLIENT_SOCKET")) {
		sock = atoi(getenv("OFI_CLIENT_SOCKET"));
		rank = atoi(getenv("RANK"));
		return run(provider, msg, max, threads);
	}
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pid_t child[2], p;
	for (rank = 0; rank < 2; rank++) {
		child[rank] = fork();
		CHECK(child[rank] >= 0);
		if (!child[rank]) { /* begins anew, as a rank that was started as one */
			char text[16];
			close(pair[!rank]);
			snprintf(text, sizeof text, "%d", pair[rank]);
			setenv("OFI_CLIENT_SOCKET", text, 1);
			setenv("RANK", rank ? "1" : "0", 1);
			setenv("WORLD_SIZE", "2", 1);
			execv("/proc/self/exe", argv);
			_exit(1);
		}
	}
	close(pair[0]);
	close(pair[1]);
	while ((p = wait(&status)) > 0)
		if (status && !worst) {
			worst = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			kill(child[p == child[0]], SIGKILL); /* it would wait for ever */
		}
	return worst;
}
