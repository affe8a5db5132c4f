/* A capture's memory: blocks are filled in a file of a memory file system, from where a mover (the launcher) copies them to their places
 * in the capture. A write to a file on a disk may wait for its journal whatever is written, be it the first touch of a mapped page; a
 * write here waits for nobody. What is in it survives the process. FORMAT.md, Captures in memory.
 *
 * A block's place in the capture is given out as without this; where no slot is free, it is a mapping of the capture itself. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define RING_BYTES (16u << 20)       /* most of one process */
#define GROW_BYTES (256u << 10)      /* made ready at once */
#define SLOTS_BEGIN (2 * ST_HEADER_BYTES)

/* Takes size bytes of what the run's processes on this node may hold together. */
static int pool_take(struct st_ring *r, uint64_t size, int reserve)
{
    uint64_t most = r->pool->limit;
    most -= reserve ? 0 : most / 8;
    if (__atomic_add_fetch(&r->pool->used, size, __ATOMIC_RELAXED) <= most)
        return 1;
    __atomic_sub_fetch(&r->pool->used, size, __ATOMIC_RELAXED);
    return 0;
}

static void pool_return(struct st_ring *r, uint64_t size) { __atomic_sub_fetch(&r->pool->used, size, __ATOMIC_RELAXED); }

/* Opens a file that the launcher or this process has made, nobody else. */
static int open_own(const char *path, int flags, struct stat *st)
{
    int fd = st_open_file(path, O_RDWR | O_NOFOLLOW | flags, 0600);
    if (fd < 0)
        return -1;
    if (!fstat(fd, st) && S_ISREG(st->st_mode) && st->st_uid == geteuid() && st_is_memory(fd))
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

static int pool_open(struct st_ring *r, uint64_t pid_namespace)
{
    char path[PATH_MAX + 8];
    struct stat st;
    snprintf(path, sizeof path, "%s/pool", st_config.ring);
    int fd = open_own(path, 0, &st);
    if (fd < 0)
        return errno;
    void *m = st.st_size < (off_t)sizeof *r->pool ? MAP_FAILED : mmap(NULL, sizeof *r->pool, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (m == MAP_FAILED)
        return EINVAL;
    madvise(m, sizeof *r->pool, MADV_DONTFORK);
    r->pool = m;
    return memcmp(r->pool->magic, "SGMTPOOL", 8) || r->pool->version != 1 || r->pool->pid_namespace != pid_namespace ? EINVAL : 0;
}

/* Makes more slots ready. With the lock held. */
static int grow(struct st_process *p, int reserve)
{
    struct st_ring *r = &p->ring;
    uint64_t chunk = st_config.chunk, size = GROW_BYTES > chunk ? GROW_BYTES : chunk;
    struct stat st;
    if (r->ready + size / chunk > r->most)
        size = (r->most - r->ready) * chunk;
    if (!size || !pool_take(r, size, reserve))
        return 0;
    /* what is on the disk needs memory too, as long as it is written to: half of what the process may hold */
    if (__atomic_load_n(&p->held, __ATOMIC_RELAXED) + size > p->memory / 2 || !st_hold(p, size, reserve)) {
        pool_return(r, size);
        return 0;
    }
    int fd = open_own(r->file, 0, &st);
    int error = fd < 0 ? errno : st.st_ino != r->inode || st.st_dev != r->device ? ESTALE : 0;
    if (!error)
        error = st_reserve_fd(fd, SLOTS_BEGIN + r->ready * chunk, size);
    if (fd >= 0)
        close(fd);
    if (error) {
        st_let_go(p, size);
        pool_return(r, size);
        r->most = r->ready; /* it is full, or gone: not tried again */
        return 0;
    }
    r->ready += (uint32_t)(size / chunk);
    return 1;
}

/* The memory of a block for a place in the capture, NULL where there is none. With the lock held. What a slot was used for before is
 * still in it, but for the header. */
struct st_block *st_ring_take(uint64_t place, int reserve)
{
    struct st_process *p = st_process;
    struct st_ring *r = &p->ring;
    if (!r->table)
        return NULL;
    for (;;) {
        for (uint32_t n = 0; n < r->ready; n++) {
            uint32_t i = (r->next + n) % r->ready;
            if (__atomic_load_n(&r->table->slot[i], __ATOMIC_ACQUIRE) != ST_SLOT_FREE)
                continue;
            r->next = i + 1;
            struct st_block *b = (struct st_block *)(r->slots + (uint64_t)i * st_config.chunk);
            memset(b, 0, sizeof *b);
            __atomic_store_n(&r->table->slot[i], place | ST_SLOT_OPEN, __ATOMIC_RELEASE);
            return b;
        }
        uint32_t first = r->ready;
        if (!grow(p, reserve))
            return NULL;
        r->next = first;
    }
}

static uint32_t slot_of(const struct st_ring *r, const struct st_block *b) { return (uint32_t)(((const uint8_t *)b - r->slots) / st_config.chunk); }

int st_in_ring(const struct st_block *b)
{
    const struct st_ring *r = &st_process->ring;
    return r->table && (const uint8_t *)b >= r->slots && (const uint8_t *)b < r->end;
}

/* Gives a block that nobody writes to any more to the mover. */
void st_ring_give(const struct st_block *b)
{
    struct st_ring *r = &st_process->ring;
    uint64_t *slot = &r->table->slot[slot_of(r, b)];
    __atomic_store_n(slot, *slot - ST_SLOT_OPEN + ST_SLOT_FULL, __ATOMIC_RELEASE);
}

/* How much of a block has been touched: a slot that is used again needs no page faults. */
uint32_t *st_ring_touched(const struct st_block *b)
{
    struct st_ring *r = &st_process->ring;
    return &r->touched[slot_of(r, b)];
}

/* Makes the memory file of the capture p->file, which has the name `name` in its node's folder. 0, or an errno: the capture is then
 * written as without. */
int st_ring_create(struct st_process *p, const struct st_identity *id, const char *name)
{
    struct st_ring *r = &p->ring;
    uint64_t chunk = st_config.chunk, first = SLOTS_BEGIN;
    struct stat st;
    memset(r, 0, sizeof *r);
    int error = pool_open(r, id->pid_namespace);
    if (error)
        return error;
    uint32_t most = (uint32_t)(RING_BYTES / chunk);
    most = most > ST_RING_SLOTS ? ST_RING_SLOTS : most;
    size_t size = SLOTS_BEGIN + most * chunk;
    if (!pool_take(r, first, 1))
        return ENOSPC;
    int n = snprintf(r->file, sizeof r->file, "%s/%s", st_config.ring, id->node);
    if (n > 0 && (size_t)n < sizeof r->file)
        mkdir(r->file, 0700);
    n = snprintf(r->file, sizeof r->file, "%s/%s/%s", st_config.ring, id->node, name);
    int fd = n > 0 && (size_t)n < sizeof r->file ? open_own(r->file, O_CREAT | O_EXCL, &st) : -1;
    if (fd < 0) {
        pool_return(r, first);
        return errno;
    }
    error = st_reserve_fd(fd, 0, first);
    if (!error && (st.st_mode & 0600) != 0600 && fchmod(fd, 0600)) /* whatever the umask: it is opened again */
        error = errno;
    void *m = error ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!error && m == MAP_FAILED)
        error = errno;
    close(fd);
    if (error) {
        unlink(r->file); /* ours, made just now, and empty */
        pool_return(r, first);
        return error;
    }
    madvise(m, size, MADV_DONTFORK);
    r->device = st.st_dev;
    r->inode = st.st_ino;
    r->most = most;
    r->header = m;
    r->slots = (uint8_t *)m + SLOTS_BEGIN;
    r->end = (uint8_t *)m + size;
    r->table = (struct st_slots *)((uint8_t *)m + ST_HEADER_BYTES);
    r->table->chunk = (uint32_t)chunk;
    r->table->slots = most;
    r->table->version = 1;
    memcpy(r->table->magic, "SGMSLOTS", 8);
    return 0;
}
