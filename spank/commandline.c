/* What Slurm does not tell plugins, or not in time, and srun's own command line does. */
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>

/* "0,1" or "0-1" */
static int several(const char *groups)
{
    return strspn(groups, "0123456789,-") == strlen(groups) && strpbrk(groups, ",-");
}

/* Whether there are several components, of a heterogeneous job or of this srun's own. Where a program has such words among its arguments the
 * answer is a wrong 1, which does no harm. */
int sm_has_components(void)
{
    char text[65536];
    size_t n = sm_command_line(text, sizeof text);
    for (const char *p = text, *next; p < text + n; p = next) {
        next = p + strlen(p) + 1;
        if (!strcmp(p, ":"))
            return 1;
        const char *value = strchr(p, '=');
        if ((!strncmp(p, "--het-", 6) || !strncmp(p, "--pack-", 7)) && (value || next < text + n) && several(value ? value + 1 : next))
            return 1;
    }
    return 0;
}

/* Whether `sigmatrace launch` has given the tasks a run already, by --export. */
int sm_launched(void)
{
    char text[65536];
    size_t n = sm_command_line(text, sizeof text);
    for (const char *p = text, *next; p < text + n; p = next) {
        next = p + strlen(p) + 1;
        if (!strncmp(p, "--export=", 9) && strstr(p, "SIGMATRACE_CONFIG="))
            return 1;
    }
    return 0;
}
