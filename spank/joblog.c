/* One line a traced job in slurmd's log, where administrators look, at its usual level: on the first node of the first of the job's steps, or
 * of its batch script. What other steps and nodes have to say is for debug. The last jobs that have their line are in a file of root's, so
 * that a job of a thousand steps has one; where it cannot be kept, there are more lines. */
#define _GNU_SOURCE
#include "internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <time.h>
#include <unistd.h>

#define JOBS_FILE "/run/sigmatrace.jobs"
#define JOBS 256
#define LOGGED "SLURM_SIGMATRACE_LOGGED" /* the steps of a script that has the line: they may begin on other nodes */

/* As root, in this thread alone: slurmstepd's other threads stay who they are. */
static int open_jobs(void)
{
    int was = setfsuid(0);
    int fd = open(JOBS_FILE, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    setfsuid((uid_t)was);
    return fd;
}

/* Whether the job has had no line on this node; it has now. */
static int first_of(uint32_t job)
{
    uint32_t jobs[JOBS] = {0};
    int fd = open_jobs(), locked = -1;
    if (fd < 0)
        return 1;
    for (int i = 0; i < 50 && locked; i++) {
        locked = flock(fd, LOCK_EX | LOCK_NB);
        if (locked)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    ssize_t got = locked ? -1 : pread(fd, jobs, sizeof jobs, 0);
    int first = 1;
    for (size_t i = 0; i < JOBS && got > 0; i++)
        first &= jobs[i] != job;
    if (first && got >= 0) {
        memmove(jobs + 1, jobs, sizeof jobs - sizeof *jobs);
        jobs[0] = job;
        (void)!pwrite(fd, jobs, sizeof jobs, 0); /* what is not written down has a line again */
    }
    close(fd);
    return first;
}

void sm_log_traced(spank_t sp, uint32_t step_id, const char *run)
{
    char number[16] = "", logged[4];
    uint32_t job = 0, at = 0;
    uid_t uid = 0;
    /* The variable has the number of the first component, where a job has several. */
    if (spank_getenv(sp, "SLURM_JOB_ID", number, sizeof number) == ESPANK_SUCCESS)
        job = (uint32_t)strtoul(number, NULL, 10);
    if (!job)
        spank_get_item(sp, S_JOB_ID, &job);
    spank_get_item(sp, S_JOB_NODEID, &at);
    spank_get_item(sp, S_JOB_UID, &uid);
    int script = step_id == SLURM_BATCH_SCRIPT || step_id == SLURM_INTERACTIVE_STEP;
    if (script)
        spank_setenv(sp, LOGGED, "1", 1);
    if (at == 0 && (script || spank_getenv(sp, LOGGED, logged, sizeof logged) == ESPANK_ENV_NOEXIST) && first_of(job))
        slurm_info("sigmatrace: job %u of user %u is traced, the first run of it %s", job, (unsigned)uid, run);
    else
        slurm_debug("sigmatrace: step %s is traced into %s", sm_step_label(step_id, number), run);
}
