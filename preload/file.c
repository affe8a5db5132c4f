/* The capture file: creation, reservation of blocks, the two back ends. Everything here is a slow path. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reserved at once. The time that it takes is a pause of the thread whose record asks for it: tmpfs fills what it reserves with zeros. */
#define WINDOW_BYTES (1u << 20)
#define WINDOW_IN_MEMORY (256u << 10)
#define WINDOW_WRITTEN 64    /* blocks, with the written back end: there each reservation is a round trip to a server */
#define POPULATE_BYTES 16384 /* the smallest chunk */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* No descriptor is kept: programs close or reuse numbers that are not theirs. The file is opened again for each reservation, and
 * only if it is still the same file. */
int st_file_open(struct st_process *p)
{
    struct stat st;
    int fd = st_open_file(p->file, O_RDWR | O_NOFOLLOW, 0);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) || st.st_dev != p->device || st.st_ino != p->inode) {
        close(fd);
        errno = ESTALE;
        return -1;
    }
    return fd;
}

void st_stop(struct st_process *p, int error)
{
    uint32_t cause = error == 0 ? ST_LOST_BUDGET : error == ENOSPC || error == EFBIG ? ST_LOST_SPACE : error == EDQUOT ? ST_LOST_QUOTA : ST_LOST_ERROR;
    if (!p->header->lost_cause) {
        p->header->lost_cause = cause;
        p->header->lost_errno = (uint32_t)error;
    }
    p->stopped = cause;
}

/* One write(2), at place or, where that is negative, at the end of an O_APPEND file. Writing past RLIMIT_FSIZE, even inside the file,
 * sends SIGXFSZ, which ends a program that does not expect it: it is held back, and taken away again where it came of our write. */
ssize_t st_write_once(int fd, const void *from, size_t size, off_t place)
{
    sigset_t limit, before, pending;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    if (sigprocmask(SIG_BLOCK, &limit, &before))
        return -1;
    int theirs = sigpending(&pending) || sigismember(&pending, SIGXFSZ);
    ssize_t n = place < 0 ? write(fd, from, size) : pwrite(fd, from, size, place);
    int error = errno;
    if (n < 0 && error == EFBIG && !theirs)
        sigtimedwait(&limit, NULL, &(struct timespec){0, 0});
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return n;
}

/* Reserves size bytes at place. Growing a file past RLIMIT_FSIZE would send the program a deadly SIGXFSZ: refused before. */
int st_reserve_fd(int fd, uint64_t place, uint64_t size)
{
    struct rlimit r;
    if (!getrlimit(RLIMIT_FSIZE, &r) && r.rlim_cur != RLIM_INFINITY && place + size > r.rlim_cur)
        return EFBIG;
    return posix_fallocate(fd, (off_t)place, (off_t)size);
}

static int is_full(int error) { return error == ENOSPC || error == EFBIG || error == EDQUOT; }

/* Maps the next window of blocks. 0, or an errno. */
static int next_window(struct st_process *p)
{
    uint64_t blocks = (p->in_memory ? WINDOW_IN_MEMORY : WINDOW_BYTES) / st_config.chunk;
    if (p->written && p->reserved > ST_HEADER_BYTES)
        blocks = WINDOW_WRITTEN;
    if (!blocks)
        blocks = 1;
    if (p->reserved < p->given) /* what lies between had slots of the ring */
        p->reserved = p->given;
    uint64_t left = (st_config.budget - (p->reserved - ST_HEADER_BYTES)) / st_config.chunk;
    if (blocks > left)
        blocks = left;
    uint64_t size = blocks * st_config.chunk;
    if (!size)
        return ENOSPC;
    int fd = st_file_open(p);
    if (fd < 0)
        return errno;
    int error = st_reserve_fd(fd, p->reserved, size);
    /* the tables and definitions of a process need little: rather those alone than nothing on a disk that is nearly full */
    while (is_full(error) && p->reserved == ST_HEADER_BYTES && blocks > 1) {
        blocks /= 2;
        size = blocks * st_config.chunk;
        error = st_reserve_fd(fd, p->reserved, size);
    }
    if (!error && !p->written) {
        void *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)p->reserved);
        if (m == MAP_FAILED) {
            error = errno;
        } else {
            /* a forked child must not reach its parent's file */
            madvise(m, size, MADV_DONTFORK);
            /* no read-ahead: the first fault of a window would fill all of it with zeros at once, a pause of milliseconds */
            madvise(m, size, MADV_RANDOM);
            p->window = m;
            p->window_place = p->reserved;
        }
    }
    close(fd);
    if (!error)
        p->reserved += size;
    return error;
}

/* Gives a block that is written again and again another place in the file: its memory serves the next one. */
static int again_moved(struct st_process *p, void *memory, uint64_t place)
{
    for (uint32_t i = 0; memory && i < p->again_used; i++)
        if (p->again[i].block == memory) {
            p->again[i].place = place;
            p->again[i].sum = 0;
            return 1;
        }
    return 0;
}

struct st_block *st_block_new(unsigned type, uint32_t thread, uint32_t sequence, uint64_t now, int reserve, void *memory, uint64_t *place)
{
    struct st_process *p = st_process;
    uint64_t chunk = st_config.chunk, used = p->given - ST_HEADER_BYTES;
    uint64_t most = st_config.budget - (reserve ? 0 : st_config.budget / 8);
    if (p->stopped > ST_LOST_BUDGET || (p->stopped && !reserve))
        return NULL;
    struct st_block *b = used + chunk <= most ? st_ring_take(p->given, reserve) : NULL;
    if (!b && (used + chunk > most || (!memory && !st_hold(p, chunk, reserve)))) {
        st_stop(p, 0);
        return NULL;
    }
    if (!b && p->given + chunk > p->reserved) {
        int error = next_window(p);
        if (error) {
            st_stop(p, error);
            return NULL;
        }
    }
    if (b) {
        if (type == ST_BLOCK_AGGREGATES)
            memset(b, 0, chunk);
    } else if (p->written) {
        b = memory ? memory : st_wiped(chunk);
        if (!b) {
            st_stop(p, ENOMEM);
            return NULL;
        }
        memset(b, 0, chunk);
        if (type != ST_BLOCK_EVENTS && !again_moved(p, memory, p->given)) {
            if (p->again_used == ST_WRITTEN) {
                st_stop(p, ENOMEM);
                return NULL;
            }
            p->again[p->again_used++] = (struct st_written){b, p->given, 0};
        }
    } else {
        b = (struct st_block *)(p->window + (p->given - p->window_place));
    }
    *place = p->given;
    p->given += chunk;
    p->header->blocks++;
    b->type = (uint8_t)type;
    b->thread = thread;
    b->sequence = sequence;
    b->first = now;
    return b;
}

/* Makes a part of a block resident, from `from` on, so that there are no page faults on the hot path; best effort. Returns where the part
 * ends. Called without the lock, which all other threads would wait for meanwhile. */
uint8_t *st_block_populate(struct st_block *b, uint8_t *from)
{
    if (st_process->written)
        return (uint8_t *)b + st_config.chunk;
    uint32_t *touched = st_in_ring(b) ? st_ring_touched(b) : NULL;
    if (touched && (uint8_t *)b + *touched > from)
        return (uint8_t *)b + *touched;
    madvise(from, POPULATE_BYTES, MADV_POPULATE_WRITE);
    from += POPULATE_BYTES;
    if (touched)
        *touched = (uint32_t)(from - (uint8_t *)b);
    return from;
}

/* For a block that nobody writes to any more. On a disk its pages stay in the page cache, where the kernel writes them out and takes them
 * back when memory is short. */
void st_block_release(struct st_block *b)
{
    struct st_process *p = st_process;
    if (st_in_ring(b)) {
        st_ring_give(b);
        return;
    }
    if (p->written || p->in_memory)
        return;
    madvise(b, st_config.chunk, MADV_DONTNEED);
    st_let_go(p, st_config.chunk);
}

void st_block_publish(struct st_block *b) { __atomic_store_n(&b->magic, ST_BLOCK_MAGIC, __ATOMIC_RELEASE); }

void st_lost(uint64_t now, uint64_t events, uint64_t bytes)
{
    struct st_file_header *h = st_process->header;
    uint64_t zero = 0;
    __atomic_compare_exchange_n(&h->lost_first, &zero, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    __atomic_store_n(&h->lost_last, now, __ATOMIC_RELAXED);
    __atomic_fetch_add(&h->lost_events, events, __ATOMIC_RELAXED);
    __atomic_fetch_add(&h->lost_bytes, bytes, __ATOMIC_RELAXED);
}

/* Makes the file, its header and its first window. 0, or an errno: the process is then not recorded. */
int st_file_create(void)
{
    struct st_process *p = st_process;
    struct st_identity id;
    struct stat st;
    static char folder[PATH_MAX];
    st_identify(&id);
    int n = snprintf(folder, sizeof folder, "%s/%s", st_config.directory, id.node);
    if (n < 0 || (size_t)n >= sizeof folder)
        return ENAMETOOLONG;
    st_make_folder(folder);
    int fd = -1;
    for (p->image = 0; p->image < 4096; p->image++) {
        snprintf(p->file, sizeof p->file, "%s/%u.%llu.%u.capture", folder, id.pid, (unsigned long long)id.start_time, p->image);
        fd = st_open_file(p->file, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
        if (fd >= 0 || errno != EEXIST)
            break;
    }
    if (fd < 0)
        return errno;
    int error = fstat(fd, &st) || ((st.st_mode & 0600) != 0600 && fchmod(fd, 0600)) ? errno : 0; /* it is opened again: umask(2) has no say */
    p->device = st.st_dev;
    p->inode = st.st_ino;
    p->written = st_config.back_end ? st_config.back_end == 2 : (uint32_t)st_is_network(folder);
    p->in_memory = (uint32_t)st_is_memory(fd);
    p->memory = st_memory_limit() / 20;
    if (p->memory > st_config.memory)
        p->memory = st_config.memory;
    p->held = offsetof(struct st_process, names);
    if (!error)
        error = st_reserve_fd(fd, 0, ST_HEADER_BYTES);
    void *m = NULL;
    /* What the tables need has its place on the disk from the start; where there is not so much, what there is serves best without. */
    if (!error && !p->written && !p->in_memory && st_config.ring[0] && !st_reserve_fd(fd, ST_HEADER_BYTES, WINDOW_BYTES) &&
        !st_ring_create(p, &id, strrchr(p->file, '/') + 1))
        m = p->ring.header;
    if (!error && !p->written && !m) {
        m = mmap(NULL, ST_HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (m != MAP_FAILED) {
            madvise(m, ST_HEADER_BYTES, MADV_DONTFORK);
        } else if (st_config.back_end) {
            error = errno;
        } else {
            /* refused: file systems of their own making do so */
            p->written = 1;
        }
    }
    if (!error && p->written) {
        m = st_wiped(ST_HEADER_BYTES);
        error = m ? 0 : ENOMEM;
    }
    close(fd);
    if (error) {
        unlink(p->file); /* ours, made just now, and empty */
        return error;
    }
    p->header = m;
    st_fill_header(p->header, &id);
    p->header->behind = p->ring.table != NULL;
    p->reserved = p->given = ST_HEADER_BYTES;
    if (p->written || p->ring.table)
        st_write(p->header, ST_HEADER_BYTES, 0);
    return 0;
}
