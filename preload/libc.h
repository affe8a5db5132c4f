/* Functions of glibc that a library built today would ask for by a version newer than 2.28: 2.34 moved them into libc.so.6 from libdl.so.2
 * and libpthread.so.0, 2.33 made stat(2) and its kin functions. Needing those two libraries instead would load them into every process,
 * where a newer glibc has them as empty files. So they are found when they are first called, which is in slow paths only: a process that
 * has an RDMA library has both. */
#ifndef ST_LIBC_H
#define ST_LIBC_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A function of the glibc that is loaded, in whichever of its libraries it is; NULL where none has it. */
__attribute__((visibility("default"))) void *st_libc(const char *name);

/* Declares `real`, the function of that name. */
#define ST_LIBC(name)                                                                                                                        \
    static __typeof__(&name) found;                                                                                                          \
    __typeof__(&name) real = __atomic_load_n(&found, __ATOMIC_RELAXED);                                                                      \
    if (!real) {                                                                                                                             \
        real = (__typeof__(&name))st_libc(#name);                                                                                            \
        __atomic_store_n(&found, real, __ATOMIC_RELAXED);                                                                                    \
    }

static inline void *st_dlopen(const char *path, int mode)
{
    ST_LIBC(dlopen);
    return real ? real(path, mode) : NULL;
}

static inline int st_dlclose(void *handle)
{
    ST_LIBC(dlclose);
    return real ? real(handle) : -1;
}

#ifdef _GNU_SOURCE
static inline int st_dladdr(const void *address, Dl_info *info)
{
    ST_LIBC(dladdr);
    return real ? real(address, info) : 0;
}
#define dladdr st_dladdr

static inline int st_dlinfo(void *handle, int request, void *out)
{
    ST_LIBC(dlinfo);
    return real ? real(handle, request, out) : -1;
}
#define dlinfo st_dlinfo
#endif

static inline int st_pthread_key_create(pthread_key_t *key, void (*destroy)(void *))
{
    ST_LIBC(pthread_key_create);
    return real ? real(key, destroy) : ENOSYS;
}

static inline int st_pthread_setspecific(pthread_key_t key, const void *value)
{
    ST_LIBC(pthread_setspecific);
    return real ? real(key, value) : ENOSYS;
}

static inline int st_pthread_once(pthread_once_t *once, void (*start)(void))
{
    ST_LIBC(pthread_once);
    return real ? real(once, start) : ENOSYS;
}

/* Between these two the thread is not cancelled (pthread_cancel(3)): a lock that it holds would stay taken. */
static inline int st_uncancelled(void)
{
    int was = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &was);
    return was;
}
static inline void st_cancelled(int was) { pthread_setcancelstate(was, NULL); }

/* Between these two no signal's handler runs in the thread: it may end the process, or start another, and what these do then needs the lock that the thread has. Signals that the thread
 * raises itself by what it does come as ever. */
static inline sigset_t st_unsignalled(void)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigset_t most, was;
    sigfillset(&most);
    sigemptyset(&was);
    for (unsigned i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&most, own[i]);
    if (sigprocmask(SIG_BLOCK, &most, &was)) /* refused by a sandbox, as the other will be */
        sigemptyset(&was);
    return was;
}
static inline void st_signalled(const sigset_t *was) { sigprocmask(SIG_SETMASK, was, NULL); }

/* A lock of slow paths. A forked child does not have the thread that may have held it. */
struct st_mutex {
    pthread_mutex_t mu;
    sigset_t signals; /* of the thread that has it */
    pid_t used_in;
};
#define ST_MUTEX {PTHREAD_MUTEX_INITIALIZER, {{0}}, 0}

static inline void st_mutex_lock(struct st_mutex *m)
{
    sigset_t signals = st_unsignalled();
    pid_t me = getpid(), was = __atomic_exchange_n(&m->used_in, me, __ATOMIC_ACQ_REL);
    if (was && was != me)
        pthread_mutex_init(&m->mu, NULL);
    pthread_mutex_lock(&m->mu);
    m->signals = signals;
}

static inline void st_mutex_unlock(struct st_mutex *m)
{
    sigset_t signals = m->signals;
    pthread_mutex_unlock(&m->mu);
    st_signalled(&signals);
}

#ifdef _GNU_SOURCE
/* open(2), but not as one of the three standard descriptors: a program that has closed those may go on writing to them, in other threads, and
 * must fail as without us. What holds their places meanwhile can be neither read nor written. */
static inline int st_open_file(const char *path, int flags, unsigned mode)
{
    int held[3], n = 0;
    for (int k = 0; k < 3; k++)
        if (fcntl(k, F_GETFD) < 0)
            held[n++] = (int)syscall(SYS_openat, AT_FDCWD, "/", O_PATH | O_CLOEXEC);
    int fd = open(path, flags | O_CLOEXEC, mode), error = errno;
    while (n)
        close(held[--n]);
    errno = error;
    return fd;
}
#endif

/* struct stat is the kernel's where a long has 64 bits. */
static inline int st_stat_at(const char *path, struct stat *st, int flags) { return (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, flags); }
static inline int st_fstat(int fd, struct stat *st) { return (int)syscall(SYS_fstat, fd, st); }

#define dlopen st_dlopen
#define dlclose st_dlclose
#define pthread_key_create st_pthread_key_create
#define pthread_setspecific st_pthread_setspecific
#define pthread_once st_pthread_once
#define stat(path, st) st_stat_at(path, st, 0)
#define lstat(path, st) st_stat_at(path, st, AT_SYMLINK_NOFOLLOW)
#define fstat(fd, st) st_fstat(fd, st)

#endif
