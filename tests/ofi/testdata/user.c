/* user [CHILDREN]: sends itself 10 tagged messages; then a forked child opens everything anew and sends itself 5. With CHILDREN, two
 * threads send to themselves, each by an endpoint of its own, while so many children are forked one after the other. Prints how many
 * messages were sent in all. It reaches libfabric by dlopen and dlsym only, unless it is compiled with -DLINKED. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
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

/* An endpoint that knows itself as its peer. */
struct end {
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	fi_addr_t self;
	int sent;
};
static int stop;

static void begin(struct end *x)
{
	struct fi_info *hints = dupinfo(NULL), *info;
	struct fi_av_attr aa = { .type = FI_AV_UNSPEC };
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_TAGGED };
	char name[256];
	size_t size = sizeof name;
	hints->fabric_attr->prov_name = strdup("tcp");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED;
	hints->domain_attr->threading = FI_THREAD_SAFE;
	OK(getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
	OK(open_fabric(info->fabric_attr, &x->fabric, NULL));
	OK(fi_domain(x->fabric, info, &x->domain, NULL));
	OK(fi_av_open(x->domain, &aa, &x->av, NULL));
	OK(fi_cq_open(x->domain, &ca, &x->cq, NULL));
	OK(fi_endpoint(x->domain, info, &x->ep, NULL));
	OK(fi_ep_bind(x->ep, &x->av->fid, 0));
	OK(fi_ep_bind(x->ep, &x->cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(x->ep));
	OK(fi_getname(&x->ep->fid, name, &size));
	OK(fi_av_insert(x->av, name, 1, &x->self, 0, NULL) != 1);
}

static void talk(struct end *x, int n)
{
	char out[32] = "message", in[32];
	for (int i = 0; i < n; i++) {
		struct fi_context2 a, b;
		struct fi_cq_tagged_entry e;
		int left = 2;
		ssize_t rc;
		OK(fi_trecv(x->ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, 7, 0, &a));
		while ((rc = fi_tsend(x->ep, out, sizeof out, NULL, x->self, 7, &b)) == -FI_EAGAIN)
			fi_cq_read(x->cq, &e, 0);
		OK(rc);
		while (left)
			if ((rc = fi_cq_read(x->cq, &e, 1)) == 1)
				left--;
			else
				OK(rc != -FI_EAGAIN);
		x->sent++;
	}
}

static int end(struct end *x)
{
	OK(fi_close(&x->ep->fid));
	OK(fi_close(&x->cq->fid));
	OK(fi_close(&x->av->fid));
	OK(fi_close(&x->domain->fid));
	OK(fi_close(&x->fabric->fid));
	return x->sent;
}

static int once(int n)
{
	struct end x = { 0 };
	begin(&x);
	talk(&x, n);
	return end(&x);
}

/* Returns what the child sent. */
static int in_child(void)
{
	pid_t child = fork();
	int status;
	if (!child) {
		once(5);
		_exit(0);
	}
	OK(waitpid(child, &status, 0) != child || status);
	return 5;
}

static void *keep_talking(void *arg)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
		talk(arg, 10);
	return NULL;
}

/* The endpoints are there before the first fork: libfabric's own locks do not survive one while they are held. */
static int among_threads(int children)
{
	struct end x[2] = { 0 };
	pthread_t t[2];
	int n = 0;
	for (int i = 0; i < 2; i++)
		begin(&x[i]);
	for (int i = 0; i < 2; i++)
		OK(pthread_create(&t[i], NULL, keep_talking, &x[i]));
	while (children--)
		n += in_child();
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++) {
		OK(pthread_join(t[i], NULL));
		n += end(&x[i]);
	}
	return n;
}

int main(int argc, char **argv)
{
#ifdef LINKED
	getinfo = fi_getinfo;
	dupinfo = fi_dupinfo;
	open_fabric = fi_fabric;
#else
	void *lib = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return 2;
	getinfo = (__typeof__(getinfo))dlsym(lib, "fi_getinfo");
	dupinfo = (__typeof__(dupinfo))dlsym(lib, "fi_dupinfo");
	open_fabric = (__typeof__(open_fabric))dlsym(lib, "fi_fabric");
#endif
	int n = argc > 1 ? among_threads(atoi(argv[1])) : once(10) + in_child();
	printf("%d\n", n);
	return 0;
}
