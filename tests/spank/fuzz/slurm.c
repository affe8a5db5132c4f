/* Slurm's side of the interface, as far as the plugin uses it: an environment with room for few variables, and numbers. */
#include "fuzz.h"

#include <stdarg.h>

#define VARIABLES 24

struct slurm_says slurm_says;

static struct {
    char *name, *value;
} variables[VARIABLES];
static char *environment[VARIABLES + 1];

static int find(const char *name)
{
    for (int i = 0; i < VARIABLES; i++)
        if (variables[i].name && !strcmp(variables[i].name, name))
            return i;
    return -1;
}

static void drop(int i)
{
    free(variables[i].name);
    free(variables[i].value);
    variables[i].name = variables[i].value = NULL;
}

void slurm_forget(void)
{
    for (int i = 0; i < VARIABLES; i++)
        drop(i);
    for (int i = 0; i <= VARIABLES; i++) {
        free(environment[i]);
        environment[i] = NULL;
    }
    memset(&slurm_says, 0, sizeof slurm_says);
}

void slurm_environment(const char *name, const char *value)
{
    int i = find(name);
    for (int k = 0; i < 0 && k < VARIABLES; k++)
        if (!variables[k].name)
            i = k;
    MUST(i >= 0);
    drop(i);
    variables[i].name = strdup(name);
    variables[i].value = strdup(value);
}

const char *slurm_value(const char *name)
{
    int i = find(name);
    return i < 0 ? NULL : variables[i].value;
}

spank_err_t spank_getenv(spank_t sp, const char *name, char *to, int size)
{
    const char *value = slurm_value(name);
    (void)sp;
    if (!value)
        return ESPANK_ENV_NOEXIST;
    if (strlen(value) >= (size_t)size)
        return ESPANK_NOSPACE;
    strcpy(to, value);
    return ESPANK_SUCCESS;
}

spank_err_t spank_setenv(spank_t sp, const char *name, const char *value, int overwrite)
{
    (void)sp;
    MUST(overwrite);
    slurm_environment(name, value);
    return ESPANK_SUCCESS;
}

spank_err_t spank_unsetenv(spank_t sp, const char *name)
{
    int i = find(name);
    (void)sp;
    if (i < 0)
        return ESPANK_ENV_NOEXIST;
    drop(i);
    return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_setenv(spank_t sp, const char *name, const char *value, int overwrite)
{
    (void)sp, (void)name, (void)overwrite;
    MUST(strlen(value) < SM_JOB_TEXT);
    return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_getenv(spank_t sp, const char *name, char *to, int size)
{
    return spank_getenv(sp, name, to, size);
}

spank_err_t spank_job_control_unsetenv(spank_t sp, const char *name)
{
    (void)sp, (void)name;
    return ESPANK_SUCCESS;
}

spank_context_t spank_context(void)
{
    return slurm_says.context;
}

int spank_remote(spank_t sp)
{
    (void)sp;
    return slurm_says.context == S_CTX_REMOTE;
}

spank_err_t spank_option_register(spank_t sp, struct spank_option *o)
{
    (void)sp;
    MUST(slurm_says.count < 8);
    slurm_says.options[slurm_says.count++] = o;
    return ESPANK_SUCCESS;
}

spank_err_t spank_option_getopt(spank_t sp, struct spank_option *o, char **value)
{
    (void)sp, (void)o, (void)value;
    return ESPANK_ERROR;
}

const char *spank_strerror(spank_err_t e)
{
    (void)e;
    return "an error";
}

static char **job_environment(void)
{
    int n = 0;
    for (int i = 0; i < VARIABLES; i++)
        if (variables[i].name) {
            free(environment[n]);
            MUST(asprintf(&environment[n++], "%s=%s", variables[i].name, variables[i].value) > 0);
        }
    free(environment[n]);
    environment[n] = NULL;
    return environment;
}

spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...)
{
    spank_err_t result = ESPANK_SUCCESS;
    va_list to;
    (void)sp;
    va_start(to, item);
    switch (item) {
    case S_JOB_UID:
        *va_arg(to, uid_t *) = getuid();
        break;
    case S_JOB_GID:
        *va_arg(to, gid_t *) = getgid();
        break;
    case S_JOB_ID:
        *va_arg(to, uint32_t *) = slurm_says.job;
        break;
    case S_JOB_STEPID:
        *va_arg(to, uint32_t *) = slurm_says.step;
        break;
    case S_TASK_GLOBAL_ID:
        *va_arg(to, uint32_t *) = slurm_says.task;
        break;
    case S_TASK_EXIT_STATUS:
        *va_arg(to, int *) = (int)slurm_says.status;
        break;
    case S_TASK_PID:
        *va_arg(to, pid_t *) = 1;
        break;
    case S_JOB_LOCAL_TASK_COUNT:
    case S_JOB_TOTAL_TASK_COUNT:
        *va_arg(to, uint32_t *) = 1;
        break;
    case S_JOB_ENV:
        *va_arg(to, char ***) = job_environment();
        break;
    default:
        result = ESPANK_BAD_ARG;
    }
    va_end(to);
    return result;
}

#define SAYS(name) \
    void name(const char *fmt, ...) \
    { \
        char line[65536]; \
        va_list list; \
        va_start(list, fmt); \
        vsnprintf(line, sizeof line, fmt, list); \
        va_end(list); \
    }
SAYS(slurm_info)
SAYS(slurm_error)
SAYS(slurm_verbose)
SAYS(slurm_debug)
SAYS(slurm_debug2)
SAYS(slurm_debug3)

void __wrap_sm_say(const char *kind, const char *fmt, ...)
{
    char line[65536];
    va_list list;
    MUST(kind[0]);
    va_start(list, fmt);
    vsnprintf(line, sizeof line, fmt, list);
    va_end(list);
}

static char *copy(const char *from, size_t n)
{
    char *to = malloc(n + 1);
    MUST(to);
    memcpy(to, from, n);
    to[n] = 0;
    return to;
}

char *field(struct fields *f)
{
    const char *line = memchr(f->at, '\n', (size_t)(f->end - f->at));
    size_t n = (size_t)((line ? line : f->end) - f->at);
    char *text = copy(f->at, n), *exact = copy(text, strlen(text));
    free(text);
    f->at = line ? line + 1 : f->end;
    return exact;
}

char *rest(struct fields *f, size_t *n)
{
    *n = (size_t)(f->end - f->at);
    return copy(f->at, *n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = copy((const char *)data, size);
    struct fields f = {text, text + size};
    slurm_forget();
    fuzz(&f);
    slurm_forget();
    free(text);
    return 0;
}
