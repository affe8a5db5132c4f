/* Shared by the parts of verbs_check: processes, meeting points, connections. */
#pragma once

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 16 };

/* What the ranks of a case tell each other; in shared memory. */
struct board {
	_Atomic int arrived;
	_Atomic int generation;
	int pid[MAX_RANKS];
	struct note {
		uint32_t qpn[MAX_RANKS]; /* by the rank that is to connect */
		uint32_t rkey;
		uint64_t addr;
	} note[MAX_RANKS];
	_Atomic uint64_t word[8];
};

extern struct board *board;
extern int rank, ranks;

struct test {
	const char *name;
	int ranks;
	void (*run)(void);
	int dies; /* 1 + the rank that is to be killed, 0: none */
	bool on_request; /* only when it is named */
};

/* Of the program: tables that end with an unnamed test, and a NULL. */
extern const struct test *const test_groups[];

/* Ends the rank with a message when `cond` does not hold. */
#define CHECK(cond, ...)                                                                              \
	do {                                                                                          \
		if (!(cond)) {                                                                        \
			fprintf(stderr, "%s: rank %d %s:%d: %s: ", program_invocation_short_name, rank, __FILE__, __LINE__, #cond); \
			fprintf(stderr, __VA_ARGS__);                                                 \
			fputc('\n', stderr);                                                          \
			_Exit(1);                                                                     \
		}                                                                                     \
	} while (0)

/* Waits until all living ranks of the case are here. */
void meet(void);

struct port {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *scq, *rcq;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	uint8_t *buf;
	size_t size;
};

enum { ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/* Opens the device with a registered buffer; `channel`: with completion events. */
void open_port(struct port *p, size_t size, int cq_depth, bool channel);
void close_port(struct port *p);

/* A queue pair with send_ops (0: the classic way only). */
struct ibv_qp *make_qp(struct port *p, enum ibv_qp_type type, int depth, uint64_t send_ops);
void to_init(struct ibv_qp *qp, int access);
void to_rtr(struct ibv_qp *qp, uint32_t dest);
void to_rts(struct ibv_qp *qp, int rnr_retry);
/* Exchanges numbers with the rank `peer` and connects. Both call it. */
struct ibv_qp *connect_to(struct port *p, int peer, int depth, uint64_t send_ops);

void post_recv(struct ibv_qp *qp, struct port *p, size_t offset, uint32_t len, uint64_t id);
struct ibv_send_wr request(struct port *p, struct ibv_sge *sge, enum ibv_wr_opcode op, size_t offset, uint32_t len, uint64_t id);
void send_ok(struct ibv_qp *qp, struct ibv_send_wr *wr);
/* Polls until a completion is there, at most `seconds`; false then. */
bool wait_wc(struct ibv_cq *cq, struct ibv_wc *wc, double seconds);
void expect(struct ibv_cq *cq, struct ibv_wc *wc, enum ibv_wc_status status, uint64_t id);

void fill(uint8_t *b, size_t n, unsigned seed);
void verify(const uint8_t *b, size_t n, unsigned seed, const char *what);
double now(void);
