/* The step's text, and the preload made of it: text, job, step, directory of libraries, LD_PRELOAD, a program's name. */
#include "fuzz.h"

void fuzz(struct fields *f)
{
    static char to[SM_PRELOAD];
    char *text = field(f), *job = field(f), *id = field(f), *libdir = field(f), *existing = field(f), *program = field(f), *size = field(f);
    struct sm_step s;
    memset(&s, 0xa5, sizeof s);
    if (!sm_step_parse(text, &s)) {
        MUST(!strncmp(text, "1;", 2) && s.run[0] == '/' && s.providers[0]);
        MUST(strspn(s.providers, "abcdefghijklmnopqrstuvwxyz0123456789_,") == strlen(s.providers));
        if (s.named && !sm_step_name(&s, job, id))
            MUST(strlen(s.run) + sizeof "/profile.resolved" <= sizeof s.run);
        if (libdir[0] == '/' && strlen(libdir) < PATH_MAX) {
            size_t room = (size_t)atoi(size) % sizeof to + 1;
            char *exact = malloc(room);
            MUST(exact);
            if (!sm_step_preload(&s, libdir, existing, exact, room)) {
                MUST(strlen(exact) < room && !strncmp(exact, libdir, strlen(libdir)));
                MUST(!strncmp(exact + strlen(libdir), "/libsigmatrace.", 15));
            }
            free(exact);
        }
    }
    sm_is_daemon(program);
    free(text), free(job), free(id), free(libdir), free(existing), free(program), free(size);
}
