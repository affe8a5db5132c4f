/* The text that a step's nodes get, and the preload made of it. It may come from anybody: all of it is checked. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <string.h>

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
    run += step->named;
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

/* Names the run of a step by the numbers that its tasks have. */
const char *sm_step_name(struct sm_step *step, const char *job, const char *id)
{
    size_t n = strlen(step->run);
    if (strspn(job, "0123456789") != strlen(job) || strspn(id, "0123456789") != strlen(id) || !job[0] || !id[0])
        return "the step has no number";
    int k = snprintf(step->run + n, sizeof step->run - n, "/sigmatrace-%s.%s", job, id);
    return k < 0 || (size_t)k >= sizeof step->run - n - sizeof "/profile.resolved" ? "its run directory's name is too long" : NULL;
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
    return n > d + 1 && !memcmp(entry, libdir, d) && entry[d] == '/' && !memchr(entry + d + 1, '/', n - d - 1) &&
           ((n - d - 1 == 16 && !memcmp(entry + d + 1, "libsigmatrace.so", 16)) || (n - d - 1 > 9 && !memcmp(entry + d + 1, "provider-", 9)));
}

const char *sm_step_preload(const struct sm_step *step, const char *libdir, const char *existing, char *to, size_t size)
{
    char lib[PATH_MAX + 300];
    size_t used = 0;
    int bad = 0, n = snprintf(lib, sizeof lib, "%s/libsigmatrace.so", libdir);
    to[0] = 0;
    bad |= append(to, size, &used, lib, (size_t)n);
    for (const char *p = step->providers; *p;) {
        size_t k = strcspn(p, ",");
        n = snprintf(lib, sizeof lib, "%s/provider-%.*s.so", libdir, (int)k, p);
        bad |= append(to, size, &used, lib, (size_t)n);
        p += k + (p[k] == ',');
    }
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
