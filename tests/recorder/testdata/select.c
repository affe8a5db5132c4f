/* Answers questions about selection, one a line: "r LIST NUMBER" or "g PATTERNS PATH", a tab between the words. */
#include "../../../preload/select.c"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    static char line[1 << 16];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        char *list = line + 2, *what = strchr(list, '\t');
        if (!what)
            return 1;
        *what++ = 0;
        printf("%d\n", *line == 'r' ? st_in_ranges(list, strtoull(what, NULL, 10)) : st_glob_any(list, what));
    }
    return 0;
}
