/* The symbols that Slurm looks up. Which file does the work goes by the context; on a node every answer is 0. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <string.h>

SPANK_PLUGIN(sigmatrace, 1)

static void quiet(const char *fmt, ...)
{
    (void)fmt;
}

int slurm_spank_init(spank_t sp, int ac, char **av)
{
    spank_context_t context = spank_context();
    if (context == S_CTX_JOB_SCRIPT)
        return 0;
    /* A user can do nothing about the site's mistakes: the daemon's log has them. */
    sm_site_read(ac, av, context == S_CTX_SLURMD ? slurm_error : quiet);
    if (context == S_CTX_SLURMD)
        return 0;
    if (context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR)
        sm_options_environment();
    if (context == S_CTX_ALLOCATOR && !strcmp(program_invocation_short_name, "sbatch"))
        sm_options_hint_script();
    sm_options_register(sp);
    return 0;
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
    (void)ac, (void)av;
    switch (spank_context()) {
    case S_CTX_LOCAL:
        return sm_local_post_opt(sp);
    case S_CTX_ALLOCATOR:
        return sm_allocator_post_opt(sp);
    default:
        return 0;
    }
}

int slurm_spank_local_user_init(spank_t sp, int ac, char **av)
{
    (void)ac, (void)av;
    return sm_local_user_init(sp);
}

int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
    (void)ac, (void)av;
    return sm_remote_user_init(sp);
}

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
    (void)sp, (void)ac, (void)av;
    return sm_batch_task_init();
}

int slurm_spank_task_exit(spank_t sp, int ac, char **av)
{
    (void)ac, (void)av;
    return sm_remote_task_exit(sp);
}

int slurm_spank_exit(spank_t sp, int ac, char **av)
{
    (void)ac, (void)av;
    switch (spank_context()) {
    case S_CTX_LOCAL:
        return sm_local_exit(sp);
    case S_CTX_REMOTE:
        return sm_remote_exit(sp);
    default:
        return 0;
    }
}
