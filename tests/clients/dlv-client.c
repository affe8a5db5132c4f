/* dlv-client [-d DEVICE] [-g GID_INDEX] [-n COUNT] [-s SIZE]: COUNT (default 200) writes of SIZE (default 2048) bytes over a queue
 * pair connected to itself, by a program that is not linked with libibverbs: it opens the library and asks for each
 * function with dlvsym, as NCCL does. Prints what it posted and polled.
 */
#define _GNU_SOURCE
#include "tally.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <string.h>

#undef ibv_query_port /* macros of verbs.h that call functions of the library */
#undef ibv_reg_mr

enum { WRITE, CQE, OPS };
static struct tally did[OPS] = { [WRITE] = { .name = "write" }, [CQE] = { .name = "cqe" } };

static void *library;
static void *find(const char *name)
{
	void *f = dlvsym(library, name, "IBVERBS_1.1");
	if (!f) {
		fprintf(stderr, "dlv-client: %s\n", dlerror());
		exit(1);
	}
	return f;
}
/* Declares NAME_ as the function of that name in the library that was opened. */
#define FIND(name) __typeof__(name) *name##_ = (__typeof__(name) *)find(#name)

int main(int argc, char **argv)
{
	const char *device = NULL;
	int gid_index = 0, count = 200, opt, n, k = 0;
	uint32_t size = 2048;
	while ((opt = getopt(argc, argv, "d:g:n:s:")) != -1)
		switch (opt) {
		case 'd': device = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case 'n': count = atoi(optarg); break;
		case 's': size = atoi(optarg); break;
		default: return 2;
		}
	library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "dlv-client: %s\n", dlerror());
		return 1;
	}
	FIND(ibv_get_device_list);
	FIND(ibv_open_device);
	FIND(ibv_close_device);
	FIND(ibv_query_gid);
	FIND(ibv_query_port);
	FIND(ibv_alloc_pd);
	FIND(ibv_dealloc_pd);
	FIND(ibv_reg_mr);
	FIND(ibv_dereg_mr);
	FIND(ibv_create_cq);
	FIND(ibv_destroy_cq);
	FIND(ibv_create_qp);
	FIND(ibv_destroy_qp);
	FIND(ibv_modify_qp);

	struct ibv_device **list = ibv_get_device_list_(&n);
	CHECK(list && n > 0);
	while (device && k < n && strcmp(list[k]->name, device))
		k++;
	CHECK(k < n);
	struct ibv_context *ctx = ibv_open_device_(list[k]);
	CHECK(ctx);
	struct ibv_pd *pd = ibv_alloc_pd_(ctx);
	CHECK(pd);
	uint8_t *buf = malloc(2 * size);
	memset(buf, 1, size), memset(buf + size, 0, size);
	struct ibv_mr *mr = ibv_reg_mr_(pd, buf, 2 * size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	struct ibv_cq *cq = ibv_create_cq_(ctx, 64, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 64, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp_(pd, &init);
	CHECK(qp);

	struct ibv_port_attr port = { 0 };
	CHECK(!ibv_query_port_(ctx, 1, (struct _compat_ibv_port_attr *)&port));
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	CHECK(!ibv_modify_qp_(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				  .path_mtu = IBV_MTU_1024,
				  .dest_qp_num = qp->qp_num,
				  .max_dest_rd_atomic = 1,
				  .min_rnr_timer = 12,
				  .ah_attr = { .dlid = port.lid, .port_num = 1, .is_global = 1 } };
	a.ah_attr.grh.sgid_index = gid_index;
	a.ah_attr.grh.hop_limit = 1;
	CHECK(!ibv_query_gid_(ctx, 1, gid_index, &a.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp_(qp, &a,
			      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	CHECK(!ibv_modify_qp_(qp, &a,
			      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				      IBV_QP_MAX_QP_RD_ATOMIC));
	for (int i = 0; i < count; i++) {
		struct ibv_sge sg = { (uintptr_t)buf, size, mr->lkey };
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sg, .num_sge = 1 };
		struct ibv_send_wr *bad;
		struct ibv_wc wc;
		wr.wr.rdma.remote_addr = (uintptr_t)buf + size;
		wr.wr.rdma.rkey = mr->rkey;
		/* Inline functions that go through the context's table: no symbol is involved. */
		CHECK(!ibv_post_send(qp, &wr, &bad));
		did[WRITE].count++;
		did[WRITE].bytes += size;
		while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
			;
		CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
		did[CQE].count++;
	}
	CHECK(!memcmp(buf, buf + size, size));
	tally_report(did, OPS);
	CHECK(!ibv_destroy_qp_(qp) && !ibv_destroy_cq_(cq) && !ibv_dereg_mr_(mr) && !ibv_dealloc_pd_(pd) && !ibv_close_device_(ctx));
	return 0;
}
