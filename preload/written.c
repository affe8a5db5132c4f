/* The written back end: chunks are filled in memory and written when full; definitions and tables by and by. Everything here is a slow path. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Writes size bytes at place. 0, or an errno. */
static int put(int fd, const void *from, size_t size, uint64_t place)
{
    const uint8_t *data = from;
    while (size) {
        ssize_t n = st_write_once(fd, data, size, (off_t)place);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? errno : EIO;
        data += n;
        place += (uint64_t)n;
        size -= (size_t)n;
    }
    return 0;
}

/* Closes the capture after writes, of which error is what the first that failed said; stops the recording where one did. */
static int done(struct st_process *p, int fd, int error)
{
    if (fd >= 0 && close(fd) && !error && errno != EINTR) /* NFS says here what became of the write */
        error = errno;
    if (error)
        st_stop(p, error);
    return error;
}

int st_write(const void *from, size_t size, uint64_t place)
{
    struct st_process *p = st_process;
    int fd = st_file_open(p);
    return done(p, fd, fd < 0 ? errno : put(fd, from, size, place));
}

/* A block's header counts the payload: it comes last, so that a kill between the two leaves nothing that is not there. */
void st_write_added(const struct st_block *b, uint32_t before, uint64_t place)
{
    struct st_process *p = st_process;
    int fd = st_file_open(p), error = fd < 0 ? errno : put(fd, b->payload + before, b->committed - before, place + sizeof *b + before);
    done(p, fd, error ? error : put(fd, b, sizeof *b, place));
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

/* Tells a block from what it was, never 0. What other threads count meanwhile is in it or not. */
__attribute__((no_sanitize("thread"))) static uint64_t sum_of(const struct st_block *b)
{
    uint64_t h = 0xcbf29ce484222325ull, word;
    for (const uint8_t *p = (const uint8_t *)b, *end = p + st_config.chunk; p < end; p += sizeof word) {
        memcpy(&word, p, sizeof word);
        h = (h ^ word) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 29;
    }
    return h | 1;
}

/* The blocks that keep changing, those that have changed; at the end all. And the header. */
void st_flush_again(void)
{
    struct st_process *p = st_process;
    int fd = st_file_open(p), error = fd < 0 ? errno : 0;
    for (uint32_t i = 0; i < p->again_used && fd >= 0; i++) {
        struct st_written *w = &p->again[i];
        /* before the write: what is counted meanwhile makes it another the next time */
        uint64_t sum = sum_of(w->block);
        if (w->sum == sum && !p->header->end_mark)
            continue;
        int failed = put(fd, w->block, st_config.chunk, w->place);
        w->sum = failed ? 0 : sum;
        error = error ? error : failed;
    }
    if (!error)
        error = put(fd, p->header, ST_HEADER_BYTES, 0);
    if (done(p, fd, error))
        for (uint32_t i = 0; i < p->again_used; i++)
            p->again[i].sum = 0;
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
