/* passes PROVIDER: calls of libfabric that the recorder has nothing to do with, on objects that it has taken; prints what they return. */
#define _GNU_SOURCE
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) \
	do { \
		int rc_ = (int)(call); \
		if (rc_) { \
			fprintf(stderr, "%s: %s\n", #call, fi_strerror(-rc_)); \
			exit(1); \
		} \
	} while (0)
#define SAY(call) printf("%s: %ld\n", #call, (long)(call))

int main(int argc, char **argv)
{
	const char *provider = argc > 1 ? argv[1] : "tcp";
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_eq *eq;
	struct fid_ep *ep;
	struct fid_poll *poll_set = NULL;
	struct fid_wait *wait_set = NULL;
	struct fid_cntr *counter;
	struct fid_mr *mr;
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD };
	struct fi_eq_attr ea = { .wait_obj = FI_WAIT_FD, .flags = FI_WRITE };
	struct fi_av_attr aa = { .type = FI_AV_UNSPEC };
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP };
	struct fi_poll_attr pa = { 0 };
	struct fi_wait_attr wa = { .wait_obj = FI_WAIT_FD };
	struct fid *fids[2];
	char name[64] = { 0 }, again[64] = { 0 }, text[256], out[16] = "message", in[16];
	size_t size = sizeof name, n;
	void *ops, *contexts[4];
	fi_addr_t self;
	int fd = -1, tcp = !strcmp(provider, "tcp"); /* whose objects are freed twice after such calls, with us or without */
	hints->fabric_attr->prov_name = strdup(provider);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED | FI_MSG | FI_RMA;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	OK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
	printf("%s\n", fi_tostr(&info->caps, FI_TYPE_CAPS));
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	SAY(fi_open_ops(&fabric->fid, "no such operations", 0, &ops, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	SAY(fi_open_ops(&domain->fid, "no such operations", 0, &ops, NULL));
	SAY(fi_set_ops(&domain->fid, "no such operations", 0, &ops, NULL));
	OK(fi_eq_open(fabric, &ea, &eq, NULL));
	OK(fi_cq_open(domain, &ca, &cq, NULL));
	OK(fi_av_open(domain, &aa, &av, NULL));
	OK(fi_cntr_open(domain, &na, &counter, NULL));
	SAY(fi_domain_bind(domain, &eq->fid, 0));
	SAY(fi_poll_open(domain, &pa, &poll_set));
	SAY(fi_wait_open(fabric, &wa, &wait_set));
	OK(fi_endpoint(domain, info, &ep, NULL));
	SAY(fi_open_ops(&ep->fid, "no such operations", 0, &ops, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_ep_bind(ep, &counter->fid, FI_SEND));
	if (!tcp)
		SAY(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV)); /* a second time */
	OK(fi_enable(ep));
	OK(fi_getname(&ep->fid, name, &size));
	OK(fi_av_insert(av, name, 1, &self, 0, NULL) != 1);
	n = sizeof again;
	SAY(fi_av_lookup(av, self, again, &n));
	SAY(n == size && !memcmp(name + 2, again + 2, 6));
	n = sizeof text;
	SAY(!!fi_av_straddr(av, name, text, &n));
	n = sizeof text;
	SAY(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, text, &n));
	OK(fi_mr_reg(domain, out, sizeof out, FI_SEND | FI_RECV, 0, 5, 0, &mr, NULL));
	SAY(fi_mr_bind(mr, &counter->fid, 0));
	SAY(fi_mr_refresh(mr, NULL, 0, 0));
	SAY(fi_control(&cq->fid, FI_GETWAIT, &fd));
	SAY(fd >= 0);
	fids[0] = &cq->fid;
	SAY(fi_trywait(fabric, fids, 1));
	if (poll_set) {
		SAY(fi_poll_add(poll_set, &cq->fid, 0));
		SAY(fi_poll(poll_set, contexts, 4));
	}
	struct fi_context2 a, b;
	OK(fi_trecv(ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 7, 0, &a));
	ssize_t rc;
	while ((rc = fi_tsend(ep, out, sizeof out, fi_mr_desc(mr), self, 7, &b)) == -FI_EAGAIN)
		fi_cq_read(cq, text, 0);
	OK(rc);
	for (int left = 2; left;) { /* as a program waits that does so by file descriptor */
		struct fi_cq_tagged_entry e;
		struct pollfd p = { .fd = fd, .events = POLLIN };
		if (fi_trywait(fabric, fids, 1) == FI_SUCCESS)
			poll(&p, 1, 100);
		rc = fi_cq_read(cq, &e, 1);
		left -= rc == 1;
		OK(rc != 1 && rc != -FI_EAGAIN);
	}
	SAY(!strcmp(in, out));
	SAY(fi_cntr_wait(counter, 1, -1));
	SAY(fi_cntr_read(counter));
	SAY(fi_cntr_seterr(counter, 3));
	SAY(fi_cntr_adderr(counter, 1));
	SAY(fi_cntr_readerr(counter));
	SAY(!!fi_cq_strerror(cq, 5, NULL, text, sizeof text));
	SAY(fi_cq_signal(cq));
	struct fi_eq_entry event = { .fid = &av->fid, .data = 42 }, got = { 0 };
	uint32_t kind = 0;
	SAY(fi_eq_write(eq, FI_NOTIFY, &event, sizeof event, 0));
	SAY(fi_eq_read(eq, &kind, &got, sizeof got, FI_PEEK));
	SAY(fi_eq_read(eq, &kind, &got, sizeof got, 0));
	SAY(kind == FI_NOTIFY && got.fid == &av->fid && got.data == 42);
	SAY(fi_eq_read(eq, &kind, &got, sizeof got, 0));
	if (!tcp)
		SAY(fi_close(&cq->fid)); /* in use */
	if (poll_set) {
		SAY(fi_poll_del(poll_set, &cq->fid, 0));
		SAY(fi_close(&poll_set->fid));
	}
	SAY(fi_shutdown(ep, 0));
	OK(fi_close(&ep->fid));
	SAY(fi_close(&mr->fid));
	SAY(fi_close(&cq->fid));
	SAY(fi_close(&av->fid));
	SAY(fi_close(&counter->fid));
	if (wait_set)
		SAY(fi_close(&wait_set->fid));
	SAY(fi_close(&domain->fid));
	SAY(fi_close(&eq->fid));
	SAY(fi_close(&fabric->fid));
	return 0;
}
