/*
 * The map of queues that programs fill and ring by themselves: what provider mlx5dv learns of them from DEVX commands, and provider cuda needs to see them
 * rung. Slow paths only; every function may be called by any thread, at any time.
 */
#ifndef ST_QUEUES_H
#define ST_QUEUES_H

#include "recorder.h"

/* A send queue in the program's memory. */
struct st_queue {
    const void *key;     /* what stands for it in the program; NULL: free */
    struct st_object *object; /* wiped in a forked child, and so is of no use there */
    uint32_t qpn, page;  /* page: number of its page of doorbells */
    uint64_t ring;       /* address of the first block of 64 bytes; 0: not known */
    uint32_t blocks;     /* a power of two */
    uint64_t record;     /* address of the doorbell record; 0: not known */
    bool ring_of_gpu, record_of_gpu; /* as their memory was when it was registered */
    bool dynamic;        /* dynamically connected: each element has an address vector */
    uint8_t device;      /* whose elements are in it: enum element_device */
    uint32_t index;      /* of the element behind the last one that was rung, as far as it was watched */
};

/* A page of doorbells: what a program may ring lies in size bytes from reg on. */
struct st_page {
    const void *key;
    uint64_t reg, size;
    uint32_t number;
    uint32_t times; /* that it was added */
};

enum { ST_DOORBELL_AREA = 0x200 }; /* two BlueFlame buffers of 256 bytes; programs that do not use them ring the first 8 bytes */

/* libmlx5 gives the same page to several who ask: it is there until it was given back as often. false: it was there already, or is so still. */
ST_PUBLIC bool st_page_add(const struct st_page *p);
ST_PUBLIC bool st_page_gone(const void *key);
ST_PUBLIC void st_memory_add(const void *key, uint64_t number, uint64_t address, uint64_t size, bool of_gpu);
ST_PUBLIC void st_memory_gone(const void *key);
/* Where an offset of a registered memory lies; 0: not known. of_gpu: what it was registered as. */
ST_PUBLIC uint64_t st_memory_at(uint64_t number, uint64_t offset, bool *of_gpu);
ST_PUBLIC void st_queue_add(const struct st_queue *q);
/* It is going to be gone; and it was, or the device has refused that. */
ST_PUBLIC void st_queue_ends(const void *key);
ST_PUBLIC void st_queue_gone(const void *key);
ST_PUBLIC void st_queue_stays(const void *key);
/* How far it was rung, for whoever watches it next. */
ST_PUBLIC void st_queue_seen(const void *key, uint32_t index);
/* Its next element is the first again. */
ST_PUBLIC void st_queue_reset(const void *key);
/* Copies what is known of it. false: nothing. */
ST_PUBLIC bool st_queue_by(const void *key, struct st_queue *out);

/* The page that an address lies in. false: none. */
ST_PUBLIC bool st_page_of(uint64_t address, struct st_page *out);
/* The queues of a page: at most n of them are copied; how many there are. */
ST_PUBLIC unsigned st_queues_of(uint32_t page, struct st_queue *out, unsigned n);

/* Called when a queue has come to a page, and before one goes: what was rung is still to be read then, and its ring must not be touched afterwards. NULL: nobody watches. */
enum st_queue_change { ST_QUEUE_COMES, ST_QUEUE_GOES };
extern ST_PUBLIC void (*_Atomic st_queue_changes)(uint32_t page, const void *key, enum st_queue_change change);
/* Called before a page goes, whether or not the program has taken it back from its driver. NULL: nobody watches. */
extern ST_PUBLIC void (*_Atomic st_page_goes)(uint64_t reg, uint64_t size);

#endif
