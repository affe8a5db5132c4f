/* Set-up that the verbs clients share: a device by name, and bringing two RC or UD queue pairs of one process to RTS. */
#ifndef SIGMATRACE_TESTS_RC_H
#define SIGMATRACE_TESTS_RC_H

#include "tally.h"

#include <infiniband/verbs.h>
#include <string.h>

/* The device called name, or the first one when name is NULL. */
static inline struct ibv_device *find_device(struct ibv_device **list, const char *name)
{
	for (; *list; list++)
		if (!name || !strcmp((*list)->name, name))
			return *list;
	fprintf(stderr, "no RDMA device%s%s\n", name ? " called " : "", name ? name : "");
	exit(1);
}

static inline void address_of(struct ibv_context *ctx, int gid_index, struct ibv_ah_attr *ah)
{
	struct ibv_port_attr port;
	CHECK(!ibv_query_port(ctx, 1, &port));
	*ah = (struct ibv_ah_attr){ .dlid = port.lid, .port_num = 1, .is_global = 1 };
	ah->grh.hop_limit = 1;
	ah->grh.sgid_index = gid_index;
	CHECK(!ibv_query_gid(ctx, 1, gid_index, &ah->grh.dgid));
}

/* Brings an RC queue pair to RTS, connected to queue pair number peer at address ah (of this process or another). */
static inline void connect_rc(struct ibv_qp *qp, uint32_t peer, const struct ibv_ah_attr *ah)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
				 .port_num = 1,
				 .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						    IBV_ACCESS_REMOTE_ATOMIC };
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR,
				  .path_mtu = IBV_MTU_1024,
				  .dest_qp_num = peer,
				  .max_dest_rd_atomic = 1,
				  .min_rnr_timer = 12,
				  .ah_attr = *ah };
	CHECK(!ibv_modify_qp(qp, &a,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	CHECK(!ibv_modify_qp(qp, &a,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

#define UD_QKEY 0x11111111
static inline void start_ud(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = UD_QKEY };
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR };
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS };
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

#endif
