/* The text that a step's nodes get, and the preload made of it. It may come from anybody: all of it is checked. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int plain(const char *s, size_t n, const char *more)
{
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || strchr(more, c)))
            return 0;
    }
    return n > 0;
}

const char *sm_step_parse(const char *text, struct sm_step *step)
{
    if (strncmp(text, "1;", 2))
        return "what its launcher sent is of another version";
    const char *providers = text + 2, *end = strchr(providers, ';');
    if (!end || (size_t)(end - providers) >= sizeof step->providers || !plain(providers, (size_t)(end - providers), ",_"))
        return "what its launcher sent has no valid list of providers";
    const char *run = end + 1;
    step->named = run[0] == '@';
    step->since = 0;
    if (step->named)
        step->since = strtoll(run + 1, (char **)&run, 10);
    size_t n = strlen(run);
    if (run[0] != '/' || n >= sizeof step->run - sizeof "/profile.resolved")
        return "what its launcher sent has no valid run directory";
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)run[i] < ' ' || run[i] == 0x7f)
            return "what its launcher sent has no valid run directory";
    memcpy(step->providers, providers, (size_t)(end - providers));
    step->providers[end - providers] = 0;
    memcpy(step->run, run, n + 1);
    return NULL;
}

/* Names the run of a step by the numbers that its tasks have: %j, %s, and %% for a percent sign. */
const char *sm_step_name(struct sm_step *step, const char *job, const char *id)
{
    char path[sizeof step->run];
    size_t n = 0;
    if (strspn(job, "0123456789") != strlen(job) || strspn(id, "0123456789") != strlen(id) || !job[0] || !id[0])
        return "the step has no number";
    for (const char *p = step->run; *p; p++) {
        char one[2] = {*p, 0};
        const char *what = *p != '%' ? one : p[1] == 'j' ? job : p[1] == 's' ? id : p[1] == '%' ? "%" : NULL;
        if (!what)
            return "what its launcher sent has no valid run directory";
        size_t k = strlen(what);
        if (n + k >= sizeof path - sizeof "/profile.resolved")
            return "its run directory's name is too long";
        memcpy(path + n, what, k);
        n += k;
        p += *p == '%';
    }
    path[n] = 0;
    memcpy(step->run, path, n + 1);
    return NULL;
}

static int append(char *to, size_t size, size_t *used, const char *what, size_t n)
{
    int colon = *used > 0;
    if (*used + (size_t)colon + n >= size)
        return -1;
    if (colon)
        to[(*used)++] = ':';
    memcpy(to + *used, what, n);
    *used += n;
    to[*used] = 0;
    return 0;
}

/* A library of ours that is in the list already, from an enclosing run. */
static int ours(const char *libdir, const char *entry, size_t n)
{
    size_t d = strlen(libdir);
    if (n <= d + 4 || memcmp(entry, libdir, d) || entry[d] != '/' || memchr(entry + d + 1, '/', n - d - 1) || memcmp(entry + n - 3, ".so", 3))
        return 0;
    const char *name = entry + d + 1;
    return !strncmp(name, "libsigmatrace.", 14) || !strncmp(name, "provider-", 9);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The one object that has the recorder and just these providers, libsigmatrace.A+B.so, where it is installed: every object makes the start of
 * every program longer. 0, or -1. */
static int whole(const struct sm_step *step, const char *libdir, char *to, size_t size)
{
    char copy[sizeof step->providers], *names[sizeof step->providers / 2], *rest = copy, *name;
    size_t count = 0;
    strcpy(copy, step->providers);
    while ((name = strsep(&rest, ",")))
        if (*name)
            names[count++] = name;
    qsort(names, count, sizeof *names, by_name);
    size_t used = (size_t)snprintf(to, size, "%s/libsigmatrace.", libdir);
    for (size_t i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(to + used, size - used, "%s%s", i ? "+" : "", names[i]);
    if (used < size)
        used += (size_t)snprintf(to + used, size - used, ".so");
    return used < size && !access(to, R_OK) ? 0 : -1;
}

/* The n-th library to preload, 0 first: 0, or -1 behind the last. */
int sm_step_library(const struct sm_step *step, const char *libdir, unsigned n, char *to, size_t size)
{
    if (!whole(step, libdir, to, size))
        return n == 0 ? 0 : -1;
    if (n == 0)
        return (size_t)snprintf(to, size, "%s/libsigmatrace.so", libdir) < size ? 0 : -1;
    const char *p = step->providers;
    for (; n > 1 && p; n--)
        p = (p = strchr(p, ',')) ? p + 1 : NULL;
    size_t k = p ? strcspn(p, ",") : 0;
    return k > 0 && (size_t)snprintf(to, size, "%s/provider-%.*s.so", libdir, (int)k, p) < size ? 0 : -1;
}

const char *sm_step_preload(const struct sm_step *step, const char *libdir, const char *existing, char *to, size_t size)
{
    char lib[PATH_MAX + 300];
    size_t used = 0;
    int bad = 0;
    to[0] = 0;
    for (unsigned n = 0; !sm_step_library(step, libdir, n, lib, sizeof lib); n++)
        bad |= append(to, size, &used, lib, strlen(lib));
    for (const char *p = existing; *p;) {
        size_t k = strcspn(p, ": ");
        if (k > 0 && !ours(libdir, p, k))
            bad |= append(to, size, &used, p, k);
        p += k + (p[k] != 0);
    }
    return bad ? "LD_PRELOAD is too long" : NULL;
}

/* Whether a program is what MPI's own launchers start on each node: its step belongs to the run that the launcher is part of. */
int sm_is_daemon(const char *program)
{
    static const char *const names[] = {"orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy"};
    const char *slash = program ? strrchr(program, '/') : NULL;
    for (size_t i = 0; program && i < sizeof names / sizeof *names; i++)
        if (!strcmp(slash ? slash + 1 : program, names[i]))
            return 1;
    return 0;
}

const char *sm_step_label(uint32_t step, char number[16])
{
    snprintf(number, 16, "%u", step);
    return step == SLURM_BATCH_SCRIPT ? "batch" : step == SLURM_INTERACTIVE_STEP ? "interactive" : number;
}

/* What a node's tasks of a step are called: <host>.<job>.<step>, as a file's name has it. 0, or -1 where that would not be one. */
int sm_step_part(const char *host, uint32_t job, uint32_t step, char *to, size_t size)
{
    char number[16];
    int n = snprintf(to, size, "%s.%u.%s", host, job, sm_step_label(step, number));
    return n > 0 && (size_t)n < size && n <= 200 && host[0] && host[0] != '.' && !strpbrk(host, "/\n") ? 0 : -1;
}
