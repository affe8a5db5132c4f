/*
 * Records what is in a ring, as provider cuda does when a queue was rung: `client DEVICE DYNAMIC QPN BLOCKS FROM TO`, the ring's bytes from the standard
 * input. The queue pair is its first object.
 */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    uint32_t n[6];
    for (int i = 0; i < 6; i++)
        n[i] = i + 1 < argc ? (uint32_t)strtoul(argv[i + 1], NULL, 0) : 0;
    struct st_queue q = {.device = (uint8_t)n[0], .dynamic = n[1], .qpn = n[2], .blocks = n[3]};
    uint8_t *ring = malloc((size_t)q.blocks * 64); /* as much as there is, for the sanitizer */
    if (!ring || fread(ring, 64, q.blocks, stdin) != q.blocks)
        return 1;
    struct st_thread *t = st_enter(ST_LAYER_DOORBELL);
    if (!t)
        return 2;
    q.object = st_object_new(ST_KIND_QP, 1);
    st_def_verbs_qp(q.object->id, 0, 0, q.qpn, q.dynamic ? 255 : 2, 0, 0, 0, 0, q.blocks, 0, 0);
    st_def_doorbell_queue(q.object->id, 0, q.blocks, 0, q.device, 0);
    decode(t, st_clock(), &q, ring, n[4], n[5]);
    st_leave(t, ST_LAYER_DOORBELL);
    free(ring);
    return 0;
}
