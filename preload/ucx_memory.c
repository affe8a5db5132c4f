/* Provider ucx: hooks of put, get, atomic operations and flush. */
#include "ucx.h"

/* ---- put ------------------------------------------------------------------------------------------------------------------ */

ucs_status_t ucp_put(ucp_ep_h ep, const void *buffer, size_t length, uint64_t remote_addr, ucp_rkey_h rkey)
{
    UCX_REAL(ucp_put);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, length, remote_addr, rkey);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = length};
    ucx_begin_blocking(&c);
    return ucx_finish_status(&c, ST_EV_UCP_PUT, ST_UCP_API_BLOCKING, real(ep, buffer, length, remote_addr, rkey));
}

ucs_status_t ucp_put_nbi(ucp_ep_h ep, const void *buffer, size_t length, uint64_t remote_addr, ucp_rkey_h rkey)
{
    UCX_REAL(ucp_put_nbi);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, length, remote_addr, rkey);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = length};
    ucx_begin(&c);
    return ucx_finish_status(&c, ST_EV_UCP_PUT, ST_UCP_API_NBI, real(ep, buffer, length, remote_addr, rkey));
}

ucs_status_ptr_t ucp_put_nb(ucp_ep_h ep, const void *buffer, size_t length, uint64_t remote_addr, ucp_rkey_h rkey, ucp_send_callback_t cb)
{
    UCX_REAL(ucp_put_nb);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, length, remote_addr, rkey, cb);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = length};
    cb = ucx_track(&c, ST_EV_UCP_PUT, cb);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_PUT, ST_UCP_API_NB, real(ep, buffer, length, remote_addr, rkey, cb));
}

ucs_status_ptr_t ucp_put_nbx(ucp_ep_h ep, const void *buffer, size_t count, uint64_t remote_addr, ucp_rkey_h rkey, const ucp_request_param_t *param)
{
    UCX_REAL(ucp_put_nbx);
    ucp_request_param_t copy;
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, count, remote_addr, rkey, param);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .remote = remote_addr, .rkey = (uintptr_t)rkey};
    c.bytes = ucx_bytes_nbx(buffer, count, param);
    param = ucx_track_nbx(&c, ST_EV_UCP_PUT, param, &copy);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_PUT, ST_UCP_API_NBX, real(ep, buffer, count, remote_addr, rkey, param));
}

/* ---- get ------------------------------------------------------------------------------------------------------------------ */

ucs_status_t ucp_get(ucp_ep_h ep, void *buffer, size_t length, uint64_t remote_addr, ucp_rkey_h rkey)
{
    UCX_REAL(ucp_get);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, length, remote_addr, rkey);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = length};
    ucx_begin_blocking(&c);
    return ucx_finish_status(&c, ST_EV_UCP_GET, ST_UCP_API_BLOCKING, real(ep, buffer, length, remote_addr, rkey));
}

ucs_status_t ucp_get_nbi(ucp_ep_h ep, void *buffer, size_t length, uint64_t remote_addr, ucp_rkey_h rkey)
{
    UCX_REAL(ucp_get_nbi);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, length, remote_addr, rkey);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = length};
    ucx_begin(&c);
    return ucx_finish_status(&c, ST_EV_UCP_GET, ST_UCP_API_NBI, real(ep, buffer, length, remote_addr, rkey));
}

ucs_status_ptr_t ucp_get_nb(ucp_ep_h ep, void *buffer, size_t length, uint64_t remote_addr, ucp_rkey_h rkey, ucp_send_callback_t cb)
{
    UCX_REAL(ucp_get_nb);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, length, remote_addr, rkey, cb);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = length};
    cb = ucx_track(&c, ST_EV_UCP_GET, cb);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_GET, ST_UCP_API_NB, real(ep, buffer, length, remote_addr, rkey, cb));
}

ucs_status_ptr_t ucp_get_nbx(ucp_ep_h ep, void *buffer, size_t count, uint64_t remote_addr, ucp_rkey_h rkey, const ucp_request_param_t *param)
{
    UCX_REAL(ucp_get_nbx);
    ucp_request_param_t copy;
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, count, remote_addr, rkey, param);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .remote = remote_addr, .rkey = (uintptr_t)rkey};
    c.bytes = ucx_bytes_nbx(buffer, count, param);
    param = ucx_track_nbx(&c, ST_EV_UCP_GET, param, &copy);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_GET, ST_UCP_API_NBX, real(ep, buffer, count, remote_addr, rkey, param));
}

/* ---- atomic: the bytes are those of the operand --------------------------------------------------------------------------- */

ucs_status_t ucp_atomic_post(ucp_ep_h ep, ucp_atomic_post_op_t opcode, uint64_t value, size_t op_size, uint64_t remote_addr, ucp_rkey_h rkey)
{
    UCX_REAL(ucp_atomic_post);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, opcode, value, op_size, remote_addr, rkey);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = op_size};
    ucx_begin(&c);
    return ucx_finish_status(&c, ST_EV_UCP_ATOMIC, ST_UCP_API_POST, real(ep, opcode, value, op_size, remote_addr, rkey));
}

ucs_status_ptr_t ucp_atomic_fetch_nb(ucp_ep_h ep, ucp_atomic_fetch_op_t opcode, uint64_t value, void *result, size_t op_size, uint64_t remote_addr, ucp_rkey_h rkey, ucp_send_callback_t cb)
{
    UCX_REAL(ucp_atomic_fetch_nb);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, opcode, value, result, op_size, remote_addr, rkey, cb);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)result, .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = op_size};
    cb = ucx_track(&c, ST_EV_UCP_ATOMIC, cb);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_ATOMIC, ST_UCP_API_NB, real(ep, opcode, value, result, op_size, remote_addr, rkey, cb));
}

ucs_status_ptr_t ucp_atomic_op_nbx(ucp_ep_h ep, ucp_atomic_op_t opcode, const void *buffer, size_t count, uint64_t remote_addr, ucp_rkey_h rkey, const ucp_request_param_t *param)
{
    UCX_REAL(ucp_atomic_op_nbx);
    ucp_request_param_t copy;
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, opcode, buffer, count, remote_addr, rkey, param);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .remote = remote_addr, .rkey = (uintptr_t)rkey};
    c.bytes = ucx_bytes_nbx(buffer, count, param);
    param = ucx_track_nbx(&c, ST_EV_UCP_ATOMIC, param, &copy);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_ATOMIC, ST_UCP_API_NBX, real(ep, opcode, buffer, count, remote_addr, rkey, param));
}

ucs_status_t ucp_atomic_add32(ucp_ep_h ep, uint32_t add, uint64_t remote_addr, ucp_rkey_h rkey)
{
    UCX_REAL(ucp_atomic_add32);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, add, remote_addr, rkey);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = 4};
    ucx_begin_blocking(&c);
    return ucx_finish_status(&c, ST_EV_UCP_ATOMIC, ST_UCP_API_BLOCKING, real(ep, add, remote_addr, rkey));
}

ucs_status_t ucp_atomic_add64(ucp_ep_h ep, uint64_t add, uint64_t remote_addr, ucp_rkey_h rkey)
{
    UCX_REAL(ucp_atomic_add64);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, add, remote_addr, rkey);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = 8};
    ucx_begin_blocking(&c);
    return ucx_finish_status(&c, ST_EV_UCP_ATOMIC, ST_UCP_API_BLOCKING, real(ep, add, remote_addr, rkey));
}

ucs_status_t ucp_atomic_fadd32(ucp_ep_h ep, uint32_t add, uint64_t remote_addr, ucp_rkey_h rkey, uint32_t *result)
{
    UCX_REAL(ucp_atomic_fadd32);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, add, remote_addr, rkey, result);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)result, .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = 4};
    ucx_begin_blocking(&c);
    return ucx_finish_status(&c, ST_EV_UCP_ATOMIC, ST_UCP_API_BLOCKING, real(ep, add, remote_addr, rkey, result));
}

ucs_status_t ucp_atomic_fadd64(ucp_ep_h ep, uint64_t add, uint64_t remote_addr, ucp_rkey_h rkey, uint64_t *result)
{
    UCX_REAL(ucp_atomic_fadd64);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, add, remote_addr, rkey, result);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)result, .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = 8};
    ucx_begin_blocking(&c);
    return ucx_finish_status(&c, ST_EV_UCP_ATOMIC, ST_UCP_API_BLOCKING, real(ep, add, remote_addr, rkey, result));
}

ucs_status_t ucp_atomic_swap32(ucp_ep_h ep, uint32_t swap, uint64_t remote_addr, ucp_rkey_h rkey, uint32_t *result)
{
    UCX_REAL(ucp_atomic_swap32);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, swap, remote_addr, rkey, result);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)result, .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = 4};
    ucx_begin_blocking(&c);
    return ucx_finish_status(&c, ST_EV_UCP_ATOMIC, ST_UCP_API_BLOCKING, real(ep, swap, remote_addr, rkey, result));
}

ucs_status_t ucp_atomic_swap64(ucp_ep_h ep, uint64_t swap, uint64_t remote_addr, ucp_rkey_h rkey, uint64_t *result)
{
    UCX_REAL(ucp_atomic_swap64);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, swap, remote_addr, rkey, result);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)result, .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = 8};
    ucx_begin_blocking(&c);
    return ucx_finish_status(&c, ST_EV_UCP_ATOMIC, ST_UCP_API_BLOCKING, real(ep, swap, remote_addr, rkey, result));
}

ucs_status_t ucp_atomic_cswap32(ucp_ep_h ep, uint32_t compare, uint32_t swap, uint64_t remote_addr, ucp_rkey_h rkey, uint32_t *result)
{
    UCX_REAL(ucp_atomic_cswap32);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, compare, swap, remote_addr, rkey, result);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)result, .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = 4};
    ucx_begin_blocking(&c);
    return ucx_finish_status(&c, ST_EV_UCP_ATOMIC, ST_UCP_API_BLOCKING, real(ep, compare, swap, remote_addr, rkey, result));
}

ucs_status_t ucp_atomic_cswap64(ucp_ep_h ep, uint64_t compare, uint64_t swap, uint64_t remote_addr, ucp_rkey_h rkey, uint64_t *result)
{
    UCX_REAL(ucp_atomic_cswap64);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, compare, swap, remote_addr, rkey, result);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)result, .remote = remote_addr, .rkey = (uintptr_t)rkey, .bytes = 8};
    ucx_begin_blocking(&c);
    return ucx_finish_status(&c, ST_EV_UCP_ATOMIC, ST_UCP_API_BLOCKING, real(ep, compare, swap, remote_addr, rkey, result));
}

/* ---- flush ---------------------------------------------------------------------------------------------------------------- */

ucs_status_t ucp_ep_flush(ucp_ep_h ep)
{
    UCX_REAL(ucp_ep_flush);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep)};
    ucx_begin_blocking(&c);
    return ucx_finish_status(&c, ST_EV_UCP_FLUSH, ST_UCP_API_BLOCKING, real(ep));
}

ucs_status_ptr_t ucp_ep_flush_nb(ucp_ep_h ep, unsigned flags, ucp_send_callback_t cb)
{
    UCX_REAL(ucp_ep_flush_nb);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, flags, cb);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep)};
    cb = ucx_track(&c, ST_EV_UCP_FLUSH, cb);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_FLUSH, ST_UCP_API_NB, real(ep, flags, cb));
}

ucs_status_ptr_t ucp_ep_flush_nbx(ucp_ep_h ep, const ucp_request_param_t *param)
{
    UCX_REAL(ucp_ep_flush_nbx);
    ucp_request_param_t copy;
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, param);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep)};
    param = ucx_track_nbx(&c, ST_EV_UCP_FLUSH, param, &copy);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_FLUSH, ST_UCP_API_NBX, real(ep, param));
}

ucs_status_t ucp_worker_flush(ucp_worker_h worker)
{
    UCX_REAL(ucp_worker_flush);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(worker);
    struct ucx_call c = {.t = t, .object = ucx_worker(worker)};
    ucx_begin_blocking(&c);
    return ucx_finish_status(&c, ST_EV_UCP_FLUSH, ST_UCP_API_BLOCKING, real(worker));
}

ucs_status_ptr_t ucp_worker_flush_nb(ucp_worker_h worker, unsigned flags, ucp_send_callback_t cb)
{
    UCX_REAL(ucp_worker_flush_nb);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(worker, flags, cb);
    struct ucx_call c = {.t = t, .object = ucx_worker(worker)};
    cb = ucx_track(&c, ST_EV_UCP_FLUSH, cb);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_FLUSH, ST_UCP_API_NB, real(worker, flags, cb));
}

ucs_status_ptr_t ucp_worker_flush_nbx(ucp_worker_h worker, const ucp_request_param_t *param)
{
    UCX_REAL(ucp_worker_flush_nbx);
    ucp_request_param_t copy;
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(worker, param);
    struct ucx_call c = {.t = t, .object = ucx_worker(worker)};
    param = ucx_track_nbx(&c, ST_EV_UCP_FLUSH, param, &copy);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_FLUSH, ST_UCP_API_NBX, real(worker, param));
}
