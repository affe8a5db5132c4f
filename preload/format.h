/* The capture file as C structures. FORMAT.md is the description; offsets are asserted here. */
#ifndef ST_FORMAT_H
#define ST_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#define ST_MAJOR 1
#define ST_MINOR 0
#define ST_HEADER_BYTES 4096
#define ST_BYTE_ORDER 0x01020304u
#define ST_BLOCK_MAGIC 0x4b4c4253u

enum { ST_BLOCK_EVENTS = 1, ST_BLOCK_DEFINITIONS = 2, ST_BLOCK_AGGREGATES = 3 };
enum { ST_BLOCK_CLOSED = 1, ST_BLOCK_UNORDERED = 2, ST_BLOCK_CRC = 4 };
enum { ST_END_NONE, ST_END_EXIT };
enum { ST_LOST_BUDGET = 1, ST_LOST_SPACE, ST_LOST_QUOTA, ST_LOST_ERROR, ST_LOST_THREADS, ST_LOST_HANDLER, ST_LOST_ELEMENTS };
enum { ST_EXCLUDED_RANK = 1, ST_EXCLUDED_PROCESS = 2, ST_ALIVE_FAILED = 4 };
enum { ST_RANK_NONE, ST_RANK_OMPI, ST_RANK_PMIX, ST_RANK_PMI, ST_RANK_RANK, ST_RANK_SLURM, ST_RANK_PALS, ST_RANK_JSM, ST_RANK_ALPS, ST_RANK_FLUX };

struct st_domain {
    uint32_t kind;
    uint32_t flags;
    uint64_t hz;
    uint8_t identity[16];
};

struct st_file_header {
    char magic[8];
    uint16_t major, minor;
    uint32_t byte_order;
    uint32_t header_bytes;
    uint32_t chunk_bytes;
    uint32_t architecture;
    uint32_t back_end;
    uint32_t mode;
    uint32_t catalogue;
    uint32_t pid;
    uint32_t image;
    uint64_t pid_namespace;
    uint64_t start_time;
    uint8_t boot_id[16];
    int64_t rank;
    int64_t world;
    uint32_t rank_source;
    uint32_t parent_pid;
    uint64_t realtime_ns;
    uint64_t clock_hz;
    uint32_t clock_flags;
    uint32_t domains;
    struct st_domain domain[8];
    char hostname[64];
    char executable[256];
    char job[256];
    char providers[64];
    char profile[64];
    uint32_t header_crc;
    uint8_t zero[956];
    uint64_t end_realtime_ns;
    uint32_t end_mark;
    uint32_t threads;
    uint64_t blocks;
    uint64_t lost_events;
    uint64_t lost_bytes;
    uint64_t lost_first;
    uint64_t lost_last;
    uint32_t lost_cause;
    uint32_t lost_errno;
    uint64_t lost_tables;
    uint64_t lost_objects;
    uint64_t lost_definitions;
    uint64_t unplaced;
    uint32_t behind;
    uint8_t tail[ST_HEADER_BYTES - 2148];
};

struct st_block {
    uint32_t magic;
    uint8_t type;
    uint8_t domain;
    uint16_t flags;
    uint32_t thread;
    uint32_t sequence;
    uint64_t first;
    uint64_t last;
    uint32_t committed;
    uint32_t records;
    uint32_t crc;
    uint32_t earliest;
    uint8_t zero[16];
    uint8_t payload[];
};

struct st_aggregate {
    uint32_t object;
    uint16_t event;
    uint16_t zero;
    union {
        struct {
            uint32_t thread, epoch;
        };
        uint64_t owner; /* both: thread | epoch << 32 */
    };
    uint64_t peer;
    uint64_t first;
    uint64_t count;
    uint64_t bytes;
    uint64_t calls;
    uint64_t zero2;
    uint64_t sizes[32];
};

/* A memory file: a capture's header, these, and the slots. */
#define ST_RING_SLOTS 496
enum { ST_SLOT_FREE, ST_SLOT_OPEN, ST_SLOT_FULL };
struct st_slots {
    char magic[8];
    uint32_t version, chunk, slots;
    uint8_t zero[108];
    uint64_t slot[ST_RING_SLOTS]; /* place in the capture | ST_SLOT_... */
};

struct st_pool {
    char magic[8];
    uint32_t version, zero;
    uint64_t limit, used;
    uint64_t pid_namespace; /* the mover's: it must be able to tell whether a process is gone */
};

struct st_alive {
    char magic[8];
    uint16_t version, rank_source;
    uint32_t pid;
    int64_t rank, world;
    uint64_t pid_namespace, start_time, realtime_ns;
    uint32_t image, state;
    char hostname[64];
    char providers[64];
    uint8_t boot_id[16];
    uint8_t zero2[48];
    char executable[256];
};

#define ST_AT(type, member, offset) _Static_assert(offsetof(struct type, member) == (offset), #member)
ST_AT(st_file_header, pid_namespace, 48);
ST_AT(st_file_header, rank, 80);
ST_AT(st_file_header, realtime_ns, 104);
ST_AT(st_file_header, domain, 128);
ST_AT(st_file_header, hostname, 384);
ST_AT(st_file_header, job, 704);
ST_AT(st_file_header, profile, 1024);
ST_AT(st_file_header, header_crc, 1088);
ST_AT(st_file_header, end_realtime_ns, 2048);
ST_AT(st_file_header, lost_events, 2072);
ST_AT(st_file_header, lost_objects, 2120);
ST_AT(st_file_header, lost_definitions, 2128);
_Static_assert(sizeof(struct st_file_header) == ST_HEADER_BYTES, "header");
ST_AT(st_file_header, behind, 2144);
ST_AT(st_slots, slot, 128);
_Static_assert(sizeof(struct st_slots) == ST_HEADER_BYTES, "slots");
ST_AT(st_pool, limit, 16);
ST_AT(st_block, first, 16);
ST_AT(st_block, earliest, 44);
ST_AT(st_block, payload, 64);
_Static_assert(sizeof(struct st_aggregate) == 320, "aggregate");
ST_AT(st_aggregate, thread, 8);
ST_AT(st_aggregate, epoch, 12);
ST_AT(st_aggregate, peer, 16);
ST_AT(st_alive, state, 60);
ST_AT(st_alive, hostname, 64);
ST_AT(st_alive, executable, 256);
_Static_assert(sizeof(struct st_alive) == 512, "alive");

#endif
