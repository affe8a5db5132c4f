/* slurmstepd: where the profile keeps captures on the nodes, has the node decide on it before its tasks start, and has them collected when
 * the last of them has ended. What is run is `sigmatrace`, as the user and bounded. */
#define _GNU_SOURCE
#include "internal.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NODE_SECONDS 10
#define COLLECT_SECONDS 5 /* the last for what cannot be told to end: collectTime of launcher/slurmnode.go */
#define LOOK_SECONDS 10

static char part[300]; /* <host>.<job>.<step>; empty: this node collects nothing */
static int local;      /* captures are on the node */
static uint32_t ended; /* tasks */
static int collected, status_of_it;

static void look(void *of)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/nodes", ((const struct sm_step *)of)->run);
    _exit(access(path, W_OK | X_OK) ? 1 : 0);
}

void sm_collect_begin(spank_t sp, const struct sm_user *u, const struct sm_step *step, uint32_t id, const char *host)
{
    char out[64], count[16], **envp = NULL, **argv = NULL;
    uint32_t job = 0, tasks = 0;
    int argc = 0;
    int wanted = sm_as_user(u, LOOK_SECONDS, look, (void *)step);
    if (wanted != 0 && wanted != 1)
        slurm_info("sigmatrace: step %u: captures go to the run directory, which could not be looked at in time", id);
    if (wanted != 0)
        return; /* the run's profile does not ask for it */
    if (spank_get_item(sp, S_JOB_ID, &job) || spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &tasks) || spank_get_item(sp, S_JOB_ENV, &envp) || !envp ||
        sm_step_part(host, job, id, part, sizeof part)) {
        part[0] = 0;
        return;
    }
    spank_get_item(sp, S_JOB_ARGV, &argc, &argv);
    int ranks = id < SLURM_MAX_NORMAL_STEP_ID && !(argc > 0 && sm_is_daemon(argv[0]));
    snprintf(count, sizeof count, "%u", tasks);
    char *line[] = {sm_site.command, "slurm", "node", "--part", part, "--tasks", count, ranks ? "--no-ranks=false" : "--no-ranks", "--", (char *)step->run, NULL};
    struct sm_command c = {.argv = line, .envp = envp, .as = u, .seconds = NODE_SECONDS, .out = out, .out_size = sizeof out};
    int status = sm_run(&c);
    local = status == 0 && !strcmp(out, "local\n");
    if (status == 0 && !local)
        part[0] = 0;
    if (status != 0) /* how far it came is not known: what it made is cleared away at the end */
        slurm_info("sigmatrace: step %u: captures go to the run directory: where else could not be decided in time", id);
}

int sm_collect_config(const struct sm_step *step, char *to, size_t size)
{
    int n = local ? snprintf(to, size, "%s/nodes/%s.resolved", step->run, part) : snprintf(to, size, "%s/profile.resolved", step->run);
    return n > 0 && (size_t)n < size ? 0 : -1;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Who ends a step may kill what slurmstepd has started with it, several times: it is begun again while there is time. */
static void collect(const struct sm_user *u, const struct sm_step *step)
{
    double until = now() + COLLECT_SECONDS;
    collected++;
    do {
        char out[64], within[16];
        unsigned left = (unsigned)(until - now() + 0.5);
        snprintf(within, sizeof within, "%us", left - 1);
        char *argv[] = {sm_site.command, "collect", "--within", within, "--part", part, "--", (char *)step->run, NULL};
        char *envp[] = {"PATH=/usr/bin:/bin", NULL};
        struct sm_command c = {.argv = argv, .envp = envp, .as = u, .seconds = left, .out = out, .out_size = sizeof out};
        status_of_it = sm_run(&c);
        if (status_of_it == 128 + SIGKILL)
            poll(NULL, 0, 200);
    } while (status_of_it == 128 + SIGKILL && now() < until - 1.5);
    if (status_of_it != 0)
        slurm_info("sigmatrace: captures of this node are still on it (status %d): %s", status_of_it, step->run);
}

void sm_collect_task_ended(spank_t sp, const struct sm_user *u, const struct sm_step *step)
{
    uint32_t tasks = 0;
    ended++;
    if (part[0] && !collected && !spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &tasks) && ended >= tasks)
        collect(u, step);
}

/* Now other processes of the step have been ended too, as far as Slurm tracks them: what they still wrote to is complete. And who ends a step may have
 * ended the collection with it. */
void sm_collect_step_ended(const struct sm_user *u, const struct sm_step *step)
{
    if (part[0] && (!collected || (collected == 1 && status_of_it != 0)))
        collect(u, step);
}
