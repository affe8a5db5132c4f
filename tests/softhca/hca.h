/* What the files of the emulated adapter share inside one process. */
#pragma once

#include "mem.h"
#include "shm.h"

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* verbs.h maps these names to inline helpers; here they are functions. */
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

enum {
	HCA_MAX_SGE = 30,
	HCA_MAX_WR = 32768,
	HCA_MAX_CQE = 1 << 20,
	HCA_MAX_INLINE = 1024,
	HCA_MTU = 4096,
	HCA_GRH = 40,
	HCA_LID = 1, /* of the first device; the others follow */
	HCA_DEVICES = 16,
};

/* Service types of queues that are not made by verbs, beside enum ibv_qp_type. */
enum { HCA_QPT_DCI = 0x100, HCA_QPT_DCT };

/* What only elements in mlx5's own format ask for, beside enum ibv_wr_opcode. */
enum { HCA_WR_MASKED_CAS = 16, HCA_WR_MASKED_FA, HCA_WR_NOP, HCA_WR_WAIT, HCA_WR_UNKNOWN, HCA_WR_END };

/* A queue of events behind a pollable descriptor: completion channels and
 * asynchronous events. */
struct evq {
	pthread_mutex_t mu;
	int fd;
	unsigned count, capacity;
	struct ev {
		void *object;
		int type;
	} *events;
};

struct hca_context {
	struct verbs_context v;
	struct evq async;
};

struct hca_channel {
	struct ibv_comp_channel ch;
	struct evq queue;
};

struct hca_pd {
	struct ibv_pd pd;
	uint32_t pdn;
	struct hca_pd *base; /* of a parent domain */
	_Atomic int users;
};

struct hca_mr {
	struct ibv_mr mr;
	uint32_t index;
};

struct hca_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex ex;
	};
	struct shm_cq *sh;
	uint32_t index, epoch;
	pthread_mutex_t mu; /* consumers */
	unsigned empty_polls;
	uint32_t events; /* given out, to be acknowledged before destruction */
	_Atomic int users;
	struct shm_cqe current; /* between start_poll and end_poll */
	uint32_t taken;
	void *bell; /* page of mlx5's doorbell, where the ring was asked for */
};

struct hca_srq {
	struct ibv_srq srq;
	struct shm_rq *sh;
	uint32_t index, epoch;
	_Atomic int users;
};

struct hca_ah {
	struct ibv_ah ah;
	struct ibv_ah_attr attr;
	struct mlx5_wqe_av av;
};

/* A posted send request, self-contained: slots of the send queue. */
struct wqe {
	uint64_t wr_id;
	uint32_t opcode; /* enum ibv_wr_opcode */
	uint32_t flags;  /* enum ibv_send_flags */
	uint32_t imm;    /* network byte order */
	uint32_t length; /* sum of the elements, or of the inline bytes */
	uint32_t num_sge;
	uint32_t rkey;
	uint64_t remote_addr;
	/* where the ring is the program's own: how many blocks it has there, and which of the elements are bytes of it */
	uint32_t blocks;
	uint64_t pieces;
	union {
		struct {
			struct mem_atomic atomic;
			uint64_t dc_key;
			uint32_t dc_target;
		};
		struct {
			uint32_t wait_index, wait_cqn;
		};
		struct {
			uint32_t remote_qpn, remote_qkey;
			struct ibv_ah_attr ah;
		};
	};
	struct ibv_sge sge[]; /* or, with IBV_SEND_INLINE, the bytes themselves */
};

/* A receive taken out of its queue. */
union taken_recv {
	struct shm_recv r;
	uint8_t room[sizeof(struct shm_recv) + HCA_MAX_SGE * sizeof(struct ibv_sge)];
};

struct devx_queue;

struct hca_qp {
	union {
		struct ibv_qp qp;
		struct ibv_qp_ex ex;
	};
	struct shm_qp *sh;
	struct shm_rq *rq;
	uint32_t index, epoch;
	bool has_ex, sig_all;
	bool counted; /* as a user of its domain and queues */
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct qp_stats *stats;
	struct devx_queue *devx; /* the ring is the program's own, and in mlx5's format */

	pthread_mutex_t mu; /* the send queue */
	uint8_t *sq;
	size_t stride;
	uint32_t depth; /* power of two */
	/* posted >= executed >= retired by a polled completion; free running */
	uint32_t posted, executed;
	_Atomic uint32_t retired;
	uint64_t waiting_since_ns; /* the oldest request cannot go yet */
	uint32_t peer_rnr_timer;
	bool listed;
	struct hca_qp *next_pending;

	/* between wr_start and wr_complete */
	uint32_t building;
	int build_error;
};

#pragma GCC visibility push(hidden)

extern struct hca {
	struct shm *shm;
	unsigned slot;
	_Atomic bool ready;
	_Atomic bool left; /* its queues are gone: nobody delivers to this process any more */
	_Atomic uint32_t epoch; /* raised in a forked child and at exit: older objects do
				 * not work any longer */
	int log;
	bool ethernet;
	/* queue pairs of this process and those with unexecuted requests */
	pthread_mutex_t qps_mu;
	struct hca_qp *_Atomic qps[SHM_QPS];
	struct hca_qp *pending;
	_Atomic int pending_count;
	pthread_mutex_t cqs_mu;
	struct hca_cq *_Atomic cqs[SHM_CQS];
} hca;

/* Registers the process at its first open; again in a forked child. */
int hca_init(void);

uint64_t now_ns(void);
/* Smallest power of two >= n, at least 1. */
uint32_t round_up_pow2(uint32_t n);

void hca_log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define hca_log(...)                               \
	do {                                       \
		if (__builtin_expect(hca.log, 0))  \
			hca_log_line(__VA_ARGS__); \
	} while (0)

/* event.c */
int evq_init(struct evq *q);
void evq_close(struct evq *q);
void evq_push(struct evq *q, void *object, int type);
/* Waits as the descriptor's O_NONBLOCK says; -1 with errno. */
int evq_pop(struct evq *q, struct ev *out);
void evq_forget(struct evq *q, void *object);
void raise_async(struct ibv_context *c, enum ibv_event_type type, void *object);

/* cq.c */
void cq_push(uint32_t index, const struct shm_cqe *e);
/* Raises the events that other processes asked for. */
void cq_deliver_events(void);
/* Drops the completions of a queue pair, as at its destruction. */
void cq_forget_qp(struct hca_cq *c, uint32_t qpn);
/* Asks for an event: at once where completions came after the one of number `seen` (24 bits). */
void cq_arm(struct hca_cq *c, bool solicited_only, uint32_t seen);
int op_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int op_req_notify_cq(struct ibv_cq *cq, int solicited_only);
struct ibv_cq_ex *op_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *a);
int op_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *a);
/* cq_ex.c: what cq.c lends it */
void cq_ex_methods(struct hca_cq *c);
bool cq_next(struct hca_cq *c, struct shm_cqe *e);
void cq_pause_if_empty(struct hca_cq *c, bool empty);

/* recv.c */
struct shm_rq *rq_create(uint32_t depth, uint32_t max_sge, uint32_t pdn, bool srq, uint32_t *index);
void rq_destroy(uint32_t index);
/* Takes the oldest receive; false (and this process listed as waiting, if
 * asked for) when there is none. `out` has room for HCA_MAX_SGE elements. */
bool rq_take(struct shm_rq *r, struct shm_recv *out, bool wait);
int op_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int op_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_srq *op_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *a);
int op_get_srq_num(struct ibv_srq *srq, uint32_t *number);

/* qp.c */
struct ibv_qp *op_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a);

/* Queue pairs without verbs' rings: of DEVX, and dynamically connected targets. */
struct hca_qp *qp_bare(struct ibv_context *c, uint32_t type, uint32_t pdn, uint32_t scq, uint32_t rcq);
void qp_bare_state(struct hca_qp *q, int to, uint32_t dest_qpn);
void qp_bare_free(struct hca_qp *q);

/* send.c */
int op_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
/* The next free slot of the send queue with its fixed part zeroed, or NULL
 * (with the reason, an errno) when none can be taken. `ahead`: slots taken
 * before and not yet posted. Called with q->mu held. */
struct wqe *send_slot(struct hca_qp *q, uint32_t ahead, int *why);
struct wqe *send_slot_at(struct hca_qp *q, uint32_t index);
/* The operands of a compare-and-swap or fetch-and-add of eight bytes; its opcode is set. */
void set_atomic(struct wqe *w, uint64_t compare_add, uint64_t swap);
/* Makes `n` filled slots work, and does what can be done. q->mu held. */
void send_submit(struct hca_qp *q, uint32_t n);
/* wr.c */
int wr_methods(struct hca_qp *q, uint64_t ops);

/* exec.c */
/* Executes requests in order until one has to wait. q->mu held; `patient`:
 * called by the engine, may look at deadlines and at the peer's life. */
void exec_queue(struct hca_qp *q, bool patient);
/* Tries all queues with unexecuted requests. */
void exec_pending(bool patient);
/* To the error state, everything outstanding flushed. q->mu held. */
void exec_enter_error(struct hca_qp *q);
/* Takes the lock for deliveries; completes what a killed sender cut short. */
void rx_lock(struct shm_qp *t);
/* Error state and flush of the receives; rx lock held. Any process. */
void rx_error(struct shm_qp *t);
void rx_complete(struct shm_qp *t, uint64_t wr_id, enum ibv_wc_status status);

/* engine.c */
int engine_start(void);

/* device.c */
void device_gid(const struct ibv_context *c, union ibv_gid *gid, int index);
uint16_t device_lid(const struct ibv_context *c);

#pragma GCC visibility pop

static inline uint8_t *wqe_inline(struct wqe *w)
{
	return (uint8_t *)w->sge;
}

static inline struct hca_context *to_context(struct ibv_context *c)
{
	return (struct hca_context *)((char *)c - offsetof(struct hca_context, v.context));
}

static inline struct hca_pd *to_pd(struct ibv_pd *p)
{
	return (struct hca_pd *)p;
}

static inline struct hca_cq *to_cq(struct ibv_cq *c)
{
	return (struct hca_cq *)c;
}

static inline struct hca_srq *to_srq(struct ibv_srq *s)
{
	return (struct hca_srq *)s;
}

static inline struct hca_qp *to_qp(struct ibv_qp *q)
{
	return (struct hca_qp *)q;
}
