/* edge SCENARIO: what a real UCX does seldom or never, over the fake library. Prints what the capture must hold, one `name value` a line.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x)                                                              \
    do {                                                                      \
        if (!(x)) {                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x);   \
            abort();                                                          \
        }                                                                     \
    } while (0)

static ucp_worker_h worker;
static ucp_ep_h ep;
static char data[4096];
static char requests[40000]; /* their addresses are what counts */

static void expect(const char *name, unsigned long value) { printf("%s %lu\n", name, value); }

static void *handle(unsigned long n) { return (void *)(0x10000 + 0x1000 * n); }

static void start(void)
{
    ucp_ep_params_t params = {.field_mask = 0};
    fake.result = handle(1);
    CHECK(ucp_worker_create(handle(9), NULL, &worker) == UCS_OK);
    fake.result = handle(2);
    CHECK(ucp_ep_create(worker, &params, &ep) == UCS_OK);
    CHECK(worker == handle(1) && ep == handle(2));
    fake.result = NULL;
}

/* ---- forms: everything passes through ---- */

static struct {
    unsigned calls;
    void *request, *user;
    ucs_status_t status;
    const ucp_tag_recv_info_t *info;
} seen;

static void send_cb(void *request, ucs_status_t status, void *user)
{
    seen.calls++;
    seen.request = request;
    seen.status = status;
    seen.user = user;
}
static void recv_cb(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user)
{
    send_cb(request, status, user);
    seen.info = info;
}
static void nb_cb(void *request, ucs_status_t status) { send_cb(request, status, NULL); }
static void nb_recv_cb(void *request, ucs_status_t status, ucp_tag_recv_info_t *info) { recv_cb(request, status, info, NULL); }

/* The structure at the very end of a page: what lies behind the fields that its mask names may not be read. */
static ucp_request_param_t *at_end(size_t size)
{
    static char *pages;
    if (!pages) {
        pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(pages != MAP_FAILED && !mprotect(pages + 4096, 4096, PROT_NONE));
    }
    return (ucp_request_param_t *)(pages + 4096 - size);
}

static void forms(void)
{
    static const uint32_t later = UCP_OP_ATTR_FIELD_REPLY_BUFFER | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_MEMH;
    unsigned long sends = 0, bytes = 0, pending = 0;
    for (uint32_t bits = 0; bits < 512; bits++) {
        for (int outcome = 0; outcome < 3; outcome++) { /* done, refused, pending */
            int whole = bits & later || bits & UCP_OP_ATTR_FIELD_RECV_INFO;
            ucp_request_param_t *p = whole ? at_end(sizeof *p) : at_end(offsetof(ucp_request_param_t, reply_buffer));
            uint32_t mask = bits | (bits % 5 ? 0 : UCP_OP_ATTR_FLAG_MULTI_SEND) | (bits % 3 ? 0 : UCP_OP_ATTR_FLAG_FAST_CMPL);
            memset(p, 0xa5, whole ? sizeof *p : offsetof(ucp_request_param_t, reply_buffer));
            p->op_attr_mask = mask;
            p->flags = bits * 3;
            p->cb.send = send_cb;
            p->datatype = ucp_dt_make_contig(2);
            p->user_data = data + bits;
            fake.result = outcome == 0 ? NULL : outcome == 1 ? UCS_STATUS_PTR(UCS_ERR_NO_MEMORY) : requests + bits;
            errno = 5;
            ucs_status_ptr_t r = ucp_tag_send_nbx(ep, data, 10, bits, p);
            CHECK(errno == 77 && r == fake.result && fake.count == 10);
            CHECK((fake.copy.op_attr_mask & ~UCP_OP_ATTR_FIELD_CALLBACK) == (mask & ~UCP_OP_ATTR_FIELD_CALLBACK));
            CHECK(fake.copy.flags == p->flags && fake.copy.request == p->request && fake.copy.user_data == p->user_data && fake.copy.datatype == p->datatype);
            if (bits & UCP_OP_ATTR_FIELD_REPLY_BUFFER)
                CHECK(fake.copy.reply_buffer == p->reply_buffer);
            if (bits & UCP_OP_ATTR_FIELD_MEMORY_TYPE)
                CHECK(fake.copy.memory_type == p->memory_type);
            if (bits & UCP_OP_ATTR_FIELD_RECV_INFO)
                CHECK(fake.copy.recv_info.tag_info == p->recv_info.tag_info);
            if (bits & UCP_OP_ATTR_FIELD_MEMH)
                CHECK(fake.copy.memh == p->memh);
            CHECK(p->op_attr_mask == mask && p->cb.send == send_cb); /* the caller's own is as it was */
            sends += outcome != 1;
            bytes += outcome != 1 ? bits & UCP_OP_ATTR_FIELD_DATATYPE ? 20 : 10 : 0;
            if (outcome != 2)
                continue;
            pending++;
            memset(&seen, 0, sizeof seen);
            if (fake.callback)
                fake_complete(fake.callback, r, UCS_ERR_CANCELED, p->user_data, NULL);
            if (bits & UCP_OP_ATTR_FIELD_CALLBACK)
                CHECK(seen.calls == 1 && seen.request == r && seen.status == UCS_ERR_CANCELED && seen.user == p->user_data);
            else
                CHECK(!seen.calls);
        }
    }
    /* bits that no header knew yet: the structure itself goes on, its completion is not learned */
    ucp_request_param_t *p = at_end(sizeof *p);
    memset(p, 0, sizeof *p);
    p->op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCS_BIT(9);
    p->cb.send = send_cb;
    fake.result = requests;
    CHECK(ucp_tag_send_nbx(ep, data, 10, 0, p) == requests && fake.param == p && fake.callback == (void *)send_cb);
    sends++;
    bytes += 10;
    /* receives, with information where the caller asked for it and where not */
    ucp_tag_recv_info_t info = {7, 7};
    unsigned long receives = 0;
    for (int asked = 0; asked < 2; asked++) {
        for (int outcome = 0; outcome < 3; outcome++) {
            for (fake.fill_info = 0; fake.fill_info < 80; fake.fill_info += 40) {
                ucp_request_param_t q = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.recv = recv_cb, .user_data = &q};
                if (asked) {
                    q.op_attr_mask |= UCP_OP_ATTR_FIELD_RECV_INFO;
                    q.recv_info.tag_info = &info;
                }
                fake.result = outcome == 0 ? NULL : outcome == 1 ? UCS_STATUS_PTR(UCS_ERR_MESSAGE_TRUNCATED) : requests + asked;
                info = (ucp_tag_recv_info_t){7, 7};
                ucs_status_ptr_t r = ucp_tag_recv_nbx(worker, data, 100, 0x5000, 0xf000, &q);
                CHECK(r == fake.result && fake.copy.user_data == &q);
                CHECK(info.length == (asked && outcome == 0 && fake.fill_info ? fake.fill_info : 7));
                receives += outcome != 1;
                if (outcome != 2)
                    continue;
                static const ucp_tag_recv_info_t got = {.sender_tag = 0x5001, .length = 55};
                memset(&seen, 0, sizeof seen);
                fake_complete(fake.callback, r, UCS_OK, &got, &q);
                CHECK(seen.calls == 1 && seen.info == &got && seen.user == &q && seen.request == r && seen.status == UCS_OK);
            }
        }
    }
    expect("tag_send", sends);
    expect("tag_send.bytes", bytes);
    expect("tag_recv", receives);
    expect("pending", pending + 4 + 2);
    expect("completions", pending + 4 + 2);
    expect("untracked", 1);
}

/* ---- early: the callback runs before the call returns ---- */

static void early(void)
{
    for (int where = FAKE_NOW; where <= FAKE_OTHER_THREAD; where++) {
        fake.when = where;
        for (int i = 0; i < 1000; i++) {
            fake.result = requests + i;
            memset(&seen, 0, sizeof seen);
            switch (i % 3) {
            case 0: CHECK(ucp_tag_recv_nb(worker, data, 50, ucp_dt_make_contig(2), 0, 0, nb_recv_cb) == requests + i); break;
            case 1: CHECK(ucp_put_nb(ep, data, 60, 0, NULL, nb_cb) == requests + i); break;
            case 2: CHECK(ucp_tag_recv_nbr(worker, data, 50, ucp_dt_make_contig(2), 0, 0, requests + i) == UCS_OK); break;
            }
            CHECK(i % 3 == 2 || (seen.calls == 1 && seen.request == requests + i && seen.status == UCS_OK));
        }
    }
    expect("put", 666);
    expect("tag_recv", 1334);
    expect("pending", 2000);
    expect("completions", 2000);
    expect("received", 1334 * 99);
    expect("early", 0); /* completions recorded before their request, by the same thread */
}

/* ---- nested: calls within calls ---- */

static int to_post;
static void again(void *request, ucs_status_t status)
{
    (void)request;
    (void)status;
    if (to_post-- > 0)
        ucp_put_nb(ep, data, 1, 0, NULL, again);
}
static void handler(void) /* as an active message's would be */
{
    fake.in_progress = NULL;
    CHECK(ucp_put_nbi(ep, data, 8, 0, NULL) == UCS_OK);
    CHECK(ucp_put_nbi(ep, data, 8, 0, NULL) == UCS_OK);
}

static void *outstanding;
static void complete_it(void)
{
    fake.in_progress = NULL;
    fake_complete(outstanding, requests, UCS_OK, NULL, NULL);
}

static void nested(void)
{
    ucp_request_param_t p = {.op_attr_mask = 0};
    unsigned long before = fake.calls;
    fake.result = NULL;
    CHECK(ucp_put(ep, data, 100, 0, NULL) == UCS_OK); /* one, though it is two calls */
    CHECK(fake.calls == before + 2);
    CHECK(!ucp_tag_send_sync_nbx(ep, data, 100, 0, &p)); /* one */
    for (int i = 0; i < 10; i++) { /* three each: the handler posts two */
        fake.in_progress = handler;
        CHECK(ucp_put(ep, data, 100, 0, NULL) == UCS_OK);
    }
    /* each callback posts the next, whose callback runs at once: 30 deep */
    fake.result = requests;
    fake.when = FAKE_NOW;
    to_post = 30;
    CHECK(ucp_put_nb(ep, data, 1, 0, NULL, again) == requests);
    /* a request that completes in the progress of a later, blocking call */
    fake.when = FAKE_LATER;
    for (int i = 0; i < 10; i++) {
        fake.result = requests;
        memset(&seen, 0, sizeof seen);
        CHECK(ucp_put_nb(ep, data, 1, 0, NULL, nb_cb) == requests);
        outstanding = fake.callback;
        fake.result = NULL;
        fake.in_progress = complete_it;
        CHECK(ucp_put(ep, data, 100, 0, NULL) == UCS_OK && seen.calls == 1);
    }
    expect("put", 1 + 30 + 31 + 20);
    expect("put.bytes", 1100 + 160 + 31 + 1010);
    expect("tag_send", 1);
    expect("pending", 31 + 10);
    expect("completions", 31 + 10);
}

/* ---- full: more requests than slots ---- */

static void full(void)
{
    enum { N = 20000, SLOTS = 16383 };
    static void *callbacks[N];
    for (int i = 0; i < 2 * N; i++) { /* complete at once, or refused: they keep none */
        fake.result = i % 2 ? NULL : UCS_STATUS_PTR(UCS_ERR_NO_MEMORY);
        CHECK(ucp_tag_send_nb(ep, data, 1, ucp_dt_make_contig(1), 0, nb_cb) == fake.result);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            fake.result = requests + i;
            CHECK(ucp_tag_send_nb(ep, data, 1, ucp_dt_make_contig(1), 0, nb_cb) == requests + i);
            callbacks[i] = fake.callback;
        }
        for (int i = 0; i < N; i++) {
            int k = round % 2 ? N - 1 - i : i;
            memset(&seen, 0, sizeof seen);
            fake_complete(callbacks[k], requests + k, UCS_OK, NULL, NULL);
            CHECK(seen.calls == 1 && seen.request == requests + k);
        }
    }
    /* a worker that ends with receives outstanding gives their slots back */
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 8000; i++) {
            fake.result = requests + i;
            CHECK(ucp_tag_recv_nb(worker, data, 1, ucp_dt_make_contig(1), 0, 0, nb_recv_cb));
        }
        ucp_worker_destroy(worker);
        start();
    }
    expect("tag_send", 4 * N);
    expect("done", N);
    expect("tag_recv", 4 * 8000);
    expect("pending", 3 * SLOTS + 4 * 8000);
    expect("completions", 3 * SLOTS);
    expect("untracked", 3 * (N - SLOTS));
}

/* ---- fork ---- */

static void fork_outstanding(void)
{
    fake.result = requests;
    CHECK(ucp_tag_send_nb(ep, data, 10, ucp_dt_make_contig(1), 0, nb_cb));
    void *inherited = fake.callback;
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        memset(&seen, 0, sizeof seen);
        fake_complete(inherited, requests, UCS_OK, NULL, NULL); /* the parent's request: the application's callback runs, nothing is recorded */
        CHECK(seen.calls == 1 && seen.request == requests);
        for (int i = 0; i < 100; i++) { /* its own, on an endpoint that it did not make */
            CHECK(ucp_tag_send_nb(ep, data, 10, ucp_dt_make_contig(1), 0, nb_cb));
            fake_complete(fake.callback, requests, UCS_OK, NULL, NULL);
        }
        exit(0);
    }
    int s;
    CHECK(waitpid(child, &s, 0) == child && s == 0);
    memset(&seen, 0, sizeof seen);
    fake_complete(inherited, requests, UCS_OK, NULL, NULL);
    CHECK(seen.calls == 1);
    expect("tag_send", 101);
    expect("pending", 101);
    expect("completions", 101);
}

/* ---- threads ---- */

enum { THREADS = 8, EACH = 20000, RING = 64 };
static void *ring[THREADS][RING];
static unsigned long called;

static void count_cb(void *request, ucs_status_t status)
{
    (void)request;
    (void)status;
    __atomic_fetch_add(&called, 1, __ATOMIC_RELAXED);
}

/* Posts, and completes what its neighbour has posted. */
static void *poster(void *p)
{
    unsigned me = (unsigned)(uintptr_t)p;
    for (int i = 0; i < EACH; i++) {
        fake.result = requests + i;
        CHECK(ucp_tag_send_nb(ep, data, 10, ucp_dt_make_contig(1), 0, count_cb) == requests + i);
        void *mine = __atomic_exchange_n(&ring[me][i % RING], fake.callback, __ATOMIC_ACQ_REL);
        if (mine)
            fake_complete(mine, requests, UCS_OK, NULL, NULL);
        void *other = __atomic_exchange_n(&ring[(me + 1) % THREADS][(i * 7) % RING], NULL, __ATOMIC_ACQ_REL);
        if (other)
            fake_complete(other, requests, UCS_OK, NULL, NULL);
    }
    return NULL;
}

static void *short_lived(void *p)
{
    (void)p;
    for (int i = 0; i < 10; i++) {
        fake.result = requests;
        CHECK(ucp_tag_send_nb(ep, data, 10, ucp_dt_make_contig(1), 0, count_cb) == requests);
        fake_complete(fake.callback, requests, UCS_OK, NULL, NULL);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&t[i], NULL, poster, (void *)i));
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < RING; k++)
            if (ring[i][k])
                fake_complete(ring[i][k], requests, UCS_OK, NULL, NULL);
    CHECK(called == THREADS * EACH);
    /* threads that end give back the slots they hold: else 2,500 of them would use up the table */
    for (int i = 0; i < 2500; i++) {
        CHECK(!pthread_create(&t[0], NULL, short_lived, NULL));
        pthread_join(t[0], NULL);
    }
    expect("tag_send", THREADS * EACH + 25000);
    expect("pending", THREADS * EACH + 25000);
    expect("completions", THREADS * EACH + 25000);
    expect("untracked", 0);
}

/* ---- others ---- */

/* The library found by dlopen and dlsym, as some frameworks bind it. */
static void looked_up(void)
{
    void *h = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    CHECK(h);
    __typeof__(&ucp_put_nbi) put = (__typeof__(put))dlsym(h, "ucp_put_nbi");
    CHECK(put && dlsym(h, "ucp_no_such_function") == NULL && dlsym(h, "ucp_get_version_string"));
    fake.status = UCS_INPROGRESS;
    for (int i = 0; i < 10; i++)
        CHECK(put(ep, data, 5, 0, NULL) == UCS_INPROGRESS);
    expect("put", 10);
    expect("put.bytes", 50);
    expect("implicit", 10);
}

/* A library whose nbr forms do not call the nbx forms by name. */
static void direct(void)
{
    fake.direct = 1;
    fake.result = requests;
    CHECK(ucp_tag_send_nbr(ep, data, 5, ucp_dt_make_contig(1), 0, requests) == UCS_INPROGRESS);
    CHECK(ucp_tag_recv_nbr(worker, data, 5, ucp_dt_make_contig(1), 0, 0, requests) == UCS_OK);
    fake.result = NULL;
    CHECK(ucp_tag_send_nbr(ep, data, 5, ucp_dt_make_contig(1), 0, requests) == UCS_OK);
    fake.result = UCS_STATUS_PTR(UCS_ERR_NO_MEMORY);
    CHECK(ucp_tag_send_nbr(ep, data, 5, ucp_dt_make_contig(1), 0, requests) == UCS_ERR_NO_MEMORY);
    fake.direct = 0;
    CHECK(ucp_tag_send_nbr(ep, data, 5, ucp_dt_make_contig(1), 0, requests) == UCS_ERR_NO_MEMORY);
    fake.result = NULL;
    CHECK(ucp_tag_send_nbr(ep, data, 5, ucp_dt_make_contig(1), 0, requests) == UCS_OK);
    fake.result = requests;
    CHECK(ucp_tag_send_nbr(ep, data, 5, ucp_dt_make_contig(1), 0, requests) == UCS_INPROGRESS);
    fake_complete(fake.callback, requests, UCS_OK, NULL, NULL);
    expect("tag_send", 4);
    expect("tag_recv", 1);
    expect("pending", 1);
    expect("completions", 1);
    expect("untracked", 2);
}

/* Bytes of the datatypes; what was refused counts as nothing. */
static void sizes(void)
{
    ucp_dt_iov_t iov[3] = {{data, 10}, {data, 0}, {data, 7}};
    ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE};
    p.datatype = ucp_dt_make_iov();
    CHECK(!ucp_put_nbx(ep, iov, 3, 0, NULL, &p)); /* 17 */
    p.datatype = ucp_dt_make_contig(8);
    CHECK(!ucp_put_nbx(ep, data, 3, 0, NULL, &p)); /* 24 */
    p.datatype = 0xabc000 | UCP_DATATYPE_GENERIC;
    CHECK(!ucp_put_nbx(ep, data, 3, 0, NULL, &p)); /* known to its owner only: 0 */
    p.op_attr_mask = 0;
    CHECK(!ucp_put_nbx(ep, data, 3, 0, NULL, &p)); /* 3 */
    CHECK(!ucp_am_send_nbx(ep, 4, data, 100, data, 30, &p)); /* 30: without its header */
    fake.status = UCS_ERR_NO_RESOURCE;
    CHECK(ucp_put_nbi(ep, data, 5, 0, NULL) == UCS_ERR_NO_RESOURCE);
    CHECK(ucp_put(ep, data, 5, 0, NULL) == UCS_ERR_NO_RESOURCE);
    expect("put", 4);
    expect("put.bytes", 44);
    expect("am_send", 1);
    expect("am_send.bytes", 30);
}

/* Requests that are freed before they are complete: their callback goes, their completion does not. */
static void freed(void)
{
    static void *callbacks[10000];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 10000; i++) {
            fake.result = requests + 64 * (i % 600) + i / 600; /* so that many share a place in an index by address */
            CHECK(ucp_tag_send_nb(ep, data, 10, ucp_dt_make_contig(1), 0, nb_cb) == fake.result);
            callbacks[i] = fake.callback;
            if (round == 0) { /* at once */
                fake.status = UCS_INPROGRESS;
                ucp_request_free(fake.result);
            }
        }
        fake.status = UCS_INPROGRESS;
        for (int i = 0; round == 1 && i < 10000; i += 100) /* some, later */
            ucp_request_free(requests + 64 * (i % 600) + i / 600);
        memset(&seen, 0, sizeof seen);
        for (int i = 0; i < 10000; i++)
            fake_complete(callbacks[i], requests + 64 * (i % 600) + i / 600, UCS_OK, NULL, NULL);
        CHECK(seen.calls == (round == 0 ? 0 : round == 1 ? 9900 : 10000));
        fake.status = UCS_OK;
        for (int i = 0; round == 2 && i < 10000; i++)
            ucp_request_free(requests + 64 * (i % 600) + i / 600);
    }
    CHECK(fake.released == 10100 && fake.freed == 10000);
    fake.status = UCS_INPROGRESS;
    ucp_request_free(requests); /* one that is not ours */
    CHECK(fake.released == 10100 && fake.freed == 10001);
    expect("tag_send", 30000);
    expect("pending", 30000);
    expect("completions", 30000);
}

/* Endpoints that nobody made, and addresses used again. */
static void handles(void)
{
    ucp_request_param_t p = {.op_attr_mask = 0};
    ucp_ep_params_t params = {.field_mask = 0};
    ucp_ep_h e;
    CHECK(!ucp_stream_send_nbx(handle(30), data, 4, &p)); /* object 3, made for it */
    CHECK(!ucp_stream_send_nbx(handle(30), data, 4, &p));
    fake.result = handle(31);
    CHECK(ucp_ep_create(worker, &params, &e) == UCS_OK); /* object 4 */
    fake.result = UCS_STATUS_PTR(UCS_ERR_NO_MEMORY);
    CHECK(ucp_ep_close_nbx(e, &p) == fake.result); /* goes on */
    fake.result = NULL;
    CHECK(!ucp_stream_send_nbx(e, data, 5, &p));
    CHECK(!ucp_ep_close_nbx(e, &p));
    fake.result = handle(31);
    CHECK(ucp_ep_create(worker, &params, &e) == UCS_OK); /* object 5 */
    fake.result = NULL;
    CHECK(!ucp_stream_send_nbx(e, data, 6, &p));
    fake.status = UCS_ERR_UNREACHABLE;
    fake.result = handle(32);
    CHECK(ucp_ep_create(worker, &params, &e) == UCS_ERR_UNREACHABLE); /* none */
    expect("stream_send", 4);
    expect("stream_send.bytes", 19);
    expect("endpoints", 4);
    expect("ended", 1);
}

/* For measuring: two million puts that complete at once, or are pending. */
static void burst(void)
{
    for (int i = 0; i < 2000000; i++)
        ucp_put_nbi(ep, data, 8, 0, NULL);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {
        {"forms", forms}, {"early", early}, {"nested", nested}, {"full", full}, {"fork", fork_outstanding}, {"threads", threads},
        {"looked_up", looked_up}, {"direct", direct}, {"sizes", sizes}, {"freed", freed}, {"handles", handles}, {"burst", burst},
    };
    start();
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (argc == 2 && !strcmp(argv[1], scenarios[i].name)) {
            scenarios[i].run();
            return 0;
        }
    fprintf(stderr, "usage: edge SCENARIO\n");
    return 2;
}
