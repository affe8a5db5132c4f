/* A program that finds the provider's functions although no RDMA library is there: it must get a refusal, not a crash. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

int main(void)
{
    static const char *const names[] = {"ibv_open_device", "ibv_alloc_pd", "ibv_create_qp", "ibv_create_cq", "ibv_reg_mr", "mlx5dv_open_device", "efadv_create_cq"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        void *(*f)(void *, void *, void *, void *, void *) = (void *(*)(void *, void *, void *, void *, void *))dlsym(RTLD_DEFAULT, names[i]);
        errno = 0;
        void *p = f ? f(0, 0, 0, 0, 0) : (void *)1;
        printf("%s %p %d\n", names[i], p, errno == ENOSYS);
    }
    int (*close_device)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "ibv_close_device");
    printf("ibv_close_device %d\n", close_device ? close_device(0) == ENOSYS : -1);
    return 0;
}
