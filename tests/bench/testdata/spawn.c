/* How long a program takes from posix_spawn(3) to its end. spawn ROUNDS PROGRAM ENVIRONMENT...: each environment is variables to be added to
 * ours, a line each; they take turns. Prints for each environment: least, first quartile and median, in microseconds. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { MOST = 16 };
extern char **environ;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int less(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static char **with(char *lines)
{
    size_t n = 0;
    while (environ[n])
        n++;
    char **all = calloc(n + MOST + 1, sizeof *all);
    memcpy(all, environ, n * sizeof *all);
    for (char *line; n && (line = strsep(&lines, "\n"));)
        if (*line)
            all[n++] = line;
    return all;
}

int main(int argc, char **argv)
{
    int rounds = argc > 3 ? atoi(argv[1]) : 0, kinds = argc - 3;
    if (rounds < 1 || kinds > MOST)
        return 2;
    double *took[MOST];
    char **environments[MOST], *args[] = {argv[2], NULL};
    for (int k = 0; k < kinds; k++) {
        took[k] = calloc((size_t)rounds, sizeof **took);
        environments[k] = with(argv[3 + k]);
    }
    for (int i = 0; i < rounds; i++)
        for (int n = 0; n < kinds; n++) {
            int k = (i + n) % kinds, status; /* none is always the one behind the same other one's end */
            pid_t pid;
            double begin = now();
            if (posix_spawn(&pid, argv[2], NULL, NULL, args, environments[k]) || waitpid(pid, &status, 0) != pid || status)
                return 1;
            took[k][i] = now() - begin;
        }
    for (int k = 0; k < kinds; k++) {
        qsort(took[k], (size_t)rounds, sizeof **took, less);
        printf("%.1f %.1f %.1f\n", took[k][0], took[k][rounds / 4], took[k][rounds / 2]);
    }
    return 0;
}
