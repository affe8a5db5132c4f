/* What the files of libsigmatrace.so share. */
#ifndef ST_INTERNAL_H
#define ST_INTERNAL_H

#include "recorder.h"

#include <limits.h>
#include <pthread.h>
#include <sys/types.h>

/* How the process is to be recorded: read once, kept over fork. */
struct st_config {
    int off;
    int loaded;
    uint32_t mode;
    uint32_t back_end; /* 0 auto, 1 mapped, 2 written */
    uint32_t chunk;
    uint32_t kernels; /* enum st_kernels */
    uint32_t ucx_level; /* 0 auto: down to UCT in full mode, 1 UCP only, 2 UCT too */
    int nccl_events; /* mask of NCCL's profiler interface */
    uint64_t budget;
    uint64_t memory; /* most bytes held in memory */
    int64_t rank, world;
    uint32_t rank_source;
    int64_t alive_at;  /* where the proof of life lies in its file; -1 nowhere */
    uint32_t excluded; /* ST_EXCLUDED_...: the process is not recorded, by [ranks] or [processes] */
    uint64_t start;    /* of the run, CLOCK_REALTIME; 0 not known */
    char clock[64];    /* whose CLOCK_MONOTONIC the run began at start_monotonic by: st_clock_name */
    int64_t start_monotonic;
    uint64_t loaded_realtime, loaded_monotonic; /* when this process, or the one it was forked from, was loaded */
    /* [window]: ns; 0 none */
    uint64_t delay, duration, max_events;
    int closed, uncontrolled;
    /* [epoch] */
    uint64_t interval;
    int phase_epochs, nvtx;
    struct st_doorbells doorbells;
    char doorbell_cpus[4096]; /* every second of CPU_SETSIZE fits in */
    char job[256];
    char path[PATH_MAX]; /* SIGMATRACE_CONFIG */
    char directory[PATH_MAX];
    char ring[PATH_MAX]; /* capture.memory: where captures have their memory; "" nowhere */
    char profile[64];
    char providers[64];
    char control[PATH_MAX];
    char alive[PATH_MAX + 128];
};
extern struct st_config st_config;
int st_config_load(void);
/* Looks n variables up in the environment: values, which the caller has set to NULL, get what is found. Returns the place in `environ` of the last one found. */
typedef char st_variable[28];
char **st_environment(const st_variable *names, unsigned n, const char **values);
/* Reads a small file whole; returns its length, or -1. */
ssize_t st_slurp(const char *path, char *to, size_t size);

/* lookup.c: the file that this code is in, as the linker knows it. */
const char *st_own_file(void);

/* select.c: whether one of a comma list of patterns matches an executable: its path where the pattern has a slash, else its name. */
int st_glob_any(const char *patterns, const char *path);

/* Identity of the process, read when it is first needed. */
struct st_identity {
    uint32_t pid, parent;
    uint64_t pid_namespace, start_time, realtime_ns;
    uint8_t boot_id[16];
    char hostname[64];
    char executable[256];
    char node[96];
};
void st_identify(struct st_identity *id);
void st_make_folder(const char *folder);
/* Names the clock that CLOCK_MONOTONIC is here: that of a boot and a time namespace (profiles/README.md, run.clock). Empty: not known. */
void st_clock_name(char *to, size_t size);
uint64_t st_realtime(void);
uint64_t st_monotonic(void);

/* Everything below lies in one mapping that a forked child finds zeroed. */
struct st_entry {
    struct st_aggregate *aggregate;
    struct st_entry *in_bucket;
    struct st_entry *in_object;
};

#define ST_EPOCH_NAMES 1024
#define ST_APP_NAMES 4096

struct st_written { /* written back end: blocks that are written again and again */
    struct st_block *block;
    uint64_t place;
    uint64_t sum; /* of what was last written; 0: nothing */
};

/* The window for events, and the epochs of the tables (window.c). */
struct st_watch {
    int busy;   /* a thread is looking */
    int needed; /* there is something to look for */
    uint32_t open;
    uint32_t exhausted; /* max_events reached: closed for good */
    uint32_t generation; /* times the window opened */
    uint64_t control_looked; /* monotonic */
    uint64_t control_file[3]; /* inode, change time, size when it was last read */
    uint32_t command;      /* last one: 0 none, 1 start, 2 stop */
    uint64_t command_time; /* realtime */
    uint64_t command_number;
    uint64_t windows; /* started by commands */
    int64_t began;    /* monotonic: when the run did */
    uint64_t edge;    /* realtime of the interval's next edge */
    uint32_t epoch, epochs, epochs_full;
    uint64_t names[ST_EPOCH_NAMES]; /* hashes of kind and name */
    uint32_t numbers[ST_EPOCH_NAMES];
    uint32_t named;
};

/* The memory of a capture (ring.c). */
struct st_ring {
    struct st_slots *table; /* NULL: there is none */
    struct st_pool *pool;
    struct st_file_header *header;
    uint8_t *slots, *end;
    uint32_t most, ready; /* slots that there may be, and are */
    uint32_t next;        /* where a free one is looked for first */
    uint64_t device, inode;
    uint32_t touched[ST_RING_SLOTS]; /* bytes of a slot that have been made present */
    char file[PATH_MAX + 128];
};

#define ST_OBJECTS 65536
#define ST_NAMES (2 * ST_OBJECTS)
#define ST_ENTRY_BUCKETS 16384
#define ST_WRITTEN 4096
#define ST_SPARE 32 /* entries kept back: as many events can be counted when the tables are full */

struct st_process {
    uint32_t ready;
    _Atomic uint32_t stopped; /* no more events: ST_LOST_* */
    int lock;         /* futex-free spin lock: slow paths only, held for microseconds */
    uint32_t written; /* back end */
    uint32_t image;
    char file[PATH_MAX + 128];
    uint64_t device, inode;
    struct st_file_header *header;
    uint64_t reserved; /* bytes of the file reserved so far */
    uint8_t *window;   /* mapped back end: the mapping that blocks are taken from */
    uint64_t window_place;
    uint64_t given; /* bytes of the file given out */
    uint64_t held;        /* bytes of memory in use (st_hold), and how many there may be */
    uint64_t memory;
    uint32_t in_memory;      /* so is the file itself: tmpfs */
    struct st_ring ring;
    uint32_t next_thread, next_object;
    uint32_t sequences[4];
    struct st_block *definitions;
    uint64_t definitions_place;
    struct st_aggregate *aggregate;
    uint32_t aggregates_left;
    struct st_aggregate *spare; /* entries for what finds none of its own (object 0, thread 0) */
    uint32_t spare_left;
    struct st_thread *idle; /* states of threads that have ended */
    struct st_thread *threads;
    struct st_written again[ST_WRITTEN];
    uint32_t again_used;
    uint64_t flushed;
    struct st_object *free_first, *free_last; /* ended objects, oldest first: linked through key */
    uint32_t objects_used;
    uint32_t names_used;
    struct st_name *free_names, *free_names_last;
    uint8_t lost_seen[1 << 17]; /* bit by hash of the keys of objects without a place: such a one is looked for at each of its calls */
    struct st_entry *arena;
    uint32_t arena_left;
    struct st_entry *entries[ST_ENTRY_BUCKETS];
    struct st_watch watch;
    uint64_t app_names[ST_APP_NAMES]; /* hashes of domain and name, open addressing; the number is the place plus 1 */
    struct st_name *buckets[ST_BUCKETS];
    struct st_name names[ST_NAMES];
    struct st_object objects[ST_OBJECTS];
};
extern struct st_process *st_process;

void st_lock(void);
void st_unlock(void);

/* Anonymous memory that a forked child finds zeroed; NULL when there is none. */
void *st_wiped(size_t size);

/* memory.c */
/* The smallest memory limit of the process's control groups, in bytes; UINT64_MAX where there is none. */
uint64_t st_memory_limit(void);
/* Takes size bytes of what the recorder may hold; reserve: as with st_block_new. 0: there is not so much left. */
int st_hold(struct st_process *p, uint64_t size, int reserve);
void st_let_go(struct st_process *p, uint64_t size);

/* filesystem.c: whether captures in a folder are written with write(2); whether a file is memory that cannot be taken back. */
int st_is_network(const char *path);
int st_is_memory(int fd);

/* header.c */
void st_fill_header(struct st_file_header *h, const struct st_identity *id);

/* ring.c */
int st_ring_create(struct st_process *p, const struct st_identity *id, const char *name);
/* Call with the lock held. */
struct st_block *st_ring_take(uint64_t place, int reserve);
void st_ring_give(const struct st_block *b);
int st_in_ring(const struct st_block *b);
uint32_t *st_ring_touched(const struct st_block *b);

/* file.c */
int st_file_create(void);
/* Reserves size bytes at place: 0, or an errno. */
int st_reserve_fd(int fd, uint64_t place, uint64_t size);
/* Opens the capture, if it is still the same file. -1: errno says why not. */
int st_file_open(struct st_process *p);
/* Ends the recording of events; error: an errno, 0 where the budget has ended. */
void st_stop(struct st_process *p, int error);
/* A block from the file's reserve, its header filled but for `magic`. Call with the lock held. *place: its offset in the file. reserve:
 * 1 for definitions and aggregates, which may use what events must leave. NULL: no room; what stopped it is in the header. */
struct st_block *st_block_new(unsigned type, uint32_t thread, uint32_t sequence, uint64_t now, int reserve, void *memory, uint64_t *place);
void st_block_publish(struct st_block *b);
uint8_t *st_block_populate(struct st_block *b, uint8_t *from);
void st_lost(uint64_t now, uint64_t events, uint64_t bytes);
void st_block_release(struct st_block *b);
ssize_t st_write_once(int fd, const void *from, size_t size, off_t place);

/* written.c. Writes size bytes at place of the file. 0, or an errno: recording has then been stopped. */
int st_write(const void *p, size_t size, uint64_t place);
/* Writes what was added to a block behind its first `before` bytes of payload. */
void st_write_added(const struct st_block *b, uint32_t before, uint64_t place);
void st_layout_used(unsigned event, const struct st_layout *l);
/* Call with the lock held. */
void st_lost_chunk(const struct st_block *b);
void st_flush_again(void);
/* Whether a second has passed since. */
static inline int st_flush_due(const struct st_process *p, uint64_t monotonic) { return monotonic - p->flushed > 1000000000u; }
void st_tables_flush(struct st_process *p, uint64_t monotonic);
void st_clock_pair(void);

/* chunk.c, with the lock held: writes a thread's chunk (written back end); closes it. */
void st_chunk_write(struct st_thread *t);
void st_chunk_end(struct st_thread *t);

/* window.c: what holds at the first traced call. */
void st_watch_begin(void);
/* Begins an epoch, or goes back to one of the same kind and name. realtime: of its edge. Returns its number. */
uint32_t st_epoch(unsigned kind, const char *name, uint64_t realtime);
uint32_t st_epoch_number(unsigned kind, const char *name, uint64_t realtime);

/* Notes in the process's proof of life that it had to record and could not. */
void st_say_failed(void);

/* app.c. domain: a NUL-terminated name that stays in place, NULL none. */
void st_app_mark(const char *name, const char *domain);
int st_app_push(const char *name, const char *domain);
int st_app_pop(const char *domain);
/* Ends the phases of a thread that ends. */
void st_app_end(struct st_thread *t);
void st_app_range(unsigned event, const char *name, const char *domain, uint64_t range);

uint32_t st_crc32c(const uint8_t *p, size_t n);
void st_object_counters(struct st_object *o, uint64_t out[3]);

#endif
