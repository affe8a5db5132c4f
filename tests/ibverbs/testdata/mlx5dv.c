/* Makes what a GPU's queues are made of, and says its numbers. mlx5dv linked|dlvsym|dlsym [gpu|hip], or resolve.
 *
 * Built with LINKED it is linked with libmlx5, as NVSHMEM is; else it opens it and looks its functions up, as NCCL does. gpu, hip: the memory is a GPU's. */
#define _GNU_SOURCE
#include <infiniband/mlx5dv.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS(X)                            \
    X(mlx5dv_is_supported, "MLX5_1.8")      \
    X(mlx5dv_init_obj, "MLX5_1.2")          \
    X(mlx5dv_create_qp, "MLX5_1.3")         \
    X(mlx5dv_devx_alloc_uar, "MLX5_1.7")    \
    X(mlx5dv_devx_free_uar, "MLX5_1.7")     \
    X(mlx5dv_devx_obj_create, "MLX5_1.7")   \
    X(mlx5dv_devx_obj_modify, "MLX5_1.7")   \
    X(mlx5dv_devx_obj_destroy, "MLX5_1.7")  \
    X(mlx5dv_devx_qp_modify, "MLX5_1.8")    \
    X(mlx5dv_devx_umem_reg, "MLX5_1.7")     \
    X(mlx5dv_devx_umem_reg_ex, "MLX5_1.19") \
    X(mlx5dv_devx_umem_dereg, "MLX5_1.7")
static struct {
#define X(name, version) __typeof__(name) *name;
    CALLS(X)
#undef X
} call;

#define CHECK(x)                                              \
    do {                                                      \
        if (!(x)) {                                           \
            fprintf(stderr, "line %d: %s\n", __LINE__, #x);   \
            exit(1);                                          \
        }                                                     \
    } while (0)

static void *library(void)
{
    void *h = dlopen("libmlx5.so", RTLD_NOW | RTLD_LOCAL);
    return h ? h : dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL);
}

static void find(const char *how)
{
#ifdef LINKED
    CHECK(!strcmp(how, "linked"));
#define X(name, version) call.name = name;
#else
    int versioned = !strcmp(how, "dlvsym");
    void *h = library();
    CHECK(h && (versioned || !strcmp(how, "dlsym")));
#define X(name, version) CHECK((call.name = (__typeof__(call.name))(versioned ? dlvsym(h, #name, version) : dlsym(h, #name))));
#endif
    CALLS(X)
#undef X
}

/* Which object each name is found in. */
static void resolve(void)
{
    static const char *const asked[][2] = {
        {"mlx5dv_init_obj", "MLX5_1.0"}, {"mlx5dv_init_obj", "MLX5_1.2"}, {"mlx5dv_init_obj", NULL}, {"mlx5dv_is_supported", "MLX5_1.8"}, {"mlx5dv_devx_umem_reg_ex", "MLX5_1.19"},
        {"mlx5dv_devx_umem_reg_ex", "MLX5_1.7"}, {"mlx5dv_reg_dmabuf_mr", "MLX5_1.25"}, {"mlx5dv_get_data_direct_sysfs_path", "MLX5_1.25"}, {"mlx5dv_reg_dmabuf_mr", NULL},
    };
    void *h = library();
    for (unsigned i = 0; h && i < sizeof asked / sizeof *asked; i++) {
        Dl_info info = {0};
        dlerror();
        void *p = asked[i][1] ? dlvsym(h, asked[i][0], asked[i][1]) : dlsym(h, asked[i][0]);
        const char *why = dlerror();
        printf("%s %s %s\n", asked[i][0], asked[i][1] ? asked[i][1] : "default", p && dladdr(p, &info) ? info.dli_fname : why && strstr(why, asked[i][0]) ? "missing" : "?");
    }
}

static void *hip_memory(size_t n)
{
    void *h = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL), *p = NULL;
#define HIP(name, ...) CHECK(!((int (*)())dlsym(h, #name))(__VA_ARGS__))
    CHECK(h);
    HIP(hipSetDevice, 1);
    HIP(hipMalloc, &p, n);
    return p;
}

static void *gpu_memory(size_t n)
{
    void *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context;
    int device;
    uint64_t p = 0;
#define CU(name, ...) CHECK(!((int (*)())dlsym(h, #name))(__VA_ARGS__))
    CHECK(h);
    CU(cuInit, 0);
    CU(cuDeviceGet, &device, 1);
    CU(cuDevicePrimaryCtxRetain, &context, device);
    CU(cuCtxPushCurrent_v2, context);
    CU(cuMemAlloc_v2, &p, n);
    printf("context %lu\n", (unsigned long)context);
    return (void *)p;
}

static void put(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (24 - 8 * i));
}
/* three bytes; what is before them is as it was */
static void put24(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 3; i++)
        p[i] = (uint8_t)(v >> (16 - 8 * i));
}
static uint32_t number(const uint8_t *out) { return (uint32_t)out[9] << 16 | (uint32_t)out[10] << 8 | out[11]; }

int main(int argc, char **argv)
{
    enum { CQC = 0x10, QPC = 0x18, SIZE = 65536 };
    static uint8_t memory[SIZE] __attribute__((aligned(4096)));
    uint8_t in[272] = {0x04, 0x00}, out[16];
    if (argc > 1 && !strcmp(argv[1], "resolve")) {
        resolve();
        return 0;
    }
    CHECK(argc > 1);
    find(argv[1]);
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && *list && call.mlx5dv_is_supported(*list));
    struct ibv_context *c = ibv_open_device(*list);
    struct ibv_pd *pd = ibv_alloc_pd(c);
    struct mlx5dv_pd number_of_pd = {0};
    struct mlx5dv_obj obj = {.pd = {pd, &number_of_pd}};
    CHECK(pd && !call.mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD));

    void *ring = argc > 2 ? !strcmp(argv[2], "hip") ? hip_memory(SIZE) : gpu_memory(SIZE) : memory;
    struct mlx5dv_devx_uar *uar = call.mlx5dv_devx_alloc_uar(c, MLX5DV_UAR_ALLOC_TYPE_NC);
    struct mlx5dv_devx_umem *rings = call.mlx5dv_devx_umem_reg(c, ring, SIZE, IBV_ACCESS_LOCAL_WRITE);
    struct mlx5dv_devx_umem_in m = {.addr = memory, .size = 4096, .access = IBV_ACCESS_LOCAL_WRITE};
    struct mlx5dv_devx_umem *records = call.mlx5dv_devx_umem_reg_ex(c, &m);
    CHECK(uar && rings && records);
    printf("uar %u\nbell %lu\nrings %u\nring %lu\nrecords %u\nrecord %lu\n", uar->page_id, (unsigned long)uar->reg_addr, rings->umem_id, (unsigned long)ring, records->umem_id, (unsigned long)memory);

    put(in + CQC + 4, records->umem_id);
    in[CQC + 0xc] = 7; /* 128 entries */
    put24(in + CQC + 0xd, uar->page_id);
    put(in + CQC + 0x3c, 64);
    put(in + 0x54, 8192);
    put(in + 0x58, rings->umem_id);
    in[0x5c] = 0x80;
    struct mlx5dv_devx_obj *cq = call.mlx5dv_devx_obj_create(c, in, sizeof in, out, sizeof out);
    CHECK(cq);
    uint32_t cqn = number(out);

    memset(in, 0, sizeof in);
    in[0] = 0x05;
    in[QPC + 2] = 0x18;
    put24(in + QPC + 5, number_of_pd.pdn);
    in[QPC + 0xa] = 5 << 3; /* 32 blocks */
    put24(in + QPC + 0xd, uar->page_id);
    put24(in + QPC + 0x7d, cqn);
    put(in + QPC + 0xa4, 128);
    in[QPC + 0xac] = 3;
    in[QPC + 0xd0] = 0x10;
    put(in + QPC + 0xe4, records->umem_id);
    put(in + 0x104, 4096);
    put(in + 0x108, rings->umem_id);
    in[0x10c] = 0x80;
    struct mlx5dv_devx_obj *qp = call.mlx5dv_devx_obj_create(c, in, sizeof in, out, sizeof out);
    CHECK(qp);
    uint32_t number_of_qp = number(out);
    printf("cqn %u\nqpn %u\n", cqn, number_of_qp);

    memset(in, 0, sizeof in);
    in[0] = 0x05, in[1] = 0x02;
    put24(in + 9, number_of_qp);
    in[QPC + 0x18 + 0x25] = 1;
    CHECK(!call.mlx5dv_devx_obj_modify(qp, in, sizeof in, out, sizeof out));

    struct ibv_cq *dct_cq = ibv_create_cq(c, 16, NULL, NULL, 0);
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &srq_attr);
    struct ibv_qp_init_attr_ex a = {.qp_type = IBV_QPT_DRIVER, .send_cq = dct_cq, .recv_cq = dct_cq, .srq = srq, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD};
    struct mlx5dv_qp_init_attr dc = {.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC, .dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = 1}};
    struct ibv_qp *dct = call.mlx5dv_create_qp(c, &a, &dc);
    CHECK(dct);
    printf("dct %u\n", dct->qp_num);

    /* one that verbs make and DEVX commands connect */
    struct ibv_qp_init_attr rc = {.qp_type = IBV_QPT_RC, .send_cq = dct_cq, .recv_cq = dct_cq, .cap = {16, 16, 1, 1, 0}};
    struct ibv_qp *connected = ibv_create_qp(pd, &rc);
    CHECK(connected);
    for (unsigned command = 2; command <= 4; command++) {
        memset(in, 0, sizeof in);
        in[0] = 0x05, in[1] = (uint8_t)command;
        put24(in + 9, connected->qp_num);
        in[QPC + 0x18 + 0x25] = 1;
        if (command == 3)
            put24(in + QPC + 0x15, number_of_qp);
        CHECK(!call.mlx5dv_devx_qp_modify(connected, in, sizeof in, out, sizeof out));
    }
    printf("connected %u\n", connected->qp_num);

    CHECK(!ibv_destroy_qp(connected) && !ibv_destroy_qp(dct) && !call.mlx5dv_devx_obj_destroy(qp) && !call.mlx5dv_devx_obj_destroy(cq));
    CHECK(!call.mlx5dv_devx_umem_dereg(rings) && !call.mlx5dv_devx_umem_dereg(records));
    call.mlx5dv_devx_free_uar(uar);
    CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(dct_cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(c));
    return 0;
}
