/*
 * What provider ibverbs lends provider mlx5dv: its objects, and the patching of what a program opens and makes. A table and not functions, so that the two may be objects of their own
 * that are loaded in any order, and so that mlx5dv sees when ibverbs is not there: then it hands every call through and records nothing.
 *
 * Both are of one build, as the recorder and its providers are. Nothing else of ibverbs is used from outside of it.
 */
#ifndef ST_VERBS_H
#define ST_VERBS_H

#include "gpu_of.h"
#include "recorder.h"

#include <infiniband/verbs.h>

struct st_verbs {
    /* Around a call that opens a device: the outermost patches its tables. function: the library's, which is kept loaded. Outside of st_enter. */
    void (*opening)(void);
    struct ibv_context *(*opened)(struct ibv_context *c, void *function);
    /* After a call that makes a queue (NULL: refused): patched, defined, and the hook is left where t is not NULL. What the program gets. */
    struct ibv_cq_ex *(*cq_made)(struct st_thread *t, struct ibv_cq_ex *cq);
    struct ibv_qp *(*qp_made)(struct st_thread *t, struct ibv_qp *qp, const struct ibv_qp_init_attr_ex *attr);
    /* The rest: inside of st_enter, after the real call; errno is kept. Objects may be st_unknown, of id 0. */
    struct st_object *(*device)(struct ibv_context *c);
    struct st_object *(*queue_pair)(struct ibv_qp *qp);
    /* An object for what is in the device only; key: what stands for it in the program. And its end, where it is still the one of that id (no st_enter needed). */
    struct st_object *(*make)(enum st_kind kind, const void *key);
    void (*gone)(enum st_kind kind, const void *key, uint32_t id);
    /* A queue pair's state has changed as ibv_modify_qp would have changed it. */
    void (*change)(struct st_object *queue_pair, const struct ibv_qp_attr *a, unsigned mask);
    /* gpu_of.h; needs no st_enter. */
    bool (*gpu_of)(const void *p, struct gpu *out);
};
extern ST_PUBLIC const struct st_verbs st_verbs;

#endif
