/* slurmstepd, as root: how the node's clocks stand when a traced step begins and ends. Only root may read NICs' clocks and ask ptp4l, so
 * `sigmatrace calibrate` runs as root, with nothing of the user's in its command line, environment or files; what it prints a child
 * that is the user writes to the run. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RECORDS (256 << 10) /* of one call: what was published during the step (calibrate.MaxPicked) and one more */
#define WRITE_SECONDS 5

static char records[RECORDS];
static int hangs; /* what took too long once is not waited for again */
static int64_t began; /* CLOCK_MONOTONIC, ns */
static unsigned ended;

struct place {
    const char *run, *node;
};

static void write_records(void *of)
{
    const struct place *p = of;
    int run = open(p->run, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (run < 0 || (mkdirat(run, "clock", 0700) && errno != EEXIST))
        _exit(1);
    int dir = openat(run, "clock", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int fd = dir < 0 ? -1 : openat(dir, p->node, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    size_t size = strlen(records);
    if (fd < 0 || write(fd, records, size) != (ssize_t)size)
        _exit(1);
}

/* One call of calibrate, and its lines to RUN/clock/NODE. */
static void calibrate(const struct sm_user *u, const char *run, const char *node, const char *when, const char *limit, const char *since)
{
    const struct sm_user root = {0, 0, NULL, 0};
    char domain[16], errors[256];
    struct place place = {run, node};
    if (!sm_site.clock_seconds || hangs)
        return;
    snprintf(domain, sizeof domain, "%u", sm_site.ptp_domain);
    char *argv[] = {sm_site.command, "calibrate", "--json", "--when", (char *)when, "--limit", (char *)limit, "--since", (char *)since,
                    "--ptp-domain", domain, NULL};
    char *envp[] = {"PATH=/usr/bin:/bin", NULL};
    /* A cluster whose daemons run as a user has no root to become. */
    struct sm_command c = {.argv = argv, .envp = envp, .as = getuid() == 0 ? &root : NULL, .seconds = sm_site.clock_seconds, .again = 1, .out = records,
                           .out_size = sizeof records, .errors = errors, .errors_size = sizeof errors};
    int status = sm_run(&c);
    hangs = status < 0 || status >= 128;
    char *end = strrchr(records, '\n');
    if (status || !end) {
        errors[strcspn(errors, "\n")] = 0;
        slurm_info("sigmatrace: %s of %s: no record of the clocks: %s", when, run, hangs ? "it took too long" : errors[0] ? errors : "nothing was printed");
        return;
    }
    end[1] = 0; /* a line that was cut is none */
    int wrote = sm_as_user(u, WRITE_SECONDS, write_records, &place);
    hangs = wrote != 0 && wrote != 1;
    if (wrote)
        slurm_info("sigmatrace: %s of %s: the record of the clocks could not be written", when, run);
}

void sm_clock_begin(const struct sm_user *u, const char *run, const char *node)
{
    struct timespec t;
    calibrate(u, run, node, "step-begin", "300ms", "-1");
    clock_gettime(CLOCK_MONOTONIC, &t);
    began = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* At the end of each of the node's tasks; does its work at the last one's, of which srun is told afterwards. */
void sm_clock_end(spank_t sp, const struct sm_user *u, const char *run, const char *node)
{
    char since[24];
    uint32_t tasks = 1;
    spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &tasks);
    if (++ended != tasks)
        return;
    snprintf(since, sizeof since, "%lld", (long long)began);
    calibrate(u, run, node, "step-end", "1s", since);
}
