/* What users ask for: a line an event, its first letter the kind. Lower case is a callback where the user sits, upper case one on a node. */
#include "fuzz.h"

static int refused;
static char words[65536];
static size_t used;

int __wrap_sm_resolve(void)
{
    const struct sm_ask *a = &sm_ask;
    MUST(a->count >= 0 && a->count <= SM_SETTINGS);
    for (int i = 0; i < a->count; i++)
        MUST(memchr(a->settings[i], 0, SM_SETTING) && strchr(a->settings[i], '='));
    return refused;
}

size_t __wrap_sm_command_line(char *to, size_t size)
{
    size_t n = used < size - 1 ? used : size - 1;
    memcpy(to, words, n);
    to[n] = 0;
    return n;
}

static void call(int which, const char *arg, int remote)
{
    MUST(slurm_says.count == 3);
    int off = sm_ask.off;
    int status = slurm_says.options[which]->cb(which + 1, arg, remote);
    MUST(status == 0 || status == -1);
    MUST(!remote || status == 0);
    if (which == 0 && !remote && arg && !strcmp(arg, "off"))
        MUST(status == 0 && sm_ask.off);
    if (which > 0)
        MUST(sm_ask.off == off);
    if (which == 0 && !remote && off && arg && arg == getenv(SM_OPTION_VARIABLE))
        MUST(sm_ask.off); /* what is inherited takes off not back */
}

void fuzz(struct fields *f)
{
    static const char *const variables[] = {"SIGMATRACE", "SIGMATRACE_PROFILE", SM_OPTION_VARIABLE, SM_SETTING_VARIABLE, SM_OUTPUT_VARIABLE, SM_JOB_VARIABLE};
    memset(&sm_site, 0, sizeof sm_site);
    refused = 0;
    used = 0;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    sm_options_register(NULL);
    sm_options_environment();
    for (int events = 0; f->at < f->end && events < 200; events++) {
        char *line = field(f), *arg = line[0] ? line + 1 : line;
        switch (line[0]) {
        case '0' ... '5':
            setenv(variables[line[0] - '0'], arg, 1);
            break;
        case 'e': /* Slurm's own order: the environment is looked at before any callback */
            sm_options_environment();
            break;
        case 'p':
        case 'P':
            call(0, arg, line[0] == 'P');
            break;
        case 'n':
        case 'N':
            call(0, NULL, line[0] == 'N');
            break;
        case 'o':
        case 'O':
            call(1, arg, line[0] == 'O');
            break;
        case 's':
        case 'S':
            call(2, arg, line[0] == 'S');
            break;
        case 'i':
        case 'j':
        case 'k':
            call(line[0] - 'i', getenv(variables[2 + (line[0] == 'i' ? 0 : line[0] == 'j' ? 2 : 1)]), 0);
            break;
        case 'r':
            refused = -1;
            break;
        case 'd':
            snprintf(sm_site.profile, sizeof sm_site.profile, "%s", arg);
            break;
        case 'b':
            sm_site.bad = 1;
            break;
        case 'w':
            for (size_t i = 0; line[i] && used < sizeof words; i++)
                words[used++] = line[i] == ' ' ? 0 : line[i];
            break;
        default:
            break;
        }
        free(line);
    }
    sm_options_hint();
    enum sm_decision d = sm_decide();
    MUST(!(sm_ask.given && sm_ask.off) || d == SM_OFF);
    MUST(!sm_site.bad || d != SM_ON);
    MUST(memchr(sm_ask.profile, 0, sizeof sm_ask.profile));
}
