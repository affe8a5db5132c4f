/* A call of UCP or libfabric, and a completion, as LTTng-UST tracepoints with the fields that our records have. */
#undef TRACEPOINT_PROVIDER
#define TRACEPOINT_PROVIDER sigmatrace_bench
#undef TRACEPOINT_INCLUDE
#define TRACEPOINT_INCLUDE "./calls.h"
#if !defined(CALLS_BENCH_H) || defined(TRACEPOINT_HEADER_MULTI_READ)
#define CALLS_BENCH_H
#include <lttng/tracepoint.h>
#include <stdint.h>
TRACEPOINT_EVENT(sigmatrace_bench, call,
    TP_ARGS(uint8_t, operation, const void *, endpoint, uint64_t, bytes, uint64_t, tag, const void *, local, uint64_t, remote, const void *, key, const void *, request, uint64_t, duration),
    TP_FIELDS(
        ctf_integer(uint8_t, operation, operation)
        ctf_integer_hex(uint64_t, endpoint, (uintptr_t)endpoint)
        ctf_integer(uint64_t, bytes, bytes)
        ctf_integer_hex(uint64_t, tag, tag)
        ctf_integer_hex(uint64_t, local, (uintptr_t)local)
        ctf_integer_hex(uint64_t, remote, remote)
        ctf_integer_hex(uint64_t, key, (uintptr_t)key)
        ctf_integer_hex(uint64_t, request, (uintptr_t)request)
        ctf_integer(uint64_t, duration, duration)))
TRACEPOINT_EVENT(sigmatrace_bench, completion,
    TP_ARGS(const void *, request, int, status, uint64_t, bytes, uint64_t, tag),
    TP_FIELDS(
        ctf_integer_hex(uint64_t, request, (uintptr_t)request)
        ctf_integer(int, status, status)
        ctf_integer(uint64_t, bytes, bytes)
        ctf_integer_hex(uint64_t, tag, tag)))
#endif
#include <lttng/tracepoint-event.h>
