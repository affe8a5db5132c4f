/* ucp-client [-s SEED] [-n MAX] [-o OP,...]: two processes that send each other random numbers (1 to MAX, default 60) of every
 * UCP operation, through every form of the call, check all data that arrives, and print what they sent.
 *
 * Both know the other's numbers from the seed. UCX's own environment chooses the transport. The processes are ranks 0 and
 * 1 by RANK and WORLD_SIZE, or two tasks of a Slurm step (meet.h). -o limits the operations: put get atomic tag am stream.
 */
#define _GNU_SOURCE
#include "meet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>

enum { PUT, GET, TAG_SEND, TAG_RECV, STREAM_SEND, STREAM_RECV, AM_SEND, ATOMIC, FLUSH, OPS };
static struct tally sent[OPS] = {
	[PUT] = { .name = "put" },	       [GET] = { .name = "get" },	  [TAG_SEND] = { .name = "tag_send" },
	[TAG_RECV] = { .name = "tag_recv" },   [STREAM_SEND] = { .name = "stream_send" },
	[STREAM_RECV] = { .name = "stream_recv" }, [AM_SEND] = { .name = "am_send" },
	[ATOMIC] = { .name = "atomic" },       [FLUSH] = { .name = "flush" },
};

enum { MAX_COUNT = 4096, SLOT = 8192, BIG = 300000, AM_ID = 1, AM_OLD_ID = 2 };

/* What one role does, drawn from the seed alone. */
struct plan {
	int puts, gets, atomics, tags, ams, streams;
	uint32_t seed;
};

static uint32_t mix(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x7feb352d;
	x ^= x >> 15;
	x *= 0x846ca68b;
	return x ^ x >> 16;
}
static uint32_t draw(const struct plan *p, int kind, int i)
{
	return mix(p->seed + mix(kind * 100003 + i));
}
static size_t size_of(const struct plan *p, int kind, int i)
{
	uint32_t r = draw(p, kind, i);
	return 1 + (r >> 4) % (r & 1 ? 64 : SLOT);
}
/* Some tagged messages are long enough for a rendezvous. */
static size_t tag_size(const struct plan *p, int i)
{
	return i % 8 == 7 ? BIG : size_of(p, TAG_SEND, i);
}
static void fill(uint8_t *b, size_t n, const struct plan *p, int kind, int i)
{
	uint32_t v = draw(p, kind + 50, i);
	for (size_t k = 0; k < n; k++)
		b[k] = (uint8_t)(v + k * 7);
}
static int matches(const uint8_t *b, size_t n, const struct plan *p, int kind, int i)
{
	uint32_t v = draw(p, kind + 50, i);
	for (size_t k = 0; k < n; k++)
		if (b[k] != (uint8_t)(v + k * 7))
			return 0;
	return 1;
}

/* ---- the process ---- */

struct words { /* what the peer's atomics change */
	uint64_t w64, swapped;
	uint32_t w32;
};

static ucp_worker_h worker;
static ucp_ep_h ep;
static ucp_rkey_h rkey;
static uint64_t remote_slots, remote_gets, remote_words;
static uint8_t *memory, *slots, *readable; /* mapped: slots the peer puts into, what it gets from, words */
static struct words *words;
static struct plan mine, theirs;
static int sock, ams_arrived;

static void progress_until_readable(void)
{
	struct pollfd pf = { .fd = sock, .events = POLLIN };
	int n;
	while ((n = poll(&pf, 1, 0)) == 0)
		ucp_worker_progress(worker);
	CHECK(n == 1);
}
/* Waits for the peer, which may need this worker's progress to arrive. */
static void barrier(void)
{
	char c = 'b';
	CHECK(write(sock, &c, 1) == 1);
	progress_until_readable();
	CHECK(read(sock, &c, 1) == 1 && c == 'b');
}
static void finish(ucs_status_ptr_t r)
{
	CHECK(!UCS_PTR_IS_ERR(r));
	if (!r)
		return;
	ucs_status_t s;
	while ((s = ucp_request_check_status(r)) == UCS_INPROGRESS)
		ucp_worker_progress(worker);
	CHECK(s == UCS_OK);
	ucp_request_free(r);
}

enum { WINDOW = 16 };
static ucs_status_ptr_t pending[WINDOW];
static int n_pending;
static void drain(void)
{
	while (n_pending)
		finish(pending[--n_pending]);
}
static void keep(ucs_status_ptr_t r)
{
	CHECK(!UCS_PTR_IS_ERR(r));
	if (r)
		pending[n_pending++] = r;
	if (n_pending == WINDOW)
		drain();
}
static void count(int op, size_t bytes)
{
	sent[op].count++;
	sent[op].bytes += bytes;
}

static void done_cb(void *r, ucs_status_t s) { (void)r, (void)s; }
static void done_nbx(void *r, ucs_status_t s, void *u) { (void)r, (void)s, (void)u; }
static void recv_cb(void *r, ucs_status_t s, ucp_tag_recv_info_t *i) { (void)r, (void)s, (void)i; }
static void stream_cb(void *r, ucs_status_t s, size_t n) { (void)r, (void)s, (void)n; }
static const ucp_request_param_t plain = { 0 };
static const ucp_request_param_t with_cb = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK, .cb.send = done_nbx };

static void flush(int form)
{
	switch (form % 6) {
	case 0: finish(ucp_ep_flush_nbx(ep, &plain)); break;
	case 1: finish(ucp_ep_flush_nb(ep, 0, done_cb)); break;
	case 2: CHECK(ucp_ep_flush(ep) == UCS_OK); break;
	case 3: finish(ucp_worker_flush_nbx(worker, &plain)); break;
	case 4: finish(ucp_worker_flush_nb(worker, 0, done_cb)); break;
	case 5: CHECK(ucp_worker_flush(worker) == UCS_OK); break;
	}
	count(FLUSH, 0);
}

static void do_puts(void)
{
	static uint8_t out[MAX_COUNT][SLOT];
	for (int i = 0; i < mine.puts; i++) {
		size_t n = size_of(&mine, PUT, i);
		uint64_t to = remote_slots + (uint64_t)i * SLOT;
		fill(out[i], n, &mine, PUT, i);
		switch (i % 4) {
		case 0: keep(ucp_put_nbx(ep, out[i], n, to, rkey, &with_cb)); break;
		case 1: keep(ucp_put_nb(ep, out[i], n, to, rkey, done_cb)); break;
		case 2: CHECK(ucp_put_nbi(ep, out[i], n, to, rkey) >= 0); break;
		case 3: CHECK(ucp_put(ep, out[i], n, to, rkey) == UCS_OK); break;
		}
		count(PUT, n);
	}
	drain();
	flush(mine.puts);
	barrier();
	for (int i = 0; i < theirs.puts; i++)
		CHECK(matches(slots + (size_t)i * SLOT, size_of(&theirs, PUT, i), &theirs, PUT, i));
}

static void do_gets(void)
{
	static uint8_t in[MAX_COUNT][SLOT];
	for (int i = 0; i < mine.gets; i++) {
		size_t n = size_of(&mine, GET, i);
		uint64_t from = remote_gets;
		switch (i % 4) {
		case 0: keep(ucp_get_nbx(ep, in[i], n, from, rkey, &plain)); break;
		case 1: keep(ucp_get_nb(ep, in[i], n, from, rkey, done_cb)); break;
		case 2: CHECK(ucp_get_nbi(ep, in[i], n, from, rkey) >= 0); break;
		case 3: CHECK(ucp_get(ep, in[i], n, from, rkey) == UCS_OK); break;
		}
		count(GET, n);
	}
	drain();
	flush(mine.gets + 1);
	for (int i = 0; i < mine.gets; i++)
		CHECK(matches(in[i], size_of(&mine, GET, i), &theirs, GET, 0));
	barrier();
}

/* Adds of 1 to the 64-bit and 32-bit words, and swaps of their own word: form i % 8. */
static void expected_atomics(const struct plan *p, struct words *w)
{
	for (int i = 0; i < p->atomics; i++) {
		int form = i % 8;
		if (form == 4 || form == 5)
			w->w32++;
		else if (form == 6 || form == 7)
			w->swapped = i + 1;
		else
			w->w64++;
	}
}
static void do_atomics(void)
{
	uint64_t w64 = remote_words + offsetof(struct words, w64), sw = remote_words + offsetof(struct words, swapped);
	uint64_t w32 = remote_words + offsetof(struct words, w32), one = 1, old64, prev = 0;
	uint32_t old32;
	ucp_request_param_t p64 = { .op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE, .datatype = ucp_dt_make_contig(8) };
	for (int i = 0; i < mine.atomics; i++) {
		int form = i % 8;
		switch (form) {
		case 0: CHECK(ucp_atomic_post(ep, UCP_ATOMIC_POST_OP_ADD, 1, 8, w64, rkey) >= 0); break;
		case 1: finish(ucp_atomic_fetch_nb(ep, UCP_ATOMIC_FETCH_OP_FADD, 1, &old64, 8, w64, rkey, done_cb)); break;
		case 2: finish(ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &one, 1, w64, rkey, &p64)); break;
		case 3: CHECK(ucp_atomic_add64(ep, 1, w64, rkey) == UCS_OK); break;
		case 4: CHECK(ucp_atomic_fadd32(ep, 1, w32, rkey, &old32) == UCS_OK); break;
		case 5: CHECK(ucp_atomic_add32(ep, 1, w32, rkey) == UCS_OK); break;
		case 6:
			CHECK(ucp_atomic_swap64(ep, i + 1, sw, rkey, &old64) == UCS_OK && old64 == prev);
			prev = i + 1;
			break;
		case 7:
			CHECK(ucp_atomic_cswap64(ep, prev, i + 1, sw, rkey, &old64) == UCS_OK && old64 == prev);
			prev = i + 1;
			break;
		}
		count(ATOMIC, form == 4 || form == 5 ? 4 : 8);
	}
	flush(mine.atomics + 2);
	barrier();
	struct words want = { 0 };
	expected_atomics(&theirs, &want);
	CHECK(words->w64 == want.w64 && words->w32 == want.w32 && words->swapped == want.swapped);
}

static void do_tags(void)
{
	static uint8_t *in[MAX_COUNT], *out[MAX_COUNT];
	static void *recv_req[MAX_COUNT];
	ucp_request_param_t iov = { .op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE, .datatype = ucp_dt_make_iov() };
	ucp_request_param_t byte = { .op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE, .datatype = ucp_dt_make_contig(1) };
	for (int i = 0; i < theirs.tags; i++) {
		size_t n = tag_size(&theirs, i) + 16; /* room to spare: what arrives is shorter than what is posted */
		in[i] = malloc(n);
		recv_req[i] = i % 2 ? ucp_tag_recv_nb(worker, in[i], n, ucp_dt_make_contig(1), i, -1, recv_cb) :
				      ucp_tag_recv_nbx(worker, in[i], n, i, -1, &byte);
		CHECK(!UCS_PTR_IS_ERR(recv_req[i]));
		count(TAG_RECV, n);
	}
	for (int i = 0; i < mine.tags; i++) {
		size_t n = tag_size(&mine, i);
		out[i] = malloc(n);
		fill(out[i], n, &mine, TAG_SEND, i);
		switch (i % 5) {
		case 0: keep(ucp_tag_send_nbx(ep, out[i], n, i, &with_cb)); break;
		case 1: keep(ucp_tag_send_nb(ep, out[i], n, ucp_dt_make_contig(1), i, done_cb)); break;
		case 2: keep(ucp_tag_send_sync_nbx(ep, out[i], n, i, &plain)); break;
		case 3: keep(ucp_tag_send_sync_nb(ep, out[i], n, ucp_dt_make_contig(1), i, done_cb)); break;
		case 4: { /* two pieces, one request */
			ucp_dt_iov_t v[2] = { { out[i], n / 2 }, { out[i] + n / 2, n - n / 2 } };
			finish(ucp_tag_send_nbx(ep, v, 2, i, &iov));
			break;
		}
		}
		count(TAG_SEND, n);
	}
	drain();
	for (int i = 0; i < theirs.tags; i++) {
		finish(recv_req[i]);
		CHECK(matches(in[i], tag_size(&theirs, i), &theirs, TAG_SEND, i));
		free(in[i]);
	}
	barrier();
	for (int i = 0; i < mine.tags; i++)
		free(out[i]);
}

static ucs_status_t am_arrived(void *arg, const void *header, size_t hlen, void *data, size_t n,
			       const ucp_am_recv_param_t *p)
{
	(void)arg;
	int i;
	CHECK(hlen == sizeof i && !(p->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV));
	memcpy(&i, header, sizeof i);
	CHECK(n == size_of(&theirs, AM_SEND, i) && matches(data, n, &theirs, AM_SEND, i));
	ams_arrived++;
	return UCS_OK;
}
static ucs_status_t am_old_arrived(void *arg, void *data, size_t n, ucp_ep_h reply, unsigned flags)
{
	(void)arg, (void)reply, (void)flags, (void)data, (void)n;
	ams_arrived++;
	return UCS_OK;
}
static void do_ams(void)
{
	static uint8_t out[MAX_COUNT][SLOT];
	ucp_request_param_t eager = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_AM_SEND_FLAG_EAGER };
	for (int i = 0; i < mine.ams; i++) {
		size_t n = size_of(&mine, AM_SEND, i);
		fill(out[i], n, &mine, AM_SEND, i);
		if (i % 3 == 2) {
			keep(ucp_am_send_nb(ep, AM_OLD_ID, out[i], n, ucp_dt_make_contig(1), done_cb, 0));
		} else {
			finish(ucp_am_send_nbx(ep, AM_ID, &i, sizeof i, out[i], n, &eager));
			sent[AM_SEND].header_bytes += sizeof i;
		}
		count(AM_SEND, n);
	}
	drain();
	while (ams_arrived < theirs.ams)
		ucp_worker_progress(worker);
	barrier();
}

static void do_streams(void)
{
	static uint8_t out[MAX_COUNT][SLOT], in[MAX_COUNT * (size_t)SLOT];
	size_t total = 0, got = 0;
	for (int i = 0; i < mine.streams; i++) {
		size_t n = size_of(&mine, STREAM_SEND, i);
		fill(out[i], n, &mine, STREAM_SEND, i);
		if (i % 2)
			keep(ucp_stream_send_nb(ep, out[i], n, ucp_dt_make_contig(1), done_cb, 0));
		else
			keep(ucp_stream_send_nbx(ep, out[i], n, &plain));
		count(STREAM_SEND, n);
	}
	drain();
	for (int i = 0; i < theirs.streams; i++)
		total += size_of(&theirs, STREAM_SEND, i);
	for (int k = 0; got < total; k++) {
		size_t want = total - got < 5000 ? total - got : 5000, n = 0;
		if (k % 3 == 0) {
			ucs_status_ptr_t r = ucp_stream_recv_data_nb(ep, &n);
			CHECK(!UCS_PTR_IS_ERR(r));
			if (!r) {
				ucp_worker_progress(worker);
				continue;
			}
			memcpy(in + got, r, n);
			ucp_stream_data_release(ep, r);
			want = n;
		} else {
			ucs_status_ptr_t r;
			if (k % 3 == 1) {
				r = ucp_stream_recv_nb(ep, in + got, want, ucp_dt_make_contig(1), stream_cb, &n, 0);
			} else {
				r = ucp_stream_recv_nbx(ep, in + got, want, &n, &plain);
			}
			CHECK(!UCS_PTR_IS_ERR(r));
			if (r) {
				while (ucp_stream_recv_request_test(r, &n) == UCS_INPROGRESS)
					ucp_worker_progress(worker);
				ucp_request_free(r);
			}
		}
		got += n;
		count(STREAM_RECV, want);
	}
	size_t at = 0;
	for (int i = 0; i < theirs.streams; i++) {
		size_t n = size_of(&theirs, STREAM_SEND, i);
		CHECK(matches(in + at, n, &theirs, STREAM_SEND, i));
		at += n;
	}
	CHECK(at == got);
	barrier();
}

/* ---- setting up ---- */

static void put_blob(const void *p, uint32_t n)
{
	CHECK(write(sock, &n, sizeof n) == sizeof n && write(sock, p, n) == (ssize_t)n);
}
static void *get_blob(uint32_t *n)
{
	CHECK(recv(sock, n, sizeof *n, MSG_WAITALL) == sizeof *n);
	void *p = malloc(*n);
	CHECK(p && recv(sock, p, *n, MSG_WAITALL) == (ssize_t)*n);
	return p;
}

static void connect_peers(ucp_context_h ctx, ucp_mem_h mem)
{
	ucp_address_t *addr;
	size_t addr_len, rkey_len;
	void *rkey_buf;
	uint64_t at[3] = { (uintptr_t)slots, (uintptr_t)readable, (uintptr_t)words };
	CHECK(ucp_worker_get_address(worker, &addr, &addr_len) == UCS_OK);
	CHECK(ucp_rkey_pack(ctx, mem, &rkey_buf, &rkey_len) == UCS_OK);
	put_blob(addr, addr_len);
	put_blob(rkey_buf, rkey_len);
	put_blob(at, sizeof at);
	ucp_worker_release_address(worker, addr);
	ucp_rkey_buffer_release(rkey_buf);
	uint32_t n;
	void *peer = get_blob(&n), *key = get_blob(&n);
	uint64_t *remote = get_blob(&n);
	ucp_ep_params_t ep_params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = peer };
	CHECK(ucp_ep_create(worker, &ep_params, &ep) == UCS_OK);
	CHECK(ucp_ep_rkey_unpack(ep, key, &rkey) == UCS_OK);
	remote_slots = remote[0], remote_gets = remote[1], remote_words = remote[2];
	free(peer), free(key), free(remote);
}

static int chosen(const char *list, const char *op)
{
	const char *p = strstr(list, op);
	size_t n = strlen(op);
	return !*list || (p && (p == list || p[-1] == ',') && (!p[n] || p[n] == ','));
}

static struct plan plan_of(uint32_t seed, int role, int max, const char *only)
{
	struct plan p = { .seed = mix(seed * 2 + role + 1) };
	p.puts = chosen(only, "put") ? 1 + draw(&p, 1000, 0) % max : 0;
	p.gets = chosen(only, "get") ? 1 + draw(&p, 1001, 0) % max : 0;
	p.atomics = chosen(only, "atomic") ? 1 + draw(&p, 1002, 0) % max : 0;
	p.tags = chosen(only, "tag") ? 1 + draw(&p, 1003, 0) % max : 0;
	p.ams = chosen(only, "am") ? 1 + draw(&p, 1004, 0) % max : 0;
	p.streams = chosen(only, "stream") ? 1 + draw(&p, 1005, 0) % max : 0;
	return p;
}

static int peer(int role, uint32_t seed, int max, const char *only)
{
	mine = plan_of(seed, role, max, only);
	theirs = plan_of(seed, !role, max, only);
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES,
				.features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AMO32 | UCP_FEATURE_AMO64 |
					    UCP_FEATURE_STREAM | UCP_FEATURE_AM };
	ucp_context_h ctx;
	CHECK(ucp_init(&params, NULL, &ctx) == UCS_OK);
	ucp_worker_params_t wp = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE };
	CHECK(ucp_worker_create(ctx, &wp, &worker) == UCS_OK);
	ucp_am_handler_param_t am = { .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
				      .id = AM_ID,
				      .cb = am_arrived };
	CHECK(ucp_worker_set_am_recv_handler(worker, &am) == UCS_OK);
	CHECK(ucp_worker_set_am_handler(worker, AM_OLD_ID, am_old_arrived, NULL, UCP_AM_FLAG_WHOLE_MSG) == UCS_OK);

	size_t length = (size_t)max * SLOT + SLOT + 4096;
	CHECK(!posix_memalign((void **)&memory, 4096, length));
	memset(memory, 0, length);
	slots = memory, readable = memory + (size_t)max * SLOT, words = (struct words *)(readable + SLOT);
	fill(readable, SLOT, &mine, GET, 0);
	ucp_mem_map_params_t mp = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
				    .address = memory,
				    .length = length };
	ucp_mem_h mem;
	CHECK(ucp_mem_map(ctx, &mp, &mem) == UCS_OK);
	connect_peers(ctx, mem);
	barrier();
	do_puts();
	do_gets();
	do_atomics();
	do_tags();
	do_ams();
	do_streams();
	tally_report(sent, OPS);
	ucp_rkey_destroy(rkey);
	finish(ucp_ep_close_nbx(ep, &plain));
	barrier();
	ucp_mem_unmap(ctx, mem);
	ucp_worker_destroy(worker);
	ucp_cleanup(ctx);
	return 0;
}

int main(int argc, char **argv)
{
	uint32_t seed = 1;
	int max = 60, opt;
	const char *only = "", *role = getenv("UCP_CLIENT_PEER"); /* "ROLE FD": set for the two processes */
	while ((opt = getopt(argc, argv, "s:n:o:")) != -1)
		switch (opt) {
		case 's': seed = strtoul(optarg, NULL, 0); break;
		case 'n': max = atoi(optarg); break;
		case 'o': only = optarg; break;
		default: return 2;
		}
	CHECK(max > 0 && max <= MAX_COUNT);
	if (role) {
		int r;
		CHECK(sscanf(role, "%d %d", &r, &sock) == 2);
		return peer(r, seed, max, only);
	}
	int fd[2], status, bad = 0, rank;
	sock = meet_in_step(&rank);
	if (sock >= 0)
		return peer(rank, seed, max, only);
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
	for (int r = 0; r < 2; r++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid)
			continue;
		char text[32], rank[2] = { '0' + r, 0 };
		close(fd[!r]);
		snprintf(text, sizeof text, "%d %d", r, fd[r]);
		setenv("UCP_CLIENT_PEER", text, 1);
		setenv("RANK", rank, 1);
		setenv("WORLD_SIZE", "2", 1);
		execv("/proc/self/exe", argv);
		_exit(127);
	}
	close(fd[0]), close(fd[1]);
	while (wait(&status) > 0)
		bad |= status;
	CHECK(errno == ECHILD);
	return bad != 0;
}
