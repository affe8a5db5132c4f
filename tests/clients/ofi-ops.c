/* ofi-client's operations, every form of each call. */
#include "ofi-client.h"

/* ---- messages: form f of 10, both sides at once ---- */

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

void message(int tagged, int f, int i)
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

void big(int tagged)
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
void multi(int n)
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
	while (in.messages < n) {
		if (in.flags & FI_MULTI_RECV) { /* given back with room left, as ofi_rxm 2.1 does */
			in.flags = 0;
			POST(RECV, v.iov_len, fi_recvmsg(ep, &m, FI_MULTI_RECV | FI_COMPLETION));
		}
		progress();
	}
	for (int i = 0; i < 1000 && !(in.flags & FI_MULTI_RECV); i++)
		progress();
	barrier();
}

/* ---- errors ---- */

void cancelled(void)
{
	struct request in = { 0 };
	POST(TAGGED_RECV, 64, fi_trecv(ep, area + IN, 64, desc, FI_ADDR_UNSPEC, 0xdead, 0, &in));
	OK(fi_cancel(&ep->fid, &in));
	while (!in.done)
		progress();
	CHECK(in.error == FI_ECANCELED);
	barrier();
}

void truncated(void)
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

void peek(void)
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
	uint64_t waited_for = sent[WRITE].count + sent[READ].count + sent[ATOMIC].count;
	while (fi_cntr_read(counter) < waited_for)
		progress();
	OK(fi_cntr_wait(counter, waited_for, -1));
	CHECK(fi_cntr_readerr(counter) == 0);
}

void access_form(int f)
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
	int with_data = f == 3 || f == 6 || f == 8;
	struct request taken = { 0 };
	if (with_data && info->mode & FI_RX_CQ_DATA) {
		POST(RECV, 16, fi_recv(ep, area + IN, 16, desc, FI_ADDR_UNSPEC, &taken));
		barrier();
	}
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
	told += with_data;
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

void atomics(void)
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

void *sender(void *arg)
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
