/* Where the functions are that a program gets from dlvsym and dlsym. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    static const char *const asked[][2] = {
        {"ibv_open_device", "IBVERBS_1.0"}, {"ibv_open_device", "IBVERBS_1.1"}, {"ibv_open_device", NULL},
        {"ibv_create_qp", "IBVERBS_1.0"},   {"ibv_create_qp", "IBVERBS_1.1"},   {"ibv_reg_mr", "IBVERBS_1.0"},
        {"ibv_reg_mr", "IBVERBS_1.1"},      {"ibv_reg_mr_iova2", "IBVERBS_1.8"}, {"ibv_reg_dmabuf_mr", "IBVERBS_1.12"},
    };
    void *h = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    for (unsigned i = 0; h && i < sizeof asked / sizeof *asked; i++) {
        void *p = asked[i][1] ? dlvsym(h, asked[i][0], asked[i][1]) : dlsym(h, asked[i][0]);
        Dl_info info = {0};
        printf("%s %s %s\n", asked[i][0], asked[i][1] ? asked[i][1] : "default", p && dladdr(p, &info) ? info.dli_fname : "none");
    }
    return 0;
}
