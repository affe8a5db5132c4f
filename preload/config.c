/* Configuration: two environment variables, one flat file, the rank. Contract: profiles/README.md. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct st_config st_config; /* all zero in the file: the start of a program that does nothing is not to copy its pages */

static void copy(char *to, size_t size, const char *from)
{
    size_t n = strlen(from);
    if (n >= size)
        n = size - 1;
    memcpy(to, from, n);
    to[n] = 0;
}

/* Of a list in ascending order that is too long, whole items. */
static void copy_list(char *to, size_t size, const char *from)
{
    copy(to, size, from);
    char *end = strlen(from) < size ? NULL : strrchr(to, ',');
    if (end)
        *end = 0;
}

static int64_t number(const char *s)
{
    int64_t v = 0;
    if (!s || !*s)
        return -1;
    for (; *s >= '0' && *s <= '9' && v < INT64_MAX / 10; s++)
        v = v * 10 + (*s - '0');
    return *s ? -1 : v;
}

/* Reads a small file whole; returns its length, or -1. */
ssize_t st_slurp(const char *path, char *to, size_t size)
{
    int fd = st_open_file(path, O_RDONLY | O_NONBLOCK, 0); /* a pipe of that name must not make the program wait */
    if (fd < 0)
        return -1;
    size_t n = 0;
    while (n < size - 1) {
        ssize_t k = read(fd, to + n, size - 1 - n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            break;
        n += (size_t)k;
    }
    close(fd);
    to[n] = 0;
    return (ssize_t)n;
}

static void executable(char *to, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", to, size - 1);
    to[n > 0 ? n : 0] = 0;
}

/* Which ranks and processes are left out. A process without a rank is not meant by [ranks]. What is malformed selects as if it were not there. */
static void select_by(const char *key, const char *value)
{
    struct st_config *c = &st_config;
    static char exe[PATH_MAX]; /* one caller at a time, and threads with small stacks */
    if (!*value) {
        return;
    } else if (!strcmp(key, "processes.exclude")) {
        executable(exe, sizeof exe);
        c->excluded |= st_glob_any(value, exe) ? ST_EXCLUDED_PROCESS : 0;
    } else if (c->rank >= 0) {
        int in = st_in_ranges(value, (uint64_t)c->rank);
        if (!strcmp(key, "ranks.include") ? in == 0 : !strcmp(key, "ranks.exclude") && in > 0)
            c->excluded |= ST_EXCLUDED_RANK;
    }
}

/* A duration in ns, with its unit. */
static uint64_t ns(const char *value)
{
    char *end;
    uint64_t v = strtoull(value, &end, 10);
    return strcmp(end, "ns") ? 0 : v;
}

/* A list of kinds of NCCL's events as its mask (ncclProfileColl and so on). */
static int nccl_mask(const char *value)
{
    static const struct {
        const char *name;
        int events;
    } known[] = {{"coll", 2}, {"p2p", 4}, {"proxy", 8}, {"steps", 8 | 16}};
    int mask = 0;
    for (size_t n; *value; value += n + (value[n] == ',')) {
        n = strcspn(value, ",");
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (n == strlen(known[i].name) && !memcmp(value, known[i].name, n))
                mask |= known[i].events;
    }
    return mask;
}

static void doorbell_setting(const char *key, const char *value)
{
    static const char *const polls[] = {"auto", "pause", "umwait", "mwaitx", "yield"}; /* enum spin */
    struct st_doorbells *d = &st_config.doorbells;
    if (!strcmp(key, "enabled"))
        d->enabled = !strcmp(value, "true");
    else if (!strcmp(key, "batch_threshold"))
        d->threshold = (uint32_t)number(value);
    else if (!strcmp(key, "threads"))
        d->threads = number(value) < UINT32_MAX ? (uint32_t)number(value) : UINT32_MAX;
    else if (!strcmp(key, "cpus"))
        copy_list(st_config.doorbell_cpus, sizeof st_config.doorbell_cpus, value);
    for (uint8_t i = 0; !strcmp(key, "poll") && i < sizeof polls / sizeof *polls; i++)
        if (!strcmp(value, polls[i]))
            d->poll = i;
}

static void setting(const char *key, const char *value)
{
    struct st_config *c = &st_config;
    if (!strcmp(key, "capture.directory"))
        copy(c->directory, sizeof c->directory, value);
    else if (!strcmp(key, "capture.memory"))
        copy(c->ring, sizeof c->ring, value);
    else if (!strcmp(key, "name"))
        copy(c->profile, sizeof c->profile, value);
    else if (!strcmp(key, "providers"))
        copy(c->providers, sizeof c->providers, value);
    else if (!strcmp(key, "mode"))
        c->mode = !strcmp(value, "full") ? ST_FULL : !strcmp(value, "simple") ? ST_SIMPLE : ST_AGGREGATE;
    else if (!strcmp(key, "record.back_end"))
        c->back_end = !strcmp(value, "mapped") ? 1 : !strcmp(value, "written") ? 2 : 0;
    else if (!strcmp(key, "record.chunk"))
        c->chunk = (uint32_t)number(value);
    else if (!strcmp(key, "record.budget"))
        c->budget = (uint64_t)number(value);
    else if (!strcmp(key, "record.memory"))
        c->memory = (uint64_t)number(value);
    else if (!strcmp(key, "ucx.level"))
        c->ucx_level = !strcmp(value, "ucp") ? 1 : !strcmp(value, "uct") ? 2 : 0;
    else if (!strcmp(key, "gpu.kernels"))
        c->kernels = !strcmp(value, "times") ? ST_KERNELS_TIMES : !strcmp(value, "launches") ? ST_KERNELS_LAUNCHES : ST_KERNELS_OFF;
    else if (!strcmp(key, "nccl.events"))
        c->nccl_events = nccl_mask(value);
    else if (!strcmp(key, "record.nvtx"))
        c->nvtx = !strcmp(value, "true");
    else if (!strcmp(key, "run.world") && c->world < 0)
        c->world = number(value);
    else if (!strcmp(key, "run.start"))
        c->start = strtoull(value, NULL, 10);
    else if (!strcmp(key, "run.clock"))
        copy(c->clock, sizeof c->clock, value);
    else if (!strcmp(key, "run.start_monotonic"))
        c->start_monotonic = strtoll(value, NULL, 10);
    else if (!strcmp(key, "run.control"))
        copy(c->control, sizeof c->control, value);
    else if (!strcmp(key, "window.start"))
        c->closed = !strcmp(value, "closed");
    else if (!strcmp(key, "window.delay"))
        c->delay = ns(value);
    else if (!strcmp(key, "window.duration"))
        c->duration = ns(value);
    else if (!strcmp(key, "window.max_events"))
        c->max_events = (uint64_t)number(value);
    else if (!strcmp(key, "window.control"))
        c->uncontrolled = !strcmp(value, "false");
    else if (!strncmp(key, "doorbell.", 9))
        doorbell_setting(key + 9, value);
    else if (!strcmp(key, "epoch.interval"))
        c->interval = ns(value);
    else if (!strcmp(key, "epoch.phases"))
        c->phase_epochs = !strcmp(value, "true");
    else if (!strncmp(key, "ranks.", 6) || !strncmp(key, "processes.", 10))
        select_by(key, value);
}

static int read_settings(struct st_config *c)
{
    static char text[16384];
    c->chunk = 65536;
    c->budget = 256u << 20;
    c->memory = 256u << 20;
    c->doorbells = (struct st_doorbells){.enabled = true, .threshold = 128, .threads = 2, .cpus = c->doorbell_cpus};
    ssize_t n = st_slurp(c->path, text, sizeof text);
    if (n <= 0 || n == (ssize_t)sizeof text - 1)
        return -1;
    char *line, *rest = text;
    int first = 1;
    while ((line = strsep(&rest, "\n"))) {
        char *value = strchr(line, '=');
        if (!value)
            continue;
        *value++ = 0;
        if (first && (strcmp(line, "sigmatrace.profile") || strcmp(value, "1")))
            return -1;
        first = 0;
        setting(line, value);
    }
    int good = c->directory[0] == '/' && c->chunk >= 16384 && c->chunk <= 1048576 && !(c->chunk & (c->chunk - 1)) && c->budget >= 8ull * c->chunk;
    return good ? 0 : -1;
}

/* Reads the flat file, once. 0, or -1 when there is nothing usable: the process is then not recorded. One caller at a time; `off` is
 * what other threads look at meanwhile, so it changes only when the answer is known. */
int st_config_load(void)
{
    if (!st_config.loaded) {
        if (read_settings(&st_config) || st_config.excluded)
            __atomic_store_n(&st_config.off, 1, __ATOMIC_RELAXED);
        st_config.loaded = 1;
    }
    return st_config.off ? -1 : 0;
}

/* What is read of the environment, in one pass over it and without a call: this runs in every program. */
enum {
    V_SIGMATRACE, V_CONFIG,
    V_OMPI_RANK, V_OMPI_SIZE, V_PMIX_RANK, V_PMIX_SIZE, V_PMI_RANK, V_PMI_SIZE, V_PALS_RANK, V_JSM_RANK, V_JSM_SIZE, V_RANK, V_WORLD_SIZE,
    V_ALPS_RANK, V_FLUX_RANK, V_FLUX_SIZE, V_SLURM_RANK, V_SLURM_SIZE, V_TORCHRUN,
    V_JOB, V_ARRAY_TASK, V_RESTART, V_HET_JOB, V_STEP, V_NODE, V_LOCAL_RANK, V_NAMESPACE, V_MASTER_PORT, VARIABLES
};
static const st_variable variables[VARIABLES] = {
    "SIGMATRACE", "SIGMATRACE_CONFIG",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMIX_SIZE", "PMI_RANK", "PMI_SIZE", "PALS_RANKID", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "RANK", "WORLD_SIZE",
    "ALPS_APP_PE", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "SLURM_HET_JOB_OFFSET", "SLURM_STEP_ID", "SLURM_NODEID", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_NAMESPACE", "MASTER_PORT",
};

char **st_environment(const st_variable *names, unsigned n, const char **values)
{
    char **last = NULL;
    for (char **e = environ; e && *e; e++)
        for (unsigned i = 0; i < n; i++) {
            const char *name = names[i], *c = *e;
            while (*name && *name == *c)
                name++, c++;
            if (!*name && *c == '=' && !values[i]) {
                values[i] = c + 1;
                last = e;
            }
        }
    return last;
}

/* A batch script and an salloc shell have SLURM_PROCID=0 too: what runs in them is no task of a step. */
static int of_slurm_step(const char *const *v)
{
    int64_t step = number(v[V_STEP]);
    return step < 0 ? !v[V_JOB] : step < 0xfffffff0; /* slurm.h: SLURM_MAX_NORMAL_STEP_ID */
}

static void find_rank(const char *const *v)
{
    static const struct {
        uint8_t rank, world, source;
    } known[] = {
        {V_OMPI_RANK, V_OMPI_SIZE, ST_RANK_OMPI},
        {V_PMIX_RANK, V_PMIX_SIZE, ST_RANK_PMIX},
        {V_PMI_RANK, V_PMI_SIZE, ST_RANK_PMI},
        {V_PALS_RANK, V_PMI_SIZE, ST_RANK_PALS},
        {V_JSM_RANK, V_JSM_SIZE, ST_RANK_JSM},
        {V_RANK, V_WORLD_SIZE, ST_RANK_RANK},
        /* the launchers below may have started torchrun's agents, whose ranks inherit their variables */
        {V_ALPS_RANK, VARIABLES, ST_RANK_ALPS} /* ALPS tells no size */,
        {V_FLUX_RANK, V_FLUX_SIZE, ST_RANK_FLUX},
        {V_SLURM_RANK, V_SLURM_SIZE, ST_RANK_SLURM},
    };
    /* So may PMI's and the others above: what torchrun itself has started has the rank that torchrun gave it. */
    int torchrun = v[V_TORCHRUN] && number(v[V_RANK]) >= 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int64_t r = number(v[known[i].rank]);
        if (r >= 0 && (!torchrun || known[i].source == ST_RANK_RANK) && (known[i].source != ST_RANK_SLURM || of_slurm_step(v))) {
            st_config.rank = r;
            st_config.world = known[i].world < VARIABLES ? number(v[known[i].world]) : -1;
            st_config.rank_source = known[i].source;
            return;
        }
    }
}

static void find_job(const char *const *v)
{
    static const uint8_t of_job[] = {V_JOB, V_ARRAY_TASK, V_RESTART, V_HET_JOB, V_STEP, V_SLURM_RANK, V_NODE, V_LOCAL_RANK, V_NAMESPACE,
                                     V_TORCHRUN, V_MASTER_PORT};
    size_t used = 0;
    for (size_t i = 0; i < sizeof of_job; i++) {
        const char *text = v[of_job[i]];
        if (!text || strchr(text, '\n'))
            continue;
        int n = snprintf(st_config.job + used, sizeof st_config.job - used, "%s=%s\n", variables[of_job[i]], text);
        if (n < 0 || used + (size_t)n >= sizeof st_config.job) {
            st_config.job[used] = 0;
            return;
        }
        used += (size_t)n;
    }
}

uint64_t st_realtime(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t st_monotonic(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void st_clock_name(char *to, size_t size)
{
    char boot[64];
    struct stat st;
    *to = 0;
    if (st_slurp("/proc/sys/kernel/random/boot_id", boot, sizeof boot) <= 0)
        return;
    boot[strcspn(boot, "\n")] = 0;
    snprintf(to, size, "%s/%llu", boot, stat("/proc/self/ns/time", &st) ? 0 : (unsigned long long)st.st_ino);
}

static uint64_t start_time(void)
{
    char text[1024];
    if (st_slurp("/proc/self/stat", text, sizeof text) <= 0)
        return 0;
    /* the program's name, field 2, may hold anything: count from the last parenthesis (proc(5)) */
    char *p = strrchr(text, ')');
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    return p ? strtoull(p + 1, NULL, 10) : 0;
}

void st_identify(struct st_identity *id)
{
    memset(id, 0, sizeof *id);
    id->pid = (uint32_t)getpid();
    id->parent = (uint32_t)getppid();
    id->start_time = start_time();
    id->realtime_ns = st_realtime();
    struct stat st;
    if (!stat("/proc/self/ns/pid", &st))
        id->pid_namespace = st.st_ino;
    char text[64];
    unsigned nibble = 0;
    if (st_slurp("/proc/sys/kernel/random/boot_id", text, sizeof text) > 0)
        for (char *p = text; *p && nibble < 32; p++) {
            int v = *p >= '0' && *p <= '9' ? *p - '0' : *p >= 'a' && *p <= 'f' ? *p - 'a' + 10 : -1;
            if (v >= 0) {
                id->boot_id[nibble / 2] |= (uint8_t)(v << (nibble % 2 ? 0 : 4));
                nibble++;
            }
        }
    if (gethostname(id->hostname, sizeof id->hostname - 1) || !id->hostname[0])
        copy(id->hostname, sizeof id->hostname, "unknown");
    static char exe[PATH_MAX]; /* one caller at a time, and threads with small stacks */
    executable(exe, sizeof exe);
    size_t n = strlen(exe), keep = sizeof id->executable - 1;
    copy(id->executable, sizeof id->executable, n > keep ? exe + n - keep : exe);
    snprintf(id->node, sizeof id->node, "%s.%02x%02x%02x%02x", id->hostname, id->boot_id[0], id->boot_id[1], id->boot_id[2], id->boot_id[3]);
    for (char *p = id->node; *p; p++)
        if (*p == '/')
            *p = '_';
}

/* Makes a directory that its owner can use whatever the umask; another rank may have made it just now. 0, or -1. */
static int private_directory(const char *path)
{
    struct stat st;
    if (mkdir(path, 0700) && errno != EEXIST)
        return -1;
    if (!lstat(path, &st) && S_ISDIR(st.st_mode) && (st.st_mode & 0700) != 0700)
        chmod(path, 0700);
    return 0;
}

/* Makes a node's folder, and the capture directory where that is missing: record.scratch of another host than the launcher's. */
void st_make_folder(const char *folder)
{
    if (private_directory(folder) && errno == ENOENT && !private_directory(st_config.directory))
        private_directory(folder);
}

static void say_alive(void)
{
    struct st_identity id;
    struct st_alive a;
    if (st_config_load() && !st_config.excluded)
        return;
    st_identify(&id);
    memset(&a, 0, sizeof a);
    memcpy(a.magic, "SGMALIVE", 8);
    a.version = 1;
    a.rank_source = (uint16_t)st_config.rank_source;
    a.pid = id.pid;
    a.state = st_config.excluded;
    a.rank = st_config.rank;
    a.world = st_config.world;
    a.pid_namespace = id.pid_namespace;
    a.start_time = id.start_time;
    a.realtime_ns = id.realtime_ns;
    memcpy(a.hostname, id.hostname, sizeof a.hostname);
    memcpy(a.providers, st_config.providers, sizeof a.providers);
    memcpy(a.boot_id, id.boot_id, sizeof a.boot_id);
    memcpy(a.executable, id.executable, sizeof a.executable);
    char *path = st_config.alive;
    struct stat st;
    int folder = snprintf(path, sizeof st_config.alive - 8, "%s/%s", st_config.directory, id.node);
    if (folder < 0 || (size_t)folder >= sizeof st_config.alive - 8)
        return;
    strcat(path, "/alive");
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, fd = st_open_file(path, flags, 0600);
    if (fd < 0 && errno == ENOENT) { /* only the first rank of a node finds no folder */
        path[folder] = 0;
        st_make_folder(path);
        path[folder] = '/';
        fd = st_open_file(path, flags, 0600);
    }
    if (fd < 0)
        return;
    if (!fstat(fd, &st) && (st.st_mode & 07777) != 0600)
        fchmod(fd, 0600); /* ranks and readers to come open it too, whatever the umask of this one */
    ssize_t n = st_write_once(fd, &a, sizeof a, -1);
    /* Proof of life is best effort: the capture itself proves as much. The offset is that behind our record, whoever else appends. */
    if (n == (ssize_t)sizeof a)
        st_config.alive_at = lseek(fd, 0, SEEK_CUR) - (off_t)sizeof a;
    close(fd);
}

/* Written over what is there, so that a full disk does not keep it out. */
void st_say_failed(void)
{
    if (st_config.alive_at < 0)
        return;
    int fd = st_open_file(st_config.alive, O_WRONLY | O_NOFOLLOW, 0);
    if (fd < 0)
        return;
    uint32_t state = ST_ALIVE_FAILED;
    ssize_t n = st_write_once(fd, &state, sizeof state, st_config.alive_at + (off_t)offsetof(struct st_alive, state));
    (void)n;
    close(fd);
}

/* A process may have two of our objects that each hold a recorder: of two installations, or of two sets of providers that something put
 * together by hand. The first in the order of symbols records, and all others are off. */
extern ST_EXPORT const char sigmatrace_recorder;
const char sigmatrace_recorder = 1;
extern const char own_recorder __attribute__((alias("sigmatrace_recorder"), visibility("hidden")));

__attribute__((constructor)) static void start(void)
{
    struct st_config *c = &st_config;
    const char *v[VARIABLES] = {NULL};
    st_environment(variables, VARIABLES, v);
    const char *off = v[V_SIGMATRACE], *path = v[V_CONFIG];
    size_t n = 0;
    while (path && n < sizeof c->path - 1 && (c->path[n] = path[n]))
        n++;
    c->rank = c->world = c->alive_at = -1;
    if (&sigmatrace_recorder != &own_recorder || (off && off[0] == 'o' && off[1] == 'f' && off[2] == 'f' && !off[3]) || !n || path[n]) {
        c->off = c->loaded = 1;
        return;
    }
    c->loaded_realtime = st_realtime();
    c->loaded_monotonic = st_monotonic();
    find_rank(v);
    find_job(v);
    if (c->rank >= 0) {
        int saved = errno;
        say_alive();
        errno = saved;
    }
}
