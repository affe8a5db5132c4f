/* count-uct.so: counts the accepted operations of UCT's interfaces and their bytes, by replacing the functions in the table of every
 * interface that uct_iface_open returns.
 *
 * Bytes are those that the transport is given: an active message's header is among them. An interface's am_short_iov that is
 * UCT's general one calls am_short of the same table, which counts it. Flushes without a completion count when they are done.
 */
#define _GNU_SOURCE
#include "count.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <stdio.h>
#include <uct/api/uct.h> /* and tl.h */

enum { PUT, GET, AM_SEND, TAG_SEND, TAG_RECV, ATOMIC, FLUSH, OPS };

static struct counter ops[OPS] = {
	[PUT] = { .name = "put" },
	[GET] = { .name = "get" },
	[AM_SEND] = { .name = "am_send" },
	[TAG_SEND] = { .name = "tag_send" },
	[TAG_RECV] = { .name = "tag_recv" },
	[ATOMIC] = { .name = "atomic" },
	[FLUSH] = { .name = "flush" },
};

/* Interfaces with their functions as they were. One that has been closed keeps its place until its address comes again. */
#define MOST 4096
static struct saved {
	uct_iface_t *iface;
	uct_iface_ops_t f;
} table[MOST];
static int n;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void init(void)
{
	count_register("uct", ops, OPS);
}

static const uct_iface_ops_t *saved(uct_iface_t *iface)
{
	for (int i = __atomic_load_n(&n, __ATOMIC_ACQUIRE) - 1; i >= 0; i--)
		if (table[i].iface == iface)
			return &table[i].f;
	fprintf(stderr, "count: interface %p was not opened\n", (void *)iface);
	abort();
}

static uint64_t length(const uct_iov_t *v, size_t k)
{
	return k ? v->length * v->count + length(v + 1, k - 1) : 0;
}

#define COUNT(type, op, bytes, accepted, call) \
	do { \
		uint64_t b_ = (bytes); \
		type r = (call); \
		if (accepted) \
			count_add(&ops[op], 1, b_); \
		return r; \
	} while (0)
#define STATUS(op, bytes, call) COUNT(ucs_status_t, op, bytes, r == UCS_OK || r == UCS_INPROGRESS, call)
#define PACKED(op, call) \
	do { \
		ssize_t r = (call); \
		if (r >= 0) \
			count_add(&ops[op], 1, (uint64_t)r); \
		return r; \
	} while (0)
#define E uct_ep_h ep
#define F (saved(ep->iface))
#define REMOTE uint64_t ra, uct_rkey_t rk
#define IOV const uct_iov_t *v, size_t k
#define COMP uct_completion_t *c

static ucs_status_t put_short(E, const void *b, unsigned l, REMOTE) { STATUS(PUT, l, F->ep_put_short(ep, b, l, ra, rk)); }
static ssize_t put_bcopy(E, uct_pack_callback_t p, void *a, REMOTE) { PACKED(PUT, F->ep_put_bcopy(ep, p, a, ra, rk)); }
static ucs_status_t put_zcopy(E, IOV, REMOTE, COMP) { STATUS(PUT, length(v, k), F->ep_put_zcopy(ep, v, k, ra, rk, c)); }
static ucs_status_t get_short(E, void *b, unsigned l, REMOTE) { STATUS(GET, l, F->ep_get_short(ep, b, l, ra, rk)); }
static ucs_status_t get_bcopy(E, uct_unpack_callback_t u, void *a, size_t l, REMOTE, COMP) { STATUS(GET, l, F->ep_get_bcopy(ep, u, a, l, ra, rk, c)); }
static ucs_status_t get_zcopy(E, IOV, REMOTE, COMP) { STATUS(GET, length(v, k), F->ep_get_zcopy(ep, v, k, ra, rk, c)); }

static ucs_status_t am_short(E, uint8_t id, uint64_t h, const void *b, unsigned l) { STATUS(AM_SEND, l + 8, F->ep_am_short(ep, id, h, b, l)); }
static ucs_status_t am_short_iov(E, uint8_t id, IOV) { STATUS(AM_SEND, length(v, k), F->ep_am_short_iov(ep, id, v, k)); }
static ssize_t am_bcopy(E, uint8_t id, uct_pack_callback_t p, void *a, unsigned fl) { PACKED(AM_SEND, F->ep_am_bcopy(ep, id, p, a, fl)); }
static ucs_status_t am_zcopy(E, uint8_t id, const void *h, unsigned hl, IOV, unsigned fl, COMP)
{
	STATUS(AM_SEND, hl + length(v, k), F->ep_am_zcopy(ep, id, h, hl, v, k, fl, c));
}

#define ATOMICS(B) \
	static ucs_status_t cswap##B(E, uint##B##_t x, uint##B##_t s, REMOTE, uint##B##_t *r_, COMP) { STATUS(ATOMIC, B / 8, F->ep_atomic_cswap##B(ep, x, s, ra, rk, r_, c)); } \
	static ucs_status_t post##B(E, unsigned o, uint##B##_t x, REMOTE) { STATUS(ATOMIC, B / 8, F->ep_atomic##B##_post(ep, o, x, ra, rk)); } \
	static ucs_status_t fetch##B(E, unsigned o, uint##B##_t x, uint##B##_t *r_, REMOTE, COMP) { STATUS(ATOMIC, B / 8, F->ep_atomic##B##_fetch(ep, o, x, r_, ra, rk, c)); }
ATOMICS(32)
ATOMICS(64)

static ucs_status_t tag_short(E, uct_tag_t t, const void *b, size_t l) { STATUS(TAG_SEND, l, F->ep_tag_eager_short(ep, t, b, l)); }
static ssize_t tag_bcopy(E, uct_tag_t t, uint64_t i, uct_pack_callback_t p, void *a, unsigned fl) { PACKED(TAG_SEND, F->ep_tag_eager_bcopy(ep, t, i, p, a, fl)); }
static ucs_status_t tag_zcopy(E, uct_tag_t t, uint64_t i, IOV, unsigned fl, COMP) { STATUS(TAG_SEND, length(v, k), F->ep_tag_eager_zcopy(ep, t, i, v, k, fl, c)); }
static ucs_status_ptr_t tag_rndv(E, uct_tag_t t, const void *h, unsigned hl, IOV, unsigned fl, COMP)
{
	COUNT(ucs_status_ptr_t, TAG_SEND, hl + length(v, k), !UCS_PTR_IS_ERR(r), F->ep_tag_rndv_zcopy(ep, t, h, hl, v, k, fl, c));
}
static ucs_status_t tag_request(E, uct_tag_t t, const void *h, unsigned hl, unsigned fl) { STATUS(TAG_SEND, hl, F->ep_tag_rndv_request(ep, t, h, hl, fl)); }
static ucs_status_t tag_recv(uct_iface_h i, uct_tag_t t, uct_tag_t m, IOV, uct_tag_context_t *x) { STATUS(TAG_RECV, length(v, k), saved(i)->iface_tag_recv_zcopy(i, t, m, v, k, x)); }

#define FLUSHED(call) COUNT(ucs_status_t, FLUSH, 0, r == UCS_OK || (r == UCS_INPROGRESS && c), call)
static ucs_status_t ep_flush(E, unsigned fl, COMP) { FLUSHED(F->ep_flush(ep, fl, c)); }
static ucs_status_t ep_fence(E, unsigned fl) { STATUS(FLUSH, 0, F->ep_fence(ep, fl)); }
static ucs_status_t iface_flush(uct_iface_h i, unsigned fl, COMP) { FLUSHED(saved(i)->iface_flush(i, fl, c)); }

ucs_status_t uct_iface_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params, const uct_iface_config_t *config, uct_iface_h *iface_p)
{
	COUNT_REAL(uct_iface_open, "libuct.so.0");
	ucs_status_t status = real(md, worker, params, config, iface_p);
	if (status != UCS_OK)
		return status;
	uct_iface_t *iface = *iface_p;
	uct_iface_ops_t *o = &iface->ops;
	int at;
	pthread_mutex_lock(&lock);
	for (at = 0; at < n && table[at].iface != iface; at++)
		;
	if (at == MOST)
		abort();
	table[at].f = *o;
	table[at].iface = iface;
	if (at == n)
		__atomic_store_n(&n, n + 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	void *general = count_next("uct_base_ep_am_short_iov", "libuct.so.0");
#define TAKE(member, function) o->member = function
	TAKE(ep_put_short, put_short), TAKE(ep_put_bcopy, put_bcopy), TAKE(ep_put_zcopy, put_zcopy);
	TAKE(ep_get_short, get_short), TAKE(ep_get_bcopy, get_bcopy), TAKE(ep_get_zcopy, get_zcopy);
	TAKE(ep_am_short, am_short), TAKE(ep_am_bcopy, am_bcopy), TAKE(ep_am_zcopy, am_zcopy);
	if ((void *)o->ep_am_short_iov != general)
		TAKE(ep_am_short_iov, am_short_iov);
	TAKE(ep_atomic_cswap32, cswap32), TAKE(ep_atomic32_post, post32), TAKE(ep_atomic32_fetch, fetch32);
	TAKE(ep_atomic_cswap64, cswap64), TAKE(ep_atomic64_post, post64), TAKE(ep_atomic64_fetch, fetch64);
	TAKE(ep_tag_eager_short, tag_short), TAKE(ep_tag_eager_bcopy, tag_bcopy), TAKE(ep_tag_eager_zcopy, tag_zcopy);
	TAKE(ep_tag_rndv_zcopy, tag_rndv), TAKE(ep_tag_rndv_request, tag_request), TAKE(iface_tag_recv_zcopy, tag_recv);
	TAKE(ep_flush, ep_flush), TAKE(ep_fence, ep_fence), TAKE(iface_flush, iface_flush);
	return status;
}
