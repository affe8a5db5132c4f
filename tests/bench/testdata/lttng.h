/* The same request as an LTTng-UST tracepoint: the peer that our recording is held against. */
#undef TRACEPOINT_PROVIDER
#define TRACEPOINT_PROVIDER sigmatrace_bench
#undef TRACEPOINT_INCLUDE
#define TRACEPOINT_INCLUDE "./lttng.h"
#if !defined(LTTNG_BENCH_H) || defined(TRACEPOINT_HEADER_MULTI_READ)
#define LTTNG_BENCH_H
#include <lttng/tracepoint.h>
#include <stdint.h>
TRACEPOINT_EVENT(sigmatrace_bench, request,
    TP_ARGS(uint32_t, qp, uint64_t, wr_id, const uint64_t *, a),
    TP_FIELDS(
        ctf_integer(uint32_t, qp, qp)
        ctf_integer_hex(uint64_t, wr_id, wr_id)
        ctf_integer(uint32_t, bytes, a[0])
        ctf_integer(uint8_t, opcode, a[1])
        ctf_integer(uint8_t, flags, a[2])
        ctf_integer(uint8_t, sges, a[3])
        ctf_integer_hex(uint64_t, local_address, a[4])
        ctf_integer_hex(uint32_t, local_key, a[5])
        ctf_integer_hex(uint64_t, remote_address, a[6])
        ctf_integer_hex(uint32_t, remote_key, a[7])
        ctf_integer_hex(uint32_t, immediate, a[8])))
#endif
#include <lttng/tracepoint-event.h>
