/* What the application says of itself: marks and phases, through sigmatrace.h and, in nvtx.c, through NVTX. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define NAME_BYTES 200 /* of a name, and 60 of its domain, are kept */

/* The number of a name; told in the definition stream at the first use. 0: the table is full. */
static uint32_t number_of(const char *name, const char *domain)
{
    struct st_process *p = st_process;
    uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a */
    for (const char *c = domain; c && *c; c++)
        h = (h ^ (unsigned char)*c) * 0x100000001b3ull;
    h = (h ^ 0xff) * 0x100000001b3ull;
    for (const char *c = name; *c; c++)
        h = (h ^ (unsigned char)*c) * 0x100000001b3ull;
    h |= 1;
    for (uint32_t i = (uint32_t)(h >> 40) % ST_APP_NAMES, n = 0; n < ST_APP_NAMES / 2; n++, i = (i + 1) % ST_APP_NAMES) {
        uint64_t none = 0;
        if (__atomic_load_n(&p->app_names[i], __ATOMIC_ACQUIRE) == h)
            return i + 1;
        if (__atomic_compare_exchange_n(&p->app_names[i], &none, h, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            char kept[NAME_BYTES + 1], kept_domain[61];
            snprintf(kept, sizeof kept, "%s", name);
            snprintf(kept_domain, sizeof kept_domain, "%s", domain ? domain : "");
            st_def_app_name(i + 1, kept, kept_domain);
            return i + 1;
        }
        if (none == h)
            return i + 1;
    }
    return 0;
}

static struct st_object *track_of(struct st_thread *t)
{
    if (!t->track) {
        t->track = st_object_new(ST_KIND_TRACK, t->index);
        st_def_app_track(t->track->id, t->index);
    }
    return t->track;
}

static void record(struct st_thread *t, unsigned event, struct st_object *track, const char *name, const char *domain, uint64_t range)
{
    if (st_mode != ST_AGGREGATE)
        st_rec_app_phase(t, st_clock(), event, track, number_of(name, domain), range);
}

void st_app_mark(const char *name, const char *domain)
{
    struct st_thread *t = st_enter(ST_LAYER_APP);
    int saved = errno;
    if (!t)
        return;
    record(t, ST_EV_APP_MARK, track_of(t), name, domain, 0);
    st_leave(t, ST_LAYER_APP);
    errno = saved;
}

static void own_epoch(struct st_thread *t, uint32_t epoch) { __atomic_store_n(&t->owner, t->index | (uint64_t)epoch << 32, __ATOMIC_RELAXED); }

/* The epoch that a thread counts in, from the phases that it is in; without one, the process's, which may change meanwhile. */
static void epoch_of_phases(struct st_thread *t)
{
    uint32_t depth = t->depth < ST_PHASES ? t->depth : ST_PHASES, now;
    if (depth) {
        own_epoch(t, t->phases[depth - 1].epoch);
        return;
    }
    do {
        now = __atomic_load_n(&st_process->watch.epoch, __ATOMIC_ACQUIRE);
        own_epoch(t, now);
    } while (now != __atomic_load_n(&st_process->watch.epoch, __ATOMIC_ACQUIRE));
}

static int same(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

/* Returns the level of the phase among those of its domain, from 0; -2 where nothing is recorded. */
int st_app_push(const char *name, const char *domain)
{
    struct st_thread *t = st_enter(ST_LAYER_APP);
    int saved = errno, level = 0;
    if (!t)
        return -2;
    record(t, ST_EV_APP_PHASE_BEGIN, track_of(t), name, domain, 0);
    for (uint32_t i = 0; i < t->depth && i < ST_PHASES; i++)
        level += same(t->phases[i].domain, domain);
    uint32_t depth = t->depth;
    if (depth < ST_PHASES) {
        struct st_phase *x = &t->phases[depth];
        char full[NAME_BYTES + 64];
        snprintf(full, sizeof full, "%.60s%s%.*s", domain ? domain : "", domain ? ": " : "", NAME_BYTES, name);
        x->name = number_of(name, domain);
        x->domain = domain;
        x->epoch = st_config.phase_epochs ? st_epoch_number(ST_EPOCH_KIND_PHASE, full, st_realtime()) : 0;
    }
    __atomic_store_n(&t->depth, depth + 1, __ATOMIC_RELAXED);
    if (st_config.phase_epochs)
        epoch_of_phases(t);
    st_leave(t, ST_LAYER_APP);
    errno = saved;
    return level;
}

/* Ends the innermost phase of the domain. Returns its level; -1 where the thread is in none; -2 where nothing is recorded. */
int st_app_pop(const char *domain)
{
    struct st_thread *t = st_enter(ST_LAYER_APP);
    int saved = errno, level = -1;
    if (!t)
        return -2;
    uint32_t depth = t->depth < ST_PHASES ? t->depth : ST_PHASES, at = depth;
    while (at && !same(t->phases[at - 1].domain, domain))
        at--;
    if (t->depth > ST_PHASES || at) {
        uint32_t name = 0;
        if (t->depth <= ST_PHASES) {
            name = t->phases[at - 1].name;
            memmove(&t->phases[at - 1], &t->phases[at], (depth - at) * sizeof *t->phases);
        }
        level = 0;
        for (uint32_t i = 0; i + 1 < at; i++)
            level += same(t->phases[i].domain, domain);
        if (st_mode != ST_AGGREGATE)
            st_rec_app_phase(t, st_clock(), ST_EV_APP_PHASE_END, track_of(t), name, 0);
        __atomic_store_n(&t->depth, t->depth - 1, __ATOMIC_RELAXED);
        if (st_config.phase_epochs)
            epoch_of_phases(t);
    }
    st_leave(t, ST_LAYER_APP);
    errno = saved;
    return level;
}

void st_app_end(struct st_thread *t)
{
    uint32_t depth = t->depth < ST_PHASES ? t->depth : ST_PHASES;
    while (depth && st_mode != ST_AGGREGATE)
        st_rec_app_phase(t, st_clock(), ST_EV_APP_PHASE_END, track_of(t), t->phases[--depth].name, 0);
    __atomic_store_n(&t->depth, 0, __ATOMIC_RELAXED);
    epoch_of_phases(t);
}

/* Begins (event ST_EV_APP_PHASE_BEGIN) or ends a range that may end in another thread. */
void st_app_range(unsigned event, const char *name, const char *domain, uint64_t range)
{
    struct st_thread *t = st_enter(ST_LAYER_APP);
    int saved = errno;
    if (!t)
        return;
    struct st_object *o = st_find(ST_KIND_TRACK, 0);
    if (o == st_unknown) {
        o = st_object_new(ST_KIND_TRACK, 0);
        st_def_app_track(o->id, 0);
    }
    if (event == ST_EV_APP_PHASE_BEGIN)
        record(t, event, o, name, domain, range);
    else if (st_mode != ST_AGGREGATE)
        st_rec_app_phase(t, st_clock(), event, o, 0, range);
    st_leave(t, ST_LAYER_APP);
    errno = saved;
}

/* ---- sigmatrace.h ------------------------------------------------------------------------------------------------------------- */

ST_EXPORT void sigmatrace_mark_v1(const char *name)
{
    struct st_thread *t = st_enter(ST_LAYER_APP);
    int saved = errno;
    if (!t)
        return;
    name = name ? name : "";
    char kept[NAME_BYTES + 1];
    snprintf(kept, sizeof kept, "%s", name);
    record(t, ST_EV_APP_MARK, track_of(t), kept, NULL, 0);
    st_epoch(ST_EPOCH_KIND_MARK, kept, st_realtime());
    st_leave(t, ST_LAYER_APP);
    errno = saved;
}

ST_EXPORT void sigmatrace_phase_begin_v1(const char *name) { st_app_push(name ? name : "", NULL); }
ST_EXPORT void sigmatrace_phase_end_v1(void) { st_app_pop(NULL); }
