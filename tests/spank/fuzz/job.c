/* What `sigmatrace profile resolve` answers, and the values in it: profile, key, room, settings up to an empty line, then the answer. */
#include "fuzz.h"

static const char *answer;
static size_t length;
static int status;

int __wrap_sm_run(const struct sm_command *c)
{
    int n = 0;
    while (c->argv[n])
        MUST(++n < 16 + 2 * SM_SETTINGS);
    MUST(c->argv[0] == sm_site.command && c->out && c->out_size == SM_JOB_TEXT + 1 && !strcmp(c->argv[n - 2], "--"));
    size_t k = length < c->out_size - 1 ? length : c->out_size - 1;
    memcpy(c->out, answer, k); /* as it is read from a pipe: it may have ends in it */
    c->out[k] = 0;
    return status;
}

void fuzz(struct fields *f)
{
    char *profile = field(f), *key = field(f), *room = field(f), *text;
    memset(&sm_site, 0, sizeof sm_site);
    memset(&sm_ask, 0, sizeof sm_ask);
    snprintf(sm_ask.profile, sizeof sm_ask.profile, "%s", profile);
    while (sm_ask.count < SM_SETTINGS) {
        char *setting = field(f);
        int n = snprintf(sm_ask.settings[sm_ask.count], SM_SETTING, "%s", setting);
        free(setting);
        if (n <= 0)
            break;
        sm_ask.count++;
    }
    text = rest(f, &length);
    answer = text;
    status = room[0] == '!' ? 1 : 0;
    memset(sm_job, 'x', sizeof sm_job - 1);
    if (!sm_resolve())
        MUST(strlen(sm_job) < sizeof sm_job && !strchr(sm_job, '\n'));
    else
        MUST(!sm_job[0]);
    size_t size = (size_t)(strtoul(room, NULL, 10) % 5000) + 1;
    char *to = malloc(size);
    MUST(to);
    if (!sm_job_value(key, to, size))
        MUST(strlen(to) < size && strlen(to) <= strlen(sm_job));
    free(to), free(text), free(profile), free(key), free(room);
}
