/* client CASE: programs that do one thing each, for what the real programs do not do. Prints what it did, one `name value...` a line. */
#define _GNU_SOURCE
#include "../../clients/rc.h"

#include <dlfcn.h>
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_ah_attr self;
static char buffer[65536];

static void set_up(void)
{
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(list);
    CHECK((ctx = ibv_open_device(find_device(list, NULL))));
    ibv_free_device_list(list);
    CHECK((pd = ibv_alloc_pd(ctx)));
    CHECK((cq = ibv_create_cq(ctx, 1024, NULL, NULL, 0)));
    CHECK((mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)));
    address_of(ctx, 0, &self);
}

static struct ibv_qp *make(enum ibv_qp_type type, int extended, int signal_all)
{
    struct ibv_qp_init_attr_ex a = {.send_cq = cq, .recv_cq = cq, .cap = {64, 64, 3, 3, 64}, .qp_type = type, .sq_sig_all = signal_all, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd};
    if (extended) {
        a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        a.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | (type == IBV_QPT_UD ? 0 : IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ);
    }
    struct ibv_qp *qp = ibv_create_qp_ex(ctx, &a);
    CHECK(qp);
    return qp;
}

static void await(int n)
{
    struct ibv_wc wc;
    while (n) {
        int k = ibv_poll_cq(cq, 1, &wc);
        CHECK(k >= 0);
        if (k)
            CHECK(wc.status == IBV_WC_SUCCESS);
        n -= k;
    }
}

static void write_some(struct ibv_qp *qp, int n, uint32_t size)
{
    for (int i = 0; i < n; i++) {
        struct ibv_sge s = {(uintptr_t)buffer, size, mr->lkey};
        struct ibv_send_wr w = {.wr_id = (uint64_t)i, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
        w.wr.rdma.remote_addr = (uintptr_t)buffer + 32768;
        w.wr.rdma.rkey = mr->rkey;
        CHECK(!ibv_post_send(qp, &w, &bad));
        await(1);
    }
}

/* Every field has a value of its own. */
static void fields(void)
{
    struct ibv_qp *a = make(IBV_QPT_RC, 0, 0), *b = make(IBV_QPT_RC, 0, 1), *u = make(IBV_QPT_UD, 0, 0);
    connect_rc(a, b->qp_num, &self);
    connect_rc(b, a->qp_num, &self);
    start_ud(u);
    struct ibv_ah *ah = ibv_create_ah(pd, &self);
    CHECK(ah);
    printf("a %u\nb %u\nu %u\nbuffer %lu\nrkey %u\nlkey %u\nlid %u\n", a->qp_num, b->qp_num, u->qp_num, (unsigned long)(uintptr_t)buffer, mr->rkey, mr->lkey, self.dlid);

    struct ibv_sge in[2] = {{(uintptr_t)buffer + 40000, 100, mr->lkey}, {(uintptr_t)buffer + 41000, 3000, mr->lkey}};
    struct ibv_recv_wr second = {.wr_id = 71, .sg_list = in, .num_sge = 2}, first = {.wr_id = 70, .next = &second, .sg_list = in, .num_sge = 1}, *bad_recv;
    CHECK(!ibv_post_recv(b, &first, &bad_recv));

    struct ibv_sge s[3] = {{(uintptr_t)buffer + 1, 10, mr->lkey}, {(uintptr_t)buffer + 100, 20, mr->lkey}, {(uintptr_t)buffer + 1000, 30, mr->lkey}};
    struct ibv_send_wr w[3] = {
        {.wr_id = 0x1122334455667788, .next = &w[1], .sg_list = s, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htobe32(0xabcd1234), .send_flags = IBV_SEND_SOLICITED},
        {.wr_id = 2, .next = &w[2], .sg_list = s, .num_sge = 3, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_INLINE},
        {.wr_id = 3, .sg_list = s + 1, .num_sge = 1, .opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE},
    }, *bad;
    w[1].wr.rdma.remote_addr = (uintptr_t)buffer + 32768;
    w[1].wr.rdma.rkey = mr->rkey;
    s[1].length = 8;
    w[2].wr.atomic.remote_addr = (uintptr_t)buffer + 50000;
    w[2].wr.atomic.rkey = mr->rkey;
    w[2].wr.atomic.compare_add = 5;
    w[2].wr.atomic.swap = 6;
    CHECK(!ibv_post_send(a, w, &bad));
    await(2); /* b's receive and a's atomic */

    struct ibv_send_wr back = {.wr_id = 4, .sg_list = s, .num_sge = 1, .opcode = IBV_WR_RDMA_READ};
    back.wr.rdma.remote_addr = (uintptr_t)buffer + 32768;
    back.wr.rdma.rkey = mr->rkey;
    CHECK(!ibv_post_send(b, &back, &bad)); /* signaled by the queue pair */
    await(1);

    struct ibv_recv_wr r = {.wr_id = 72, .sg_list = in + 1, .num_sge = 1};
    CHECK(!ibv_post_recv(u, &r, &bad_recv));
    struct ibv_send_wr d = {.wr_id = 5, .sg_list = s, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    d.wr.ud.ah = ah;
    d.wr.ud.remote_qpn = u->qp_num;
    d.wr.ud.remote_qkey = UD_QKEY;
    CHECK(!ibv_post_send(u, &d, &bad));
    await(2);
    CHECK(!ibv_req_notify_cq(cq, 1));
    CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_qp(u));
    CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

/* Batches of two queue pairs open at once on one thread, one of them aborted, and a post through the table in the middle. */
static void interleaved(void)
{
    struct ibv_qp *q[3] = {make(IBV_QPT_RC, 1, 0), make(IBV_QPT_RC, 1, 0), make(IBV_QPT_RC, 0, 0)};
    for (int i = 0; i < 3; i++)
        connect_rc(q[i], q[i]->qp_num, &self);
    struct ibv_qp_ex *x = ibv_qp_to_qp_ex(q[0]), *y = ibv_qp_to_qp_ex(q[1]);
    CHECK(x && y);
    for (int round = 0; round < 10; round++) {
        struct ibv_sge s[2] = {{(uintptr_t)buffer, 100, mr->lkey}, {(uintptr_t)buffer, 11, mr->lkey}};
        ibv_wr_start(x);
        ibv_wr_start(y);
        for (int i = 0; i < 5; i++) {
            x->wr_id = y->wr_id = (uint64_t)i;
            x->wr_flags = y->wr_flags = IBV_SEND_SIGNALED;
            ibv_wr_rdma_write(x, mr->rkey, (uintptr_t)buffer + 32768);
            ibv_wr_rdma_read(y, mr->rkey, (uintptr_t)buffer + 32768);
            ibv_wr_set_sge(x, mr->lkey, (uintptr_t)buffer, 7);
            ibv_wr_set_sge_list(y, 2, s);
        }
        write_some(q[2], 1, 1000);
        if (round % 2) {
            ibv_wr_abort(x);
            CHECK(!ibv_wr_complete(y));
            await(5);
        } else {
            CHECK(!ibv_wr_complete(y));
            CHECK(!ibv_wr_complete(x));
            await(10);
        }
    }
}

/* A child forked by the library makes its own; one made by a raw system call, which runs no handlers, goes on with its parent's. (The
 * software HCA drops a process's queues in a handler.) */
static void forked(int raw)
{
    struct ibv_qp *qp = make(IBV_QPT_RC, 0, 0);
    connect_rc(qp, qp->qp_num, &self);
    write_some(qp, 10, 100);
    fflush(stdout);
    pid_t pid = raw ? (pid_t)syscall(SYS_fork) : fork();
    CHECK(pid >= 0);
    if (!pid) {
        if (!raw) {
            set_up();
            qp = make(IBV_QPT_RC, 0, 0);
            connect_rc(qp, qp->qp_num, &self);
        }
        write_some(qp, 5, 300);
        struct ibv_mr *again = ibv_reg_mr(pd, buffer, 4096, 0);
        CHECK(again && !ibv_dereg_mr(again));
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    write_some(qp, 10, 100);
    CHECK(!ibv_destroy_qp(qp));
}

/* A child that never communicates. */
static void forked_idle(void)
{
    struct ibv_qp *qp = make(IBV_QPT_RC, 0, 0);
    connect_rc(qp, qp->qp_num, &self);
    write_some(qp, 3, 10);
    pid_t pid = fork();
    if (!pid)
        _exit(0);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* Polls that find nothing, on two queues in turn; interrupted by a completion, by arming, and by the end of the queue. */
static void polls(void)
{
    struct ibv_wc wc;
    struct ibv_cq *other = ibv_create_cq(ctx, 16, NULL, NULL, 0);
    struct ibv_qp *qp = make(IBV_QPT_RC, 0, 0);
    unsigned long empty = 0, found = 0, elsewhere = 0;
    CHECK(other);
    connect_rc(qp, qp->qp_num, &self);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100; i++) {
            CHECK(!ibv_poll_cq(cq, 1, &wc));
            CHECK(!ibv_poll_cq(other, 1, &wc));
            empty++, elsewhere++;
        }
        struct ibv_sge s = {(uintptr_t)buffer, 64, mr->lkey};
        struct ibv_send_wr w = {.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
        w.wr.rdma.remote_addr = (uintptr_t)buffer + 32768;
        w.wr.rdma.rkey = mr->rkey;
        CHECK(!ibv_post_send(qp, &w, &bad));
        for (int n = 0; !n; found += (unsigned long)n, empty += !n)
            CHECK((n = ibv_poll_cq(cq, 4, &wc)) >= 0);
        CHECK(!ibv_poll_cq(cq, 0, &wc)); /* asks for nothing: no poll */
    }
    CHECK(!ibv_req_notify_cq(other, 0));
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(other) && !ibv_destroy_cq(cq));
    printf("empty %lu\nelsewhere %lu\nfound %lu\n", empty, elsewhere, found);
}

static int storm_size;

static void *storm_thread(void *arg)
{
    struct ibv_qp **q = calloc((size_t)storm_size, sizeof *q);
    CHECK(q);
    uint64_t target = (uintptr_t)buffer + 32768 + 64 * (uintptr_t)arg; /* a thread's own: two writes to one place are a race */
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < storm_size; i++) {
            q[i] = make(IBV_QPT_RC, i % 2, 0);
            connect_rc(q[i], q[i]->qp_num, &self);
            struct ibv_sge s = {(uintptr_t)buffer, 16, mr->lkey};
            struct ibv_send_wr w = {.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
            w.wr.rdma.remote_addr = target;
            w.wr.rdma.rkey = mr->rkey;
            struct ibv_qp_ex *x = i % 2 ? ibv_qp_to_qp_ex(q[i]) : NULL;
            if (x) {
                ibv_wr_start(x);
                ibv_wr_rdma_write(x, mr->rkey, target);
                ibv_wr_set_sge(x, mr->lkey, (uintptr_t)buffer, 16);
                CHECK(!ibv_wr_complete(x));
            } else {
                CHECK(!ibv_post_send(q[i], &w, &bad));
            }
        }
        for (int i = 0; i < storm_size; i++)
            CHECK(!ibv_destroy_qp(q[i]));
    }
    free(q);
    return NULL;
}

/* THREADS x SIZE queue pairs alive at once, twice, each with one write. */
static void storm(int threads, int size)
{
    pthread_t t[64];
    storm_size = size;
    for (int i = 0; i < threads; i++)
        CHECK(!pthread_create(&t[i], NULL, storm_thread, (void *)(uintptr_t)i));
    for (int i = 0; i < threads; i++)
        CHECK(!pthread_join(t[i], NULL));
}

static void blind(void)
{
    struct ibv_qp *qp = make(IBV_QPT_RC, 0, 0);
    struct mlx5dv_qp out = {0};
    struct mlx5dv_obj obj = {.qp = {.in = qp, .out = &out}};
    void *h = dlopen("libmlx5.so.1", RTLD_NOW);
    int (*init)(struct mlx5dv_obj *, uint64_t) = (int (*)(struct mlx5dv_obj *, uint64_t))dlvsym(h, "mlx5dv_init_obj", "MLX5_1.2");
    CHECK(init);
    printf("blind %u %d\n", qp->qp_num, init(&obj, MLX5DV_OBJ_QP));
}

/* Queue pairs and another object made by commands to the device. */
static void devx(void)
{
    void *h = dlopen("libmlx5.so.1", RTLD_NOW);
    struct mlx5dv_devx_obj *(*create)(struct ibv_context *, const void *, size_t, void *, size_t) =
        (struct mlx5dv_devx_obj * (*)(struct ibv_context *, const void *, size_t, void *, size_t)) dlvsym(h, "mlx5dv_devx_obj_create", "MLX5_1.7");
    int (*destroy)(struct mlx5dv_devx_obj *) = (int (*)(struct mlx5dv_devx_obj *))dlvsym(h, "mlx5dv_devx_obj_destroy", "MLX5_1.7");
    uint8_t in[272] = {0x05, 0x00}, out[16];
    CHECK(create && destroy);
    in[0x18 + 1] = 2; /* UD */
    struct mlx5dv_devx_obj *obj = create(ctx, in, sizeof in, out, sizeof out);
    CHECK(obj && !destroy(obj));
    in[0] = 0x04; /* a completion queue */
    CHECK((obj = create(ctx, in, sizeof in, out, sizeof out)) && !destroy(obj));
}

/* What every call leaves in errno, and returns. */
static void errnos(void)
{
#define SAY(call)                                                       \
    do {                                                                \
        errno = 77;                                                     \
        long rc_ = (long)(call);                                        \
        printf("%s: %ld errno %d\n", #call, rc_ > 4096 ? 1l : rc_, errno); \
    } while (0)
    struct ibv_wc wc;
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS};
    struct ibv_sge s = {(uintptr_t)buffer, 8, mr->lkey};
    struct ibv_send_wr w = {.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND}, many = {.sg_list = &s, .num_sge = 17}, *bad = NULL;
    struct ibv_recv_wr r = {.sg_list = &s, .num_sge = 17}, *bad_recv = NULL;
    struct ibv_qp *qp = make(IBV_QPT_RC, 0, 0);
    struct ibv_qp_init_attr_ex nonsense = {.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = pd, .qp_type = IBV_QPT_RC, .send_ops_flags = ~0ull};
    struct ibv_cq *other;
    struct ibv_pd *second;
    SAY(ibv_poll_cq(cq, 1, &wc));
    SAY(ibv_post_send(qp, &w, &bad)); /* not connected */
    SAY(bad == &w);
    SAY(ibv_modify_qp(qp, &a, IBV_QP_STATE)); /* a state too early */
    connect_rc(qp, qp->qp_num, &self);
    SAY(ibv_post_send(qp, NULL, &bad));
    SAY(ibv_post_send(qp, &many, &bad));
    SAY(ibv_post_recv(qp, &r, &bad_recv));
    SAY(bad_recv == &r);
    SAY(ibv_req_notify_cq(cq, 0));
    SAY(ibv_create_qp_ex(ctx, &nonsense));
    SAY(ibv_create_qp(pd, &(struct ibv_qp_init_attr){.qp_type = 99}));
    SAY(ibv_create_cq(ctx, -1, NULL, NULL, 0));
    SAY(other = ibv_create_cq(ctx, 16, NULL, NULL, 0));
    SAY(ibv_resize_cq(other, 32));
    SAY(ibv_destroy_cq(other));
    SAY(ibv_destroy_cq(cq)); /* in use */
    SAY(second = ibv_alloc_pd(ctx));
    SAY(ibv_dealloc_pd(second));
    SAY(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, 0));
    SAY(ibv_reg_mr(pd, buffer, 64, 0));
    SAY(ibv_destroy_qp(qp));
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    set_up();
    if (!strcmp(what, "fields"))
        fields();
    else if (!strcmp(what, "interleaved"))
        interleaved();
    else if (!strcmp(what, "forked"))
        forked(0);
    else if (!strcmp(what, "forked_raw"))
        forked(1);
    else if (!strcmp(what, "forked_idle"))
        forked_idle();
    else if (!strcmp(what, "storm"))
        storm(atoi(argv[2]), atoi(argv[3]));
    else if (!strcmp(what, "polls"))
        polls();
    else if (!strcmp(what, "blind"))
        blind();
    else if (!strcmp(what, "devx"))
        devx();
    else if (!strcmp(what, "errnos"))
        errnos();
    else
        return 2;
    return 0;
}
