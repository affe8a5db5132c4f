/* A preload for what cannot be provoked on every machine:
 *
 *     SHIM_OPEN=FROM=TO          open(2) of the one file opens the other
 *     SHIM_FALLOCATE=ERRNO FILE  posix_fallocate(3) of a capture returns an error as long as FILE exists, as it does under a quota
 *     SHIM_CLOCK=FILE            CLOCK_REALTIME is ahead by the nanoseconds (64 bits) at the start of FILE, as after a step
 *     SHIM_LATE=NS               reading CLOCK_MONOTONIC takes so much longer, but each fifth time, as where a thread loses its processor
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static char from[4096], to[4096], full[4096];
static int error;
static volatile int64_t *ahead;

__attribute__((constructor)) static void start(void)
{
	const char *v = getenv("SHIM_OPEN");
	if (v)
		sscanf(v, "%4095[^=]=%4095s", from, to);
	v = getenv("SHIM_FALLOCATE");
	if (v)
		sscanf(v, "%d %4095s", &error, full);
}

/* Other libraries' constructors, which may run before ours, ask for the time too. */
static void find_clock(void)
{
	static int found;
	const char *v = getenv("SHIM_CLOCK");
	if (found || !v)
		return;
	found = 1;
	int fd = openat(AT_FDCWD, v, O_RDONLY);
	void *m = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
	if (m == MAP_FAILED)
		abort();
	ahead = m;
	close(fd);
}

static const char *other(const char *path)
{
	return *from && !strcmp(path, from) ? to : path;
}

#define OPEN(name) \
	int name(const char *path, int flags, ...) \
	{ \
		va_list ap; \
		va_start(ap, flags); \
		mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0; \
		va_end(ap); \
		return openat(AT_FDCWD, other(path), flags, mode); \
	}
OPEN(open)
OPEN(open64)

int posix_fallocate(int fd, off_t place, off_t size)
{
	int (*real)(int, off_t, off_t) = (int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate");
	char link[64], path[4096];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = *full && !access(full, F_OK) ? readlink(link, path, sizeof path) : 0;
	return n > 8 && !memcmp(path + n - 8, ".capture", 8) ? error : real(fd, place, size);
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	static int (*real)(clockid_t, struct timespec *);
	if (!real)
		real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	find_clock();
	const char *late = clock == CLOCK_MONOTONIC ? getenv("SHIM_LATE") : NULL;
	static _Atomic unsigned long readings;
	if (late && ++readings % 5)
		nanosleep(&(struct timespec){ 0, atol(late) }, NULL);
	int rc = real(clock, t);
	if (!rc && ahead && clock == CLOCK_REALTIME) {
		int64_t ns = t->tv_nsec + *ahead;
		t->tv_sec += ns / 1000000000;
		t->tv_nsec = ns % 1000000000;
		if (t->tv_nsec < 0) {
			t->tv_nsec += 1000000000;
			t->tv_sec--;
		}
	}
	return rc;
}
