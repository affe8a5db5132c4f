/* ofi-client [-p PROVIDER] [-e rdm|msg] [-s SEED] [-n MAX] [-t THREADS]: two processes that send each other random numbers (1 to MAX,
 * default 6) of every libfabric operation that the provider has, through every form of the call, check all data that arrives, and print
 * what they sent. "completion" counts the entries read from completion queues. They are ranks 0 and 1 by RANK and WORLD_SIZE.
 *
 * Transmits are bound with FI_SELECTIVE_COMPLETION, so that the msg forms go with and without a completion of their own. -t: after that,
 * so many threads send tagged messages on the same endpoint.
 */
#define _GNU_SOURCE
#include "ofi-client.h"

struct tally sent[OPS] = {
	[SEND] = { .name = "send" },		   [RECV] = { .name = "recv" },	  [TAGGED_SEND] = { .name = "tagged_send" },
	[TAGGED_RECV] = { .name = "tagged_recv" }, [WRITE] = { .name = "write" }, [READ] = { .name = "read" },
	[ATOMIC] = { .name = "atomic" },	   [COMPLETION] = { .name = "completion" },
};
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_av *av;
static struct fid_cq *tx, *rx;
struct fid_cntr *counter;
struct fid_ep *ep;
static struct fid_mr *mr;
void *desc;
uint8_t *area;
uint64_t remote_base, remote_key;
fi_addr_t ways[4] = { FI_ADDR_UNSPEC };
int remote_data;
static int n_ways = 1, way, rank, sock, can_wait, has_from = 1;
static uint32_t seed;

static uint32_t mix(uint32_t x)
{
	x ^= x >> 16;
	x *= 0x7feb352d;
	x ^= x >> 15;
	x *= 0x846ca68b;
	return x ^ x >> 16;
}
uint32_t draw(void) { return seed = mix(seed + 0x9e3779b9); }
fi_addr_t to(void) { return ways[way++ % n_ways]; }

void did(int op, uint64_t bytes)
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
		r->messages += !!(e[i].flags & FI_RECV);
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
	else if (cq == rx && can_wait && has_from && turn % 16 == 8)
		n = fi_cq_sreadfrom(cq, e, 1, from, NULL, 1);
	else if (has_from && turn & 2)
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
	for (ssize_t i = n - 1; av == NULL && i >= 0; i--) { /* without tags, the queue's entries are shorter */
		struct fi_cq_data_entry x;
		memcpy(&x, (char *)e + i * sizeof x, sizeof x);
		memcpy(&e[i], &x, sizeof x);
	}
	entries(e, n);
}

void progress(void)
{
	look(tx);
	look(rx);
}
void wait_for(struct request *r)
{
	while (!__atomic_load_n(&r->done, __ATOMIC_ACQUIRE))
		progress();
	if (r->error) {
		fprintf(stderr, "rank %d: a request failed: %s\n", rank, fi_strerror(r->error));
		exit(1);
	}
}
void barrier(void) { pair_barrier(sock, progress); }

/* ---- set-up ---- */

static void await(uint32_t want, struct fi_eq_cm_entry *e)
{
	uint32_t event;
	ssize_t n = fi_eq_sread(eq, &event, e, sizeof *e, 60000, 0);
	CHECK(n >= (ssize_t)sizeof e->fid && event == want);
}

static void open_ep(struct fi_info *i)
{
	struct fi_cq_attr ca = { .format = i->ep_attr->type == FI_EP_MSG ? FI_CQ_FORMAT_DATA : FI_CQ_FORMAT_TAGGED, .size = 512, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr aa = { .type = FI_AV_UNSPEC };
	OK(fi_domain(fabric, i, &domain, NULL));
	has_from = !!strcmp(i->fabric_attr->prov_name, "verbs"); /* 2.1 dies in fi_cq_sreadfrom */
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
		swap(sock, name, other, sizeof name);
		await(FI_CONNREQ, &e);
		open_ep(e.info);
		OK(fi_accept(ep, NULL, 0));
		fi_freeinfo(e.info);
		await(FI_CONNECTED, &e);
		OK(fi_close(&pep->fid));
	} else {
		swap(sock, name, other, sizeof name);
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
	swap(sock, name, other, sizeof name);
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
	hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
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
	swap(sock, mine, theirs, sizeof mine);
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
	int c, msg = 0, max = 6, threads = 0;
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
	sock = pair_start(argv, &rank);
	return run(provider, msg, max, threads);
}
