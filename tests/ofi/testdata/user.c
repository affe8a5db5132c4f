/* Reaches libfabric by dlopen and dlsym only, and sends itself 10 tagged messages; then a forked child opens everything anew and sends
 * itself 5. */
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call) \
	do { \
		int rc_ = (int)(call); \
		if (rc_) { \
			fprintf(stderr, "%s: %d\n", #call, rc_); \
			exit(1); \
		} \
	} while (0)

static __typeof__(&fi_getinfo) getinfo;
static __typeof__(&fi_dupinfo) dupinfo;
static __typeof__(&fi_fabric) open_fabric;

static void talk(int n)
{
	struct fi_info *hints = dupinfo(NULL), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fi_av_attr aa = { .type = FI_AV_UNSPEC };
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_TAGGED };
	char name[256], out[32] = "message", in[32];
	size_t size = sizeof name;
	fi_addr_t self;
	hints->fabric_attr->prov_name = strdup("tcp");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED;
	OK(getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
	OK(open_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &aa, &av, NULL));
	OK(fi_cq_open(domain, &ca, &cq, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
	OK(fi_getname(&ep->fid, name, &size));
	OK(fi_av_insert(av, name, 1, &self, 0, NULL) != 1);
	for (int i = 0; i < n; i++) {
		struct fi_context2 a, b;
		struct fi_cq_tagged_entry e;
		int left = 2;
		ssize_t rc;
		OK(fi_trecv(ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 7, 0, &a));
		while ((rc = fi_tsend(ep, out, sizeof out, NULL, self, 7, &b)) == -FI_EAGAIN)
			fi_cq_read(cq, &e, 0);
		OK(rc);
		while (left)
			if ((rc = fi_cq_read(cq, &e, 1)) == 1)
				left--;
			else
				OK(rc != -FI_EAGAIN);
	}
	OK(fi_close(&ep->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&av->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
}

int main(void)
{
	void *lib = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return 2;
	getinfo = (__typeof__(getinfo))dlsym(lib, "fi_getinfo");
	dupinfo = (__typeof__(dupinfo))dlsym(lib, "fi_dupinfo");
	open_fabric = (__typeof__(open_fabric))dlsym(lib, "fi_fabric");
	talk(10);
	pid_t child = fork();
	if (!child) {
		talk(5);
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	puts("done");
	return status;
}
