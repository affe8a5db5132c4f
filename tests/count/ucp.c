/* count-ucp.so: counts the accepted calls of the public UCP API and their bytes.
 *
 * Bytes are those the caller names: payload for sends, the posted buffer's size for receives (stream_recv_data, which names
 * none, counts what it returned). An active message's header is counted apart. A generic datatype, whose size only its
 * owner knows, counts as 0 bytes. A UCP function that reaches another one through its public name counts once.
 */
#define _GNU_SOURCE
#include "count.h"

#include <ucp/api/ucp.h>

enum { PUT, GET, TAG_SEND, TAG_RECV, STREAM_SEND, STREAM_RECV, AM_SEND, ATOMIC, FLUSH, OPS };

static struct counter ops[OPS] = {
	[PUT] = { .name = "put" },
	[GET] = { .name = "get" },
	[TAG_SEND] = { .name = "tag_send" },
	[TAG_RECV] = { .name = "tag_recv" },
	[STREAM_SEND] = { .name = "stream_send" },
	[STREAM_RECV] = { .name = "stream_recv" },
	[AM_SEND] = { .name = "am_send" },
	[ATOMIC] = { .name = "atomic" },
	[FLUSH] = { .name = "flush" },
};

static __thread int depth; /* calls of this API that this thread is in */

__attribute__((constructor)) static void init(void)
{
	count_register("ucp", ops, OPS);
}

static uint64_t dt_bytes(const void *buffer, size_t count, ucp_datatype_t dt)
{
	switch (dt & UCP_DATATYPE_CLASS_MASK) {
	case UCP_DATATYPE_CONTIG:
		return count * (uint64_t)(dt >> UCP_DATATYPE_SHIFT);
	case UCP_DATATYPE_IOV: {
		uint64_t n = 0;
		for (size_t i = 0; i < count; i++)
			n += ((const ucp_dt_iov_t *)buffer)[i].length;
		return n;
	}
	default:
		return 0;
	}
}

static uint64_t nbx_bytes(const void *buffer, size_t count, const ucp_request_param_t *p)
{
	return dt_bytes(buffer, count, p->op_attr_mask & UCP_OP_ATTR_FIELD_DATATYPE ? p->datatype : ucp_dt_make_contig(1));
}

#define REAL(name) COUNT_REAL(name, "libucp.so.0")

/* Calls the real function and returns its result; counts it when it was accepted and is not a call within a call. */
#define COUNT_CALL(type, accepted, op, bytes, call) \
	do { \
		uint64_t n_ = (bytes); \
		depth++; \
		type r = (call); \
		if (--depth == 0 && (accepted)) \
			count_add(&ops[op], 1, n_); \
		return r; \
	} while (0)
#define PTR(op, bytes, call) COUNT_CALL(ucs_status_ptr_t, !UCS_PTR_IS_ERR(r), op, bytes, call)
#define STATUS(op, bytes, call) COUNT_CALL(ucs_status_t, r >= 0, op, bytes, call)

/* ---- put, get ---- */

ucs_status_ptr_t ucp_put_nbx(ucp_ep_h ep, const void *buffer, size_t count, uint64_t addr, ucp_rkey_h rkey,
			     const ucp_request_param_t *p)
{
	REAL(ucp_put_nbx);
	PTR(PUT, nbx_bytes(buffer, count, p), real(ep, buffer, count, addr, rkey, p));
}

ucs_status_ptr_t ucp_put_nb(ucp_ep_h ep, const void *buffer, size_t length, uint64_t addr, ucp_rkey_h rkey,
			    ucp_send_callback_t cb)
{
	REAL(ucp_put_nb);
	PTR(PUT, length, real(ep, buffer, length, addr, rkey, cb));
}

ucs_status_t ucp_put_nbi(ucp_ep_h ep, const void *buffer, size_t length, uint64_t addr, ucp_rkey_h rkey)
{
	REAL(ucp_put_nbi);
	STATUS(PUT, length, real(ep, buffer, length, addr, rkey));
}

ucs_status_t ucp_put(ucp_ep_h ep, const void *buffer, size_t length, uint64_t addr, ucp_rkey_h rkey)
{
	REAL(ucp_put);
	STATUS(PUT, length, real(ep, buffer, length, addr, rkey));
}

ucs_status_ptr_t ucp_get_nbx(ucp_ep_h ep, void *buffer, size_t count, uint64_t addr, ucp_rkey_h rkey,
			     const ucp_request_param_t *p)
{
	REAL(ucp_get_nbx);
	PTR(GET, nbx_bytes(buffer, count, p), real(ep, buffer, count, addr, rkey, p));
}

ucs_status_ptr_t ucp_get_nb(ucp_ep_h ep, void *buffer, size_t length, uint64_t addr, ucp_rkey_h rkey,
			    ucp_send_callback_t cb)
{
	REAL(ucp_get_nb);
	PTR(GET, length, real(ep, buffer, length, addr, rkey, cb));
}

ucs_status_t ucp_get_nbi(ucp_ep_h ep, void *buffer, size_t length, uint64_t addr, ucp_rkey_h rkey)
{
	REAL(ucp_get_nbi);
	STATUS(GET, length, real(ep, buffer, length, addr, rkey));
}

ucs_status_t ucp_get(ucp_ep_h ep, void *buffer, size_t length, uint64_t addr, ucp_rkey_h rkey)
{
	REAL(ucp_get);
	STATUS(GET, length, real(ep, buffer, length, addr, rkey));
}

/* ---- tag matching ---- */

ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h ep, const void *buffer, size_t count, ucp_tag_t tag,
				  const ucp_request_param_t *p)
{
	REAL(ucp_tag_send_nbx);
	PTR(TAG_SEND, nbx_bytes(buffer, count, p), real(ep, buffer, count, tag, p));
}

ucs_status_ptr_t ucp_tag_send_sync_nbx(ucp_ep_h ep, const void *buffer, size_t count, ucp_tag_t tag,
				       const ucp_request_param_t *p)
{
	REAL(ucp_tag_send_sync_nbx);
	PTR(TAG_SEND, nbx_bytes(buffer, count, p), real(ep, buffer, count, tag, p));
}

ucs_status_ptr_t ucp_tag_send_nb(ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t dt, ucp_tag_t tag,
				 ucp_send_callback_t cb)
{
	REAL(ucp_tag_send_nb);
	PTR(TAG_SEND, dt_bytes(buffer, count, dt), real(ep, buffer, count, dt, tag, cb));
}

ucs_status_ptr_t ucp_tag_send_sync_nb(ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t dt, ucp_tag_t tag,
				      ucp_send_callback_t cb)
{
	REAL(ucp_tag_send_sync_nb);
	PTR(TAG_SEND, dt_bytes(buffer, count, dt), real(ep, buffer, count, dt, tag, cb));
}

ucs_status_t ucp_tag_send_nbr(ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t dt, ucp_tag_t tag, void *req)
{
	REAL(ucp_tag_send_nbr);
	STATUS(TAG_SEND, dt_bytes(buffer, count, dt), real(ep, buffer, count, dt, tag, req));
}

ucs_status_ptr_t ucp_tag_recv_nbx(ucp_worker_h w, void *buffer, size_t count, ucp_tag_t tag, ucp_tag_t mask,
				  const ucp_request_param_t *p)
{
	REAL(ucp_tag_recv_nbx);
	PTR(TAG_RECV, nbx_bytes(buffer, count, p), real(w, buffer, count, tag, mask, p));
}

ucs_status_ptr_t ucp_tag_recv_nb(ucp_worker_h w, void *buffer, size_t count, ucp_datatype_t dt, ucp_tag_t tag,
				 ucp_tag_t mask, ucp_tag_recv_callback_t cb)
{
	REAL(ucp_tag_recv_nb);
	PTR(TAG_RECV, dt_bytes(buffer, count, dt), real(w, buffer, count, dt, tag, mask, cb));
}

ucs_status_t ucp_tag_recv_nbr(ucp_worker_h w, void *buffer, size_t count, ucp_datatype_t dt, ucp_tag_t tag, ucp_tag_t mask,
			      void *req)
{
	REAL(ucp_tag_recv_nbr);
	STATUS(TAG_RECV, dt_bytes(buffer, count, dt), real(w, buffer, count, dt, tag, mask, req));
}

ucs_status_ptr_t ucp_tag_msg_recv_nbx(ucp_worker_h w, void *buffer, size_t count, ucp_tag_message_h msg,
				      const ucp_request_param_t *p)
{
	REAL(ucp_tag_msg_recv_nbx);
	PTR(TAG_RECV, nbx_bytes(buffer, count, p), real(w, buffer, count, msg, p));
}

ucs_status_ptr_t ucp_tag_msg_recv_nb(ucp_worker_h w, void *buffer, size_t count, ucp_datatype_t dt, ucp_tag_message_h msg,
				     ucp_tag_recv_callback_t cb)
{
	REAL(ucp_tag_msg_recv_nb);
	PTR(TAG_RECV, dt_bytes(buffer, count, dt), real(w, buffer, count, dt, msg, cb));
}

/* ---- streams ---- */

ucs_status_ptr_t ucp_stream_send_nbx(ucp_ep_h ep, const void *buffer, size_t count, const ucp_request_param_t *p)
{
	REAL(ucp_stream_send_nbx);
	PTR(STREAM_SEND, nbx_bytes(buffer, count, p), real(ep, buffer, count, p));
}

ucs_status_ptr_t ucp_stream_send_nb(ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t dt,
				    ucp_send_callback_t cb, unsigned flags)
{
	REAL(ucp_stream_send_nb);
	PTR(STREAM_SEND, dt_bytes(buffer, count, dt), real(ep, buffer, count, dt, cb, flags));
}

ucs_status_ptr_t ucp_stream_recv_nbx(ucp_ep_h ep, void *buffer, size_t count, size_t *length, const ucp_request_param_t *p)
{
	REAL(ucp_stream_recv_nbx);
	PTR(STREAM_RECV, nbx_bytes(buffer, count, p), real(ep, buffer, count, length, p));
}

ucs_status_ptr_t ucp_stream_recv_nb(ucp_ep_h ep, void *buffer, size_t count, ucp_datatype_t dt,
				    ucp_stream_recv_callback_t cb, size_t *length, unsigned flags)
{
	REAL(ucp_stream_recv_nb);
	PTR(STREAM_RECV, dt_bytes(buffer, count, dt), real(ep, buffer, count, dt, cb, length, flags));
}

ucs_status_ptr_t ucp_stream_recv_data_nb(ucp_ep_h ep, size_t *length)
{
	REAL(ucp_stream_recv_data_nb);
	depth++;
	ucs_status_ptr_t r = real(ep, length);
	/* NULL: nothing has arrived */
	if (--depth == 0 && r && !UCS_PTR_IS_ERR(r))
		count_add(&ops[STREAM_RECV], 1, *length);
	return r;
}

/* ---- active messages ---- */

ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header, size_t header_length, const void *buffer,
				 size_t count, const ucp_request_param_t *p)
{
	REAL(ucp_am_send_nbx);
	uint64_t n = nbx_bytes(buffer, count, p);
	depth++;
	ucs_status_ptr_t r = real(ep, id, header, header_length, buffer, count, p);
	if (--depth == 0 && !UCS_PTR_IS_ERR(r)) {
		count_add(&ops[AM_SEND], 1, n);
		__atomic_fetch_add(&ops[AM_SEND].header_bytes, header_length, __ATOMIC_RELAXED);
	}
	return r;
}

ucs_status_ptr_t ucp_am_send_nb(ucp_ep_h ep, uint16_t id, const void *buffer, size_t count, ucp_datatype_t dt,
				ucp_send_callback_t cb, unsigned flags)
{
	REAL(ucp_am_send_nb);
	PTR(AM_SEND, dt_bytes(buffer, count, dt), real(ep, id, buffer, count, dt, cb, flags));
}

/* ---- atomics ---- */

ucs_status_ptr_t ucp_atomic_op_nbx(ucp_ep_h ep, ucp_atomic_op_t op, const void *buffer, size_t count, uint64_t addr,
				   ucp_rkey_h rkey, const ucp_request_param_t *p)
{
	REAL(ucp_atomic_op_nbx);
	PTR(ATOMIC, nbx_bytes(buffer, count, p), real(ep, op, buffer, count, addr, rkey, p));
}

ucs_status_t ucp_atomic_post(ucp_ep_h ep, ucp_atomic_post_op_t op, uint64_t value, size_t size, uint64_t addr,
			     ucp_rkey_h rkey)
{
	REAL(ucp_atomic_post);
	STATUS(ATOMIC, size, real(ep, op, value, size, addr, rkey));
}

ucs_status_ptr_t ucp_atomic_fetch_nb(ucp_ep_h ep, ucp_atomic_fetch_op_t op, uint64_t value, void *result, size_t size,
				     uint64_t addr, ucp_rkey_h rkey, ucp_send_callback_t cb)
{
	REAL(ucp_atomic_fetch_nb);
	PTR(ATOMIC, size, real(ep, op, value, result, size, addr, rkey, cb));
}

#define BLOCKING_ATOMICS(bits) \
	ucs_status_t ucp_atomic_add##bits(ucp_ep_h ep, uint##bits##_t add, uint64_t addr, ucp_rkey_h rkey) \
	{ \
		REAL(ucp_atomic_add##bits); \
		STATUS(ATOMIC, bits / 8, real(ep, add, addr, rkey)); \
	} \
	ucs_status_t ucp_atomic_fadd##bits(ucp_ep_h ep, uint##bits##_t add, uint64_t addr, ucp_rkey_h rkey, \
					   uint##bits##_t *result) \
	{ \
		REAL(ucp_atomic_fadd##bits); \
		STATUS(ATOMIC, bits / 8, real(ep, add, addr, rkey, result)); \
	} \
	ucs_status_t ucp_atomic_swap##bits(ucp_ep_h ep, uint##bits##_t swap, uint64_t addr, ucp_rkey_h rkey, \
					   uint##bits##_t *result) \
	{ \
		REAL(ucp_atomic_swap##bits); \
		STATUS(ATOMIC, bits / 8, real(ep, swap, addr, rkey, result)); \
	} \
	ucs_status_t ucp_atomic_cswap##bits(ucp_ep_h ep, uint##bits##_t compare, uint##bits##_t swap, uint64_t addr, \
					    ucp_rkey_h rkey, uint##bits##_t *result) \
	{ \
		REAL(ucp_atomic_cswap##bits); \
		STATUS(ATOMIC, bits / 8, real(ep, compare, swap, addr, rkey, result)); \
	}
BLOCKING_ATOMICS(32)
BLOCKING_ATOMICS(64)

/* ---- flush ---- */

ucs_status_ptr_t ucp_ep_flush_nbx(ucp_ep_h ep, const ucp_request_param_t *p)
{
	REAL(ucp_ep_flush_nbx);
	PTR(FLUSH, 0, real(ep, p));
}

ucs_status_ptr_t ucp_ep_flush_nb(ucp_ep_h ep, unsigned flags, ucp_send_callback_t cb)
{
	REAL(ucp_ep_flush_nb);
	PTR(FLUSH, 0, real(ep, flags, cb));
}

ucs_status_t ucp_ep_flush(ucp_ep_h ep)
{
	REAL(ucp_ep_flush);
	STATUS(FLUSH, 0, real(ep));
}

ucs_status_ptr_t ucp_worker_flush_nbx(ucp_worker_h w, const ucp_request_param_t *p)
{
	REAL(ucp_worker_flush_nbx);
	PTR(FLUSH, 0, real(w, p));
}

ucs_status_ptr_t ucp_worker_flush_nb(ucp_worker_h w, unsigned flags, ucp_send_callback_t cb)
{
	REAL(ucp_worker_flush_nb);
	PTR(FLUSH, 0, real(w, flags, cb));
}

ucs_status_t ucp_worker_flush(ucp_worker_h w)
{
	REAL(ucp_worker_flush);
	STATUS(FLUSH, 0, real(w));
}
