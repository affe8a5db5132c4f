/* slurmstepd, as root: puts the recorder into the environment of a step's tasks, and writes down how they ended. Whatever goes wrong, the
 * answer is 0 and the tasks run. What is written or read on behalf of the user is so by a child that is the user for good. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BEGIN_SECONDS 10
#define WRITE_SECONDS 5
#define SKEW_SECONDS 600 /* by which the clocks of srun's host and of the file system may differ */

static struct sm_step step; /* what the tasks are recorded into; no run: they are not */
static uint32_t step_id;
static char node[256];
static char tasks[16]; /* of the step, all nodes and components, as far as Slurm tells */

static int user_of(spank_t sp, struct sm_user *u)
{
    gid_t *groups = NULL;
    memset(u, 0, sizeof *u);
    if (spank_get_item(sp, S_JOB_UID, &u->uid) || spank_get_item(sp, S_JOB_GID, &u->gid))
        return -1;
    if (spank_get_item(sp, S_JOB_SUPPLEMENTARY_GIDS, &groups, &u->count))
        u->count = 0;
    u->groups = groups;
    return 0;
}

/* A line for RUN/tasks/NODE. Several steps of several components may write it: each line is one write. */
static char line[768];

static void write_line(void *of)
{
    char path[PATH_MAX + 300];
    (void)of;
    snprintf(path, sizeof path, "%s/tasks", step.run);
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int fd = dir < 0 ? -1 : openat(dir, node, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, strlen(line)) < 0)
        _exit(1);
}

static void untraced(spank_t sp, const char *why)
{
    struct sm_user u;
    char number[16];
    slurm_info("sigmatrace: step %s is not traced here: %s", sm_step_label(step_id, number), why);
    if (step.run[0] && !user_of(sp, &u)) {
        snprintf(line, sizeof line, "untraced=%s\n", why);
        sm_as_user(&u, WRITE_SECONDS, write_line, NULL);
    }
    step.run[0] = 0;
    if (step_id < SLURM_MAX_NORMAL_STEP_ID)
        spank_setenv(sp, "SIGMATRACE", SM_STEP_OFF, 1); /* in a traced script it would be of the script's run; a script's own steps decide for themselves */
}

/* As the user: whether the recorder can be used here, 0, or the number of a reason. */
static const char *const reasons[] = {
    NULL,
    "the run directory is not there",
    "the run's profile is not a file of the user's",
    "the run's profile is none that this version reads",
    "the recorder's libraries are not there",
    "the recorder's libraries are where anybody can write",
    "a run of this name was there before",
};

static void look(void *of)
{
    char path[PATH_MAX + 300], head[21] = "";
    struct stat st;
    (void)of;
    snprintf(path, sizeof path, "%s/profile.resolved", step.run);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        _exit(1);
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_size > 16000)
        _exit(2);
    if (step.named && (int64_t)st.st_mtime < step.since - SKEW_SECONDS)
        _exit(6);
    if (read(fd, head, 21) != 21 || memcmp(head, "sigmatrace.profile=1\n", 21))
        _exit(3);
    for (unsigned n = 0; !sm_step_library(&step, sm_site.libdir, n, path, sizeof path); n++)
        if (access(path, R_OK))
            _exit(4);
    if (!sm_trusted(sm_site.libdir))
        _exit(5);
}

static const char *usable(const struct sm_user *u)
{
    int status = sm_as_user(u, BEGIN_SECONDS, look, NULL);
    if (status >= 0 && (size_t)status < sizeof reasons / sizeof *reasons)
        return reasons[status];
    return "the run directory could not be looked at in time";
}

static int hangs; /* a file system that was too slow once is not waited for again */

static const char *set_environment(spank_t sp)
{
    char existing[SM_PRELOAD] = "", preload[SM_PRELOAD], config[PATH_MAX], off[8];
    if (spank_getenv(sp, "LD_PRELOAD", existing, sizeof existing) == ESPANK_NOSPACE)
        return "LD_PRELOAD is too long";
    const char *wrong = sm_step_preload(&step, sm_site.libdir, existing, preload, sizeof preload);
    if (wrong)
        return wrong;
    if (sm_collect_config(&step, config, sizeof config) || spank_setenv(sp, "SIGMATRACE_CONFIG", config, 1) || spank_setenv(sp, "LD_PRELOAD", preload, 1))
        return "its environment cannot be changed";
    if (!spank_getenv(sp, "SIGMATRACE", off, sizeof off) && !strcmp(off, SM_STEP_OFF))
        spank_unsetenv(sp, "SIGMATRACE"); /* overruled where the step was asked for */
    return NULL;
}

/* A batch script has no srun that would have made a run: its step does it, as the user, with the profile that came with the job. */
static const char *begin_batch(spank_t sp, const struct sm_user *u, char *text, size_t size)
{
    static char errors[512];
    char job[16], **envp = NULL;
    uint32_t id = 0;
    if (spank_get_item(sp, S_JOB_ENV, &envp) || !envp || spank_get_item(sp, S_JOB_ID, &id))
        return "the job's environment cannot be read";
    snprintf(job, sizeof job, "%u", id);
    char *argv[] = {sm_site.command, "slurm", "begin", "--job", job, "--step", "batch", "--libdir", sm_site.libdir, "--", "batch script", NULL};
    struct sm_command c = {.argv = argv, .envp = envp, .as = u, .seconds = BEGIN_SECONDS, .out = text, .out_size = size, .errors = errors,
                           .errors_size = sizeof errors};
    int status = sm_run(&c);
    text[strcspn(text, "\n")] = 0;
    errors[strcspn(errors, "\n")] = 0;
    if (status == 0)
        return NULL;
    if (status == SM_UNTRUSTED)
        return "anybody can write the sigmatrace command";
    const char *why = !strncmp(errors, "sigmatrace: error: ", 19) ? errors + 19 : errors;
    return why[0] ? why : "its run directory could not be made";
}

static int wanted_batch(spank_t sp)
{
    char partition[256] = "";
    uint32_t job = 0;
    spank_get_item(sp, S_JOB_ID, &job);
    spank_getenv(sp, "SLURM_JOB_PARTITION", partition, sizeof partition);
    return !(sm_ask.given && sm_ask.off) && (sm_ask.given || sm_site_samples(job)) && sm_site_allows_partition(partition);
}

int sm_remote_user_init(spank_t sp)
{
    char text[SM_STEP_TEXT] = "", job[SM_JOB_TEXT];
    struct sm_user u;
    if (spank_get_item(sp, S_JOB_STEPID, &step_id) || sm_site.bad || user_of(sp, &u))
        return 0;
    int batch = step_id == SLURM_BATCH_SCRIPT;
    if (!batch && step_id != SLURM_INTERACTIVE_STEP && step_id >= SLURM_MAX_NORMAL_STEP_ID)
        return 0;
    gethostname(node, sizeof node - 1);
    for (char *p = node; *p; p++)
        if (*p == '/')
            *p = '_';
    const char *wrong = NULL;
    if (batch) {
        if (!wanted_batch(sp) || sm_site_switched_off())
            return 0;
        spank_err_t got = spank_getenv(sp, SM_JOB_VARIABLE, job, sizeof job);
        if (got == ESPANK_ENV_NOEXIST ? !sm_resolved_bring(sp, &u, &wrong) : got != ESPANK_SUCCESS || !strcmp(job, SM_JOB_OFF))
            return 0;
        if (!wrong)
            wrong = begin_batch(sp, &u, text, sizeof text);
    } else {
        spank_err_t got = spank_getenv(sp, SM_STEP_VARIABLE, text, sizeof text);
        if (got == ESPANK_NOSPACE)
            wrong = "what its launcher sent is too long";
        else if (got != ESPANK_SUCCESS || !strcmp(text, SM_STEP_NONE))
            return 0;
        else if (!strcmp(text, SM_STEP_OFF) || sm_site_switched_off()) {
            spank_setenv(sp, "SIGMATRACE", "off", 1); /* what it inherits must not record either */
            return 0;
        }
    }
    if (!wrong)
        wrong = sm_step_parse(text, &step);
    if (!wrong && step.named) {
        char number[16] = "", id[16] = "";
        spank_getenv(sp, "SLURM_JOB_ID", number, sizeof number);
        spank_getenv(sp, "SLURM_STEP_ID", id, sizeof id);
        wrong = sm_step_name(&step, number, id);
    }
    if (step_id >= SLURM_MAX_NORMAL_STEP_ID || spank_getenv(sp, "SLURM_STEP_NUM_TASKS", tasks, sizeof tasks) || strspn(tasks, "0123456789") != strlen(tasks))
        strcpy(tasks, "1");
    if (!wrong)
        wrong = usable(&u);
    if (!wrong)
        sm_collect_begin(sp, &u, &step, step_id, node);
    if (!wrong)
        wrong = set_environment(sp);
    if (!wrong && batch && spank_setenv(sp, SM_STEP_VARIABLE, text, 1))
        wrong = "its environment cannot be changed";
    if (!wrong && batch)
        sm_batch_begin();
    if (wrong)
        untraced(sp, wrong);
    else {
        sm_log_traced(sp, step_id, step.run);
        sm_clock_begin(&u, step.run, node);
    }
    return 0;
}

int sm_remote_task_exit(spank_t sp)
{
    struct sm_user u;
    uint32_t task = 0;
    pid_t pid = 0;
    int status = 0, script = step_id >= SLURM_MAX_NORMAL_STEP_ID;
    if (!step.run[0] || hangs || user_of(sp, &u))
        return 0;
    spank_get_item(sp, S_TASK_GLOBAL_ID, &task);
    spank_get_item(sp, S_TASK_PID, &pid);
    spank_get_item(sp, S_TASK_EXIT_STATUS, &status);
    snprintf(line, sizeof line, "%s=%u pid=%d status=%u of=%s\n", script ? "script" : "task", task, (int)pid, (unsigned)status, tasks);
    int wrote = sm_as_user(&u, WRITE_SECONDS, write_line, NULL);
    hangs = wrote != 0 && wrote != 1;
    if (!hangs) {
        sm_clock_end(sp, &u, step.run, node);
        sm_collect_task_ended(sp, &u, &step);
    }
    if (step_id == SLURM_BATCH_SCRIPT && !hangs)
        sm_batch_end(sp, &u, step.run, WIFSIGNALED(status));
    return 0;
}

int sm_remote_exit(spank_t sp)
{
    struct sm_user u;
    if (step.run[0] && !hangs && !user_of(sp, &u))
        sm_collect_step_ended(&u, &step);
    return 0;
}
