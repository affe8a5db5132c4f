/* Says of each word whether the plugin takes it as an argument of plugstack.conf: "1" or "0", a line each. */
#include "internal.h"

#include <stdio.h>

static void quiet(const char *fmt, ...)
{
    (void)fmt;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        sm_site_read(1, argv + i, quiet);
        puts(sm_site.bad ? "0" : "1");
    }
}
