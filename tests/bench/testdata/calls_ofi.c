/*
 * A preload that does with LTTng-UST what provider libfabric does: a tracepoint for each message sent or received, with its duration, and
 * one for each completion read. Libfabric's calls are inlined and go through function tables, so the pointers of the program's objects are
 * led to copies of their tables, as ours does it.
 */
#define _GNU_SOURCE
#define TRACEPOINT_CREATE_PROBES
#define TRACEPOINT_DEFINE
#include "calls.h"

#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>
#include <stdlib.h>
#include <string.h>

enum { SEND = 1, RECV, TAGGED_SEND, TAGGED_RECV };

static __thread int depth; /* a layered provider makes objects of others inside */

static uint64_t clock_now(void)
{
    uint32_t lo, hi;
    __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
    return (uint64_t)hi << 32 | lo;
}

/* A copy of a table, and where the original is. */
#define COPY(type)         \
    struct type##_copy {   \
        struct type ours;  \
        struct type *real; \
    }
COPY(fi_ops_fabric);
COPY(fi_ops_domain);
COPY(fi_ops_msg);
COPY(fi_ops_tagged);
COPY(fi_ops_cq);

/* Leads `place` to a new copy of its table, c. */
#define TAKE(type, place)                                                                                          \
    struct type##_copy *c = calloc(1, sizeof *c);                                                                  \
    if (!c || !(place))                                                                                            \
        return;                                                                                                    \
    memcpy(&c->ours, place, (place)->size < sizeof c->ours ? (place)->size : sizeof c->ours);                      \
    c->real = (place);                                                                                             \
    (place) = &c->ours

#define CALL(type, table, operation, bytes, tag, local, peer, request, real_call)                                               \
    struct type *real = ((struct type##_copy *)(void *)ep->table)->real;                                                        \
    uint64_t begin = clock_now();                                                                                               \
    ssize_t rc = real->real_call;                                                                                               \
    if (!rc)                                                                                                                    \
        tracepoint(sigmatrace_bench, call, operation, ep, bytes, tag, local, peer, NULL, request, clock_now() - begin);         \
    return rc

static ssize_t msg_send(struct fid_ep *ep, const void *b, size_t n, void *d, fi_addr_t a, void *x)
{
    CALL(fi_ops_msg, msg, SEND, n, 0, b, a, x, send(ep, b, n, d, a, x));
}
static ssize_t msg_inject(struct fid_ep *ep, const void *b, size_t n, fi_addr_t a)
{
    CALL(fi_ops_msg, msg, SEND, n, 0, b, a, NULL, inject(ep, b, n, a));
}
static ssize_t msg_recv(struct fid_ep *ep, void *b, size_t n, void *d, fi_addr_t a, void *x)
{
    CALL(fi_ops_msg, msg, RECV, n, 0, b, a, x, recv(ep, b, n, d, a, x));
}
static ssize_t tagged_send(struct fid_ep *ep, const void *b, size_t n, void *d, fi_addr_t a, uint64_t tag, void *x)
{
    CALL(fi_ops_tagged, tagged, TAGGED_SEND, n, tag, b, a, x, send(ep, b, n, d, a, tag, x));
}
static ssize_t tagged_inject(struct fid_ep *ep, const void *b, size_t n, fi_addr_t a, uint64_t tag)
{
    CALL(fi_ops_tagged, tagged, TAGGED_SEND, n, tag, b, a, NULL, inject(ep, b, n, a, tag));
}
static ssize_t tagged_recv(struct fid_ep *ep, void *b, size_t n, void *d, fi_addr_t a, uint64_t tag, uint64_t ignore, void *x)
{
    CALL(fi_ops_tagged, tagged, TAGGED_RECV, n, tag, b, a, x, recv(ep, b, n, d, a, tag, ignore, x));
}

/* What entries of all formats have, of one: a program that reads several at once is not meant here. */
static ssize_t looked(ssize_t rc, const void *entries)
{
    if (rc == 1)
        tracepoint(sigmatrace_bench, completion, ((const struct fi_cq_entry *)entries)->op_context, 0, 0, 0);
    return rc;
}
#define REAL_CQ ((struct fi_ops_cq_copy *)(void *)cq->ops)->real
static ssize_t cq_read(struct fid_cq *cq, void *b, size_t n) { return looked(REAL_CQ->read(cq, b, n), b); }
static ssize_t cq_sread(struct fid_cq *cq, void *b, size_t n, const void *cond, int ms) { return looked(REAL_CQ->sread(cq, b, n, cond, ms), b); }

static void take_cq(struct fid_cq *cq)
{
    TAKE(fi_ops_cq, cq->ops);
    c->ours.read = cq_read;
    c->ours.sread = cq_sread;
}
static void take_msg(struct fid_ep *ep)
{
    TAKE(fi_ops_msg, ep->msg);
    c->ours.send = msg_send;
    c->ours.inject = msg_inject;
    c->ours.recv = msg_recv;
}
static void take_tagged(struct fid_ep *ep)
{
    TAKE(fi_ops_tagged, ep->tagged);
    c->ours.send = tagged_send;
    c->ours.inject = tagged_inject;
    c->ours.recv = tagged_recv;
}

/* Calls the original of a call that makes an object, and takes what the program gets. */
#define MADE(type, object, call, taking)                                             \
    struct type *real = ((struct type##_copy *)(void *)(object)->ops)->real;         \
    depth++;                                                                         \
    int rc = real->call;                                                             \
    if (!--depth && !rc) {                                                           \
        taking;                                                                      \
    }                                                                                \
    return rc

static int domain_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *x)
{
    MADE(fi_ops_domain, domain, endpoint(domain, info, ep, x), take_msg(*ep); take_tagged(*ep));
}
static int domain_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *x)
{
    MADE(fi_ops_domain, domain, cq_open(domain, attr, cq, x), take_cq(*cq));
}
static void take_domain(struct fid_domain *domain)
{
    TAKE(fi_ops_domain, domain->ops);
    c->ours.endpoint = domain_endpoint;
    c->ours.cq_open = domain_cq_open;
}
static int fabric_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *x)
{
    MADE(fi_ops_fabric, fabric, domain(fabric, info, domain, x), take_domain(*domain));
}
static void take_fabric(struct fid_fabric *fabric)
{
    TAKE(fi_ops_fabric, fabric->ops);
    c->ours.domain = fabric_domain;
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *x)
{
    static __typeof__(&fi_fabric) real;
    if (!real)
        real = (__typeof__(real))dlvsym(RTLD_NEXT, "fi_fabric", "FABRIC_1.1");
    depth++;
    int rc = real(attr, fabric, x);
    if (!--depth && !rc)
        take_fabric(*fabric);
    return rc;
}
