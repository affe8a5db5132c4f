/* ofi-contexts scalable|shared|alias|connections [PROVIDER]: two processes, ranks 0 and 1, that send each other messages by what
 * libfabric has besides plain endpoints, check what arrives, and print what they sent:
 *
 *     scalable      a scalable endpoint: each of two transmit contexts sends to each of two receive contexts
 *     shared        two endpoints with one transmit and one receive context for both
 *     alias         an endpoint and a second handle of it that asks for no completions
 *     connections   rank 0 listens and accepts two connections, that receive from one context; a third one it rejects
 */
#define _GNU_SOURCE
#include "ofi-pair.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

enum { SEND, RECV, TAGGED_SEND, TAGGED_RECV, COMPLETION, OPS };
static struct tally sent[OPS] = {
	[SEND] = { .name = "send" }, [RECV] = { .name = "recv" }, [TAGGED_SEND] = { .name = "tagged_send" }, [TAGGED_RECV] = { .name = "tagged_recv" },
	[COMPLETION] = { .name = "completion" },
};

enum { ROOM = 1024, ROUNDS = 5 };
static struct fi_info *hints, *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *tx[2], *rx[2]; /* what sends, and what the peer's sends to arrive at */
static fi_addr_t to[2];
static int sock, rank;
static uint8_t out[ROOM], in[ROOM];

struct request {
	struct fi_context2 own;
	int done;
	size_t len;
};

static void progress(void)
{
	struct fi_cq_tagged_entry e;
	fi_addr_t from;
	ssize_t n = fi_cq_readfrom(cq, &e, 1, &from);
	CHECK(n == 1 || n == -FI_EAGAIN);
	if (n != 1)
		return;
	sent[COMPLETION].count++;
	struct request *r = e.op_context;
	r->done = 1;
	r->len = e.len;
}

static void barrier(void) { pair_barrier(sock, progress); }

#define POST(op, n_bytes, call) \
	do { \
		ssize_t rc_; \
		while ((rc_ = (call)) == -FI_EAGAIN) \
			progress(); \
		OK(rc_); \
		sent[op].count++; \
		sent[op].bytes += (n_bytes); \
	} while (0)

/* One message each way. quiet: the sender's handle asks for no completion. */
static void exchange(struct fid_ep *sender, fi_addr_t address, struct fid_ep *receiver, int tagged, int quiet, size_t size)
{
	struct request o = { 0 }, i = { 0 };
	uint64_t tag = sender == tx[1]; /* messages of two contexts keep no order between them */
	memset(out, (int)size, size);
	memset(in, 0, sizeof in);
	if (tagged)
		POST(TAGGED_RECV, ROOM, fi_trecv(receiver, in, ROOM, NULL, FI_ADDR_UNSPEC, tag, 0, &i));
	else
		POST(RECV, ROOM, fi_recv(receiver, in, ROOM, NULL, FI_ADDR_UNSPEC, &i));
	barrier();
	if (tagged)
		POST(TAGGED_SEND, size, fi_tsend(sender, out, size, NULL, address, tag, &o));
	else
		POST(SEND, size, fi_send(sender, out, size, NULL, address, &o));
	while (!i.done || (!o.done && !quiet))
		progress();
	CHECK(i.len == size && !memcmp(in, out, size));
	barrier();
	CHECK(o.done != quiet);
}

static void get_info(const char *provider, enum fi_ep_type type)
{
	hints->fabric_attr->prov_name = strdup(provider);
	hints->ep_attr->type = type;
	hints->domain_attr->mr_mode = FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	int rc = fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info);
	if (rc) {
		fprintf(stderr, "no provider %s for this: %s\n", provider, fi_strerror(-rc));
		exit(77);
	}
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
}

static void open_domain(struct fi_info *i, int context_bits)
{
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_TAGGED, .size = 256, .wait_obj = FI_WAIT_NONE };
	struct fi_av_attr aa = { .rx_ctx_bits = context_bits };
	OK(fi_domain(fabric, i, &domain, NULL));
	OK(fi_cq_open(domain, &ca, &cq, NULL));
	if (i->ep_attr->type != FI_EP_MSG)
		OK(fi_av_open(domain, &aa, &av, NULL));
}

/* The address of the peer's n-th endpoint. */
static fi_addr_t meet(struct fid_ep *ep)
{
	uint8_t name[64] = { 0 }, other[64];
	size_t size = sizeof name;
	fi_addr_t address;
	OK(fi_getname(&ep->fid, name, &size));
	swap(sock, name, other, sizeof name);
	CHECK(fi_av_insert(av, other, 1, &address, 0, NULL) == 1);
	return address;
}

static void scalable(const char *provider)
{
	struct fid_ep *sep;
	hints->caps = FI_MSG | FI_TAGGED | FI_NAMED_RX_CTX | FI_SOURCE;
	hints->ep_attr->tx_ctx_cnt = hints->ep_attr->rx_ctx_cnt = 2;
	get_info(provider, FI_EP_RDM);
	info->ep_attr->tx_ctx_cnt = info->ep_attr->rx_ctx_cnt = 2;
	open_domain(info, 2);
	OK(fi_scalable_ep(domain, info, &sep, NULL));
	OK(fi_scalable_ep_bind(sep, &av->fid, 0));
	for (int i = 0; i < 2; i++) {
		OK(fi_tx_context(sep, i, i ? info->tx_attr : NULL, &tx[i], NULL));
		OK(fi_rx_context(sep, i, i ? info->rx_attr : NULL, &rx[i], NULL));
		OK(fi_ep_bind(tx[i], &cq->fid, FI_TRANSMIT));
		OK(fi_ep_bind(rx[i], &cq->fid, FI_RECV));
		OK(fi_enable(tx[i]));
		OK(fi_enable(rx[i]));
	}
	OK(fi_enable(sep));
	fi_addr_t peer = meet(sep);
	for (int i = 0; i < 2; i++)
		to[i] = fi_rx_addr(peer, i, 2);
	barrier();
	for (int n = 0; n < ROUNDS; n++)
		for (int k = 0; k < 8; k++)
			exchange(tx[k & 1], to[k >> 1 & 1], rx[k >> 1 & 1], k >> 2, 0, 1 + n * 8 + k);
	for (int i = 0; i < 2; i++) {
		OK(fi_close(&tx[i]->fid));
		OK(fi_close(&rx[i]->fid));
	}
	OK(fi_close(&sep->fid));
}

static void shared(const char *provider)
{
	struct fid_stx *stx;
	struct fid_ep *srx;
	hints->caps = FI_MSG | FI_TAGGED | FI_SOURCE;
	hints->ep_attr->tx_ctx_cnt = hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	get_info(provider, FI_EP_RDM);
	open_domain(info, 0);
	OK(fi_stx_context(domain, info->tx_attr, &stx, NULL));
	OK(fi_srx_context(domain, info->rx_attr, &srx, NULL));
	for (int i = 0; i < 2; i++) {
		OK(fi_endpoint(domain, info, &tx[i], NULL));
		OK(fi_ep_bind(tx[i], &stx->fid, 0));
		OK(fi_ep_bind(tx[i], &srx->fid, 0));
		OK(fi_ep_bind(tx[i], &cq->fid, FI_TRANSMIT));
		OK(fi_ep_bind(tx[i], &cq->fid, FI_RECV));
		OK(fi_ep_bind(tx[i], &av->fid, 0));
		OK(fi_enable(tx[i]));
		to[i] = meet(tx[i]);
	}
	barrier();
	for (int n = 0; n < ROUNDS; n++)
		for (int k = 0; k < 8; k++)
			exchange(tx[k & 1], to[k >> 1 & 1], srx, k >> 2, 0, 1 + n * 8 + k);
	for (int i = 0; i < 2; i++)
		OK(fi_close(&tx[i]->fid));
	OK(fi_close(&srx->fid));
	OK(fi_close(&stx->fid));
}

static void alias(const char *provider)
{
	hints->caps = FI_MSG | FI_TAGGED;
	hints->tx_attr->op_flags = FI_COMPLETION;
	get_info(provider, FI_EP_RDM);
	open_domain(info, 0);
	OK(fi_endpoint(domain, info, &tx[0], NULL));
	OK(fi_ep_bind(tx[0], &cq->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION));
	OK(fi_ep_bind(tx[0], &cq->fid, FI_RECV));
	OK(fi_ep_bind(tx[0], &av->fid, 0));
	OK(fi_enable(tx[0]));
	OK(fi_ep_alias(tx[0], &tx[1], FI_TRANSMIT));
	to[0] = meet(tx[0]);
	barrier();
	for (int n = 0; n < ROUNDS; n++)
		for (int k = 0; k < 4; k++)
			exchange(tx[k & 1], to[0], tx[0], k >> 1, k & 1, 1 + n * 4 + k);
	OK(fi_close(&tx[1]->fid));
	OK(fi_close(&tx[0]->fid));
}

static void await(uint32_t want, struct fi_eq_cm_entry *e)
{
	uint32_t event;
	ssize_t n = fi_eq_sread(eq, &event, e, sizeof *e, 60000, 0);
	CHECK(n >= (ssize_t)sizeof e->fid && event == want);
}

static struct fid_ep *endpoint(struct fi_info *i, struct fid_ep *srx)
{
	struct fid_ep *ep;
	OK(fi_endpoint(domain, i, &ep, NULL));
	OK(fi_ep_bind(ep, &eq->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	if (srx)
		OK(fi_ep_bind(ep, &srx->fid, 0));
	OK(fi_enable(ep));
	return ep;
}

static void connections(const char *provider)
{
	struct fi_eq_attr ea = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_eq_cm_entry e;
	struct fid_pep *pep = NULL;
	struct fid_ep *srx = NULL, *refused = NULL;
	uint8_t name[64] = { 0 }, other[64];
	size_t size = sizeof name;
	hints->caps = FI_MSG;
	get_info(provider, FI_EP_MSG);
	OK(fi_eq_open(fabric, &ea, &eq, NULL));
	if (rank == 0) {
		OK(fi_passive_ep(fabric, info, &pep, NULL));
		OK(fi_pep_bind(pep, &eq->fid, 0));
		OK(fi_listen(pep));
		OK(fi_getname(&pep->fid, name, &size));
	}
	swap(sock, name, other, sizeof name);
	open_domain(info, 0);
	if (rank == 0)
		OK(fi_srx_context(domain, info->rx_attr, &srx, NULL));
	for (int i = 0; i < 2; i++) {
		if (rank == 0) {
			await(FI_CONNREQ, &e);
			tx[i] = endpoint(e.info, srx);
			OK(fi_accept(tx[i], NULL, 0));
			fi_freeinfo(e.info);
		} else {
			tx[i] = endpoint(info, NULL);
			OK(fi_connect(tx[i], other, NULL, 0));
		}
		await(FI_CONNECTED, &e);
	}
	if (rank == 0) {
		await(FI_CONNREQ, &e);
		OK(fi_reject(pep, e.info->handle, NULL, 0));
		fi_freeinfo(e.info);
	} else {
		struct fi_eq_err_entry x = { 0 };
		uint32_t event;
		refused = endpoint(info, NULL);
		OK(fi_connect(refused, other, NULL, 0));
		CHECK(fi_eq_sread(eq, &event, &e, sizeof e, 60000, 0) == -FI_EAVAIL && fi_eq_readerr(eq, &x, 0) > 0);
		CHECK(x.err == FI_ECONNREFUSED);
		OK(fi_close(&refused->fid));
	}
	barrier();
	for (int n = 0; n < ROUNDS; n++)
		for (int k = 0; k < 2; k++)
			exchange(tx[k], FI_ADDR_UNSPEC, srx ? srx : tx[k], 0, 0, 1 + n * 2 + k);
	for (int i = 0; i < 2; i++)
		OK(fi_close(&tx[i]->fid));
	if (srx)
		OK(fi_close(&srx->fid));
	if (pep)
		OK(fi_close(&pep->fid));
	OK(fi_close(&eq->fid));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name, *provider;
		void (*run)(const char *provider);
	} kinds[] = { { "scalable", "sockets", scalable }, { "shared", "sockets", shared }, { "alias", "sockets", alias }, { "connections", "tcp", connections } };
	for (unsigned i = 0; argc > 1 && i < sizeof kinds / sizeof *kinds; i++) {
		if (strcmp(argv[1], kinds[i].name))
			continue;
		sock = pair_start(argv, &rank);
		alarm(60);
		hints = fi_allocinfo();
		kinds[i].run(argc > 2 ? argv[2] : kinds[i].provider);
		if (av)
			OK(fi_close(&av->fid));
		OK(fi_close(&cq->fid));
		OK(fi_close(&domain->fid));
		OK(fi_close(&fabric->fid));
		fi_freeinfo(hints);
		fi_freeinfo(info);
		tally_report(sent, OPS);
		return 0;
	}
	return 2;
}
