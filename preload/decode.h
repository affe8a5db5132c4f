/*
 * Reading work queue elements: what a program or a kernel has written into a queue of a device. Nothing here trusts a byte of it, and nothing needs the
 * recorder: a row of the table for each kind of device.
 */
#ifndef ST_DECODE_H
#define ST_DECODE_H

#include "queues.h"

enum { ELEMENT_BLOCK = 64, ELEMENT_MOST = 1024, ELEMENT_VECTOR = 48, ELEMENT_REST = 256 };

struct element {
    unsigned event, opcode, flags, sges;
    uint64_t bytes, local, remote, form;
    uint32_t local_key, remote_key, immediate;
    bool addressed;    /* it names its receiver */
    uint32_t qpn;      /* of that */
    uint64_t access;   /* its access key */
    uint32_t lid;
    bool global;       /* reached by the GID at gid, not by lid */
    unsigned vector_size, gid;
    uint8_t vector[ELEMENT_VECTOR]; /* how it is addressed, as in the element, without its key */
};

struct decoder {
    /* How many blocks the element at head takes, which must be the one of that index; 0: it is not. */
    unsigned (*blocks)(const struct st_queue *q, uint32_t index, const uint8_t *head);
    /* Reads the element in the first n bytes of raw, and makes keys in it zero. Returns its size, at most n. */
    unsigned (*read)(const struct st_queue *q, uint8_t *raw, unsigned n, struct element *e);
    /* Writes what the fields say of an element into raw, which is all zero. */
    void (*build)(const struct st_queue *q, uint32_t index, const struct element *e, uint8_t *raw, unsigned size);
};

extern const struct decoder decoder_mlx5, decoder_efa;

/* By st_queue's device. */
const struct decoder *decoder_of(const struct st_queue *q);

/* Where the element in raw differs from what was built: runs of bytes, each with the distance from the last one's end and its length before it, as
 * varints. Returns their size; over ELEMENT_REST: they are cut there. */
unsigned element_rest(const uint8_t *raw, const uint8_t *built, unsigned size, uint8_t rest[ELEMENT_REST]);

#endif
