/* What srun, sbatch and salloc have in common: deciding whether there is tracing, and resolving the profile, as the user. */
#define _GNU_SOURCE
#include "internal.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RESOLVE_SECONDS 20

char sm_job[SM_JOB_TEXT];

void sm_say(const char *kind, const char *fmt, ...)
{
    va_list list;
    fprintf(stderr, "sigmatrace: %s: ", kind);
    va_start(list, fmt);
    vfprintf(stderr, fmt, list);
    va_end(list);
    fputc('\n', stderr);
}

/* This process's words, each with its end; returns their bytes. */
size_t sm_command_line(char *to, size_t size)
{
    size_t used = 0;
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && used < size - 1) {
        ssize_t n = read(fd, to + used, size - 1 - used);
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    if (fd >= 0)
        close(fd);
    to[used] = 0;
    return used;
}

enum sm_decision sm_decide(void)
{
    const struct sm_ask *a = &sm_ask;
    if (a->given && a->off)
        return SM_OFF;
    if (!a->given && (!sm_site.profile[0] || !sm_site_allows_user(getuid(), getgid()))) {
        if (a->count > 0) {
            sm_say("warning", "nothing is traced: neither --sigmatrace nor this cluster asks for it");
            sm_say("hint", "add --sigmatrace or --sigmatrace=PROFILE");
        }
        return SM_UNTOUCHED;
    }
    if (sm_site.bad || sm_site_switched_off()) {
        if (a->given)
            sm_say("warning", "nothing is traced: %s", sm_site.bad ? "sigmatrace's line in plugstack.conf is wrong" : "this cluster has switched tracing off");
        if (a->given && sm_site.bad)
            sm_say("hint", "sigmatrace doctor says what is wrong with it");
        return SM_OFF;
    }
    const char *only = sm_site.profile[0] ? sm_site.profile : "simple";
    if (sm_site.locked && a->here && a->profile[0] && strcmp(a->profile, sm_site.profile))
        sm_say("warning", "--sigmatrace=%s is passed over: this cluster has one profile for all, %s", a->profile, only);
    if (sm_site.locked && a->set_here)
        sm_say("warning", "--sigmatrace-set is passed over: this cluster has one profile for all, %s", only);
    return SM_ON;
}

/* The value of a key in sm_job. -1: it is not there or too long. */
int sm_job_value(const char *key, char *to, size_t size)
{
    size_t n = strlen(key), used = 0;
    const char *p = sm_job;
    while (p && !(p[0] == ';' && !strncmp(p + 1, key, n) && p[1 + n] == '='))
        p = strchr(p + 1, ';');
    if (!p)
        return -1;
    for (p += n + 2; *p && *p != ';'; used++) {
        int escaped = !strncmp(p, "%3B", 3) || !strncmp(p, "%25", 3);
        if (used + 1 >= size)
            return -1;
        to[used] = !escaped ? *p : p[1] == '3' ? ';' : '%';
        p += escaped ? 3 : 1;
    }
    to[used] = 0;
    return 0;
}

/* The limits of srun's own merge: the profile's, and above it the site's. */
unsigned sm_merge_seconds(void)
{
    char text[32];
    unsigned long long ns = 60000000000ull;
    if (!sm_job_value("merge.slurm_time", text, sizeof text))
        ns = strtoull(text, NULL, 10);
    unsigned long long seconds = ns / 1000000000 + (ns % 1000000000 != 0);
    return seconds < sm_site.merge_seconds ? (unsigned)seconds : sm_site.merge_seconds;
}

int sm_merge_nice(void)
{
    char text[32];
    unsigned long nice = 10;
    if (!sm_job_value("merge.slurm_nice", text, sizeof text))
        nice = strtoul(text, NULL, 10);
    return nice < 19 ? (int)nice : 19;
}

/* Who named the profile, as messages have it. */
static const char *named_by(void)
{
    const struct sm_ask *a = &sm_ask;
    const char *name = getenv("SIGMATRACE_PROFILE");
    if (!a->profile[0] || sm_site.locked)
        return "this cluster's default profile";
    if (a->here)
        return "--sigmatrace";
    return name && !strcmp(name, a->profile) ? "environment SIGMATRACE_PROFILE" : "environment " SM_OPTION_VARIABLE;
}

/* Fills sm_job. */
int sm_resolve(void)
{
    const struct sm_ask *a = &sm_ask;
    const struct sm_site *s = &sm_site;
    const char *name = s->profile[0] ? s->profile : "simple";
    char *argv[16 + 2 * SM_SETTINGS], out[SM_JOB_TEXT + 1] = "";
    int n = 0;
    if (a->profile[0] && !s->locked)
        name = a->profile;
    argv[n++] = (char *)s->command;
    argv[n++] = "profile";
    argv[n++] = "resolve";
    argv[n++] = "--job";
    argv[n++] = "--named-by";
    argv[n++] = (char *)named_by();
    if (s->profiles[0]) {
        argv[n++] = "--site-profiles";
        argv[n++] = (char *)s->profiles;
    }
    if (s->output[0]) {
        argv[n++] = "--site-output";
        argv[n++] = (char *)s->output;
    }
    if (s->locked)
        argv[n++] = "--site-only";
    for (int i = 0; i < a->count; i++)
        if (!s->locked || !strncmp(a->settings[i], "output.directory=", 17)) {
            argv[n++] = "--set";
            argv[n++] = (char *)a->settings[i];
        }
    argv[n++] = "--";
    argv[n++] = (char *)name;
    argv[n] = NULL;
    struct sm_command c = {.argv = argv, .envp = environ, .seconds = RESOLVE_SECONDS, .out = out, .out_size = sizeof out};
    int status = sm_run(&c);
    size_t length = strcspn(out, "\n");
    if (status == 0 && out[length] == '\n' && length < sizeof sm_job) {
        memcpy(sm_job, out, length);
        sm_job[length] = 0;
        return 0;
    }
    sm_job[0] = 0;
    if (status == SM_UNTRUSTED)
        sm_say("error", "%s is not run: anybody can write it, or a directory on the way to it", s->command);
    if (status < 0 || status >= 127) /* 128 and more: by a signal, as what takes too long is ended */
        sm_say("error", "%s could not be run, or not within %d s", s->command, RESOLVE_SECONDS);
    return -1;
}
