/* The end of a batch script, which has no srun that would close and merge its run: its slurmstepd does, as the user, within bounds of time and
 * memory, and says so where the script's own messages went. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MERGE_SECONDS 20 /* at most: a step that has not ended 60 s after it was told to costs the node (UnkillableStepTimeout) */
#define CLOSE_SECONDS 10
#define WRITE_SECONDS 2
#define NICE 10

/* The script's own process, before it becomes the script, tells its slurmstepd by this where its standard error goes. */
static int told[2] = {-1, -1};

void sm_batch_begin(void)
{
    if (pipe2(told, O_CLOEXEC | O_NONBLOCK))
        told[0] = told[1] = -1;
}

int sm_batch_task_init(void)
{
    char path[PATH_MAX];
    if (told[1] < 0)
        return 0;
    ssize_t n = readlink("/proc/self/fd/2", path, sizeof path - 1);
    if (n > 0 && path[0] == '/')
        n = write(told[1], path, (size_t)n);
    return 0;
}

struct message {
    const char *run, *text;
    char to[PATH_MAX];
};

/* As the user: to the file that the script's messages went to, if the run is still there and that file is the user's. */
static void say(void *of)
{
    const struct message *m = of;
    struct stat st;
    if (stat(m->run, &st))
        _exit(0);
    int fd = open(m->to, O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || write(fd, m->text, strlen(m->text)) < 0)
        _exit(1);
}

static void tell(const struct sm_user *u, const char *run, const char *text)
{
    static struct message m; /* a path is much for a stack that is not ours */
    ssize_t n = told[0] < 0 || !text[0] ? 0 : read(told[0], m.to, sizeof m.to - 1);
    if (n <= 0)
        return;
    m.run = run;
    m.text = text;
    m.to[n] = 0;
    sm_as_user(u, WRITE_SECONDS, say, &m);
}

/* The memory that the job has on this node, in MiB; 0: as much as there is. The script has ended, so that it is there for the merge. */
static uint64_t memory(spank_t sp)
{
    uint64_t job = 0, step = 0;
    if (spank_get_item(sp, S_JOB_ALLOC_MEM, &job))
        job = 0;
    if (spank_get_item(sp, S_STEP_ALLOC_MEM, &step))
        step = 0;
    return job == 0 || (step > 0 && step < job) ? step : job;
}

/* Closes and merges the run. A script that was ended by a signal (a time limit, scancel) may have no time left for a merge: what merges the run is
 * said then. */
void sm_batch_end(spank_t sp, const struct sm_user *u, const char *run, int killed)
{
    unsigned seconds = killed ? 0 : sm_site.merge_seconds < MERGE_SECONDS ? sm_site.merge_seconds : MERGE_SECONDS;
    char out[256], limit[16], room[24];
    static char errors[4096];
    snprintf(limit, sizeof limit, "%u", seconds);
    snprintf(room, sizeof room, "%llu", (unsigned long long)memory(sp));
    char *argv[] = {sm_site.command, "slurm", "end", "--no-ranks", "--discard-empty", seconds == 0 ? "--no-merge" : "--no-merge=false", "--seconds", limit,
                    "--memory-mib", room, "--", (char *)run, NULL};
    char *envp[] = {"PATH=/usr/bin:/bin", NULL};
    /* A merge is polite to other jobs; to close a run is little, and soon the script's processes may be killed, and this with them. */
    struct sm_command c = {.argv = argv, .envp = envp, .as = u, .seconds = seconds + CLOSE_SECONDS, .nice = seconds == 0 ? 0 : NICE, .again = seconds == 0, .out = out,
                           .out_size = sizeof out, .errors = errors, .errors_size = sizeof errors};
    int status = sm_run(&c);
    if (seconds && (status == 128 + SIGKILL || status == 128 + SIGTERM)) {
        argv[5] = "--no-merge";
        snprintf(limit, sizeof limit, "0");
        c.seconds = CLOSE_SECONDS;
        c.nice = 0;
        c.again = 1;
        status = sm_run(&c);
    }
    tell(u, run, errors);
    if (status != 0)
        slurm_info("sigmatrace: %s is not closed, or not merged: status %d", run, status);
}
