/* ofi-call-client -p PROVIDER [-n COUNT] [-s SIZE]: two processes joined by libfabric's reliable datagrams; the first times each of COUNT sends,
 * from the call to its completion at this side, by clock_gettime(2), and prints one line: median and p99 of a send in nanoseconds. What is
 * sent and received is checked by ofi-client; this one only measures.
 */
#define _GNU_SOURCE
#include "timed.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WARM = 2000, AHEAD = 64, BATCH = 16 };
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;
static volatile int *over; /* in both processes */

static void open_endpoint(const char *provider)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	CHECK(hints);
	hints->caps = FI_MSG;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(provider);
	CHECK(!fi_getinfo(FI_VERSION(1, 9), strcmp(provider, "tcp") ? NULL : "127.0.0.1", NULL, strcmp(provider, "tcp") ? 0 : FI_SOURCE, hints, &info));
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	CHECK(!fi_fabric(info->fabric_attr, &fabric, NULL) && !fi_domain(fabric, info, &domain, NULL) && !fi_endpoint(domain, info, &ep, NULL));
	CHECK(!fi_cq_open(domain, &cq_attr, &cq, NULL) && !fi_av_open(domain, &av_attr, &av, NULL));
	CHECK(!fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV) && !fi_ep_bind(ep, &av->fid, 0) && !fi_enable(ep));
}

/* Tells the other process the own name, and learns its. */
static fi_addr_t meet(int fd)
{
	struct {
		size_t size;
		char name[256];
	} own = { .size = sizeof own.name }, other;
	fi_addr_t address;
	CHECK(!fi_getname(&ep->fid, own.name, &own.size));
	CHECK(write(fd, &own, sizeof own) == (ssize_t)sizeof own && read(fd, &other, sizeof other) == (ssize_t)sizeof other);
	CHECK(fi_av_insert(av, other.name, 1, &address, 0, NULL) == 1);
	return address;
}

/* The second process: receives are posted ahead until it is over. */
static void serve(size_t size)
{
	struct fi_context2 *context = calloc(AHEAD, sizeof *context);
	char *buffer = malloc(AHEAD * size);
	size_t posted = 0;
	for (ssize_t n = AHEAD; !*over;) {
		for (; n > 0; n--, posted++) { /* they complete in order */
			ssize_t rc;
			while ((rc = fi_recv(ep, buffer + posted % AHEAD * size, size, NULL, FI_ADDR_UNSPEC, &context[posted % AHEAD])) == -FI_EAGAIN)
				;
			CHECK(!rc);
		}
		struct fi_cq_msg_entry got[BATCH];
		n = fi_cq_read(cq, got, BATCH);
		CHECK(n >= 0 || n == -FI_EAGAIN);
	}
}

int main(int argc, char **argv)
{
	const char *provider = NULL;
	size_t count = 100000, size = 64;
	int opt, pair[2];
	while ((opt = getopt(argc, argv, "p:n:s:")) != -1)
		switch (opt) {
		case 'p': provider = optarg; break;
		case 'n': count = strtoull(optarg, NULL, 0); break;
		case 's': size = strtoull(optarg, NULL, 0); break;
		default: return 2;
		}
	if (!provider || !count || !size) {
		fprintf(stderr, "usage: ofi-call-client -p PROVIDER [-n COUNT] [-s SIZE]\n");
		return 2;
	}
	over = mmap(NULL, sizeof *over, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(over != MAP_FAILED);
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pid_t peer = fork();
	CHECK(peer >= 0);
	open_endpoint(provider);
	fi_addr_t to = meet(pair[!peer]);
	if (!peer) {
		serve(size);
		return fi_close(&ep->fid) ? 1 : 0;
	}
	struct fi_context2 context;
	struct fi_cq_msg_entry got;
	void *buffer = calloc(1, size);
	uint32_t *took = malloc(count * sizeof *took);
	for (size_t i = 0; i < WARM + count; i++) {
		ssize_t rc;
		uint64_t begin = now();
		while ((rc = fi_send(ep, buffer, size, NULL, to, &context)) == -FI_EAGAIN)
			fi_cq_read(cq, NULL, 0);
		CHECK(!rc);
		while ((rc = fi_cq_read(cq, &got, 1)) == -FI_EAGAIN)
			;
		uint32_t ns = since(begin);
		CHECK(rc == 1);
		if (i >= WARM)
			took[i - WARM] = ns;
	}
	*over = 1;
	CHECK(waitpid(peer, NULL, 0) == peer && !fi_close(&ep->fid)); /* provider shm leaves a segment of an endpoint that is not closed */
	print_times(took, count);
	return 0;
}
