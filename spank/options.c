/* The options. Slurm calls back in the order of their precedence: #SBATCH, environment, command line; the last one holds, but that `off` is
 * not taken back by the environment. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sm_ask sm_ask;

/* Slurm hands a form without a value on as NULL, "", or this. */
static int bare(const char *arg)
{
    return !arg || !*arg || !strcmp(arg, "(null)") || !strcmp(arg, "default");
}

static int unusable(const char *option, const char *why)
{
    sm_say("error", "--%s: %s", option, why);
    return -1;
}

static int check(void)
{
    uid_t uid = getuid();
    if (sm_site.bad || sm_site_switched_off())
        return 0; /* sm_decide says so */
    if (!sm_site_allows_user(uid, getgid()))
        return unusable("sigmatrace", "tracing is not open to you on this cluster");
    return sm_resolve();
}

static int profile(int val, const char *arg, int remote)
{
    (void)val;
    struct sm_ask *a = &sm_ask;
    int off = arg && !strcmp(arg, "off");
    if (remote) {
        a->given = 1;
        a->off = off;
        return 0;
    }
    int inherits = arg && arg == getenv(SM_OPTION_VARIABLE);
    if (a->off && !off && inherits)
        return 0;
    if (!bare(arg) && strlen(arg) >= sizeof a->profile)
        return unusable("sigmatrace", "the profile's name is too long");
    a->given = 1;
    a->off = off;
    a->here = !inherits;
    a->bare = !arg || !*arg;
    strcpy(a->profile, bare(arg) || off ? "" : arg);
    return off ? 0 : check();
}

/* A key that was set before is set anew. */
static int keep(const char *option, const char *key, const char *value)
{
    struct sm_ask *a = &sm_ask;
    char text[SM_SETTING];
    int n = snprintf(text, sizeof text, "%s%s", key, value), at = 0;
    if (n < 0 || (size_t)n >= sizeof text)
        return unusable(option, "the value is too long");
    size_t name = strcspn(text, "=");
    while (at < a->count && (strncmp(a->settings[at], text, name) || a->settings[at][name] != '='))
        at++;
    if (at == SM_SETTINGS)
        return unusable(option, "it is given too often");
    memcpy(a->settings[at], text, (size_t)n + 1);
    a->count += at == a->count;
    return a->off ? 0 : check();
}

/* What a job was given travels whole in another variable: Slurm itself keeps the last value only. */
static int inherited(const char *arg, const char *variable)
{
    return arg && arg == getenv(variable) && getenv(SM_JOB_VARIABLE);
}

static int setting(int val, const char *arg, int remote)
{
    (void)val;
    if (remote || inherited(arg, SM_SETTING_VARIABLE))
        return 0;
    sm_ask.set_here = !arg || arg != getenv(SM_SETTING_VARIABLE);
    if (!arg || !strchr(arg, '='))
        return unusable("sigmatrace-set", "write --sigmatrace-set=key=value");
    return keep("sigmatrace-set", "", arg);
}

static int output(int val, const char *arg, int remote)
{
    (void)val;
    if (remote || inherited(arg, SM_OUTPUT_VARIABLE))
        return 0;
    if (!arg || !*arg)
        return unusable("sigmatrace-output", "write --sigmatrace-output=DIRECTORY");
    return keep("sigmatrace-output", "output.directory=", arg);
}

static struct spank_option options[] = {
    {"sigmatrace", "PROFILE|off", "record RDMA communication by a profile; without a value by the default one", 2, 1, profile},
    {"sigmatrace-output", "DIR", "make sigmatrace's run directories in DIR", 1, 2, output},
    {"sigmatrace-set", "key=value", "set a key of sigmatrace's profile; may be given several times", 1, 3, setting},
};

void sm_options_register(spank_t sp)
{
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (spank_option_register(sp, &options[i]) != ESPANK_SUCCESS)
            slurm_debug("sigmatrace: option --%s is not registered", options[i].name);
}

/* The variables that the options have as twins become Slurm's own form of them, which Slurm then treats by its rules. */
void sm_options_environment(void)
{
    const char *off = getenv("SIGMATRACE"), *name = getenv("SIGMATRACE_PROFILE"), *there = getenv(SM_OPTION_VARIABLE), *job = getenv(SM_JOB_VARIABLE);
    memset(&sm_ask, 0, sizeof sm_ask);
    if ((off && !strcmp(off, "off")) || (job && !strcmp(job, SM_JOB_OFF)))
        setenv(SM_OPTION_VARIABLE, "off", 1);
    else if (name && *name && !(there && !strcmp(there, "off")))
        setenv(SM_OPTION_VARIABLE, name, 1);
}

/* "--sigmatrace full" is the option without a value and a program called full: that word of the command line, NULL where there is none. */
static const char *astray(const char *text, size_t n, int (*is_past)(const char *word))
{
    static const char *const names[] = {"aggregate", "simple", "full", "default", "off"};
    for (const char *p = text + strlen(text) + 1, *next; p < text + n && !is_past(p); p = next) {
        next = p + strlen(p) + 1;
        if (strcmp(p, "--sigmatrace") || next >= text + n)
            continue;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (!strcmp(next, names[i]))
                return next;
    }
    return NULL;
}

static void hint(const char *name, int script)
{
    sm_say("warning", script ? "--sigmatrace %s is tracing by the default profile, and a script called %s"
                             : "--sigmatrace %s is tracing by the default profile, and a program called %s", name, name);
    sm_say("hint", "write --sigmatrace=%s", name);
}

static int never(const char *word)
{
    (void)word;
    return 0;
}

void sm_options_hint(void)
{
    char text[65536];
    if (!sm_ask.bare)
        return;
    const char *name = astray(text, sm_command_line(text, sizeof text), never);
    if (name)
        hint(name, 0);
}

static int readable(const char *word)
{
    return !access(word, R_OK);
}

/* sbatch opens its script before it looks at options, and says only that there is no file called full. The words behind a script are its own. */
void sm_options_hint_script(void)
{
    char text[65536];
    const char *name = astray(text, sm_command_line(text, sizeof text), readable);
    if (name && !readable(name))
        hint(name, 1);
}
