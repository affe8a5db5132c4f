/* What the files of ofi-client share. */
#ifndef SIGMATRACE_TESTS_OFI_CLIENT_H
#define SIGMATRACE_TESTS_OFI_CLIENT_H

#include "ofi-pair.h"

#include <errno.h>
#include <pthread.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

enum { SEND, RECV, TAGGED_SEND, TAGGED_RECV, WRITE, READ, ATOMIC, COMPLETION, OPS };

enum { ROOM = 4096, AREA = 1 << 20, BIG = 200000 };
/* the registered area: local buffers, what the peer writes to and reads from, words for its atomics */
enum { OUT = 0, IN = 262144, TARGET = 524288, SOURCE = 532480, WORDS = 540672, RESULT = 544768, MULTI = 548864 };

/* One request: what libfabric gives back as its context. */
struct request {
	struct fi_context2 own;
	int done, error, messages;
	uint64_t flags, data, tag;
	size_t len;
};

/* What the client has opened, and where its peer is. */
extern struct fi_info *info;
extern struct fid_ep *ep;
extern struct fid_cntr *counter;
extern void *desc;
extern uint8_t *area;
extern uint64_t remote_base, remote_key;
extern fi_addr_t ways[4]; /* addresses of the peer, all of one meaning */
extern int remote_data;	  /* completions of the peer's writes that came with data */

/* ofi-client.c */
extern struct tally sent[OPS];
void did(int op, uint64_t bytes);
uint32_t draw(void);
fi_addr_t to(void);
void progress(void);
void wait_for(struct request *r);
void barrier(void);

/* Posts until the provider takes it. */
#define POST(op, bytes, call) \
	do { \
		ssize_t rc_; \
		while ((rc_ = (call)) == -FI_EAGAIN) \
			progress(); \
		if (rc_) { \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, fi_strerror(-(int)rc_)); \
			exit(1); \
		} \
		did(op, bytes); \
	} while (0)

static inline int has(uint64_t caps) { return (info->caps & caps) == caps; }

/* ofi-ops.c: everything to both sides at once */
enum { FORMS = 9 };
void message(int tagged, int form, int i);
void big(int tagged);
void multi(int n);
void cancelled(void);
void truncated(void);
void peek(void);
void access_form(int form);
void atomics(void);
void *sender(void *number);

#endif
