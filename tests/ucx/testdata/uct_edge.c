/* uct_edge SCENARIO: what transports do seldom, or on hardware only, over the fake libuct. Prints what the capture must hold, one
 * `name value` a line. */
#define _GNU_SOURCE
#include "fake_uct.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x)                                                              \
    do {                                                                      \
        if (!(x)) {                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x);   \
            abort();                                                          \
        }                                                                     \
    } while (0)

static uct_iface_h iface;
static uct_ep_h ep;
static char data[4096];

static void expect(const char *name, unsigned long value) { printf("%s %lu\n", name, value); }

static uct_iface_h opened(const char *transport)
{
    uct_iface_params_t p = {.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE, .open_mode = UCT_IFACE_OPEN_MODE_DEVICE};
    p.mode.device.tl_name = transport;
    p.mode.device.dev_name = "nic0:1";
    uct_iface_h i;
    CHECK(uct_iface_open(NULL, NULL, &p, NULL, &i) == UCS_OK);
    return i;
}

static uct_ep_h made(uct_iface_h i)
{
    uct_ep_params_t p = {.field_mask = UCT_EP_PARAM_FIELD_IFACE, .iface = i};
    uct_ep_h e;
    CHECK(uct_ep_create(&p, &e) == UCS_OK && e->iface == i);
    return e;
}

static void start(void)
{
    iface = opened("fake");
    ep = made(iface);
}

static void stop(void)
{
    fake.destroyed = fake.closed = 0;
    uct_ep_destroy(ep);
    uct_iface_close(iface);
    CHECK(fake.destroyed == 1 && fake.closed == 1);
}

/* ---- forms: every function, with every result; all goes through as it is ---- */

static size_t pack(void *to, void *arg)
{
    memset(to, 1, 300);
    CHECK(arg == data);
    return 300;
}
static void unpack(void *arg, const void *from, size_t length) { (void)arg, (void)from, (void)length; }

static int ends;
static ucs_status_t ended;
static void end(uct_completion_t *c)
{
    ends++;
    ended = c->status;
}
static uct_completion_t comp;

static ucs_status_t results[] = {UCS_OK, UCS_INPROGRESS, UCS_ERR_NO_RESOURCE, UCS_ERR_CONNECTION_RESET};
static ucs_status_t packed(ssize_t n) { return n == 300 ? UCS_OK : (ucs_status_t)n; }

/* Makes a call that is to get these arguments, for each result; form: what completes it. */
enum { NOW, PACKS, COMPLETES, RECEIVES };
#define ARGS(...)                                                                                                             \
    do {                                                                                                                      \
        const uint64_t want_[8] = {__VA_ARGS__};                                                                              \
        CHECK(!memcmp(want_, fake.args, sizeof want_));                                                                       \
    } while (0)
#define P(x) (uint64_t)(uintptr_t)(x)
#define TRY(form, call, ...)                                                                                                  \
    for (int k_ = 0; k_ < 4; k_++) {                                                                                          \
        fake.status = results[k_];                                                                                            \
        if (fake.status == UCS_INPROGRESS && form != COMPLETES)                                             \
            continue;                                                                                                         \
        comp = (uct_completion_t){end, 1, UCS_OK};                                                                            \
        ends = 0;                                                                                                             \
        int before_ = fake.calls;                                                                                             \
        errno = 77;                                                                                                           \
        ucs_status_t got_ = form == PACKS ? packed((ssize_t)(intptr_t)(call)) : (ucs_status_t)(intptr_t)(call);               \
        CHECK(errno == 77 && fake.calls == before_ + 1);                                                                      \
        ARGS(__VA_ARGS__);                                                                                                    \
        CHECK(got_ == fake.status && fake.given == (form == COMPLETES) && !ends && comp.count == 1);                          \
        if (fake.status == UCS_INPROGRESS) {                                                                                  \
            CHECK(fake_complete(ep, UCS_ERR_ENDPOINT_TIMEOUT));                                                               \
            CHECK(ends == 1 && ended == UCS_ERR_ENDPOINT_TIMEOUT && comp.count == 0);                                         \
        }                                                                                                                     \
        CHECK(!fake_complete(ep, UCS_OK));                                                                                    \
    }

static void forms(void)
{
    const uct_iov_t v[2] = {{data, 100, NULL, 0, 1}, {data + 200, 50, NULL, 64, 3}}; /* 250 bytes */
    uint64_t r64;
    uint32_t r32;
    uct_tag_context_t context;
    start();
    TRY(NOW, uct_ep_put_short(ep, data, 64, 0x1000, 7), P(data), 64, 0x1000, 7);
    TRY(PACKS, uct_ep_put_bcopy(ep, pack, data, 0x1000, 7), P(pack), P(data), 0x1000, 7);
    TRY(COMPLETES, uct_ep_put_zcopy(ep, v, 2, 0x1000, 7, &comp), P(v), 2, 0x1000, 7);
    expect("uct_put", 4); /* short and packed: done; zcopy: done and pending */
    expect("uct_put.bytes", 64 + 300 + 2 * 250);
    TRY(NOW, uct_ep_get_short(ep, data, 64, 0x1000, 7), P(data), 64, 0x1000, 7);
    TRY(COMPLETES, uct_ep_get_bcopy(ep, unpack, data, 500, 0x1000, 7, &comp), P(unpack), P(data), 500, 0x1000, 7);
    TRY(COMPLETES, uct_ep_get_zcopy(ep, v, 2, 0x1000, 7, &comp), P(v), 2, 0x1000, 7);
    TRY(NOW, uct_ep_am_short(ep, 9, 0x55aa, data, 64), 9, 0x55aa, P(data), 64);
    TRY(NOW, uct_ep_am_short_iov(ep, 9, v, 2), 9, P(v), 2);
    TRY(PACKS, uct_ep_am_bcopy(ep, 9, pack, data, 3), 9, P(pack), P(data), 3);
    TRY(COMPLETES, uct_ep_am_zcopy(ep, 9, data, 20, v, 2, 3, &comp), 9, P(data), 20, P(v), 2, 3);
    expect("uct_am_send", 5);
    expect("uct_am_send.bytes", 72 + 250 + 300 + 2 * 270);
    TRY(COMPLETES, uct_ep_atomic_cswap64(ep, 1, 2, 0x1000, 7, &r64, &comp), 1, 2, 0x1000, 7, P(&r64));
    TRY(COMPLETES, uct_ep_atomic_cswap32(ep, 1, 2, 0x1000, 7, &r32, &comp), 1, 2, 0x1000, 7, P(&r32));
    TRY(NOW, uct_ep_atomic32_post(ep, UCT_ATOMIC_OP_OR, 5, 0x1000, 7), UCT_ATOMIC_OP_OR, 5, 0x1000, 7);
    TRY(NOW, uct_ep_atomic64_post(ep, UCT_ATOMIC_OP_OR, 5, 0x1000, 7), UCT_ATOMIC_OP_OR, 5, 0x1000, 7);
    TRY(COMPLETES, uct_ep_atomic32_fetch(ep, UCT_ATOMIC_OP_OR, 5, &r32, 0x1000, 7, &comp), UCT_ATOMIC_OP_OR, 5, P(&r32), 0x1000, 7);
    TRY(COMPLETES, uct_ep_atomic64_fetch(ep, UCT_ATOMIC_OP_OR, 5, &r64, 0x1000, 7, &comp), UCT_ATOMIC_OP_OR, 5, P(&r64), 0x1000, 7);
    expect("uct_atomic", 10);
    expect("uct_atomic.bytes", 5 * 4 + 5 * 8);
    TRY(NOW, uct_ep_tag_eager_short(ep, 0x99, data, 64), 0x99, P(data), 64);
    TRY(PACKS, uct_ep_tag_eager_bcopy(ep, 0x99, 6, pack, data, 3), 0x99, 6, P(pack), P(data), 3);
    TRY(COMPLETES, uct_ep_tag_eager_zcopy(ep, 0x99, 6, v, 2, 3, &comp), 0x99, 6, P(v), 2, 3);
    TRY(NOW, uct_ep_tag_rndv_request(ep, 0x99, data, 40, 3), 0x99, P(data), 40, 3);
    fake.status = UCS_INPROGRESS;
    comp = (uct_completion_t){end, 1, UCS_OK};
    CHECK(uct_ep_tag_rndv_zcopy(ep, 0x99, data, 20, v, 2, 3, &comp) == (void *)ep && fake.given);
    ARGS(0x99, P(data), 20, P(v), 2, 3);
    ends = 0;
    CHECK(fake_complete(ep, UCS_OK) && ends == 1 && ended == UCS_OK);
    fake.status = UCS_ERR_NO_RESOURCE;
    CHECK(uct_ep_tag_rndv_zcopy(ep, 0x99, data, 20, v, 2, 3, &comp) == UCS_STATUS_PTR(UCS_ERR_NO_RESOURCE));
    expect("uct_tag_send", 6);
    expect("uct_tag_send.bytes", 64 + 300 + 2 * 250 + 40 + 270);
    TRY(RECEIVES, uct_iface_tag_recv_zcopy(iface, 0x99, 0xff, v, 2, &context), 0x99, 0xff, P(v), 2, P(&context));
    expect("uct_tag_recv", 1);
    expect("uct_tag_recv.bytes", 250);
    TRY(COMPLETES, uct_ep_flush(ep, 4, &comp), 4);
    TRY(NOW, uct_ep_fence(ep, 4), 4);
    fake.status = UCS_INPROGRESS; /* asked for until it is done */
    for (int i = 0; i < 10; i++)
        CHECK(uct_iface_flush(iface, 4, NULL) == UCS_INPROGRESS && !fake.given);
    fake.status = UCS_OK;
    CHECK(uct_iface_flush(iface, 4, NULL) == UCS_OK);
    expect("uct_flush", 4);
    /* without a completion, in progress: the next flush completes it */
    fake.status = UCS_INPROGRESS;
    CHECK(uct_ep_get_bcopy(ep, unpack, data, 500, 0x1000, 7, NULL) == UCS_INPROGRESS && !fake.given);
    expect("uct_get", 6);
    expect("uct_get.bytes", 64 + 3 * 500 + 2 * 250);
    expect("uct_implicit", 1);
    expect("uct_pending", 11);
    expect("uct_completions", 11);
    expect("uct_failed", 10); /* all but the rendezvous */
    expect("uct_untracked", 1);
    expect("uct_interface fake/nic0:1", 1);
    stop();
    expect("uct_lanes", 1);
    expect("uct_lanes_ended", 1);
}

/* ---- early: the completion comes before the call has returned ---- */

static void complete_now(uct_completion_t *c)
{
    if (c)
        CHECK(fake_complete(ep, UCS_OK));
}

static void early(void)
{
    const uct_iov_t v = {data, 100, NULL, 0, 1};
    start();
    fake.status = UCS_INPROGRESS;
    fake.within = complete_now;
    for (int i = 0; i < 100; i++) {
        comp = (uct_completion_t){end, 2, UCS_OK}; /* one of two */
        ends = 0;
        CHECK(uct_ep_put_zcopy(ep, &v, 1, 0, 0, &comp) == UCS_INPROGRESS && comp.count == 1 && !ends);
    }
    fake.within = NULL;
    expect("uct_put", 100);
    expect("uct_pending", 100);
    expect("uct_completions", 100);
    stop();
}

/* ---- shared: many operations count down one completion, whose status is that of the first that failed ---- */

static void shared(void)
{
    const uct_iov_t v = {data, 100, NULL, 0, 1};
    start();
    fake.status = UCS_INPROGRESS;
    comp = (uct_completion_t){end, 101, UCS_OK};
    ends = 0;
    for (int i = 0; i < 100; i++)
        CHECK(uct_ep_get_zcopy(ep, &v, 1, 0, 0, &comp) == UCS_INPROGRESS);
    for (int i = 0; i < 100; i++) {
        CHECK(fake_complete(ep, i == 50 ? UCS_ERR_IO_ERROR : i == 60 ? UCS_ERR_TIMED_OUT : UCS_OK));
        CHECK(!ends && comp.count == 100 - i && comp.status == (i < 50 ? UCS_OK : UCS_ERR_IO_ERROR));
    }
    uct_completion_update_status(&comp, UCS_OK);
    expect("uct_completions", 100);
    expect("uct_failed", 2);
    stop();
}

/* ---- full: more operations outstanding than there are slots ---- */

static void full(void)
{
    enum { N = 20000 };
    const uct_iov_t v = {data, 1, NULL, 0, 1};
    start();
    fake.status = UCS_INPROGRESS;
    for (int round = 0; round < 2; round++) {
        comp = (uct_completion_t){end, N, UCS_OK};
        ends = 0;
        for (int i = 0; i < N; i++)
            CHECK(uct_ep_put_zcopy(ep, &v, 1, 0, 0, &comp) == UCS_INPROGRESS);
        for (int i = 0; i < N; i++)
            CHECK(!ends && fake_complete(ep, UCS_OK));
        CHECK(ends == 1 && comp.count == 0);
    }
    expect("uct_put", 2 * N);
    expect("uct_pending", 2 * 16383);
    expect("uct_completions", 2 * 16383);
    expect("uct_untracked", 2 * (N - 16383));
    stop();
}

/* ---- closed: what never completes gives its slots back with its interface ---- */

static void closed(void)
{
    const uct_iov_t v = {data, 1, NULL, 0, 1};
    for (int i = 0; i < 5; i++) {
        start();
        fake.status = UCS_INPROGRESS;
        comp = (uct_completion_t){end, 10001, UCS_OK};
        for (int k = 0; k < 10000; k++)
            CHECK(uct_ep_put_zcopy(ep, &v, 1, 0, 0, &comp) == UCS_INPROGRESS);
        uct_iface_close(iface);
        free(ep);
    }
    expect("uct_pending", 50000);
    expect("uct_completions", 0);
    expect("uct_untracked", 0);
}

/* ---- nested: a transport hands a message to its receiver at once, which answers on the way ---- */

static int answers;
static void answer(uct_completion_t *c)
{
    (void)c;
    fake.within = NULL;
    answers++;
    CHECK(uct_ep_am_short(ep, 2, 0, data, 8) == UCS_OK);
}

static void nested(void)
{
    start();
    for (int i = 0; i < 10; i++) {
        fake.within = answer;
        CHECK(uct_ep_am_short(ep, 1, 0, data, 56) == UCS_OK);
    }
    CHECK(answers == 10);
    expect("uct_am_send", 20);
    expect("uct_am_send.bytes", 10 * (64 + 16));
    stop();
}

/* ---- general: am_short_iov of UCT itself, which calls am_short of the table ---- */

static void general(void)
{
    const uct_iov_t v = {data, 100, NULL, 0, 1};
    iface = opened("general");
    ep = made(iface);
    CHECK(uct_ep_am_short_iov(ep, 3, &v, 1) == UCS_OK && fake.calls == 1);
    expect("uct_am_send", 1);
    expect("uct_am_send.bytes", 100);
    stop();
}

/* ---- reopened: addresses come again; many interfaces at a time ---- */

static void reopened(void)
{
    enum { AT_ONCE = 500, ROUNDS = 20 };
    static uct_iface_h i[AT_ONCE];
    static uct_ep_h e[AT_ONCE];
    for (int round = 0; round < ROUNDS; round++) {
        for (int k = 0; k < AT_ONCE; k++)
            i[k] = opened("fake");
        for (int k = 0; k < AT_ONCE; k += 50)
            e[k] = made(i[k]);
        for (int k = 0; k < AT_ONCE; k += 50)
            CHECK(uct_ep_put_short(e[k], data, 8, 0, 0) == UCS_OK);
        for (int k = 0; k < AT_ONCE; k += 50)
            uct_ep_destroy(e[k]);
        for (int k = 0; k < AT_ONCE; k++)
            uct_iface_close(i[round % 2 ? k : AT_ONCE - 1 - k]);
    }
    expect("uct_put", ROUNDS * AT_ONCE / 50);
    expect("uct_lanes_ended", ROUNDS * AT_ONCE / 50);
    expect("uct_off", 0);
}

/* ---- many: more interfaces than the table has room for ---- */

static void many(void)
{
    enum { N = 3200 };
    static uct_iface_h i[N];
    for (int k = 0; k < N; k++)
        i[k] = opened("fake");
    for (int k = 0; k < N; k++) {
        uct_ep_h e = made(i[k]);
        CHECK(uct_ep_put_short(e, data, 8, 0, 0) == UCS_OK);
        CHECK((i[k]->ops.ep_put_short == fake_ops(i[k])->ep_put_short) == (k >= 3072 || !getenv("SIGMATRACE_CONFIG")));
        uct_ep_destroy(e);
    }
    for (int k = 0; k < N; k++)
        uct_iface_close(i[k]);
    expect("uct_put", 3072);
    expect("uct_off", 1);
}

/* ---- unknown: a version whose table is not known is left alone ---- */

static void unknown(void)
{
    const unsigned versions[][3] = {{1, 99, 0}, {2, 13, 1}, {1, 10, 0}};
    for (int k = 0; k < 3; k++) {
        memcpy(fake.version, versions[k], sizeof fake.version);
        iface = opened("fake");
        CHECK(!memcmp(&iface->ops, fake_ops(iface), sizeof iface->ops));
        ep = made(iface);
        CHECK(uct_ep_put_short(ep, data, 8, 0, 0) == UCS_OK);
        stop();
    }
    expect("processes", 1);
    expect("uct_put", 0);
    expect("uct_off", 1);
    expect("uct_off 1.99.0: function table of this version is not known", 1);
}

/* ---- fork: the child completes what its parent began, and records its own ---- */

static void forked(void)
{
    const uct_iov_t v = {data, 100, NULL, 0, 1};
    start();
    fake.status = UCS_INPROGRESS;
    comp = (uct_completion_t){end, 1, UCS_OK};
    CHECK(uct_ep_put_zcopy(ep, &v, 1, 0, 0, &comp) == UCS_INPROGRESS);
    fflush(stdout);
    pid_t child = fork();
    ends = 0;
    CHECK(fake_complete(ep, UCS_OK) && ends == 1);
    fake.status = UCS_OK;
    CHECK(uct_ep_put_short(ep, data, 8, 0, 0) == UCS_OK);
    if (!child) {
        stop();
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    expect("processes", 2);
    expect("uct_put", 3);
    expect("uct_completions", 1);
    stop();
}

/* ---- threads: interfaces come and go beside others that are in use ---- */

static void *user(void *arg)
{
    const uct_iov_t v = {data, 100, NULL, 0, 1};
    for (int round = 0; round < 20; round++) {
        uct_iface_h i = opened("fake");
        uct_ep_h e = made(i);
        for (int k = 0; k < 200; k++) {
            uct_completion_t c = {end, 2, UCS_OK};
            fake.status = UCS_OK;
            CHECK(uct_ep_put_short(e, data, 8, 0, 0) == UCS_OK);
            fake.status = UCS_INPROGRESS;
            CHECK(uct_ep_put_zcopy(e, &v, 1, 0, 0, &c) == UCS_INPROGRESS);
            CHECK(fake_complete(e, UCS_OK) && c.count == 1);
        }
        uct_ep_destroy(e);
        uct_iface_close(i);
    }
    return arg;
}

static void threads(void)
{
    pthread_t t[4];
    for (int k = 0; k < 4; k++)
        CHECK(!pthread_create(&t[k], NULL, user, NULL));
    for (int k = 0; k < 4; k++)
        CHECK(!pthread_join(t[k], NULL));
    expect("uct_put", 4 * 20 * 400);
    expect("uct_put.bytes", 4 * 20 * 200 * 108);
    expect("uct_completions", 4 * 20 * 200);
    expect("uct_lanes_ended", 80);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"forms", forms}, {"early", early}, {"shared", shared}, {"full", full}, {"closed", closed}, {"nested", nested}, {"general", general},
               {"reopened", reopened}, {"many", many}, {"unknown", unknown}, {"fork", forked}, {"threads", threads}};
    for (size_t i = 0; argc == 2 && i < sizeof all / sizeof *all; i++)
        if (!strcmp(argv[1], all[i].name)) {
            all[i].run();
            return 0;
        }
    fprintf(stderr, "usage: uct_edge SCENARIO\n");
    return 2;
}
