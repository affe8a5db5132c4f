/* What the files of the plugin share. Nothing here is exported: sigmatrace.map. */
#ifndef SIGMATRACE_SPANK_INTERNAL_H
#define SIGMATRACE_SPANK_INTERNAL_H

#include <limits.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SM_JOB_TEXT 32001   /* profiles.MaxJob, and the end */
#define SM_STEP_TEXT 4500   /* version, providers, run directory */
#define SM_PROFILE 1024     /* a profile's name or path, as asked */
#define SM_SETTING 4224     /* key=value */
#define SM_SETTINGS 32      /* of them */
#define SM_PRELOAD 16384    /* LD_PRELOAD */

/* Variables. Slurm makes the first part of the name of the first two; all of them pass --export=NONE. */
#define SM_OPTION_VARIABLE "SLURM_SPANK__SLURM_SPANK_OPTION_sigmatrace_sigmatrace"
#define SM_SETTING_VARIABLE SM_OPTION_VARIABLE "_set"
#define SM_OUTPUT_VARIABLE SM_OPTION_VARIABLE "_output"
#define SM_JOB_CONTROL "SIGMATRACE_JOB"
#define SM_JOB_VARIABLE "SLURM_SPANK_" SM_JOB_CONTROL
#define SM_STEP_VARIABLE "SLURM_SIGMATRACE"
#define SM_JOB_OFF "off" /* in the place of a profile */

/* Values of SM_STEP_VARIABLE besides a run. */
#define SM_STEP_OFF "off"   /* the tasks are not recorded, whatever they inherit */
#define SM_STEP_NONE "none" /* the tasks' environment is left as it is */

/* site.c: the arguments in plugstack.conf. */
struct sm_site {
    char command[PATH_MAX], libdir[PATH_MAX];
    char profile[SM_PROFILE]; /* of everybody who does not ask for one; empty: none */
    char profiles[PATH_MAX], output[PATH_MAX], kill_switch[PATH_MAX], resolved[PATH_MAX];
    const char *allow_users, *deny_users, *allow_groups, *deny_groups, *allow_partitions, *deny_partitions;
    uint32_t rate; /* of the jobs traced without asking, in millionths */
    unsigned merge_seconds;
    unsigned clock_seconds; /* 0: clocks are not read */
    unsigned ptp_domain;
    int locked;
    int bad; /* an argument is wrong: nothing is traced */
};
extern struct sm_site sm_site;
void sm_site_read(int ac, char **av, void (*say)(const char *fmt, ...));
int sm_site_switched_off(void);
int sm_site_allows_user(uid_t uid, gid_t gid);
int sm_site_allows_partition(const char *partition);
int sm_site_samples(uint32_t job);
int sm_in_list(const char *list, const char *name);

/* options.c: what the user asked for, in the order of Slurm's own precedence. */
struct sm_ask {
    int given, off, bare;
    int here; /* on the command line, not by what was inherited */
    int set_here; /* --sigmatrace-set likewise */
    char profile[SM_PROFILE]; /* empty: the default */
    char settings[SM_SETTINGS][SM_SETTING];
    int count;
};
extern struct sm_ask sm_ask;
void sm_options_register(spank_t sp);
void sm_options_environment(void);
void sm_options_hint(void);
void sm_options_hint_script(void);

/* client.c: what srun, sbatch and salloc have in common. */
enum sm_decision { SM_UNTOUCHED, SM_OFF, SM_ON };
enum sm_decision sm_decide(void);
int sm_resolve(void); /* 0, or -1 where the profile was refused, which has been said */
extern char sm_job[SM_JOB_TEXT];
int sm_job_value(const char *key, char *to, size_t size);
unsigned sm_merge_seconds(void);
int sm_merge_nice(void);
void sm_say(const char *kind, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
size_t sm_command_line(char *to, size_t size);

/* commandline.c */
int sm_has_components(void);
int sm_launched(void);

/* step.c: the step's text, "1;PROVIDERS;RUN", or "1;PROVIDERS;@SECONDS RUN" without the blank and with placeholders. */
struct sm_step {
    char providers[256], run[PATH_MAX];
    int named;     /* run has placeholders for the numbers of job and step */
    int64_t since; /* and was made after this time, or is another's of the same name */
};
const char *sm_step_parse(const char *text, struct sm_step *step); /* NULL, or what is wrong with it */
const char *sm_step_name(struct sm_step *step, const char *job, const char *id);
int sm_step_library(const struct sm_step *step, const char *libdir, unsigned n, char *to, size_t size);
const char *sm_step_preload(const struct sm_step *step, const char *libdir, const char *existing, char *to, size_t size);
int sm_is_daemon(const char *program);
/* A step as people write it; number has room for that of a numbered one. */
const char *sm_step_label(uint32_t step, char number[16]);
int sm_step_part(const char *host, uint32_t job, uint32_t step, char *to, size_t size);

/* command.c: running programs, bounded. */
struct sm_user {
    uid_t uid;
    gid_t gid;
    const gid_t *groups;
    int count;
};
struct sm_command {
    char *const *argv, *const *envp;
    const struct sm_user *as; /* NULL: as we are */
    unsigned seconds;
    int nice;
    int again; /* begun again within its time if somebody else ends it */
    char *out, *errors; /* what it printed, cut to size; errors NULL: standard error is inherited */
    size_t out_size, errors_size;
};
int sm_run(const struct sm_command *c);
int sm_as_user(const struct sm_user *as, unsigned seconds, void (*what)(void *), void *of);

/* joblog.c */
void sm_log_traced(spank_t sp, uint32_t step_id, const char *run);

/* clock.c: the node's clocks at begin and end of a step. */
void sm_clock_begin(const struct sm_user *u, const char *run, const char *node);
void sm_clock_end(spank_t sp, const struct sm_user *u, const char *run, const char *node);
/* resolved.c: the site's profile for jobs that bring none. */
const char *sm_resolved_check(char *text, size_t n); /* room for an end behind n bytes */
const char *sm_resolved_read(char *text, size_t size);
int sm_resolved_bring(spank_t sp, const struct sm_user *u, const char **wrong);
/* batch.c: the end of a batch script. */
void sm_batch_begin(void);
int sm_batch_task_init(void);
void sm_batch_end(spank_t sp, const struct sm_user *u, const char *run, int killed);

#define SM_UNTRUSTED 125 /* status of a command that was not run, since anybody can write it */

/* trust.c */
int sm_trusted(const char *path);

/* collect.c: captures that are on the node while its tasks run. */
void sm_collect_begin(spank_t sp, const struct sm_user *u, const struct sm_step *step, uint32_t id, const char *host);
int sm_collect_config(const struct sm_step *step, char *to, size_t size); /* path of the recorders' profile; -1 where it is too long */
void sm_collect_task_ended(spank_t sp, const struct sm_user *u, const struct sm_step *step);
void sm_collect_step_ended(const struct sm_user *u, const struct sm_step *step);

/* One file a context. */
int sm_local_post_opt(spank_t sp);
int sm_local_user_init(spank_t sp);
int sm_local_exit(spank_t sp);
int sm_allocator_post_opt(spank_t sp);
int sm_remote_user_init(spank_t sp);
int sm_remote_task_exit(spank_t sp);
int sm_remote_exit(spank_t sp);

#endif
