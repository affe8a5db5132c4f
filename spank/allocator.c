/* sbatch and salloc: the resolved profile goes with the job, and what was decided becomes the environment that scripts and shells start with. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int sm_allocator_post_opt(spank_t sp)
{
    sm_options_hint();
    /* A job that is submitted by a traced script is no part of the script's run. */
    if (getenv(SM_STEP_VARIABLE) && !strcmp(program_invocation_short_name, "sbatch")) {
        unsetenv("SIGMATRACE_CONFIG"); /* without it what is preloaded does nothing */
        setenv(SM_STEP_VARIABLE, SM_STEP_NONE, 1);
    }
    enum sm_decision decision = sm_decide();
    if (decision == SM_UNTOUCHED)
        return 0;
    if (decision == SM_ON && !sm_job[0] && sm_resolve()) {
        sm_say("warning", "nothing is traced");
        decision = SM_OFF;
    }
    if (decision == SM_ON && spank_job_control_setenv(sp, SM_JOB_CONTROL, sm_job, 1) != ESPANK_SUCCESS) {
        sm_say("warning", "nothing is traced: the profile cannot be given to the job");
        decision = SM_OFF;
    }
    if (decision == SM_OFF) /* Slurm itself would hand on the last value of the option, and that may be another */
        spank_job_control_setenv(sp, SM_JOB_CONTROL, SM_JOB_OFF, 1);
    /* The variables have had their say against the command line: inside the job they must not have it again. */
    if (decision == SM_ON && sm_ask.given) {
        unsetenv("SIGMATRACE");
        if (getenv("SIGMATRACE_PROFILE") && sm_ask.profile[0])
            setenv("SIGMATRACE_PROFILE", sm_ask.profile, 1);
        else
            unsetenv("SIGMATRACE_PROFILE");
    }
    return 0;
}
