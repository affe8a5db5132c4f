/* The site's arguments in plugstack.conf, and what follows from them. */
#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sm_site sm_site;

static int text(char *to, size_t size, const char *value)
{
    size_t n = strlen(value);
    if (n == 0 || n >= size)
        return -1;
    memcpy(to, value, n + 1);
    return 0;
}

static int path(char *to, const char *value)
{
    return value[0] == '/' ? text(to, PATH_MAX, value) : -1;
}

/* "1%", "0.25%", "100%" in millionths, or -1. */
static int64_t rate(const char *value)
{
    int64_t whole = 0, part = 0, scale = 10000;
    const char *p = value;
    for (; *p >= '0' && *p <= '9' && whole <= 100; p++)
        whole = whole * 10 + (*p - '0');
    if (p == value)
        return -1;
    if (*p == '.')
        for (p++; *p >= '0' && *p <= '9' && scale > 1; p++)
            part += (*p - '0') * (scale /= 10);
    int64_t all = whole * 10000 + part;
    return strcmp(p, "%") || all > 1000000 ? -1 : all;
}

static int number(unsigned *to, const char *value, unsigned long most)
{
    char *end;
    unsigned long n = strtoul(value, &end, 10);
    if (end == value || *end || n > most)
        return -1;
    *to = (unsigned)n;
    return 0;
}

/* PREFIX/below, where this file is PREFIX/lib/slurm/FILE. */
static void beside(char *to, size_t size, const char *below)
{
    Dl_info own;
    const char *file = dladdr(&sm_site, &own) && own.dli_fname ? own.dli_fname : "";
    size_t n = strlen(file);
    for (int level = 0; level < 3 && n > 0; level++)
        while (n > 0 && file[--n] != '/')
            ;
    if (file[0] != '/' || (size_t)snprintf(to, size, "%.*s/%s", (int)n, file, below) >= size)
        to[0] = 0;
}

static int argument(const char *name, const char *value)
{
    struct sm_site *s = &sm_site;
    const struct {
        const char *name, **list;
    } lists[] = {
        {"allow_users", &s->allow_users},   {"deny_users", &s->deny_users},           {"allow_groups", &s->allow_groups},
        {"deny_groups", &s->deny_groups},   {"allow_partitions", &s->allow_partitions}, {"deny_partitions", &s->deny_partitions},
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (!strcmp(name, lists[i].name)) {
            *lists[i].list = value;
            return 0;
        }
    if (!strcmp(name, "command"))
        return path(s->command, value);
    if (!strcmp(name, "libdir"))
        return path(s->libdir, value);
    if (!strcmp(name, "default_profile"))
        return text(s->profile, sizeof s->profile, value);
    if (!strcmp(name, "profile_dir"))
        return path(s->profiles, value);
    if (!strcmp(name, "output"))
        return path(s->output, value);
    if (!strcmp(name, "kill_switch"))
        return path(s->kill_switch, value);
    if (!strcmp(name, "resolved"))
        return path(s->resolved, value);
    if (!strcmp(name, "merge_seconds"))
        return number(&s->merge_seconds, value, 3600);
    if (!strcmp(name, "clock_seconds"))
        return number(&s->clock_seconds, value, 10);
    if (!strcmp(name, "ptp_domain"))
        return number(&s->ptp_domain, value, 255);
    if (!strcmp(name, "rate")) {
        int64_t r = rate(value);
        s->rate = r < 0 ? 0 : (uint32_t)r;
        return r < 0 ? -1 : 0;
    }
    return -1;
}

void sm_site_read(int ac, char **av, void (*say)(const char *fmt, ...))
{
    struct sm_site *s = &sm_site;
    memset(s, 0, sizeof *s);
    s->rate = 1000000;
    s->merge_seconds = 3600;
    s->clock_seconds = 2;
    beside(s->command, sizeof s->command, "bin/sigmatrace");
    beside(s->libdir, sizeof s->libdir, "lib/sigmatrace");
    for (int i = 0; i < ac; i++) {
        char name[32];
        const char *equals = strchr(av[i], '=');
        size_t n = equals ? (size_t)(equals - av[i]) : 0;
        if (!strcmp(av[i], "locked")) {
            s->locked = 1;
        } else if (n > 0 && n < sizeof name) {
            memcpy(name, av[i], n);
            name[n] = 0;
            s->bad |= argument(name, equals + 1);
        } else {
            s->bad = -1;
        }
        if (s->bad) {
            say("sigmatrace: argument \"%s\" in plugstack.conf is not valid: nothing is traced", av[i]);
            return;
        }
    }
    if (strpbrk(s->libdir, ": ")) {
        s->bad = -1;
        say("sigmatrace: libdir=%s in plugstack.conf has a character at which the dynamic linker splits LD_PRELOAD: nothing is traced", s->libdir);
    }
}

int sm_site_switched_off(void)
{
    return sm_site.kill_switch[0] && !access(sm_site.kill_switch, F_OK);
}

/* Whether a comma separated list has the name. */
int sm_in_list(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; n > 0 && p; p = *p ? p + 1 : NULL) {
        size_t k = strcspn(p, ",");
        if (k == n && !memcmp(p, name, n))
            return 1;
        p += k;
    }
    return 0;
}

static int in_groups(const char *list, const char *user, gid_t gid)
{
    gid_t groups[1024];
    int n = 1024;
    if (!list)
        return 0;
    if (!user || getgrouplist(user, gid, groups, &n) < 0) {
        groups[0] = gid;
        n = 1;
    }
    for (int i = 0; i < n; i++) {
        struct group *g = getgrgid(groups[i]);
        if (g && sm_in_list(list, g->gr_name))
            return 1;
    }
    return 0;
}

/* Who is denied is denied; else who is on a list of those allowed, where there is one. */
int sm_site_allows_user(uid_t uid, gid_t gid)
{
    const struct sm_site *s = &sm_site;
    if (!s->allow_users && !s->deny_users && !s->allow_groups && !s->deny_groups)
        return 1;
    struct passwd *p = getpwuid(uid);
    const char *user = p ? p->pw_name : NULL;
    if ((user && s->deny_users && sm_in_list(s->deny_users, user)) || in_groups(s->deny_groups, user, gid))
        return 0;
    if (!s->allow_users && !s->allow_groups)
        return 1;
    return (user && s->allow_users && sm_in_list(s->allow_users, user)) || in_groups(s->allow_groups, user, gid);
}

int sm_site_allows_partition(const char *partition)
{
    const struct sm_site *s = &sm_site;
    const char *name = partition ? partition : "";
    if (s->deny_partitions && sm_in_list(s->deny_partitions, name))
        return 0;
    return !s->allow_partitions || sm_in_list(s->allow_partitions, name);
}

/* Whether a job that did not ask is among those traced: the same answer everywhere, for all its steps. */
int sm_site_samples(uint32_t job)
{
    uint64_t h = job * 0x9e3779b97f4a7c15ull;
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93ull;
    return (h >> 32) % 1000000 < sm_site.rate;
}
