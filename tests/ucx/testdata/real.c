/* real SCENARIO: what programs do with UCX that its own tools do not, over the real library. Checks what it sees and prints what the
 * captures must hold, one `name value` a line.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#define CHECK(x)                                                              \
    do {                                                                      \
        if (!(x)) {                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x);   \
            abort();                                                          \
        }                                                                     \
    } while (0)

static void expect(const char *name, unsigned long value) { printf("%s %lu\n", name, value); }

struct side {
    ucp_worker_h worker;
    ucp_ep_h ep; /* to the other side */
};

static ucp_context_h context;
static struct side a, b;

static void make_context(void)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                           .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_STREAM,
                           .mt_workers_shared = 1};
    CHECK(ucp_init(&params, NULL, &context) == UCS_OK);
}

static void make_worker(struct side *s)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_MULTI};
    CHECK(ucp_worker_create(context, &params, &s->worker) == UCS_OK);
}

static void connect_to(struct side *s, struct side *to)
{
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS};
    CHECK(ucp_worker_query(to->worker, &attr) == UCS_OK);
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = attr.address};
    CHECK(ucp_ep_create(s->worker, &params, &s->ep) == UCS_OK);
    ucp_worker_release_address(to->worker, attr.address);
}

static void start(void)
{
    make_context();
    make_worker(&a);
    make_worker(&b);
    connect_to(&a, &b);
    connect_to(&b, &a);
}

static void progress(void)
{
    ucp_worker_progress(a.worker);
    if (b.worker)
        ucp_worker_progress(b.worker);
}

static ucs_status_t wait_for(void *request)
{
    if (!UCS_PTR_IS_PTR(request))
        return UCS_PTR_RAW_STATUS(request);
    ucs_status_t s;
    while ((s = ucp_request_check_status(request)) == UCS_INPROGRESS)
        progress();
    ucp_request_free(request);
    return s;
}

static void stop(void)
{
    ucp_request_param_t none = {.op_attr_mask = 0};
    void *x = ucp_ep_close_nbx(a.ep, &none), *y = b.ep ? ucp_ep_close_nbx(b.ep, &none) : NULL;
    wait_for(x);
    wait_for(y);
    ucp_worker_destroy(a.worker);
    ucp_worker_destroy(b.worker);
    ucp_cleanup(context);
}

static char out[1 << 20], in[1 << 20];
static unsigned long called, wrong;

static void sent(void *request, ucs_status_t status, void *user)
{
    (void)request;
    if (status != UCS_OK || user != &out)
        __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&called, 1, __ATOMIC_RELAXED);
}

static void got(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user)
{
    (void)request;
    if (status != UCS_OK || user != &in || info->length != 100)
        __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&called, 1, __ATOMIC_RELAXED);
}

static const ucp_request_param_t send_param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.send = sent, .user_data = &out};
static const ucp_request_param_t recv_param = {
    .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL, .cb.recv = got, .user_data = &in};

/* ---- threads that share workers: a request's callback may run on any of them, before its call has returned ---- */

enum { THREADS = 4, EACH = 2000 };

static void *work(void *p)
{
    uint64_t me = (uintptr_t)p;
    for (int i = 0; i < EACH; i++) {
        struct side *from = i % 2 ? &a : &b, *to = i % 2 ? &b : &a;
        void *r = ucp_tag_recv_nbx(to->worker, in, 100, me, ~0ull, &recv_param), *s = ucp_tag_send_nbx(from->ep, out, 100, me, &send_param);
        CHECK(UCS_PTR_IS_PTR(r) && !UCS_PTR_IS_ERR(s));
        CHECK(wait_for(r) == UCS_OK && wait_for(s) == UCS_OK);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t t[THREADS];
    start();
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&t[i], NULL, work, (void *)(i + 1)));
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    CHECK(called >= THREADS * EACH && !wrong); /* all receives, and the sends that were not complete at once */
    stop();
    expect("tag_send", THREADS * EACH);
    expect("tag_recv", THREADS * EACH);
    expect("received", THREADS * EACH * 100);
    expect("outstanding", 0);
    expect("untracked", 0);
}

/* ---- fork ---- */

static void exchange(int n)
{
    for (int i = 0; i < n; i++) {
        void *r = ucp_tag_recv_nbx(b.worker, in, 100, 1, ~0ull, &recv_param);
        CHECK(wait_for(ucp_tag_send_nbx(a.ep, out, 100, 1, &send_param)) == UCS_OK && wait_for(r) == UCS_OK);
    }
}

static void fork_child(void)
{
    start();
    exchange(50);
    void *outstanding = ucp_tag_recv_nbx(b.worker, in, 100, 2, ~0ull, &recv_param);
    CHECK(UCS_PTR_IS_PTR(outstanding));
    for (int generation = 0; generation < 2; generation++) { /* a child and its child, each with a context of its own */
        pid_t child = fork();
        CHECK(child >= 0);
        if (child) {
            int s;
            CHECK(waitpid(child, &s, 0) == child && s == 0);
            if (generation == 0) {
                CHECK(wait_for(ucp_tag_send_nbx(a.ep, out, 100, 2, &send_param)) == UCS_OK && wait_for(outstanding) == UCS_OK);
                exchange(50);
                stop();
                expect("tag_send", 101 + 30 + 30);
                expect("tag_recv", 101 + 30 + 30);
                expect("received", 16100);
                expect("outstanding", 0);
                expect("processes", 3);
            }
            exit(0);
        }
        start();
        exchange(30);
        if (generation == 1)
            exit(0);
    }
}

/* ---- cancelled, freed before it is complete, given its own memory ---- */

static void cancelled(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user)
{
    (void)request;
    (void)info;
    CHECK(status == UCS_ERR_CANCELED && user == &called);
    called++;
}

static void odd_ends(void)
{
    start();
    ucp_request_param_t p = recv_param;
    p.cb.recv = cancelled;
    p.user_data = &called;
    for (int i = 0; i < 10; i++) {
        void *r = ucp_tag_recv_nbx(b.worker, in, 100, 5, ~0ull, &p);
        CHECK(UCS_PTR_IS_PTR(r));
        ucp_request_cancel(b.worker, r);
        CHECK(wait_for(r) == UCS_ERR_CANCELED);
    }
    CHECK(called == 10);
    /* a rendezvous send, freed at once */
    called = 0;
    void *s = ucp_tag_send_nbx(a.ep, out, sizeof out, 6, &send_param);
    CHECK(UCS_PTR_IS_PTR(s));
    ucp_request_free(s);
    ucp_request_param_t none = {.op_attr_mask = 0};
    CHECK(wait_for(ucp_tag_recv_nbx(b.worker, in, sizeof in, 6, ~0ull, &none)) == UCS_OK);
    CHECK(wait_for(ucp_worker_flush_nbx(a.worker, &none)) == UCS_OK);
    CHECK(!called); /* the callback went with the request */
    /* in memory of the caller's: the nbr forms, and nbx */
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_REQUEST_SIZE};
    CHECK(ucp_context_query(context, &attr) == UCS_OK);
    char *memory = aligned_alloc(64, 4096);
    CHECK(attr.request_size < 4096);
    void *mine = memory + attr.request_size / 64 * 64 + 64; /* what UCX needs lies before it */
    for (int i = 0; i < 20; i++) {
        ucp_tag_recv_info_t info;
        CHECK(ucp_tag_recv_nbr(b.worker, in, 200, ucp_dt_make_contig(1), 7, ~0ull, mine) == UCS_OK);
        ucs_status_t status = UCS_INPROGRESS;
        if (i % 2)
            CHECK(wait_for(ucp_tag_send_nb(a.ep, out, 50 + i, ucp_dt_make_contig(1), 7, (ucp_send_callback_t)(void *)sent)) == UCS_OK);
        else
            CHECK(wait_for(ucp_tag_send_nbx(a.ep, out, 50 + i, 7, &none)) == UCS_OK);
        while ((status = ucp_tag_recv_request_test(mine, &info)) == UCS_INPROGRESS)
            progress();
        CHECK(status == UCS_OK && info.length == 50u + i && info.sender_tag == 7);
    }
    for (int i = 0; i < 20; i++) {
        void *r = ucp_tag_recv_nbx(b.worker, in, sizeof in, 8, ~0ull, &none);
        CHECK(UCS_PTR_IS_PTR(r));
        ucs_status_t status = ucp_tag_send_nbr(a.ep, out, i % 2 ? 10 : sizeof out, ucp_dt_make_contig(1), 8, mine);
        while (status == UCS_INPROGRESS) {
            progress();
            status = ucp_request_check_status(mine);
        }
        CHECK(status == UCS_OK && wait_for(r) == UCS_OK);
    }
    /* taken by a probe */
    ucp_tag_recv_info_t info;
    s = ucp_tag_send_nbx(a.ep, out, 100, 9, &send_param);
    ucp_tag_message_h message;
    while (!(message = ucp_tag_probe_nb(b.worker, 0, 0, 1, &info)))
        progress();
    CHECK(info.sender_tag == 9 && wait_for(ucp_tag_msg_recv_nbx(b.worker, in, 100, message, &recv_param)) == UCS_OK && wait_for(s) == UCS_OK);
    stop();
    expect("tag_send", 1 + 20 + 20 + 1);
    expect("tag_recv", 10 + 1 + 20 + 20 + 1);
    expect("received", sizeof in + 20 * 50 + 190 + 10 * sizeof out + 100 + 100);
    expect("failed", 10);
    expect("outstanding", 0);
    expect("untracked", 0);
}

/* ---- posting from callbacks, also from those that run inside a blocking call ---- */

static int left;
static unsigned handled, replied;

static void next(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user)
{
    (void)user;
    CHECK(status == UCS_OK && info->length == 100);
    ucp_request_free(request);
    if (--left > 0) { /* the next message, and the receive of it */
        void *s = ucp_tag_send_nbx(a.ep, out, 100, 3, &(ucp_request_param_t){.op_attr_mask = 0});
        CHECK(!UCS_PTR_IS_ERR(s));
        if (s)
            ucp_request_free(s);
        ucp_request_param_t p = recv_param;
        p.cb.recv = next;
        CHECK(UCS_PTR_IS_PTR(ucp_tag_recv_nbx(b.worker, in, 100, 3, ~0ull, &p)));
    }
}

static ucs_status_t am(void *arg, const void *header, size_t header_length, void *data, size_t length, const ucp_am_recv_param_t *param)
{
    (void)arg;
    (void)header;
    (void)header_length;
    (void)data;
    CHECK(length == 10);
    handled++;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) { /* by an endpoint that the program never made */
        void *s = ucp_am_send_nbx(param->reply_ep, 1, NULL, 0, out, 10, &(ucp_request_param_t){.op_attr_mask = 0});
        CHECK(!UCS_PTR_IS_ERR(s));
        if (s)
            ucp_request_free(s);
        replied++;
    }
    return UCS_OK;
}

static void flushed(void *request, ucs_status_t status)
{
    (void)request;
    CHECK(status == UCS_OK);
}

static void callbacks(void)
{
    make_context();
    make_worker(&a);
    make_worker(&b);
    connect_to(&a, &b); /* one way: b replies by what UCX gives it */
    left = 500;
    ucp_request_param_t none = {.op_attr_mask = 0}, p = recv_param;
    p.cb.recv = next;
    CHECK(UCS_PTR_IS_PTR(ucp_tag_recv_nbx(b.worker, in, 100, 3, ~0ull, &p)));
    CHECK(wait_for(ucp_tag_send_nbx(a.ep, out, 100, 3, &none)) == UCS_OK);
    while (left > 0)
        progress();
    ucp_am_handler_param_t h = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB, .id = 1, .cb = am};
    CHECK(ucp_worker_set_am_recv_handler(a.worker, &h) == UCS_OK && ucp_worker_set_am_recv_handler(b.worker, &h) == UCS_OK);
    ucp_request_param_t reply = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_AM_SEND_FLAG_REPLY};
    unsigned long flushes = 0;
    for (unsigned i = 0; i < 20; i++) {
        void *s = ucp_am_send_nbx(a.ep, 1, NULL, 0, out, 10, &reply);
        CHECK(!UCS_PTR_IS_ERR(s));
        while (handled < 2 * (i + 1)) {
            CHECK(wait_for(ucp_worker_flush_nbx(b.worker, &none)) == UCS_OK && wait_for(ucp_ep_flush_nb(a.ep, 0, flushed)) == UCS_OK);
            flushes += 2;
            progress();
        }
        wait_for(s);
    }
    CHECK(replied == 20);
    stop();
    expect("tag_send", 500);
    expect("tag_recv", 500);
    expect("am_send", 40);
    expect("am_send.bytes", 400);
    expect("source_0", 1); /* the endpoint for replies */
    expect("flush", flushes);
    expect("received", 50000);
    expect("outstanding", 0);
}

/* ---- client and server by socket address ---- */

static ucp_conn_request_h requested;
static void connected(ucp_conn_request_h r, void *arg)
{
    (void)arg;
    requested = r;
}

static void sockaddr(void)
{
    make_context();
    make_worker(&a);
    make_worker(&b);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ucp_listener_params_t listen = {.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
                                    .sockaddr = {(struct sockaddr *)&address, sizeof address},
                                    .conn_handler = {connected, NULL}};
    ucp_listener_h listener;
    CHECK(ucp_listener_create(b.worker, &listen, &listener) == UCS_OK);
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    CHECK(ucp_listener_query(listener, &attr) == UCS_OK);
    address.sin_port = ((struct sockaddr_in *)&attr.sockaddr)->sin_port;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                              .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .sockaddr = {(struct sockaddr *)&address, sizeof address}};
    CHECK(ucp_ep_create(a.worker, &params, &a.ep) == UCS_OK);
    while (!requested)
        progress();
    ucp_ep_params_t accept = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .conn_request = requested};
    CHECK(ucp_ep_create(b.worker, &accept, &b.ep) == UCS_OK);
    exchange(10);
    ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    wait_for(ucp_ep_close_nbx(a.ep, &force));
    wait_for(ucp_ep_close_nbx(b.ep, &force));
    ucp_listener_destroy(listener);
    ucp_worker_destroy(a.worker);
    ucp_worker_destroy(b.worker);
    ucp_cleanup(context);
    expect("tag_send", 10);
    expect("tag_recv", 10);
    expect("endpoints", 2);
    expect("ended", 2);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {
        {"threads", threads}, {"fork", fork_child}, {"odd_ends", odd_ends}, {"callbacks", callbacks}, {"sockaddr", sockaddr},
    };
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (argc == 2 && !strcmp(argv[1], scenarios[i].name)) {
            scenarios[i].run();
            return 0;
        }
    fprintf(stderr, "usage: real SCENARIO\n");
    return 2;
}
