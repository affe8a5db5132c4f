/* What provider mlx5dv uses of this one: verbs.h. */
#include "ibverbs.h"

static struct ibv_qp *extended_qp_made(struct st_thread *t, struct ibv_qp *qp, const struct ibv_qp_init_attr_ex *a) { return qp_ex_made(t, qp, a, 0); }
static struct st_object *queue_pair(struct ibv_qp *qp) { return qp_of(qp); }

const struct st_verbs st_verbs = {
    .opening = context_opening,
    .opened = context_opened,
    .cq_made = cq_ex_made,
    .qp_made = extended_qp_made,
    .device = device_of,
    .queue_pair = queue_pair,
    .make = make_object,
    .gone = object_gone,
    .change = define_qp_change,
    .gpu_of = gpu_of,
};
