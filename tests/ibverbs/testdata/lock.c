/* A forked child finds the registry's lock held by a thread that it does not have. With ibverbs_context.c alone. */
#define _GNU_SOURCE
#include "../../../preload/ibverbs.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int hook_post_send(struct ibv_qp *a, struct ibv_send_wr *b, struct ibv_send_wr **c) { return !a + !b + !c; }
int hook_post_recv(struct ibv_qp *a, struct ibv_recv_wr *b, struct ibv_recv_wr **c) { return !a + !b + !c; }
int hook_post_srq_recv(struct ibv_srq *a, struct ibv_recv_wr *b, struct ibv_recv_wr **c) { return !a + !b + !c; }
int hook_bind_mw(struct ibv_qp *a, struct ibv_mw *b, struct ibv_mw_bind *c) { return !a + !b + !c; }
int hook_poll_cq(struct ibv_cq *a, int b, struct ibv_wc *c) { return !a + !b + !c; }
int hook_req_notify_cq(struct ibv_cq *a, int b) { return !a + !b; }
struct ibv_qp *hook_create_qp_ex(struct ibv_context *a, struct ibv_qp_init_attr_ex *b) { return (void)a, (void)b, NULL; }
struct ibv_qp *hook_open_qp(struct ibv_context *a, struct ibv_qp_open_attr *b) { return (void)a, (void)b, NULL; }
struct ibv_cq_ex *hook_create_cq_ex(struct ibv_context *a, struct ibv_cq_init_attr_ex *b) { return (void)a, (void)b, NULL; }
struct ibv_srq *hook_create_srq_ex(struct ibv_context *a, struct ibv_srq_init_attr_ex *b) { return (void)a, (void)b, NULL; }
struct ibv_pd *hook_alloc_parent_domain(struct ibv_context *a, struct ibv_parent_domain_init_attr *b) { return (void)a, (void)b, NULL; }

static void *hold(void *arg)
{
    registry_lock();
    __atomic_store_n((int *)arg, 1, __ATOMIC_RELEASE);
    pause();
    return NULL;
}

int main(void)
{
    pthread_t t;
    int held = 0, status;
    pthread_create(&t, NULL, hold, &held);
    while (!__atomic_load_n(&held, __ATOMIC_ACQUIRE))
        usleep(100);
    pid_t pid = (pid_t)syscall(SYS_fork);
    if (!pid) {
        alarm(60);
        registry_lock();
        registry_unlock();
        registry_lock();
        _exit(0);
    }
    if (waitpid(pid, &status, 0) != pid || status) {
        printf("child: %x\n", status);
        return 1;
    }
    return 0;
}
