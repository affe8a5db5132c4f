/* Test client of the recorder: records series that the Go side can compute by itself. */
#define _GNU_SOURCE
#include "recorder.h"
#include "sigmatrace.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* One value: often as last time, often a step, sometimes anything. recorder_test.go has the same. */
static uint64_t value(uint64_t *s, uint64_t last)
{
    switch (next(s) % 8) {
    case 0: return next(s);
    case 1: return last + 1;
    case 2: return next(s) % 300;
    default: return last;
    }
}

static void series(struct st_thread *t, struct st_object **o, uint64_t seed, unsigned n)
{
    uint64_t s = seed, now = 1000000000, f[16] = {0};
    for (unsigned i = 0; i < n; i++) {
        struct st_object *x = o[next(&s) % 20];
        switch (next(&s) % 16) {
        case 0: now -= next(&s) % 1000; break;
        case 1: now += next(&s) % (1ull << 40); break;
        case 2: now += next(&s) % (1u << 24); break;
        default: now += next(&s) % 3000;
        }
        for (int k = 1; k < 12; k++)
            f[k] = value(&s, f[k]);
        unsigned kind = next(&s) % 16;
        if (kind < 10) {
            unsigned event = ST_EV_UCP_PUT + kind % 8;
            st_rec_ucp_request(t, now, event, x, f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[10] & 0xffff);
            st_count(t, x, event, f[1], 1);
        } else if (kind < 13) {
            st_rec_ucp_completion(t, now, ST_EV_UCP_COMPLETION, x, f[1], f[2], f[3], (int64_t)f[4]);
            st_count(t, x, ST_EV_UCP_COMPLETION, f[2], 0);
        } else if (kind < 15) {
            st_rec_verbs_request(t, now, ST_EV_VERBS_WRITE, x, f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[10], f[11]);
        } else {
            st_rec_verbs_empty_polls(t, now, ST_EV_VERBS_EMPTY_POLLS, x, f[1], f[2]);
        }
    }
}

static struct st_thread *enter(void)
{
    struct st_thread *t = st_enter(ST_LAYER_UCP);
    if (t)
        st_leave(t, ST_LAYER_UCP);
    return t;
}

static void run_series(uint64_t seed, unsigned n)
{
    struct st_object *o[20];
    struct st_thread *t = enter();
    if (!t)
        return;
    for (int i = 0; i < 20; i++)
        o[i] = st_object_new(ST_KIND_ENDPOINT, seed * 1000 + (unsigned)i);
    series(t, o, seed, n);
}

static void *thread_main(void *p)
{
    run_series((uint64_t)(uintptr_t)p, 2000);
    return NULL;
}

/* Threads that record, threads that come and go, and a main thread that forks meanwhile; the children record so many. */
static void *long_lived(void *p)
{
    for (uint64_t i = 0; i < 5; i++)
        run_series((uint64_t)(uintptr_t)p * 100 + i + 1, 2000);
    return NULL;
}

static void *spawner(void *p)
{
    for (uint64_t i = 1; i <= 20; i++) {
        pthread_t t;
        pthread_create(&t, NULL, thread_main, (void *)((uintptr_t)p * 1000 + i));
        pthread_join(t, NULL);
    }
    return NULL;
}

static int mixed(uint64_t forks, unsigned n)
{
    pthread_t t[5];
    int bad = 0;
    for (uintptr_t i = 0; i < 5; i++)
        pthread_create(&t[i], NULL, i < 3 ? long_lived : spawner, (void *)(i + 1));
    for (uint64_t i = 0; i < forks; i++) {
        pid_t pid = fork();
        int status = 1;
        if (!pid) {
            if (!n)
                _exit(0);
            run_series(7000 + i, n);
            exit(0); /* the destructor writes what the written back end has in memory */
        }
        run_series(8000 + i, 100);
        waitpid(pid, &status, 0);
        bad |= status;
    }
    for (int i = 0; i < 5; i++)
        pthread_join(t[i], NULL);
    return bad != 0;
}

static _Atomic int walking, walked;
static int walk(struct dl_phdr_info *object, size_t size, void *data)
{
    (void)object, (void)size, (void)data;
    walking = 1;
    while (!walked)
        usleep(1000);
    return 1;
}

static void *walker(void *data)
{
    dl_iterate_phdr(walk, data);
    return NULL;
}

/* A child is forked, and records first of all, while another thread has the loader's lock. */
static int fork_in_walk(unsigned n)
{
    pthread_t t;
    int status = 1;
    pthread_create(&t, NULL, walker, NULL);
    while (!walking)
        usleep(1000);
    pid_t pid = fork();
    if (!pid) {
        run_series(42, n);
        exit(0);
    }
    for (int i = 0; i < 600 && !waitpid(pid, &status, WNOHANG); i++)
        usleep(100000);
    kill(pid, SIGKILL); /* if it is there still */
    walked = 1;
    pthread_join(t, NULL);
    return status != 0;
}

/* Plain puts of 8 bytes, as fast as they go; *count is what was recorded for certain. */
static int tables_only;
static void burst(volatile uint64_t *count, uint64_t n)
{
    struct st_thread *t = enter();
    if (!t)
        return;
    struct st_object *o = st_object_new(ST_KIND_ENDPOINT, 7);
    for (uint64_t i = 0; i < n; i++) {
        if (!tables_only)
            st_rec_ucp_request(t, st_clock(), ST_EV_UCP_PUT, o, 8, 0, 0, 0x1000, i * 8, 1, 0, 0, ST_UCP_API_NBX, 5);
        st_count(t, o, ST_EV_UCP_PUT, 8, 1);
        if (count)
            *count = i + 1;
    }
}

static _Atomic int told; /* the handler may run in another thread */
static int alike;
static void tell(int signal) { told = signal; }

static _Atomic uint64_t longest; /* ns from one request of paced() to the next: how long the machine let us wait */

/* The same for b ms, or until SIGTERM, with a pause of a us, its remote address saying the number of each: as providers do it, by st_mode.
 * alike: they say nothing, and their times are so close that each is what the last one lets expect. With GAP in the environment the longest
 * is printed. */
static void paced(unsigned pause, uint64_t ms)
{
    struct st_thread *t = enter();
    if (!t)
        return;
    struct st_object *o = st_object_new(ST_KIND_ENDPOINT, (uint64_t)(uintptr_t)t);
    struct timespec from, now, last;
    clock_gettime(CLOCK_MONOTONIC, &from);
    last = from;
    for (uint64_t i = 0;; i++) {
        uint64_t begin = st_mode == ST_AGGREGATE ? 0 : st_clock();
        usleep(pause);
        if (st_mode == ST_FULL)
            st_rec_ucp_request(t, alike ? 1000000000 + i * 100 : begin, ST_EV_UCP_PUT, o, 8, 0, 0, 0x1000, alike ? 0 : i * 8, 1, 0, 0, ST_UCP_API_NBX, 5);
        st_count(t, o, ST_EV_UCP_PUT, 8, 1);
        clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t gap = (uint64_t)((now.tv_sec - last.tv_sec) * 1000000000ll + now.tv_nsec - last.tv_nsec);
        last = now;
        if (gap > longest)
            longest = gap;
        if ((uint64_t)(now.tv_sec - from.tv_sec) * 1000 + (uint64_t)(now.tv_nsec / 1000000) - (uint64_t)(from.tv_nsec / 1000000) >= ms || told)
            break;
    }
    if (getenv("GAP"))
        printf("%llu\n", (unsigned long long)longest);
}

static uint64_t lifetime;
static void *paced_thread(void *p)
{
    (void)p;
    paced(20, lifetime);
    return NULL;
}

/* So many threads that record for b ms, while the main thread marks epochs and forks; the children record too, if they are to. */
static int paced_threads(uint64_t n, uint64_t ms, int children)
{
    pthread_t t[16];
    int bad = 0;
    lifetime = ms;
    for (uint64_t i = 0; i < n; i++)
        pthread_create(&t[i], NULL, paced_thread, NULL);
    for (uint64_t i = 0; i < ms / 250 && !told; i++) {
        int status = 1;
        usleep(200000);
        sigmatrace_mark(i % 2 ? "odd" : "even");
        pid_t pid = fork();
        if (!pid) {
            if (!children)
                _exit(0);
            paced(20, 40);
            exit(0);
        }
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        bad |= status;
    }
    for (uint64_t i = 0; i < n; i++)
        pthread_join(t[i], NULL);
    return bad != 0;
}

/* a marks of different names, b puts after each. */
static void marks(uint64_t a, uint64_t b)
{
    struct st_thread *t = enter();
    if (!t)
        return;
    struct st_object *o = st_object_new(ST_KIND_ENDPOINT, 7);
    for (uint64_t i = 0; i < a; i++) {
        char name[32];
        snprintf(name, sizeof name, "step %llu", (unsigned long long)i);
        sigmatrace_mark(name);
        for (uint64_t k = 0; k < b; k++)
            st_count(t, o, ST_EV_UCP_PUT, 8, 1);
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    uint64_t a = argc > 2 ? strtoull(argv[2], NULL, 0) : 1, b = argc > 3 ? strtoull(argv[3], NULL, 0) : 1000;
    if (!strncmp(what, "paced", 5))
        signal(SIGTERM, tell);
    alike = !strcmp(what, "paced_alike");
    if (!strcmp(what, "series")) {
        run_series(a, (unsigned)b);
    } else if (!strcmp(what, "threads")) {
        pthread_t t[64];
        for (uint64_t i = 0; i < a; i++)
            pthread_create(&t[i], NULL, thread_main, (void *)(uintptr_t)(i + 1));
        for (uint64_t i = 0; i < a; i++)
            pthread_join(t[i], NULL);
    } else if (!strcmp(what, "one_by_one")) {
        for (uint64_t i = 0; i < a; i++) {
            pthread_t t;
            pthread_create(&t, NULL, thread_main, (void *)(uintptr_t)(i + 1));
            pthread_join(t, NULL);
        }
    } else if (!strcmp(what, "fork") || !strcmp(what, "clone")) {
        run_series(1, 500);
        pid_t pid = *what == 'f' ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (!pid) {
            run_series(2, 300);
            if (*what == 'c')
                _exit(0);
            exit(0);
        }
        run_series(3, 200);
        int status;
        waitpid(pid, &status, 0);
        return status != 0;
    } else if (!strcmp(what, "mixed")) {
        return mixed(a, (unsigned)b);
    } else if (!strcmp(what, "fork_in_walk")) {
        return fork_in_walk((unsigned)a);
    } else if (!strcmp(what, "silent_fork")) { /* a child that never communicates leaves nothing */
        run_series(1, 500);
        if (!fork())
            exit(0);
        wait(NULL);
    } else if (!strcmp(what, "burst") || !strcmp(what, "tables")) {
        tables_only = *what == 't';
        volatile uint64_t *count = NULL;
        if (argc > 3) {
            int fd = open(argv[3], O_RDWR);
            count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            close(fd);
        }
        burst(count, a);
    } else if (!strcmp(what, "paced") || alike) {
        paced((unsigned)a, b);
    } else if (!strcmp(what, "paced_threads")) {
        return paced_threads(a, b, argc > 4);
    } else if (!strcmp(what, "paced_child")) { /* makes its first call in a child, after c ms */
        usleep((useconds_t)(argc > 4 ? strtoul(argv[4], NULL, 0) : 0) * 1000);
        if (!fork()) {
            paced((unsigned)a, b);
            exit(0);
        }
        int status;
        wait(&status);
        return status != 0;
    } else if (!strcmp(what, "marks")) {
        marks(a, b);
    } else if (!strcmp(what, "burst_marks")) { /* tables that come after many events */
        burst(NULL, a);
        marks(b, 5);
    } else if (!strcmp(what, "fsize")) { /* a file size limit must not become a signal */
        struct rlimit r = {a, a};
        setrlimit(RLIMIT_FSIZE, &r);
        burst(NULL, b);
    } else if (!strcmp(what, "fsize_later")) { /* nor one that the file is already beyond; the program's own signal stays pending */
        burst(NULL, b);
        struct rlimit r = {a, a};
        sigset_t limit, pending;
        sigemptyset(&limit);
        sigaddset(&limit, SIGXFSZ);
        setrlimit(RLIMIT_FSIZE, &r);
        burst(NULL, b);
        if (sigpending(&pending) || sigismember(&pending, SIGXFSZ))
            return 1;
        sigprocmask(SIG_BLOCK, &limit, NULL);
        raise(SIGXFSZ);
        burst(NULL, b);
        return sigpending(&pending) || !sigismember(&pending, SIGXFSZ);
    } else if (!strcmp(what, "closefds")) { /* programs that close what they do not know */
        burst(NULL, 100);
        for (int fd = 3; fd < 256; fd++)
            close(fd);
        int mine = open("/dev/null", O_WRONLY);
        burst(NULL, b);
        return mine != 3;
    } else if (!strcmp(what, "errno")) {
        errno = 1234;
        burst(NULL, b);
        return errno != 1234;
    } else if (!strcmp(what, "lookup")) { /* dlsym and dlvsym answer as without us */
        void *h = dlopen("libm.so.6", RTLD_NOW);
        if (!dlsym(h, "cos") || dlsym(h, "no such thing") || !dlerror() || !dlvsym(h, "cos", "GLIBC_2.2.5"))
            return 1;
        if (dlsym(RTLD_DEFAULT, "getpid") != dlsym(RTLD_NEXT, "getpid"))
            return 2;
        if (!dlsym(RTLD_NEXT, "dlsym") || dlvsym(h, "cos", "GLIBC_9"))
            return 3;
    } else if (!strcmp(what, "objects") || !strcmp(what, "ended_objects")) {
        struct st_thread *t = enter();
        for (uint64_t i = 0; t && i < a; i++) {
            struct st_object *o = st_object_new(ST_KIND_ENDPOINT, i + 1);
            st_count(t, o, ST_EV_UCP_PUT, 8, 1);
            if (*what == 'e')
                st_object_end(o);
        }
    } else if (!strcmp(what, "idle")) {
        puts("idle");
    } else {
        return 9;
    }
    if (getenv("PEAK")) { /* what getrusage(2) says begins with the parent's */
        char line[128];
        FILE *f = fopen("/proc/self/status", "r");
        while (f && fgets(line, sizeof line, f))
            if (!strncmp(line, "VmHWM:", 6))
                fputs(line + 6, stdout);
    }
    return 0;
}
