/*
 * A preload that does with LTTng-UST what our providers do: a tracepoint for each call that sends, puts or receives, with its duration, and
 * one for each completion. Of UCP the nbx forms, and the older forms that ucx_perftest 1.13 and Open MPI 4.1 call; a completion is seen
 * where the program asks for it (ucp_request_check_status, ucp_request_free), since a callback would have to be replaced.
 */
#define _GNU_SOURCE
#define TRACEPOINT_CREATE_PROBES
#define TRACEPOINT_DEFINE
#include "calls.h"

#include <dlfcn.h>
#include <ucp/api/ucp.h>

enum { PUT = 1, TAG_SEND = 3, TAG_RECV = 4, AM_SEND = 6 };

static uint64_t clock_now(void)
{
    uint32_t lo, hi;
    __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
    return (uint64_t)hi << 32 | lo;
}

#define REAL(f)                                                   \
    static __typeof__(&f) real;                                   \
    if (!real)                                                    \
        real = (__typeof__(real))dlsym(RTLD_NEXT, #f);            \
    uint64_t begin = clock_now()
#define RETURN(operation, endpoint, bytes, tag, local, remote, key, result)                                                     \
    ucs_status_ptr_t r = (result);                                                                                             \
    tracepoint(sigmatrace_bench, call, operation, endpoint, bytes, tag, local, remote, key, r, clock_now() - begin); \
    return r

ucs_status_ptr_t ucp_put_nbx(ucp_ep_h ep, const void *buffer, size_t count, uint64_t remote, ucp_rkey_h rkey, const ucp_request_param_t *param)
{
    REAL(ucp_put_nbx);
    RETURN(PUT, ep, count, 0, buffer, remote, rkey, real(ep, buffer, count, remote, rkey, param));
}

ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h ep, const void *buffer, size_t count, ucp_tag_t tag, const ucp_request_param_t *param)
{
    REAL(ucp_tag_send_nbx);
    RETURN(TAG_SEND, ep, count, tag, buffer, 0, NULL, real(ep, buffer, count, tag, param));
}

ucs_status_ptr_t ucp_tag_recv_nbx(ucp_worker_h worker, void *buffer, size_t count, ucp_tag_t tag, ucp_tag_t mask, const ucp_request_param_t *param)
{
    REAL(ucp_tag_recv_nbx);
    RETURN(TAG_RECV, worker, count, tag, buffer, mask, NULL, real(worker, buffer, count, tag, mask, param));
}

ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header, size_t header_length, const void *buffer, size_t count, const ucp_request_param_t *param)
{
    REAL(ucp_am_send_nbx);
    RETURN(AM_SEND, ep, header_length + count, id, buffer, 0, NULL, real(ep, id, header, header_length, buffer, count, param));
}

ucs_status_ptr_t ucp_tag_send_nb(ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype, ucp_tag_t tag, ucp_send_callback_t cb)
{
    REAL(ucp_tag_send_nb);
    RETURN(TAG_SEND, ep, count, tag, buffer, 0, NULL, real(ep, buffer, count, datatype, tag, cb));
}

ucs_status_ptr_t ucp_tag_recv_nb(ucp_worker_h worker, void *buffer, size_t count, ucp_datatype_t datatype, ucp_tag_t tag, ucp_tag_t mask, ucp_tag_recv_callback_t cb)
{
    REAL(ucp_tag_recv_nb);
    RETURN(TAG_RECV, worker, count, tag, buffer, mask, NULL, real(worker, buffer, count, datatype, tag, mask, cb));
}

ucs_status_t ucp_request_check_status(void *request)
{
    static __typeof__(&ucp_request_check_status) real;
    if (!real)
        real = (__typeof__(real))dlsym(RTLD_NEXT, "ucp_request_check_status");
    ucs_status_t status = real(request);
    if (status != UCS_INPROGRESS)
        tracepoint(sigmatrace_bench, completion, request, status, 0, 0);
    return status;
}

void ucp_request_free(void *request)
{
    static __typeof__(&ucp_request_free) real;
    if (!real)
        real = (__typeof__(real))dlsym(RTLD_NEXT, "ucp_request_free");
    real(request);
}
