/* The arguments in plugstack.conf, one a line, and the site's resolved profile behind an empty one. */
#include "fuzz.h"

static void quiet(const char *fmt, ...)
{
    (void)fmt;
}

void fuzz(struct fields *f)
{
    char *av[64];
    int ac = 0;
    size_t n;
    while (ac < 64 && f->at < f->end) {
        av[ac] = field(f);
        if (!av[ac][0]) {
            free(av[ac]);
            break;
        }
        ac++;
    }
    sm_site_read(ac, av, quiet);
    const struct sm_site *s = &sm_site;
    if (!s->bad) {
        MUST(s->rate <= 1000000 && s->merge_seconds <= 3600 && s->command[0] == '/' && s->libdir[0] == '/' && !strpbrk(s->libdir, ": "));
        MUST(!s->profiles[0] || s->profiles[0] == '/');
        MUST(!s->output[0] || s->output[0] == '/');
        MUST(!s->kill_switch[0] || s->kill_switch[0] == '/');
        MUST(!s->resolved[0] || s->resolved[0] == '/');
    }
    for (int i = 0; i < ac && i < 4; i++) {
        sm_in_list(av[i], av[(i + 1) % ac]);
        sm_site_allows_partition(av[i]);
    }
    int all = 0;
    for (uint32_t job = 1; job < 50; job++)
        all += sm_site_samples(job);
    MUST(s->bad || (s->rate == 0 ? all == 0 : s->rate < 1000000 || all == 49));

    char *text = rest(f, &n);
    if (n < SM_JOB_TEXT && !sm_resolved_check(text, n)) {
        size_t k = strlen(s->profile);
        MUST(!strncmp(text, "1;asked=", 8) && !strncmp(text + 8, s->profile, k) && text[8 + k] == ';');
        for (const char *p = text; *p; p++)
            MUST((unsigned char)*p >= ' ');
    }
    free(text);
    while (ac > 0)
        free(av[--ac]);
}
