/* What a node reads: kind of the step, its text, LD_PRELOAD, the job's text, its tasks, job and step as variables, SIGMATRACE,
 * SIGMATRACE_PROFILE, the task's status, the answer of `slurm begin` and what it said on standard error, then the run's profile. A $ in the two texts is a folder
 * of the target's own; where they have no slash besides, what the plugin does as the user is done. */
#include "../../../spank/remote.c"
#include "fuzz.h"

#include <setjmp.h>

static char own[64];
static char *begun, *said;
static int safe, doing;
static jmp_buf done;

void __real__exit(int status);

void __wrap__exit(int code)
{
    if (doing)
        longjmp(done, code + 1);
    __real__exit(code);
}

int __wrap_sm_as_user(const struct sm_user *as, unsigned seconds, void (*what)(void *), void *of)
{
    volatile int code = 0;
    MUST(as && seconds > 0);
    if (!safe)
        return 1;
    int low = dup(2), got;
    close(low);
    doing = 1;
    if (!(got = setjmp(done)))
        what(of);
    else
        code = got - 1;
    doing = 0;
    for (int fd = low; fd < low + 8; fd++)
        close(fd); /* the child's end would do that */
    return code;
}

int __wrap_sm_run(const struct sm_command *c)
{
    MUST(c->argv[0] == sm_site.command && c->seconds > 0);
    if (c->out)
        snprintf(c->out, c->out_size, "%s", begun);
    if (c->errors)
        snprintf(c->errors, c->errors_size, "%s", said);
    return begun[0] ? 0 : 1;
}

static void quiet(const char *fmt, ...)
{
    (void)fmt;
}

static void write_file(const char *name, const char *text, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", own, name);
    FILE *file = fopen(path, "w");
    MUST(file);
    MUST(fwrite(text, 1, n, file) == n && !fclose(file));
}

/* What the node wrote. */
static void clear(void)
{
    static const char *const names[] = {"tasks", "clock"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s/%s", own, names[i], node);
        unlink(path);
    }
}

static void gone(void)
{
    static const char *const names[] = {"profile.resolved", "libsigmatrace.so", "provider-ucx.so", "tasks", "clock", ""};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", own, names[i]);
        remove(path);
    }
}

static void set_up(void)
{
    char path[128];
    if (own[0])
        return;
    const char *tmp = getenv("TMPDIR");
    snprintf(own, sizeof own, "%s/sigmatrace-XXXXXX", tmp && strlen(tmp) < 40 ? tmp : "/tmp");
    MUST(mkdtemp(own));
    snprintf(path, sizeof path, "%s/tasks", own);
    MUST(!mkdir(path, 0700));
    write_file("libsigmatrace.so", "", 0);
    write_file("provider-ucx.so", "", 0);
    atexit(gone);
}

/* With the folder in the place of $. */
static char *expand(char *text)
{
    size_t n = strlen(text), k = strlen(own);
    char *to = malloc(n * k + n + 1), *p = to;
    MUST(to);
    for (const char *c = text; *c; c++)
        if (*c == '$')
            p = stpcpy(p, own);
        else
            *p++ = *c;
    *p = 0;
    free(text);
    return to;
}

void fuzz(struct fields *f)
{
    static const char *const names[] = {"LD_PRELOAD", SM_JOB_VARIABLE, "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID", "SLURM_STEP_ID", "SIGMATRACE", "SIGMATRACE_PROFILE"};
    char libdir[96], *av[] = {"command=/bin/false", libdir, "default_profile=simple", "merge_seconds=5"};
    size_t n;
    set_up();
    snprintf(libdir, sizeof libdir, "libdir=%s", own);
    sm_site_read(4, av, quiet);
    MUST(!sm_site.bad);
    memset(&step, 0, sizeof step);
    memset(&sm_ask, 0, sizeof sm_ask);
    tasks[0] = 0;

    char *kind = field(f), *text = field(f);
    slurm_says.context = S_CTX_REMOTE;
    slurm_says.job = 7;
    slurm_says.step = kind[0] == 'b' ? SLURM_BATCH_SCRIPT : kind[0] == 'i' ? SLURM_INTERACTIVE_STEP : kind[0] == 'x' ? SLURM_EXTERN_CONT : (uint32_t)atoi(kind);
    safe = !strchr(text, '/');
    text = expand(text);
    if (text[0])
        slurm_environment(SM_STEP_VARIABLE, text);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *value = field(f);
        if (value[0])
            slurm_environment(names[i], value);
        free(value);
    }
    char *code = field(f);
    slurm_says.status = (uint32_t)atoi(code);
    slurm_says.task = slurm_says.status;
    begun = field(f);
    safe = safe && !strchr(begun, '/');
    begun = expand(begun);
    said = field(f);
    char *profile = rest(f, &n);
    write_file("profile.resolved", profile, n < 20000 ? n : 20000);

    MUST(sm_remote_user_init(NULL) == 0);
    const char *config = slurm_value("SIGMATRACE_CONFIG"), *preload = slurm_value("LD_PRELOAD");
    if (config) {
        MUST(config[0] == '/' && strlen(config) < PATH_MAX + 32 && strlen(config) > 9 && !strcmp(config + strlen(config) - 9, ".resolved"));
        MUST(preload && !strncmp(preload, own, strlen(own)) && strlen(preload) < SM_PRELOAD);
        MUST(safe && n >= 21 && !memcmp(profile, "sigmatrace.profile=1\n", 21));
        MUST(slurm_says.step != SLURM_EXTERN_CONT);
    }
    MUST(sm_remote_task_exit(NULL) == 0);
    clear();
    free(kind), free(text), free(code), free(begun), free(said), free(profile);
}
