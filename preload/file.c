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
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Reserved at once. The time that it takes is a pause of the thread whose record asks for it: tmpfs fills what it reserves with zeros. */
#define WINDOW_BYTES (1u << 20)
#define WINDOW_IN_MEMORY (256u << 10)
#define WINDOW_WRITTEN 64    /* blocks, with the written back end: there each reservation is a round trip to a server */
#define POPULATE_BYTES 16384 /* the smallest chunk */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Whether the file system of a device number is 9p, of which statfs(2) tells the type of the one behind it (v9fs_statfs). Those with a
 * disk of their own have a major number and are not looked up. */
static int is_9p(dev_t device)
{
    char text[4096], want[32];
    size_t have = 0;
    int found = 0;
    if (major(device))
        return 0;
    size_t length = (size_t)snprintf(want, sizeof want, " 0:%u ", minor(device));
    int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && !found) {
        ssize_t n = read(fd, text + have, sizeof text - 1 - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        have += (size_t)n;
        text[have] = 0;
        char *line = text, *end;
        for (; (end = strchr(line, '\n')); line = end + 1) {
            *end = 0;
            /* id, parent, major:minor, root, mount point, options, optional fields, -, type (proc(5)) */
            char *type = strstr(line, " - "), *number = strchr(line, ' ');
            number = number ? strchr(number + 1, ' ') : NULL;
            if (type && number && !strncmp(number, want, length))
                found |= !strncmp(type + 3, "9p ", 3);
        }
        have = strlen(line);
        memmove(text, line, have);
        if (have == sizeof text - 1) /* a line longer than that: its beginning goes, its type still comes */
            have = 0;
    }
    if (fd >= 0)
        close(fd);
    return found;
}

/* File systems on which a shared mapping is slow, unsafe or refused: f_type of statfs(2). */
static int is_network(const char *path)
{
    static const long types[] = {
        0x6969 /* NFS */, 0x0BD00BD0 /* Lustre */, 0x47504653 /* GPFS */, 0x517B /* SMB */, (long)0xFF534D42 /* CIFS */, (long)0xFE534D42 /* SMB2 */,
        0x65735546 /* FUSE */, 0x00C36400 /* Ceph */, 0x19830326 /* BeeGFS */, 0x01021997 /* 9P */, 0x5346414F /* AFS */, 0x20030528 /* PVFS2 */,
        0x2FC12FC1 /* ZFS: local, but space that was reserved may be gone when a page of a mapping is written out */,
    };
    struct statfs fs;
    struct stat st;
    if (statfs(path, &fs))
        return 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if ((uint32_t)fs.f_type == (uint32_t)types[i])
            return 1;
    return !stat(path, &st) && is_9p(st.st_dev);
}

/* File systems whose files are memory that cannot be taken back. */
static int is_memory(int fd)
{
    struct statfs fs;
    return !fstatfs(fd, &fs) && ((uint32_t)fs.f_type == 0x01021994 /* tmpfs */ || (uint32_t)fs.f_type == 0x858458f6 /* ramfs */);
}

/* No descriptor is kept: programs close or reuse numbers that are not theirs. The file is opened again for each reservation, and
 * only if it is still the same file. */
static int file_open(struct st_process *p)
{
    struct stat st;
    int fd = open(p->file, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) || st.st_dev != p->device || st.st_ino != p->inode) {
        close(fd);
        errno = ESTALE;
        return -1;
    }
    return fd;
}

static void stop(struct st_process *p, int error)
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
static int reserve_fd(int fd, uint64_t place, uint64_t size)
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
    uint64_t left = (st_config.budget - (p->reserved - ST_HEADER_BYTES)) / st_config.chunk;
    if (blocks > left)
        blocks = left;
    uint64_t size = blocks * st_config.chunk;
    if (!size)
        return ENOSPC;
    int fd = file_open(p);
    if (fd < 0)
        return errno;
    int error = reserve_fd(fd, p->reserved, size);
    /* the tables and definitions of a process need little: rather those alone than nothing on a disk that is nearly full */
    while (is_full(error) && p->reserved == ST_HEADER_BYTES && blocks > 1) {
        blocks /= 2;
        size = blocks * st_config.chunk;
        error = reserve_fd(fd, p->reserved, size);
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
    if (used + chunk > most || (!memory && !st_hold(p, chunk, reserve))) {
        stop(p, 0);
        return NULL;
    }
    if (p->given + chunk > p->reserved) {
        int error = next_window(p);
        if (error) {
            stop(p, error);
            return NULL;
        }
    }
    struct st_block *b;
    if (p->written) {
        b = memory ? memory : st_wiped(chunk);
        if (!b) {
            stop(p, ENOMEM);
            return NULL;
        }
        memset(b, 0, chunk);
        if (type != ST_BLOCK_EVENTS && !again_moved(p, memory, p->given)) {
            if (p->again_used == ST_WRITTEN) {
                stop(p, ENOMEM);
                return NULL;
            }
            p->again[p->again_used++] = (struct st_written){b, p->given};
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
    madvise(from, POPULATE_BYTES, MADV_POPULATE_WRITE);
    return from + POPULATE_BYTES;
}

/* For a block that nobody writes to any more. On a disk its pages stay in the page cache, where the kernel writes them out and takes them
 * back when memory is short. */
void st_block_release(struct st_block *b)
{
    struct st_process *p = st_process;
    if (p->written || p->in_memory)
        return;
    madvise(b, st_config.chunk, MADV_DONTNEED);
    st_let_go(p, st_config.chunk);
}

void st_block_publish(struct st_block *b) { __atomic_store_n(&b->magic, ST_BLOCK_MAGIC, __ATOMIC_RELEASE); }

int st_write(const void *from, size_t size, uint64_t place)
{
    struct st_process *p = st_process;
    const uint8_t *data = from;
    int fd = file_open(p), error = fd < 0 ? errno : 0;
    while (size && !error) {
        ssize_t n = st_write_once(fd, data, size, (off_t)place);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            error = n ? errno : EIO;
            break;
        }
        data += n;
        place += (uint64_t)n;
        size -= (size_t)n;
    }
    if (fd >= 0 && close(fd) && !error && errno != EINTR) /* NFS says here what became of the write */
        error = errno;
    if (error)
        stop(p, error);
    return error;
}

/* The layouts that records in open chunks have, by event. */
static const struct st_layout *layouts[ST_EVENT_IDS];

void st_layout_used(unsigned event, const struct st_layout *l) { __atomic_store_n(&layouts[event], l, __ATOMIC_RELAXED); }

static uint64_t varint(const uint8_t **p)
{
    uint64_t v = 0;
    for (unsigned shift = 0;; shift += 7) {
        v |= (uint64_t)(**p & 0x7f) << shift;
        if (!(*(*p)++ & 0x80))
            return v;
    }
}

/* Reads a record behind its code and time (FORMAT.md, Event chunks) and returns the bytes of payload that it tells of. */
static uint64_t payload_of(const uint8_t **p, const struct st_layout *l, struct st_slot *s, unsigned form, int fresh)
{
    unsigned mask = fresh ? ~0u : 0;
    uint64_t bytes = 0;
    if (form >= 2) {
        mask = *(*p)++;
        if (l->predicted > 8)
            mask |= (unsigned)*(*p)++ << 8;
    }
    for (unsigned i = 0, bit = 0; i < l->fields; i++) {
        if (l->always >> i & 1)
            continue;
        if (mask >> bit++ & 1) {
            uint64_t d = varint(p);
            if (!fresh || l->is_signed >> i & 1)
                d = d >> 1 ^ -(d & 1);
            if (!fresh && l->stride >> i & 1) {
                if (d == s->candidate[i])
                    s->stride[i] = d;
                else
                    s->candidate[i] = d;
            }
            s->next[i] += d;
        } else {
            s->next[i] += s->stride[i];
        }
        if (i && i == l->bytes)
            bytes = s->next[i];
    }
    for (unsigned i = 0; i < l->fields; i++) {
        if (!(l->always >> i & 1))
            continue;
        uint64_t v = varint(p);
        if (l->raw >> i & 1)
            *p += v;
        if (i && i == l->bytes)
            bytes = v;
    }
    return bytes;
}

/* Counts as lost what is in an event chunk that could not be written: the program counts no records where it makes them. */
void st_lost_chunk(const struct st_block *b)
{
    static struct st_slot slots[ST_SLOTS + 1]; /* next: the value of the previous record */
    const uint8_t *p = b->payload, *end = p + b->committed;
    uint64_t events = 0, bytes = 0;
    memset(slots, 0, sizeof slots);
    while (p < end) {
        unsigned n = *p & 63, form = *p >> 6;
        p++;
        if (n >= 62) { /* a time, or counters */
            for (unsigned i = 0; i < (n == 62 ? 1 : 4); i++)
                varint(&p);
            continue;
        }
        int fresh = n == 61;
        p += fresh || form & 1 ? 3 : 2;
        if (fresh) {
            n = *p++;
            memset(&slots[n], 0, sizeof slots[n]);
            slots[n].event = (uint32_t)(p[0] | p[1] << 8);
            p += 2;
        }
        const struct st_layout *l = __atomic_load_n(&layouts[slots[n].event % ST_EVENT_IDS], __ATOMIC_RELAXED);
        if (!l)
            break;
        bytes += payload_of(&p, l, &slots[n], form, fresh);
        events++;
    }
    st_lost(b->first, events, bytes);
}

/* Written back end: the header and the blocks that keep changing. */
void st_flush_again(void)
{
    struct st_process *p = st_process;
    for (uint32_t i = 0; i < p->again_used; i++) {
        struct st_written *w = &p->again[i];
        st_write(w->block, st_config.chunk, w->place);
    }
    st_write(p->header, ST_HEADER_BYTES, 0);
    p->flushed = st_monotonic();
}

/* Without this a program that fills no chunks, as in aggregate mode, would leave no tables when it is killed. */
void st_tables_flush(struct st_process *p, uint64_t monotonic)
{
    st_lock();
    if (st_flush_due(p, monotonic))
        st_flush_again();
    st_unlock();
}

void st_lost(uint64_t now, uint64_t events, uint64_t bytes)
{
    struct st_file_header *h = st_process->header;
    uint64_t zero = 0;
    __atomic_compare_exchange_n(&h->lost_first, &zero, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    __atomic_store_n(&h->lost_last, now, __ATOMIC_RELAXED);
    __atomic_fetch_add(&h->lost_events, events, __ATOMIC_RELAXED);
    __atomic_fetch_add(&h->lost_bytes, bytes, __ATOMIC_RELAXED);
}

#if defined(__x86_64__)
/* The kernel takes a TSC off its list when it finds that those of the processors differ, or that it runs unevenly, whatever CPUID says. */
static int kernel_trusts_tsc(void)
{
    char text[256] = " ";
    int fd = open("/sys/devices/system/clocksource/clocksource0/available_clocksource", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text + 1, sizeof text - 2);
    if (fd >= 0)
        close(fd);
    return n <= 0 || strstr(text, " tsc ") || strstr(text, " tsc\n");
}
#endif

static void clock_facts(struct st_file_header *h)
{
    h->domains = 1;
    h->domain[0].kind = ST_CLOCK_DOMAIN;
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (__get_cpuid_count(0x15, 0, &a, &b, &c, &d) && a && b && c) /* TSC = crystal x EBX / EAX; Intel SDM vol. 2A, CPUID */
        h->clock_hz = (uint64_t)c * b / a;
    if (__get_cpuid(0x80000007, &a, &b, &c, &d) && d >> 8 & 1 && kernel_trusts_tsc())
        h->clock_flags = 1;
#else
    uint64_t hz;
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hz));
    h->clock_hz = hz;
    h->clock_flags = 1;
#endif
    h->domain[0].hz = h->clock_hz;
    h->domain[0].flags = h->clock_flags;
}

static void fill_header(struct st_file_header *h, const struct st_identity *id)
{
    struct st_process *p = st_process;
    memset(h, 0, sizeof *h);
    h->major = ST_MAJOR;
    h->minor = ST_MINOR;
    h->byte_order = ST_BYTE_ORDER;
    h->header_bytes = ST_HEADER_BYTES;
    h->chunk_bytes = st_config.chunk;
    h->architecture = ST_ARCHITECTURE;
    h->back_end = p->written ? 2 : 1;
    h->mode = st_config.mode;
    h->catalogue = ST_CATALOGUE;
    h->pid = id->pid;
    h->parent_pid = id->parent;
    h->image = p->image;
    h->pid_namespace = id->pid_namespace;
    h->start_time = id->start_time;
    memcpy(h->boot_id, id->boot_id, sizeof h->boot_id);
    h->rank = st_config.rank;
    h->world = st_config.world;
    h->rank_source = st_config.rank_source;
    h->realtime_ns = id->realtime_ns;
    clock_facts(h);
    memcpy(h->hostname, id->hostname, sizeof h->hostname);
    memcpy(h->executable, id->executable, sizeof h->executable);
    memcpy(h->job, st_config.job, sizeof h->job);
    memcpy(h->providers, st_config.providers, sizeof h->providers);
    memcpy(h->profile, st_config.profile, sizeof h->profile);
    memcpy(h->magic, "SGMTRACE", 8);
    h->header_crc = st_crc32c((const uint8_t *)h, offsetof(struct st_file_header, header_crc));
}

/* Makes the file, its header and its first window. 0, or an errno: the process is then not recorded. */
int st_file_create(void)
{
    struct st_process *p = st_process;
    struct st_identity id;
    struct stat st;
    char folder[PATH_MAX];
    st_identify(&id);
    int n = snprintf(folder, sizeof folder, "%s/%s", st_config.directory, id.node);
    if (n < 0 || (size_t)n >= sizeof folder)
        return ENAMETOOLONG;
    st_make_folder(folder);
    int fd = -1;
    for (p->image = 0; p->image < 4096; p->image++) {
        snprintf(p->file, sizeof p->file, "%s/%u.%llu.%u.capture", folder, id.pid, (unsigned long long)id.start_time, p->image);
        fd = open(p->file, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST)
            break;
    }
    if (fd < 0)
        return errno;
    int error = fstat(fd, &st) || ((st.st_mode & 0600) != 0600 && fchmod(fd, 0600)) ? errno : 0; /* it is opened again: umask(2) has no say */
    p->device = st.st_dev;
    p->inode = st.st_ino;
    p->written = st_config.back_end ? st_config.back_end == 2 : (uint32_t)is_network(folder);
    p->in_memory = (uint32_t)is_memory(fd);
    p->memory = st_memory_limit() / 20;
    if (p->memory > st_config.memory)
        p->memory = st_config.memory;
    p->held = offsetof(struct st_process, names);
    if (!error)
        error = reserve_fd(fd, 0, ST_HEADER_BYTES);
    void *m = NULL;
    if (!error && !p->written) {
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
    fill_header(p->header, &id);
    p->reserved = p->given = ST_HEADER_BYTES;
    if (p->written)
        st_write(p->header, ST_HEADER_BYTES, 0);
    return 0;
}
