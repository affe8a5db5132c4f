/* Provider ucx: hooks of tagged messages, streams and active messages. */
#include "ucx.h"

/* ---- tag: send ------------------------------------------------------------------------------------------------------------ */

ucs_status_ptr_t ucp_tag_send_nb(ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype, ucp_tag_t tag, ucp_send_callback_t cb)
{
    UCX_REAL(ucp_tag_send_nb);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, count, datatype, tag, cb);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .tag = tag};
    c.bytes = ucx_bytes(buffer, count, datatype);
    cb = ucx_track(&c, ST_EV_UCP_TAG_SEND, cb);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_TAG_SEND, ST_UCP_API_NB, real(ep, buffer, count, datatype, tag, cb));
}

ucs_status_ptr_t ucp_tag_send_sync_nb(ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype, ucp_tag_t tag, ucp_send_callback_t cb)
{
    UCX_REAL(ucp_tag_send_sync_nb);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, count, datatype, tag, cb);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .tag = tag};
    c.bytes = ucx_bytes(buffer, count, datatype);
    cb = ucx_track(&c, ST_EV_UCP_TAG_SEND, cb);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_TAG_SEND, ST_UCP_API_NB, real(ep, buffer, count, datatype, tag, cb));
}

ucs_status_t ucp_tag_send_nbr(ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype, ucp_tag_t tag, void *req)
{
    UCX_REAL(ucp_tag_send_nbr);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, count, datatype, tag, req);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .event = ST_EV_UCP_TAG_SEND, .api = ST_UCP_API_NBR, .local = (uintptr_t)buffer, .tag = tag};
    c.bytes = ucx_bytes(buffer, count, datatype);
    ucx_begin_request(&c);
    c.frame->carried = &c;
    return ucx_finish_carried(&c, real(ep, buffer, count, datatype, tag, req), true);
}

ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h ep, const void *buffer, size_t count, ucp_tag_t tag, const ucp_request_param_t *param)
{
    UCX_REAL(ucp_tag_send_nbx);
    ucp_request_param_t copy;
    struct st_thread *t = ucx_enter();
    if (!t) {
        struct ucx_call *outer = ucx_carrying(ST_EV_UCP_TAG_SEND);
        if (st_likely(!outer))
            return real(ep, buffer, count, tag, param);
        return ucx_carry(outer, real(ep, buffer, count, tag, ucx_track_carried(outer, param, &copy)));
    }
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .tag = tag};
    c.bytes = ucx_bytes_nbx(buffer, count, param);
    param = ucx_track_nbx(&c, ST_EV_UCP_TAG_SEND, param, &copy);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_TAG_SEND, ST_UCP_API_NBX, real(ep, buffer, count, tag, param));
}

ucs_status_ptr_t ucp_tag_send_sync_nbx(ucp_ep_h ep, const void *buffer, size_t count, ucp_tag_t tag, const ucp_request_param_t *param)
{
    UCX_REAL(ucp_tag_send_sync_nbx);
    ucp_request_param_t copy;
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, count, tag, param);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .tag = tag};
    c.bytes = ucx_bytes_nbx(buffer, count, param);
    param = ucx_track_nbx(&c, ST_EV_UCP_TAG_SEND, param, &copy);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_TAG_SEND, ST_UCP_API_NBX, real(ep, buffer, count, tag, param));
}

/* ---- tag: receive --------------------------------------------------------------------------------------------------------- */

ucs_status_ptr_t ucp_tag_recv_nb(ucp_worker_h worker, void *buffer, size_t count, ucp_datatype_t datatype, ucp_tag_t tag, ucp_tag_t tag_mask, ucp_tag_recv_callback_t cb)
{
    UCX_REAL(ucp_tag_recv_nb);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(worker, buffer, count, datatype, tag, tag_mask, cb);
    struct ucx_call c = {.t = t, .object = ucx_worker(worker), .event = ST_EV_UCP_TAG_RECV, .api = ST_UCP_API_NB, .local = (uintptr_t)buffer, .tag = tag, .mask = tag_mask};
    c.bytes = ucx_bytes(buffer, count, datatype);
    cb = ucx_track(&c, ST_EV_UCP_TAG_RECV, cb);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_TAG_RECV, ST_UCP_API_NB, real(worker, buffer, count, datatype, tag, tag_mask, cb));
}

ucs_status_t ucp_tag_recv_nbr(ucp_worker_h worker, void *buffer, size_t count, ucp_datatype_t datatype, ucp_tag_t tag, ucp_tag_t tag_mask, void *req)
{
    UCX_REAL(ucp_tag_recv_nbr);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(worker, buffer, count, datatype, tag, tag_mask, req);
    struct ucx_call c = {.t = t, .object = ucx_worker(worker), .event = ST_EV_UCP_TAG_RECV, .api = ST_UCP_API_NBR, .local = (uintptr_t)buffer, .tag = tag, .mask = tag_mask};
    c.bytes = ucx_bytes(buffer, count, datatype);
    ucx_begin_request(&c);
    c.frame->carried = &c;
    return ucx_finish_carried(&c, real(worker, buffer, count, datatype, tag, tag_mask, req), false);
}

ucs_status_ptr_t ucp_tag_recv_nbx(ucp_worker_h worker, void *buffer, size_t count, ucp_tag_t tag, ucp_tag_t tag_mask, const ucp_request_param_t *param)
{
    UCX_REAL(ucp_tag_recv_nbx);
    ucp_request_param_t copy;
    struct st_thread *t = ucx_enter();
    if (!t) {
        struct ucx_call *outer = ucx_carrying(ST_EV_UCP_TAG_RECV);
        if (st_likely(!outer))
            return real(worker, buffer, count, tag, tag_mask, param);
        return ucx_carry(outer, real(worker, buffer, count, tag, tag_mask, ucx_track_carried(outer, param, &copy)));
    }
    struct ucx_call c = {.t = t, .object = ucx_worker(worker), .event = ST_EV_UCP_TAG_RECV, .api = ST_UCP_API_NBX, .local = (uintptr_t)buffer, .tag = tag, .mask = tag_mask};
    c.bytes = ucx_bytes_nbx(buffer, count, param);
    param = ucx_track_nbx(&c, ST_EV_UCP_TAG_RECV, param, &copy);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_TAG_RECV, ST_UCP_API_NBX, real(worker, buffer, count, tag, tag_mask, param));
}

/* Of a message that a probe has taken: tag and mask are those of the probe, and not known here (0, which matches any). */
ucs_status_ptr_t ucp_tag_msg_recv_nb(ucp_worker_h worker, void *buffer, size_t count, ucp_datatype_t datatype, ucp_tag_message_h message, ucp_tag_recv_callback_t cb)
{
    UCX_REAL(ucp_tag_msg_recv_nb);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(worker, buffer, count, datatype, message, cb);
    struct ucx_call c = {.t = t, .object = ucx_worker(worker), .event = ST_EV_UCP_TAG_RECV, .api = ST_UCP_API_NB, .local = (uintptr_t)buffer};
    c.bytes = ucx_bytes(buffer, count, datatype);
    cb = ucx_track(&c, ST_EV_UCP_TAG_RECV, cb);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_TAG_RECV, ST_UCP_API_NB, real(worker, buffer, count, datatype, message, cb));
}

ucs_status_ptr_t ucp_tag_msg_recv_nbx(ucp_worker_h worker, void *buffer, size_t count, ucp_tag_message_h message, const ucp_request_param_t *param)
{
    UCX_REAL(ucp_tag_msg_recv_nbx);
    ucp_request_param_t copy;
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(worker, buffer, count, message, param);
    struct ucx_call c = {.t = t, .object = ucx_worker(worker), .event = ST_EV_UCP_TAG_RECV, .api = ST_UCP_API_NBX, .local = (uintptr_t)buffer};
    c.bytes = ucx_bytes_nbx(buffer, count, param);
    param = ucx_track_nbx(&c, ST_EV_UCP_TAG_RECV, param, &copy);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_TAG_RECV, ST_UCP_API_NBX, real(worker, buffer, count, message, param));
}

/* ---- stream --------------------------------------------------------------------------------------------------------------- */

ucs_status_ptr_t ucp_stream_send_nb(ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype, ucp_send_callback_t cb, unsigned flags)
{
    UCX_REAL(ucp_stream_send_nb);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, count, datatype, cb, flags);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer};
    c.bytes = ucx_bytes(buffer, count, datatype);
    cb = ucx_track(&c, ST_EV_UCP_STREAM_SEND, cb);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_STREAM_SEND, ST_UCP_API_NB, real(ep, buffer, count, datatype, cb, flags));
}

ucs_status_ptr_t ucp_stream_send_nbx(ucp_ep_h ep, const void *buffer, size_t count, const ucp_request_param_t *param)
{
    UCX_REAL(ucp_stream_send_nbx);
    ucp_request_param_t copy;
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, buffer, count, param);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer};
    c.bytes = ucx_bytes_nbx(buffer, count, param);
    param = ucx_track_nbx(&c, ST_EV_UCP_STREAM_SEND, param, &copy);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_STREAM_SEND, ST_UCP_API_NBX, real(ep, buffer, count, param));
}

/* ---- active message: the tag is its id, the bytes are its payload without the header -------------------------------------- */

ucs_status_ptr_t ucp_am_send_nb(ucp_ep_h ep, uint16_t id, const void *buffer, size_t count, ucp_datatype_t datatype, ucp_send_callback_t cb, unsigned flags)
{
    UCX_REAL(ucp_am_send_nb);
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, id, buffer, count, datatype, cb, flags);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .tag = id};
    c.bytes = ucx_bytes(buffer, count, datatype);
    cb = ucx_track(&c, ST_EV_UCP_AM_SEND, cb);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_AM_SEND, ST_UCP_API_NB, real(ep, id, buffer, count, datatype, cb, flags));
}

ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header, size_t header_length, const void *buffer, size_t count, const ucp_request_param_t *param)
{
    UCX_REAL(ucp_am_send_nbx);
    ucp_request_param_t copy;
    struct st_thread *t = ucx_enter();
    if (!t)
        return real(ep, id, header, header_length, buffer, count, param);
    struct ucx_call c = {.t = t, .object = ucx_endpoint(ep), .local = (uintptr_t)buffer, .tag = id};
    c.bytes = ucx_bytes_nbx(buffer, count, param);
    param = ucx_track_nbx(&c, ST_EV_UCP_AM_SEND, param, &copy);
    ucx_begin_request(&c);
    return ucx_finish_request(&c, ST_EV_UCP_AM_SEND, ST_UCP_API_NBX, real(ep, id, header, header_length, buffer, count, param));
}
