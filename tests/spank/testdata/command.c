/* Children of slurmstepd's that somebody else ends with the step are begun again within their time; who takes longer is ended. */
#define _GNU_SOURCE
#include "internal.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static _Atomic int *times;
static int deadly, deaths;

int sm_trusted(const char *path) { return path != NULL; }

static void dies(void *of)
{
    (void)of;
    if ((*times)++ < deaths)
        raise(deadly);
}

static void stays(void *of)
{
    (void)of;
    (*times)++;
    for (;;)
        pause();
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int run(const char *script, int again, unsigned seconds)
{
    char out[64], *argv[] = {"/bin/sh", "-c", (char *)script, NULL}, *envp[] = {NULL};
    struct sm_command c = {.argv = argv, .envp = envp, .seconds = seconds, .again = again, .out = out, .out_size = sizeof out};
    return sm_run(&c);
}

int main(void)
{
    times = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(times != MAP_FAILED);
    static const int signals[] = {SIGKILL, SIGTERM, SIGSEGV};
    for (int i = 0; i < 3; i++) {
        *times = 0;
        deadly = signals[i];
        deaths = 3;
        int status = sm_as_user(NULL, 60, dies, NULL);
        assert(deadly == SIGSEGV ? status == 128 + SIGSEGV && *times == 1 : status == 0 && *times == 4);
    }
    deadly = SIGKILL;
    deaths = 1 << 30;
    double begin = now();
    int status = sm_as_user(NULL, 1, dies, NULL);
    assert((status == 128 + SIGKILL || status == 128 + SIGTERM) && *times > 2 && now() - begin < 60);
    *times = 0;
    assert(sm_as_user(NULL, 1, stays, NULL) == 128 + SIGTERM && *times == 1);
    assert(run("[ -e again ] && exit 7; : >again; kill -9 $$", 0, 60) == 128 + SIGKILL);
    assert(unlink("again") == 0);
    assert(run("[ -e again ] && exit 7; : >again; kill -9 $$", 1, 60) == 7);
    assert(run("exec sleep 100", 1, 1) == 128 + SIGTERM);
    printf("well\n");
    return 0;
}
