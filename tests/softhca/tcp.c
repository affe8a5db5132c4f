/*
 * Several hosts: processes that share neither memory nor process numbers, only a network. SOFTHCA_TCP lists the hosts' addresses, the same list
 * everywhere; which of them is ours is found by listening. A queue pair's number says which host has it. Each process answers for its own
 * queue pairs: what an initiator elsewhere asks for is executed here as one of this host's would be, and the answer is waited for.
 */
#include "exec.h"
#include "mem.h"
#include "tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HOSTS = 16, PORT = 18700, ANSWER_MS = 20000 };
enum { ASK_OWNER, ASK_RC, ASK_UD };

/* Both sides are builds of this file: plain structures go over the wire. */
struct ask {
	uint32_t kind, dest;
	struct source from;
	uint32_t result; /* an atomic's old value is wanted */
	uint32_t bytes;  /* that follow */
	struct wqe w;    /* without elements */
};

struct answer {
	uint32_t outcome, status, rnr_timer;
	int32_t owner;
	uint32_t bytes; /* that follow */
};

static struct in_addr hosts[HOSTS];
static int host_count, self = -1, listener = -1;
static pthread_rwlock_t serving = PTHREAD_RWLOCK_INITIALIZER;

/* One connection to each process that answered, used by one request at a time. */
static struct peer {
	pthread_mutex_t mu;
	int fd; /* 1 more than it; 0: none */
} peers[HOSTS][SHM_PROCS];
/* Who has a queue pair: its number and 1 more than the slot. */
static _Atomic uint64_t owners[SHM_QPS];

static bool all_in(int fd, void *to, size_t n)
{
	for (char *p = to; n;) {
		struct pollfd w = { .fd = fd, .events = POLLIN };
		ssize_t k;

		/* whoever was stopped must not stop us for ever */
		if (poll(&w, 1, ANSWER_MS) <= 0)
			return false;
		k = recv(fd, p, n, 0);
		if (k <= 0)
			return false;
		p += k;
		n -= k;
	}
	return true;
}

static bool all_out(int fd, const void *head, size_t nhead, const void *body, size_t nbody)
{
	struct iovec v[2] = { { (void *)head, nhead }, { (void *)body, nbody } };
	struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 };

	while (v[0].iov_len || v[1].iov_len) {
		ssize_t k = sendmsg(fd, &m, MSG_NOSIGNAL);

		if (k < 0)
			return false;
		for (int i = 0; i < 2; i++) {
			const size_t part = (size_t)k < v[i].iov_len ? (size_t)k : v[i].iov_len;

			v[i].iov_base = (char *)v[i].iov_base + part;
			v[i].iov_len -= part;
			k -= part;
		}
	}
	return true;
}

static struct sockaddr_in at(int host, unsigned slot)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(PORT + slot), .sin_addr = hosts[host] };
}

static uint32_t span_bytes(const struct span *s, int n)
{
	uint32_t sum = 0;

	for (int i = 0; i < n; i++)
		sum += s[i].len;
	return sum;
}

/* What a request of another host does here. */
static void execute(const struct ask *a, uint8_t *data, struct answer *out)
{
	struct source from = a->from;
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	const bool reads = a->w.opcode == IBV_WR_RDMA_READ, atomic = wqe_is_atomic(&a->w);
	const uint32_t len = reads || atomic ? a->w.length : a->bytes;
	const struct span loc = { .addr = (uintptr_t)data, .len = len, .proc = hca.slot };
	const int nloc = atomic ? (int)a->result : len != 0;

	if (a->kind == ASK_UD) {
		target_ud(&from, &a->w, &loc, nloc);
		return;
	}
	out->outcome = target_rc(&from, a->dest, &a->w, &loc, nloc, &status);
	out->status = status;
	out->rnr_timer = from.rnr_timer;
	if (out->outcome == DONE && !status && nloc && (reads || atomic))
		out->bytes = len;
}

static int owner_of(uint32_t qpn)
{
	const struct shm_qp *t = shm_find_qp(hca.shm, qpn);

	return t && t->life == SHM_LIVE ? (int)t->proc : -1;
}

static void *serve(void *arg)
{
	const int fd = (int)(intptr_t)arg;
	const uint32_t epoch = hca.epoch;
	uint8_t *data = NULL;
	uint32_t room = 0;
	struct ask a;

	for (;;) {
		struct pollfd w = { .fd = fd, .events = POLLIN };
		struct answer out = { .owner = -1 };
		uint32_t need;

		while (poll(&w, 1, 200) == 0 && hca.epoch == epoch)
			;
		if (hca.epoch != epoch || !all_in(fd, &a, sizeof a))
			break;
		need = a.bytes > a.w.length ? a.bytes : a.w.length;
		if (need > room) {
			uint8_t *more = realloc(data, need);

			if (!more)
				break;
			data = more;
			room = need;
		}
		if (a.bytes && !all_in(fd, data, a.bytes))
			break;
		pthread_rwlock_rdlock(&serving);
		const bool ours = hca.ready && hca.epoch == epoch;

		if (ours && a.kind == ASK_OWNER)
			out.owner = owner_of(a.dest);
		else if (ours)
			execute(&a, data, &out);
		pthread_rwlock_unlock(&serving);
		if (!ours || !all_out(fd, &out, sizeof out, data, out.bytes))
			break;
	}
	free(data);
	close(fd);
	return NULL;
}

static int thread(void *(*run)(void *), void *arg)
{
	pthread_attr_t attr;
	sigset_t all, old;
	pthread_t t;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&t, &attr, run, arg);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

static void nodelay(int fd)
{
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
}

static void *answer(void *arg)
{
	const uint32_t epoch = hca.epoch;
	const int on = (int)(intptr_t)arg;

	while (hca.epoch == epoch) {
		struct pollfd w = { .fd = on, .events = POLLIN };
		const int fd = poll(&w, 1, 200) > 0 ? accept4(on, NULL, NULL, SOCK_CLOEXEC) : -1;

		if (fd < 0)
			continue;
		nodelay(fd);
		if (thread(serve, (void *)(intptr_t)fd))
			close(fd);
	}
	close(on);
	return NULL;
}

/* Which of the hosts we are, and whether nobody else listens there for this slot. */
static int listen_at(int host)
{
	const struct sockaddr_in a = at(host, hca.slot);
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
	if (bind(fd, (const struct sockaddr *)&a, sizeof a) || listen(fd, 64)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Reads the list once, and finds our place in it. */
static void read_hosts(void)
{
	const char *list = getenv("SOFTHCA_TCP");
	char *copy = list ? strdup(list) : NULL, *rest = NULL;

	for (char *word = copy ? strtok_r(copy, ",", &rest) : NULL; word; word = strtok_r(NULL, ",", &rest)) {
		if (host_count == HOSTS || inet_pton(AF_INET, word, &hosts[host_count]) != 1) {
			fprintf(stderr, "softhca: SOFTHCA_TCP: '%s' is not an IPv4 address, or there are more than %d\n", word, HOSTS);
			exit(1);
		}
		host_count++;
	}
	free(copy);
	for (int i = 0; i < host_count && self < 0; i++) {
		struct sockaddr_in a = at(i, 0);
		const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

		a.sin_port = 0;
		if (fd >= 0 && !bind(fd, (const struct sockaddr *)&a, sizeof a))
			self = i;
		if (fd >= 0)
			close(fd);
	}
	if (host_count && self < 0) {
		fprintf(stderr, "softhca: SOFTHCA_TCP: none of '%s' is an address of this host\n", list);
		exit(1);
	}
}

int tcp_host(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_hosts);
	return self;
}

int tcp_start(void)
{
	int rc;

	if (tcp_host() < 0)
		return 0;
	listener = listen_at(self);
	if (listener < 0)
		return errno;
	for (int h = 0; h < HOSTS; h++)
		for (int i = 0; i < SHM_PROCS; i++)
			pthread_mutex_init(&peers[h][i].mu, NULL);
	rc = thread(answer, (void *)(intptr_t)listener);
	if (rc)
		close(listener);
	hca_log("host %d of %d, port %u", self, host_count, PORT + hca.slot);
	return rc;
}

void tcp_stop(void)
{
	/* what is being executed for others ends; nothing more begins, since `ready` is looked at under it */
	pthread_rwlock_wrlock(&serving);
	hca.ready = false;
	pthread_rwlock_unlock(&serving);
}

void tcp_forked(void)
{
	pthread_rwlock_init(&serving, NULL);
	if (listener >= 0)
		close(listener);
	listener = -1;
	for (int h = 0; h < HOSTS; h++)
		for (int i = 0; i < SHM_PROCS; i++)
			if (peers[h][i].fd) {
				close(peers[h][i].fd - 1);
				peers[h][i].fd = 0;
			}
}

bool tcp_is_far(uint32_t qpn)
{
	return self >= 0 && (int)(qpn >> TCP_HOST_SHIFT) != self && (int)(qpn >> TCP_HOST_SHIFT) < host_count;
}

/* mu held. */
static bool reach(int host, unsigned slot, struct peer *p)
{
	const struct sockaddr_in a = at(host, slot);
	int fd;

	if (p->fd)
		return true;
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return false;
	if (connect(fd, (const struct sockaddr *)&a, sizeof a)) {
		close(fd);
		return false;
	}
	nodelay(fd);
	p->fd = fd + 1;
	return true;
}

/* Asks a process. 1: answered; 0: it could not be asked; -1: asked, and the answer did not come. mu held. */
static int ask(int host, unsigned slot, struct peer *p, const struct ask *a, const void *data, struct answer *out)
{
	const bool kept = p->fd != 0;

	if (!reach(host, slot, p))
		return 0;
	if (all_out(p->fd - 1, a, sizeof *a, data, a->bytes) && all_in(p->fd - 1, out, sizeof *out))
		return 1;
	close(p->fd - 1);
	p->fd = 0;
	/* a connection of a process that has ended says so only when it is used */
	return kept && a->kind == ASK_OWNER ? ask(host, slot, p, a, data, out) : -1;
}

/* Which process has it: any of its host's knows. -1: none. */
static int find_owner(uint32_t qpn)
{
	const int host = (int)(qpn >> TCP_HOST_SHIFT);
	_Atomic uint64_t *known = &owners[qpn % SHM_QPS];
	const uint64_t v = atomic_load(known);
	const struct ask a = { .kind = ASK_OWNER, .dest = qpn };

	if (v >> 8 == qpn)
		return (int)(v & 0xff) - 1;
	for (unsigned slot = 0; slot < SHM_PROCS; slot++) {
		struct peer *p = &peers[host][slot];
		struct answer out;
		int got;

		pthread_mutex_lock(&p->mu);
		got = ask(host, slot, p, &a, NULL, &out);
		pthread_mutex_unlock(&p->mu);
		if (got == 1 && out.owner >= 0)
			atomic_store(known, (uint64_t)qpn << 8 | (unsigned)(out.owner + 1));
		if (got == 1)
			return out.owner;
	}
	return -1;
}

/* The initiator's bytes in one piece; NULL when that fails. */
static uint8_t *gather(const struct span *s, int n, uint32_t bytes)
{
	uint8_t *data = malloc(bytes ? bytes : 1);
	const struct span to = { .addr = (uintptr_t)data, .len = bytes, .proc = hca.slot };

	if (data && bytes && mem_copy(&to, 1, s, n)) {
		free(data);
		return NULL;
	}
	return data;
}

enum outcome tcp_rc(struct source *from, uint32_t dest, const struct wqe *w, const struct span *loc, int nloc, enum ibv_wc_status *status)
{
	const int host = (int)(dest >> TCP_HOST_SHIFT), slot = find_owner(dest);
	const bool comes_back = w->opcode == IBV_WR_RDMA_READ || wqe_is_atomic(w);
	struct ask a = { .kind = ASK_RC, .dest = dest, .from = *from, .w = *w, .result = nloc != 0 };
	struct answer out;
	enum outcome o = DONE;
	uint8_t *data;
	int got;

	if (slot < 0)
		return UNREACHABLE;
	a.bytes = comes_back ? 0 : span_bytes(loc, nloc);
	data = gather(loc, comes_back ? 0 : nloc, a.bytes);
	if (!data) {
		*status = IBV_WC_LOC_PROT_ERR;
		return DONE;
	}
	struct peer *p = &peers[host][slot];

	pthread_mutex_lock(&p->mu);
	got = ask(host, slot, p, &a, data, &out);
	if (got == 1 && out.bytes) {
		uint8_t *back = malloc(out.bytes);
		const struct span src = { .addr = (uintptr_t)back, .len = out.bytes, .proc = hca.slot };

		if (!back || !all_in(p->fd - 1, back, out.bytes) || mem_copy(loc, nloc, &src, 1))
			got = -1;
		free(back);
	}
	if (got < 0 && p->fd) {
		close(p->fd - 1);
		p->fd = 0;
	}
	pthread_mutex_unlock(&p->mu);
	free(data);
	if (got == 1) {
		o = out.outcome;
		*status = out.status;
		from->rnr_timer = out.rnr_timer;
		if (o == UNREACHABLE)
			atomic_store(&owners[dest % SHM_QPS], 0);
		return o;
	}
	atomic_store(&owners[dest % SHM_QPS], 0);
	if (!got)
		return UNREACHABLE;
	/* it may have been executed, and must not be twice */
	*status = IBV_WC_RETRY_EXC_ERR;
	return DONE;
}

void tcp_ud(const struct source *from, const struct wqe *w, const struct span *src, int nsrc)
{
	const int host = (int)(w->remote_qpn >> TCP_HOST_SHIFT), slot = find_owner(w->remote_qpn);
	struct ask a = { .kind = ASK_UD, .dest = w->remote_qpn, .from = *from, .w = *w, .bytes = span_bytes(src, nsrc) };
	struct answer out;
	uint8_t *data = slot < 0 ? NULL : gather(src, nsrc, a.bytes);

	if (!data)
		return;
	struct peer *p = &peers[host][slot];

	pthread_mutex_lock(&p->mu);
	if (ask(host, slot, p, &a, data, &out) != 1)
		atomic_store(&owners[w->remote_qpn % SHM_QPS], 0);
	pthread_mutex_unlock(&p->mu);
	free(data);
}
