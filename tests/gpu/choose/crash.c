/*
 * A preload for runs that are to be looked into afterwards: a process that dies by a fault, or is told to end by SIGTERM, as `timeout` does, prints where it was before it goes on to die.
 * Of a fault the thread's stack, of SIGTERM each thread's: those that block signals, as those of tools do, by what the kernel has of them. Then what is mapped where.
 */
#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int dying, told, shown;

static void say(const char *text)
{
	if (write(2, text, strlen(text)) < 0)
		return;
}

static void show_file(const char *path, const char *only)
{
	static char text[1 << 20];
	size_t n = 0;
	ssize_t got;
	const int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	while (n < sizeof text - 1 && (got = read(fd, text + n, sizeof text - 1 - n)) > 0)
		n += (size_t)got;
	close(fd);
	text[n] = 0;
	for (char *save = NULL, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		if (!only || strstr(line, only)) {
			say("  ");
			say(line);
			say("\n");
		}
}

static void show_stack(void)
{
	void *frames[64];

	backtrace_symbols_fd(frames, backtrace(frames, 64), 2);
}

/* In a thread that was asked. */
static void asked(int signal)
{
	(void)signal;
	show_stack();
	atomic_fetch_add(&shown, 1);
}

static void show_thread(int thread)
{
	static const char *const files[] = { "comm", "wchan", "syscall", "stack" };
	const int before = atomic_load(&shown);
	char path[96];

	snprintf(path, sizeof path, "thread %d\n", thread);
	say(path);
	for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
		snprintf(path, sizeof path, "/proc/self/task/%d/%s", thread, files[i]);
		show_file(path, NULL);
	}
	if (thread == (int)syscall(SYS_gettid)) {
		show_stack();
		return;
	}
	syscall(SYS_tgkill, getpid(), thread, SIGRTMAX - 3);
	for (int i = 0; i < 100 && atomic_load(&shown) == before; i++)
		usleep(1000);
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	char line[128];

	(void)context;
	if (atomic_exchange(&dying, 1))
		for (;;) /* the first thread ends the process */
			pause();
	snprintf(line, sizeof line, "crash: signal %d at %p, process %d, thread %d\n", signal, info->si_addr, (int)getpid(), (int)syscall(SYS_gettid));
	say(line);
	show_stack();
	show_file("/proc/thread-self/comm", NULL);
	show_file("/proc/self/maps", NULL);
	sigaction(signal, &(struct sigaction){ .sa_handler = SIG_DFL }, NULL);
	syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal);
}

static void on_end(int signal)
{
	DIR *threads = atomic_exchange(&told, 1) ? NULL : opendir("/proc/self/task");
	char line[64];

	snprintf(line, sizeof line, "crash: process %d is told to end\n", (int)getpid());
	say(line);
	for (struct dirent *d; threads && (d = readdir(threads));)
		if (atoi(d->d_name))
			show_thread(atoi(d->d_name));
	show_file("/proc/self/maps", "r-xp");
	sigaction(signal, &(struct sigaction){ .sa_handler = SIG_DFL }, NULL);
	raise(signal);
}

__attribute__((constructor)) static void start(void)
{
	static const int faults[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };
	void *frame;

	backtrace(&frame, 1); /* loads what it needs */
	for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++)
		sigaction(faults[i], &(struct sigaction){ .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER }, NULL);
	sigaction(SIGTERM, &(struct sigaction){ .sa_handler = on_end, .sa_flags = SA_NODEFER }, NULL);
	sigaction(SIGRTMAX - 3, &(struct sigaction){ .sa_handler = asked, .sa_flags = SA_RESTART }, NULL);
}
