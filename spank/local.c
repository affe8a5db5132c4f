/* srun: makes the step's run directory before its tasks start, tells their nodes, and merges when they have ended. All of it as the user. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BEGIN_SECONDS 20
#define END_SECONDS 10 /* to close a run, beside its merge, which ends itself in time */

static enum sm_decision decision;
static struct sm_step step; /* the run, where srun made one */
static uint32_t tasks;
static int components;    /* of a heterogeneous step, several */
static char place[SM_STEP_TEXT]; /* the step's text for those */
static int allocation;    /* the step is in one that goes on */
static int without_ranks; /* what the step starts are no ranks: an MPI's daemons, a shell */

static void tell_nodes(const char *what)
{
    if (setenv(SM_STEP_VARIABLE, what, 1))
        sm_say("warning", "nothing is traced: no memory");
}

/* Runs a command of ours with the job's text in its environment. 0: its first line is in out. */
static int ask(char *const *argv, char *out, size_t size)
{
    char *variable = NULL, **envp = NULL;
    size_t variables = 0;
    int status = -1;
    while (environ[variables])
        variables++;
    envp = calloc(variables + 2, sizeof *envp);
    if (!envp || asprintf(&variable, SM_JOB_VARIABLE "=%s", sm_job) < 0)
        goto done;
    envp[0] = variable;
    for (size_t i = 0, to = 1; i < variables; i++)
        if (strncmp(environ[i], SM_JOB_VARIABLE "=", sizeof SM_JOB_VARIABLE))
            envp[to++] = environ[i];
    struct sm_command c = {.argv = argv, .envp = envp, .seconds = BEGIN_SECONDS, .out = out, .out_size = size};
    status = sm_run(&c);
    out[strcspn(out, "\n")] = 0;
done:
    free(envp);
    free(variable);
    return status;
}

/* Slurm calls local_user_init for one component, any, and gives what it sets to that one only. All get what is set here, where a step has no
 * number yet and a job may have none: where each node finds the run by the numbers that its tasks have. */
static void tell_components(void)
{
    char *argv[] = {sm_site.command, "slurm", "place", NULL};
    int there = getenv(SM_STEP_VARIABLE) != NULL;
    if (sm_launched()) {
        if (there)
            tell_nodes(SM_STEP_NONE);
        return;
    }
    if (decision == SM_ON && (ask(argv, place, sizeof place) || sm_step_parse(place, &step))) {
        sm_say("warning", "nothing is traced: there is no place for the run of a heterogeneous step");
        decision = SM_OFF;
    }
    step.run[0] = 0; /* there is none yet */
    tell_nodes(decision == SM_ON ? place : SM_STEP_OFF);
}

int sm_local_post_opt(spank_t sp)
{
    (void)sp;
    allocation = getenv("SLURM_JOB_ID") != NULL; /* before srun has one of its own */
    sm_options_hint();
    decision = sm_decide();
    if (decision == SM_ON && !sm_job[0] && sm_resolve()) {
        sm_say("warning", "nothing is traced");
        decision = SM_OFF;
    }
    /* An srun that does not ask reads nothing. */
    components = (decision != SM_UNTOUCHED || getenv(SM_STEP_VARIABLE)) && sm_has_components();
    if (components)
        tell_components();
    return 0;
}

static int begin(uint32_t job, uint32_t id, char **argv, int argc)
{
    char number[16], name[16], world[16], out[SM_STEP_TEXT] = "";
    char **line = calloc((size_t)argc + 16, sizeof *line);
    size_t n = 0;
    if (!line)
        return 0;
    /* The tasks of all components of a heterogeneous job have the number of its first. */
    const char *leader = components || getenv("SLURM_HET_SIZE") ? getenv("SLURM_JOB_ID") : NULL;
    snprintf(number, sizeof number, "%u", job);
    snprintf(name, sizeof name, id == SLURM_INTERACTIVE_STEP ? "interactive" : "%u", id);
    snprintf(world, sizeof world, "%u", without_ranks || components ? 0 : tasks);
    const char *const fixed[] = {sm_site.command, "slurm", "begin", "--place", place, "--job", leader ? leader : number, "--step", name, "--world", world, "--libdir", sm_site.libdir, "--"};
    for (; n < sizeof fixed / sizeof *fixed; n++)
        line[n] = (char *)fixed[n];
    memcpy(line + n, argv, (size_t)argc * sizeof *line);
    int status = ask(line, out, sizeof out);
    free(line);
    const char *wrong = status == 0 ? sm_step_parse(out, &step) : "its run directory could not be made";
    if (wrong) {
        sm_say("warning", "the step is not traced: %s", wrong);
        if (status != 0)
            sm_say("hint", "--sigmatrace-output=DIR, or SIGMATRACE_OUTPUT_DIRECTORY, names another place for it");
        step.run[0] = 0;
        return 0;
    }
    if (!components)
        tell_nodes(out);
    return 1;
}

int sm_local_user_init(spank_t sp)
{
    uint32_t job = 0, id = 0;
    char **argv = NULL;
    int argc = 0;
    spank_get_item(sp, S_JOB_ID, &job);
    spank_get_item(sp, S_JOB_STEPID, &id);
    spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &tasks);
    spank_get_item(sp, S_JOB_ARGV, &argc, &argv);
    const char *there = getenv(SM_STEP_VARIABLE);
    if (decision == SM_UNTOUCHED && !there)
        return 0;
    int daemon = argc > 0 && sm_is_daemon(argv[0]);
    if (sm_launched()) {
        if (there)
            tell_nodes(SM_STEP_NONE);
        return 0;
    }
    if (daemon && there && there[0] == '1')
        return 0; /* it is of its launcher's run */
    int partition = sm_site_allows_partition(getenv("SLURM_JOB_PARTITION"));
    if (decision == SM_ON && (!partition || (!sm_ask.given && !sm_site_samples(job)))) {
        if (sm_ask.given)
            sm_say("warning", "nothing is traced: tracing is not open to partition %s", getenv("SLURM_JOB_PARTITION"));
        decision = SM_OFF;
    }
    if (decision != SM_ON) {
        tell_nodes(SM_STEP_OFF);
        return 0;
    }
    without_ranks = daemon || id == SLURM_INTERACTIVE_STEP;
    if (!begin(job, id, argv, argc))
        tell_nodes(SM_STEP_OFF);
    return 0;
}

int sm_local_exit(spank_t sp)
{
    (void)sp;
    if (!step.run[0])
        return 0;
    char count[16], seconds[16], out[256], *argv[24];
    int n = 0;
    unsigned limit = sm_merge_seconds();
    snprintf(count, sizeof count, "%u", components ? 0 : tasks);
    snprintf(seconds, sizeof seconds, "%u", limit);
    argv[n++] = sm_site.command;
    argv[n++] = "slurm";
    argv[n++] = "end";
    argv[n++] = "--tasks";
    argv[n++] = count;
    argv[n++] = "--seconds";
    argv[n++] = seconds;
    if (limit == 0)
        argv[n++] = "--no-merge";
    if (allocation)
        argv[n++] = "--allocation";
    if (without_ranks)
        argv[n++] = "--no-ranks";
    if (without_ranks || !sm_ask.here)
        argv[n++] = "--discard-empty";
    if (!sm_ask.given) /* traced by the site's default: who runs a program that does not communicate is told nothing */
        argv[n++] = "--unasked";
    argv[n++] = "--";
    argv[n++] = step.run;
    argv[n] = NULL;
    struct sm_command c = {.argv = argv, .envp = environ, .seconds = limit + END_SECONDS, .nice = sm_merge_nice(), .out = out, .out_size = sizeof out};
    if (sm_run(&c) != 0) {
        sm_say("warning", "%s is not merged", step.run);
        sm_say("hint", "sigmatrace merge %s", step.run);
    }
    return 0;
}
