/*
 * The memory that all processes using the emulated adapter share: one sparse
 * file with the tables of processes, queue pairs, completion queues, receive
 * queues and memory regions, and an arena for their rings.
 *
 * Numbers and keys are unique in the whole segment, so that a queue pair
 * number or a key leads to its owner by one look-up, without any address
 * resolution.
 */
#pragma once

#include "mem.h"

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	SHM_PROCS = 64,
	SHM_QPS = 4096,
	SHM_CQS = 4096,
	SHM_RQS = 4096,
	SHM_MRS = 65536,
	SHM_PAGE = 4096,
	SHM_PAGES = 1 << 19, /* 2 GiB of rings, allocated page by page */
	SHM_SHARES = 1024,
	SHM_JOBS = 4,        /* of a process at a time, each with so many bytes of data */
	SHM_JOB_BYTES = 1 << 18,
	SHM_JOB_AREAS = SHM_JOBS + 1, /* one more is the process's own */
	SHM_JOB_BYTES_ALL = SHM_PROCS * SHM_JOB_AREAS * SHM_JOB_BYTES,
};

/*
 * Lock word: 0, or 1 + the slot of the holding process. A lock of a process
 * that died is taken over; every structure under such a lock is therefore
 * changed by one final store.
 */
struct shm_lock {
	_Atomic uint32_t owner;
};

/* What a thread sleeps on. */
struct shm_bell {
	_Atomic uint32_t wake; /* futex word */
	_Atomic uint32_t sleeping;
};

/* Work on the memory of a process's GPU, for that process to do. */
struct shm_job {
	_Atomic uint32_t state;
	uint32_t by; /* slot */
	uint32_t op, device, len;
	int32_t error;
	uint64_t addr, old;
	struct mem_atomic atomic;
};

enum { SHM_JOB_FREE, SHM_JOB_READY, SHM_JOB_DONE, SHM_JOB_TAKEN /* and more: by a slot */ };
enum { SHM_JOB_WRITE, SHM_JOB_READ, SHM_JOB_UPDATE };

struct shm_proc {
	_Atomic uint32_t live; /* 1 from registration to orderly exit */
	_Atomic int32_t pid;
	struct shm_bell engine, jobs, shares;
	struct shm_job job[SHM_JOBS];
	struct shm_lock atomics;   /* RDMA atomics on memory of this process */
} __attribute__((aligned(64)));

/* DEAD: the owner was killed; kept until the entry is needed again, so that
 * a peer can tell that from an orderly destruction. */
enum shm_life { SHM_FREE, SHM_LIVE, SHM_DEAD };

enum { SHM_QP_LAST_WQE = 1, SHM_QP_CQ_ERROR = 2 };

struct shm_qp {
	/* Held by whoever delivers to this queue pair (the peer's process) for
	 * one message, and by the owner when it changes the state: after a
	 * change of state or a destruction no delivery is under way. */
	struct shm_lock rx;
	_Atomic uint32_t life;
	_Atomic uint32_t qpn;
	_Atomic uint32_t state; /* enum ibv_qp_state */
	_Atomic uint32_t events; /* asynchronous events the owner is to raise */
	uint32_t proc, type, pdn;
	uint32_t scq, rcq, rq;
	uint32_t has_srq;
	uint32_t dest_qpn;
	uint32_t access;
	uint32_t qkey;
	uint32_t min_rnr_timer;
	uint32_t receiving; /* a receive was taken and is not yet completed */
	uint64_t receiving_wr_id;
	uint64_t dc_key;
} __attribute__((aligned(64)));

struct shm_cqe {
	uint64_t wr_id;
	uint64_t timestamp_ns;
	uint32_t qpn;
	uint32_t sq_end; /* send completions: send queue index after this one */
	uint32_t byte_len;
	uint32_t imm; /* network byte order */
	uint32_t src_qp;
	uint8_t status, opcode, flags, is_recv;
	uint8_t solicited, sl;
	uint16_t slid;
} __attribute__((aligned(64)));

struct shm_cq {
	struct shm_lock lock; /* producers, and what moves entries */
	_Atomic uint32_t life;
	uint32_t proc, depth, page; /* depth: power of two */
	uint32_t timestamps;
	_Atomic uint32_t head, tail;
	_Atomic uint32_t armed; /* 1 next completion, 2 next solicited one */
	_Atomic uint32_t event; /* the owner's engine is to raise an event */
	/* the same entries in mlx5's layout, where the program asked for that: its page (0: none) */
	uint32_t raw_page, raw_stride;
	uint32_t ignore_overrun;
} __attribute__((aligned(64)));

struct shm_recv {
	uint64_t wr_id;
	uint32_t num_sge, pad;
	struct ibv_sge sge[];
};

struct shm_rq {
	struct shm_lock lock;
	_Atomic uint32_t life;
	uint32_t proc, pdn, depth, stride, max_sge, page, is_srq;
	_Atomic uint32_t head, tail;
	_Atomic uint64_t waiters; /* by slot: senders that found it empty */
	/* a ring in mlx5's layout, which the program fills by itself: in a page of the segment (0: none) or in memory of the owner's; the element
	 * that is next, how many were taken */
	uint32_t raw_page, raw_stride;
	uint16_t raw_next, raw_taken;
	uint32_t linked; /* elements name the one that follows */
	struct span raw_ring, raw_record; /* len 0: none */
} __attribute__((aligned(64)));

struct shm_mr {
	_Atomic uint32_t key; /* 0: not valid */
	uint32_t tag;         /* last byte of the next key */
	uint32_t taken;
	uint32_t proc, pdn, access;
	uint32_t kind; /* enum mem_kind */
	uint32_t device;
	uint32_t share;
	uint64_t addr, iova, len;
} __attribute__((aligned(64)));

/* GPU memory that other processes may map: its handle (CUDA's) and the address that it has for its owner. */
struct shm_share {
	_Atomic uint32_t id; /* 0: free; never the same again */
	uint32_t proc;
	uint64_t base;
	uint8_t handle[64];
};

struct shm {
	uint64_t magic;
	uint64_t size;
	struct shm_lock tables; /* allocation in all tables */
	uint32_t next_qp, next_cq, next_rq, next_mr, next_page;
	uint32_t qp_generation[SHM_QPS];
	struct shm_proc proc[SHM_PROCS];
	struct shm_qp qp[SHM_QPS];
	struct shm_cq cq[SHM_CQS];
	struct shm_rq rq[SHM_RQS];
	struct shm_mr mr[SHM_MRS];
	struct shm_share share[SHM_SHARES];
	uint32_t last_share;
	uint8_t page_owner[SHM_PAGES]; /* 0, or 1 + slot */
};

#pragma GCC visibility push(hidden)

/* Maps the segment and takes a slot (hca.slot).
 * Returns NULL with errno set when that fails. */
struct shm *shm_attach(void);

/* Gives up everything the calling process holds; the last process removes
 * the file. */
void shm_detach(struct shm *s, unsigned slot);

/* Whether the process that took the slot still runs (kernel's word). */
bool shm_alive(struct shm *s, unsigned slot);

/* Frees what killed processes left. */
void shm_reap_dead(struct shm *s);

void shm_lock(struct shm *s, struct shm_lock *l);
/* Same; true when the lock was taken over from a process that died. */
bool shm_lock_stolen(struct shm *s, struct shm_lock *l);
void shm_unlock(struct shm_lock *l);

/* Wakes the engine of a process. */
void shm_wake(struct shm *s, unsigned slot);
void shm_wake_on(struct shm_bell *b);
/* Sleeps until it is rung after `seen` was read of it, or the timeout (-1: none). */
void shm_sleep_on(struct shm_bell *b, uint32_t seen, int64_t timeout_ns);

/* Rings: pages are committed at once, so that a full file system is an error
 * here (0) and not a bus error later. Called with the tables locked. */
uint32_t shm_pages_alloc(struct shm *s, unsigned slot, size_t bytes);
void shm_pages_free(struct shm *s, uint32_t page, size_t bytes);
void *shm_page(struct shm *s, uint32_t page);

/* The data of a process's job; of the one behind the last: its own, to copy by. */
void *shm_job_data(struct shm *s, unsigned slot, unsigned job);

/* Table entries, taken with the tables locked; -1 when there is none.
 * The entry is zeroed and SHM_LIVE with its proc set. */
int shm_take_qp(struct shm *s, unsigned slot);
int shm_take_cq(struct shm *s, unsigned slot);
int shm_take_rq(struct shm *s, unsigned slot);
int shm_take_mr(struct shm *s, unsigned slot);

size_t shm_cq_bytes(const struct shm_cq *c);
size_t shm_rq_bytes(const struct shm_rq *r);

/* The live or dead queue pair of that number, or NULL. */
struct shm_qp *shm_find_qp(struct shm *s, uint32_t qpn);

#pragma GCC visibility pop
