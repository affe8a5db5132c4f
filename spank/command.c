/* Running a program, or a few lines of our own, as the user and within a time limit. Between fork and exec only what is safe in a process
 * with threads. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_MS 2000

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* In the child: becomes the user for good, or does not return. The effective user may be the target already, with root saved. */
static void become(const struct sm_user *as)
{
    if (!as)
        return;
    if (geteuid() != 0 && getuid() == as->uid && as->uid != 0) {
        uid_t r, e, s;
        if (!getresuid(&r, &e, &s) && r == as->uid && e == as->uid && s == as->uid)
            return; /* a cluster whose daemons run as the user */
    }
    if (syscall(SYS_setresuid, -1, 0, -1) || syscall(SYS_setgroups, as->count, as->groups) || syscall(SYS_setresgid, as->gid, as->gid, as->gid) ||
        syscall(SYS_setresuid, as->uid, as->uid, as->uid))
        _exit(126);
    if (as->uid != 0 && (syscall(SYS_setresuid, -1, 0, -1) == 0 || getuid() != as->uid || geteuid() != as->uid))
        _exit(126);
}

static void default_signals(void)
{
    struct sigaction act = {.sa_handler = SIG_DFL};
    sigset_t none;
    for (int s = 1; s < NSIG; s++)
        if (s != SIGKILL && s != SIGSTOP)
            sigaction(s, &act, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static void close_rest(void)
{
#ifdef SYS_close_range
    if (!syscall(SYS_close_range, 3u, ~0u, 0u))
        return;
#endif
    for (int fd = 3; fd < 4096; fd++)
        close(fd);
}

/* Waits for the child until the time, then ends it. Its exit status, 128+n for a signal, -1 where it could not be ended. */
static int reap(pid_t pid, int64_t until)
{
    int status, term = 0, pause = 1; /* ms; what is short is not waited for long */
    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (got < 0 && errno != EINTR)
            return 0; /* somebody else has waited for it */
        int64_t late = now_ms() - until;
        if (late >= 0 && !term++)
            kill(pid, SIGTERM);
        if (late >= GRACE_MS && term++ == 1)
            kill(pid, SIGKILL);
        if (late >= 2 * GRACE_MS)
            return -1; /* it hangs in the kernel; who waits for any child reaps it then */
        poll(NULL, 0, late < 0 && late > -200 ? 2 : pause);
        pause += pause < 10;
    }
}

static void take(int *fd, char *to, size_t size, size_t *used)
{
    char over[512];
    int room = *used + 1 < size;
    ssize_t n = read(*fd, room ? to + *used : over, room ? size - 1 - *used : sizeof over);
    if (n < 0 && errno == EINTR)
        return;
    if (n <= 0) {
        close(*fd);
        *fd = -1;
    } else if (room) {
        *used += (size_t)n;
        to[*used] = 0;
    }
}

static void child(const struct sm_command *c, int out, int errors)
{
    default_signals();
    become(c->as);
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || (errors >= 0 && dup2(errors, 2) < 0))
        _exit(126);
    close_rest();
    if (!sm_trusted(c->argv[0]))
        _exit(SM_UNTRUSTED);
    if (c->nice)
        setpriority(PRIO_PROCESS, 0, c->nice);
    execve(c->argv[0], c->argv, c->envp);
    _exit(127);
}

/* Whether a child is to be begun again: who ends a step may end with its tasks what slurmstepd has started, several times. We do so only when its time is over. */
static int again(int status, int64_t until)
{
    if ((status != 128 + SIGKILL && status != 128 + SIGTERM) || now_ms() >= until)
        return 0;
    poll(NULL, 0, 20);
    return 1;
}

static int run_once(const struct sm_command *c, int64_t until)
{
    int out[2] = {-1, -1}, errors[2] = {-1, -1}, status = -1;
    size_t used[2] = {0, 0};
    if (c->out)
        c->out[0] = 0;
    if (c->errors)
        c->errors[0] = 0;
    if (pipe2(out, O_CLOEXEC) || (c->errors && pipe2(errors, O_CLOEXEC)))
        goto done;
    pid_t pid = fork();
    if (pid < 0)
        goto done;
    if (pid == 0)
        child(c, out[1], errors[1]);
    close(out[1]);
    out[1] = -1;
    if (errors[1] >= 0)
        close(errors[1]);
    errors[1] = -1;
    while (out[0] >= 0 || errors[0] >= 0) {
        struct pollfd fds[2] = {{out[0], POLLIN, 0}, {errors[0], POLLIN, 0}};
        int64_t left = until - now_ms();
        int n = left > 0 ? poll(fds, 2, (int)left) : 0;
        if (n == 0)
            break;
        if (n > 0 && fds[0].revents)
            take(&out[0], c->out, c->out_size, &used[0]);
        if (n > 0 && fds[1].revents)
            take(&errors[0], c->errors, c->errors_size, &used[1]);
    }
    status = reap(pid, until);
done:
    for (int i = 0; i < 2; i++) {
        if (out[i] >= 0)
            close(out[i]);
        if (errors[i] >= 0)
            close(errors[i]);
    }
    return status;
}

/* Exit status, 128+n for a signal; -1 where it could not be started or not be ended. */
int sm_run(const struct sm_command *c)
{
    int64_t until = now_ms() + (int64_t)c->seconds * 1000;
    int status;
    do
        status = run_once(c, until);
    while (c->again && again(status, until));
    return status;
}

/* Lets a child of ours do something as the user, so that a file system that hangs holds up the child and not us. It may be done twice, if somebody ends the child. */
int sm_as_user(const struct sm_user *as, unsigned seconds, void (*what)(void *), void *of)
{
    int64_t until = now_ms() + (int64_t)seconds * 1000;
    int status;
    do {
        pid_t pid = fork();
        if (pid < 0)
            return -1;
        if (pid == 0) {
            default_signals();
            become(as);
            what(of);
            _exit(0);
        }
        status = reap(pid, until);
    } while (again(status, until));
    return status;
}
