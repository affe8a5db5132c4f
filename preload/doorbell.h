/*
 * Doorbells that kernels ring. A kernel gets the address of a page of ours in the place of the device's register. One thread looks at the pages (doorbell.c): it stamps what
 * it finds and passes it on to the register, and calls no driver, which may make its callers wait for kernels that wait for the doorbell. Another (doorbell_copy.c) copies and
 * decodes the elements that were rung for. It only runs behind: a doorbell that leaves more elements to be copied than the threshold waits for it, since a ring
 * that goes on may overwrite them; but not for ever.
 *
 * A register is what is rung at, and several may be of one page of the device's, whose queues may ring at any of them: one of its registers, their home, has the queues of all.
 *
 * Locks: bell_take() for the registers and their queues. One that was taken out of its list stays as it is until the copying thread has gone on (copier_passed).
 */
#ifndef ST_DOORBELL_H
#define ST_DOORBELL_H

#include "cuda.h"
#include "spin.h"

enum { BELL_PAGES = 1024, BELL_AREAS = 2, BELL_AREA = 0x100, BELL_BLOCK = 64, BELL_MAX_BLOCKS = 32768, BELL_STREAMS = 4 };

/* A doorbell whose elements are to be decoded: those from index `from` to `to`. */
struct rung {
    uint32_t from, to;
    uint64_t at;
};

struct bell_queue {
    struct bell_queue *next; /* of its page */
    struct bell_queue *next_left;
    struct st_queue q;
    bool read;         /* its elements can be read */
    bool gone;         /* they could, but their memory was given back: what was not begun to be copied is lost */
    bool pinned;       /* blocks, so that a driver copies into them by itself */
    bool failed;       /* a copy of those under way could not be started */
    bool record_known; /* its doorbell record can be read */
    void *context, *stream; /* of the GPU's memory that the ring is in; NULL: the host's */
    void *record_context, *record_stream;
    size_t size;       /* of all this */
    uint32_t threshold;
    uint32_t index;    /* behind the last element that was rung */
    bool overtaken;    /* some were written over before they were copied: it leaves less free than the threshold, so each doorbell waits for its copies from then on */
    bool late;         /* it was waited for in vain when copied was late_at */
    uint32_t late_at;
    uint32_t rungs_in; /* doorbells in `rungs`, counted from the beginning; whoever has the lock adds */
    uint32_t started;  /* those whose copies have been started */
    uint32_t rungs_out; /* those that are done with */
    uint32_t marked;    /* those that a launch waits for */
    uint32_t urgent;    /* those whose elements wait for no others to be copied with */
    uint64_t put_off;   /* since when the elements wait for others, us; 0: none do */
    uint64_t skipped;  /* elements that could not be kept to be copied: they are lost */
    uint8_t record[8]; /* a copy */
    struct rung *rungs; /* as many as blocks */
    uint8_t *blocks;   /* a copy of the ring */
};

/* How long something has been waited for, ms. */
struct bell_patience {
    uint64_t last, waited;
};

struct bell_page {
    bool taken; /* by a register, or by a driver that did not come back */
    const struct devmem *driver;
    volatile uint8_t *reg;  /* the device's, for us; NULL: not looked at */
    volatile uint8_t *page; /* ours; 0 where nothing was rung since we have looked */
    size_t size;
    uint32_t number; /* of the device's page */
    struct bell_page *home; /* the one that has the queues */
    struct bell_queue *queues, *spare;
    struct {
        void *context, *stream;
    } streams[BELL_STREAMS];
    uint32_t asked, answered; /* the doorbell records are to be read */
    struct bell_patience held; /* of a doorbell that waits for that */
};

extern struct bell_page bell_pages[BELL_PAGES];
extern unsigned bell_used; /* no page is in use from here on */
extern bool bell_over; /* the process ends, and drivers with it: they are called no more */
extern bool bell_abandoned; /* at the end of the process the copying thread did not come back: what it has left is counted without it */
extern struct st_doorbells bell_profile;

#define BELL_GET(x) __atomic_load_n(&(x), __ATOMIC_ACQUIRE)
#define BELL_SET(x, v) __atomic_store_n(&(x), v, __ATOMIC_RELEASE)

/* doorbell.c */
void bell_take(void);
void bell_give(void);
/* Takes it if it can be had in so many looks, of which the first ones, BELL_SPINS, leave the processor to nobody. */
enum { BELL_SPINS = 900 };
bool bell_try(unsigned times);
extern bool bell_careful; /* with the lock: the program's memory may have been unmapped since it was rung for */
bool bell_mine(void); /* whether this process's threads watch, and not those of one that it was forked from */
bool bell_thread(void *(*run)(void *));
bool bell_place(const char *name);
/* HIP and HSA are one. */
static inline bool bell_same(const struct devmem *a, const struct devmem *b) { return a->size_at == b->size_at; }
/* Pages and queues come and go between these two. false: this thread is there already, and was interrupted by the handler that calls. */
bool bell_set_up(void);
void bell_set_up_done(void);
/* Reads what was rung so far at a register, and at those that are of its page. */
void bell_settle(struct bell_page *w);

/* doorbell_ring.c, with the lock. Looks at what was rung at a page, and passes it on; hold: not before what has to be read is read. true: there was something. */
bool bell_look(struct bell_page *w, bool hold);
/* At all that leads to a home, and at the doorbell records of several queues, whatever was rung. */
void bell_look_again(struct bell_page *home);
/* What a queue's doorbell record says: rings for it if it has gone on. wait: for copies, as the thread that copies cannot. */
void bell_told(struct bell_page *w, struct bell_queue *o, uint64_t now, uint16_t index, bool wait);
/* Waits until all that was rung for has been read. */
void bell_wait(struct bell_queue *o);
volatile uint64_t *bell_word(const struct bell_page *w, unsigned area);
uint64_t bell_milliseconds(void);

/* doorbell_copy.c */
bool copier_start(void);
/* Changes as long as the thread is not held up. */
uint32_t copier_round(void);
/* There is something to copy. */
void copier_wake(void);
/* Waits until what was taken out of its list is used no longer. false: that does not end. */
bool copier_passed(void);

/* doorbell_queue.c: a queue's memory, and what belongs to it. */
void bell_queue_add(struct bell_page *w, const struct st_queue *q, bool pin);
void bell_queue_drop(struct bell_page *w, const void *key);
/* Counts what was rung for and nobody will read: of queues that were dropped while a driver kept the copying thread, by that thread when it has come back, or at the end. */
void bell_left_lost(void);
/* And of one queue, with the lock. */
void bell_queue_lost(struct bell_queue *o);
bool bell_page_open(struct bell_page *w, const struct devmem *driver, void *p, size_t size, uint32_t number, uint64_t *device);
void bell_page_close(struct bell_page *w, bool alive);

#endif
