/* The window for events and the epochs of the tables: when they change, and looking for it. Everything here is a slow path.
 *
 * A closed window is mode ST_AGGREGATE: providers record no events then, and count on. When it opens every thread begins a new chunk, so
 * that objects get their absolute counters again and matching goes on. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define SECOND 1000000000ull
#define LOOK_NS 10000000 /* a thread that counts looks about as often */
#define LOOK_CLOCK 16 /* counts between looks at the clock: a program that was fast may become slow at any of them */

static struct st_thread *threads(struct st_process *p) { return __atomic_load_n(&p->threads, __ATOMIC_ACQUIRE); }

/* ---- epochs ------------------------------------------------------------------------------------------------------------------- */

static uint64_t hash(unsigned kind, const char *name)
{
    uint64_t h = 0xcbf29ce484222325ull ^ kind; /* FNV-1a */
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3ull;
    return h | 1;
}

/* Entries of ever new epochs must not take the room of those that keep the totals exact. */
static int room_for_epochs(const struct st_process *p)
{
    uint64_t used = (uint64_t)__atomic_load_n(&p->sequences[ST_BLOCK_AGGREGATES], __ATOMIC_RELAXED) * st_config.chunk;
    uint64_t held = __atomic_load_n(&p->held, __ATOMIC_RELAXED);
    return used < st_config.budget / (st_config.mode == ST_AGGREGATE ? 2 : 32) && held < p->memory / 4 * 3;
}

static uint32_t define(struct st_watch *w, unsigned kind, const char *name, uint64_t realtime)
{
    uint32_t number = w->epochs++;
    st_def_epoch(number, kind, realtime, name);
    return number;
}

/* The number of an epoch, a new one where there is none of the kind and name yet. One caller at a time. */
static uint32_t number_of(unsigned kind, const char *name, uint64_t realtime)
{
    struct st_process *p = st_process;
    struct st_watch *w = &p->watch;
    uint64_t key = kind == ST_EPOCH_KIND_INTERVAL ? 0 : hash(kind, name);
    for (uint32_t i = 0; key && i < w->named; i++)
        if (w->names[i] == key)
            return w->numbers[i];
    if (!w->epochs)
        define(w, ST_EPOCH_KIND_START, "", st_realtime());
    if (!room_for_epochs(p) || (key && w->named == ST_EPOCH_NAMES)) {
        if (!w->epochs_full)
            w->epochs_full = define(w, ST_EPOCH_KIND_MORE, "", realtime);
        return w->epochs_full;
    }
    uint32_t number = define(w, kind, name, realtime);
    if (key) {
        w->names[w->named] = key;
        w->numbers[w->named++] = number;
    }
    return number;
}

static void use_epoch(uint32_t number)
{
    struct st_process *p = st_process;
    st_lock();
    __atomic_store_n(&p->watch.epoch, number, __ATOMIC_RELEASE);
    for (struct st_thread *t = threads(p); t; t = t->all)
        if (!__atomic_load_n(&t->depth, __ATOMIC_RELAXED) || !st_config.phase_epochs)
            __atomic_store_n(&t->owner, t->index | (uint64_t)number << 32, __ATOMIC_RELAXED);
    st_unlock();
}

static int hold(struct st_watch *w) { return !__atomic_exchange_n(&w->busy, 1, __ATOMIC_ACQUIRE); }
static void wait_hold(struct st_watch *w)
{
    while (!hold(w))
        st_pause();
}
static void release(struct st_watch *w) { __atomic_store_n(&w->busy, 0, __ATOMIC_RELEASE); }

uint32_t st_epoch_number(unsigned kind, const char *name, uint64_t realtime)
{
    struct st_watch *w = &st_process->watch;
    wait_hold(w);
    uint32_t number = number_of(kind, name, realtime);
    release(w);
    return number;
}

uint32_t st_epoch(unsigned kind, const char *name, uint64_t realtime)
{
    struct st_watch *w = &st_process->watch;
    wait_hold(w);
    uint32_t number = number_of(kind, name, realtime);
    use_epoch(number);
    release(w);
    return number;
}

/* ---- the window --------------------------------------------------------------------------------------------------------------- */

/* Reads the command in the run's control file, if the file is another than last time. */
static void read_control(struct st_watch *w)
{
    struct stat st;
    char text[512], *line, *rest = text;
    if (stat(st_config.control, &st))
        return;
    uint64_t now[3] = {st.st_ino, (uint64_t)st.st_mtim.tv_sec * SECOND + (uint64_t)st.st_mtim.tv_nsec, (uint64_t)st.st_size};
    if (!memcmp(now, w->control_file, sizeof now))
        return;
    ssize_t n = st_slurp(st_config.control, text, sizeof text);
    if (n <= 0 || text[n - 1] != '\n' || strncmp(text, "sigmatrace.control=1\n", 21))
        return;
    memcpy(w->control_file, now, sizeof now);
    while ((line = strsep(&rest, "\n"))) {
        char *value = strchr(line, '=');
        if (!value)
            continue;
        *value++ = 0;
        if (!strcmp(line, "window"))
            w->command = !strcmp(value, "start") ? 1 : !strcmp(value, "stop") ? 2 : 0;
        else if (!strcmp(line, "time"))
            w->command_time = strtoull(value, NULL, 10);
        else if (!strcmp(line, "number"))
            w->command_number = strtoull(value, NULL, 10);
        else if (!strcmp(line, "windows"))
            w->windows = strtoull(value, NULL, 10);
    }
}

static int windowed(void)
{
    const struct st_config *c = &st_config;
    return c->closed || c->delay || c->duration || c->max_events;
}

/* When the run began, by this process's CLOCK_MONOTONIC, which no step of the wall clock moves. Where the launcher's clock is another one,
 * the wall clock says once how long before the process that was: not in the future, whatever it says. */
static int64_t run_began(void)
{
    const struct st_config *c = &st_config;
    char name[sizeof c->clock];
    st_clock_name(name, sizeof name);
    if (*name && !strcmp(name, c->clock))
        return c->start_monotonic;
    int64_t passed = (int64_t)(c->loaded_realtime - c->start);
    return (int64_t)c->loaded_monotonic - (passed > 0 ? passed : 0);
}

/* Whether the window is to be open at a time, by both clocks; *since: the edge that made it so, by the wall clock, *cause: what that was. */
static uint32_t wanted(const struct st_watch *w, uint64_t monotonic, uint64_t now, uint64_t *since, unsigned *cause)
{
    const struct st_config *c = &st_config;
    *cause = ST_WINDOW_CAUSE_PROFILE;
    *since = now;
    if (w->exhausted) {
        *cause = ST_WINDOW_CAUSE_MAX_EVENTS;
        return 0;
    }
    if (w->command) {
        *cause = ST_WINDOW_CAUSE_COMMAND;
        *since = w->command_time;
        return w->command == 1;
    }
    if (c->closed || !c->start || (!c->delay && !c->duration))
        return !c->closed;
    int64_t passed = (int64_t)monotonic - w->began - (int64_t)c->delay; /* since it is to open */
    if (passed < 0)
        return 0;
    uint32_t open = !c->duration || passed < (int64_t)c->duration;
    *since = now - (uint64_t)passed + (open ? 0 : c->duration);
    return open;
}

static void name_window(const struct st_watch *w, uint32_t open, char *name, size_t size)
{
    if (!open)
        snprintf(name, size, "outside window");
    else if (w->command == 1)
        snprintf(name, size, "window %llu", (unsigned long long)w->windows);
    else
        snprintf(name, size, "window");
}

/* Threads count their own, with plain stores; a little more or less does not matter. */
__attribute__((no_sanitize("thread"))) static uint64_t records(struct st_process *p)
{
    uint64_t n = 0;
    for (struct st_thread *t = threads(p); t; t = t->all)
        n += __atomic_load_n(&t->records, __ATOMIC_RELAXED);
    return n;
}

/* Opens or closes the window. The mode changes last, so that what is recorded in the window finds new chunks. */
static void set_window(uint32_t open, unsigned cause, uint64_t since)
{
    struct st_process *p = st_process;
    struct st_watch *w = &p->watch;
    char name[64];
    __atomic_store_n(&w->open, open, __ATOMIC_RELAXED);
    if (!open)
        __atomic_store_n(&st_mode, ST_AGGREGATE, __ATOMIC_RELAXED);
    st_def_window(open, cause, since, w->command_number);
    name_window(w, open, name, sizeof name);
    use_epoch(number_of(ST_EPOCH_KIND_WINDOW, name, since));
    if (!open)
        return;
    st_lock();
    __atomic_store_n(&w->generation, w->generation + 1, __ATOMIC_RELAXED);
    for (struct st_thread *t = threads(p); t; t = t->all)
        __atomic_store_n(&t->limit, NULL, __ATOMIC_RELAXED);
    st_unlock();
    __atomic_store_n(&st_mode, st_config.mode, __ATOMIC_RELAXED);
}

void st_watch_begin(void)
{
    const struct st_config *c = &st_config;
    struct st_watch *w = &st_process->watch;
    uint64_t now = st_realtime(), since;
    unsigned cause;
    int controlled = c->control[0] && !c->uncontrolled;
    char name[64];
    memset(w, 0, sizeof *w);
    if (controlled)
        read_control(w);
    uint64_t monotonic = w->control_looked = st_monotonic();
    w->began = c->delay || c->duration ? run_began() : 0;
    w->open = wanted(w, monotonic, now, &since, &cause);
    st_mode = w->open ? c->mode : ST_AGGREGATE;
    w->needed = controlled || windowed() || c->interval;
    w->edge = c->interval ? now - now % c->interval + c->interval : ~0ull;
    if (windowed() || w->command) {
        name_window(w, w->open, name, sizeof name);
        st_def_window(w->open, ST_WINDOW_CAUSE_BEGIN, since, w->command_number);
        w->epoch = w->epochs++;
        st_def_epoch(w->epoch, ST_EPOCH_KIND_WINDOW, since, name);
        w->names[0] = hash(ST_EPOCH_KIND_WINDOW, name);
        w->numbers[0] = w->epoch;
        w->named = 1;
    } else if (c->interval) {
        w->epoch = define(w, ST_EPOCH_KIND_INTERVAL, "", w->edge - c->interval);
    }
}

/* A cheap clock, of some milliseconds' resolution. */
static uint64_t coarse(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* Whether the thread is to look now. It looks at the clock next after LOOK_CLOCK counts, and not after more events than the window has left. */
static int due(struct st_process *p, struct st_thread *t)
{
    uint64_t now = coarse(), after = LOOK_CLOCK;
    int is = !t->looked || now - t->looked >= LOOK_NS;
    if (st_config.max_events && !__atomic_load_n(&p->watch.exhausted, __ATOMIC_RELAXED) && __atomic_load_n(&p->watch.open, __ATOMIC_RELAXED)) {
        uint64_t had = records(p), left = had < st_config.max_events ? st_config.max_events - had : 1;
        uint32_t started = __atomic_load_n(&p->next_thread, __ATOMIC_RELAXED);
        left /= started ? started : 1;
        after = after < left ? after : left ? left : 1;
        is |= had >= st_config.max_events;
    }
    t->look = (uint32_t)after;
    if (is)
        t->looked = now;
    return is;
}

static void watch(uint64_t monotonic)
{
    struct st_process *p = st_process;
    struct st_watch *w = &p->watch;
    const struct st_config *c = &st_config;
    if (!hold(w))
        return;
    if (c->control[0] && !c->uncontrolled && monotonic - w->control_looked > SECOND) {
        w->control_looked = monotonic;
        read_control(w);
    }
    if (c->max_events && !w->exhausted && records(p) >= c->max_events)
        __atomic_store_n(&w->exhausted, 1, __ATOMIC_RELAXED);
    uint64_t now = st_realtime(), since;
    unsigned cause;
    uint32_t open = wanted(w, monotonic, now, &since, &cause);
    if (open != w->open)
        set_window(open, cause, since);
    if (now >= w->edge || (c->interval && now < w->edge - c->interval)) { /* the latter where the wall clock was set back */
        uint64_t edge = now - now % c->interval;
        w->edge = edge + c->interval;
        use_epoch(number_of(ST_EPOCH_KIND_INTERVAL, "", edge));
    }
    release(w);
}

void st_look(struct st_thread *t)
{
    struct st_process *p = st_process;
    t->look = ST_LOOK;
    if (!p)
        return;
    int saved = errno, watched = p->watch.needed;
    if (watched && !due(p, t)) {
        errno = saved;
        return;
    }
    uint64_t now = watched || p->written ? st_monotonic() : 0;
    int cancel = st_uncancelled();
    st_busy(t);
    if (watched)
        watch(now);
    if (p->written)
        st_tables_flush(p, now);
    st_idle(t);
    st_cancelled(cancel);
    errno = saved;
}
