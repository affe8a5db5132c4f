/* life SCENARIO [ARGUMENTS]: one fault in the life of a process or a thread, with a known number of writes around it. */
#define _GNU_SOURCE
#include "../../../../preload/sigmatrace.h"
#include "work.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(cond) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #cond); \
			exit(1); \
		} \
	} while (0)

extern char **environ;
static struct work *work;

static void post_once(int n)
{
	struct work *w = work_open();
	work_post(w, n);
	work_close(w);
}

/* ---- children ---- */

static void worker(int n, const char *how, int ready)
{
	post_once(n);
	if (!strcmp(how, "_exit"))
		_exit(3);
	if (!strcmp(how, "exit"))
		exit(3);
	CHECK(write(ready, "x", 1) == 1);
	for (;;)
		pause(); /* until the parent ends us: terminate() or kill() of a process pool */
}

/* A parent that communicates before, between and after its workers, which do too. */
static int workers(int k, int n, const char *how)
{
	int sig = !strcmp(how, "term") ? SIGTERM : !strcmp(how, "kill") ? SIGKILL : 0;
	work = work_open();
	work_post(work, n);
	for (int i = 0; i < k; i++) {
		int ready[2], status;
		char c;
		CHECK(!pipe(ready));
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid)
			worker(n, how, ready[1]);
		close(ready[1]);
		if (sig) {
			CHECK(read(ready[0], &c, 1) == 1);
			kill(pid, sig);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		printf("worker %d: %s %d\n", i, WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
		close(ready[0]);
		work_post(work, n);
	}
	return 0;
}

/* A child that ends in order: what it inherited for its end runs in it, and communicates. */
static void posts_at_exit(void) { post_once(5); }
static int fork_end(int children, int n)
{
	atexit(posts_at_exit);
	post_once(n);
	for (int i = 0; i < children; i++) {
		int status;
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			if (i % 2) /* the other ones communicate at their end only */
				post_once(n);
			exit(i);
		}
		CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == i);
	}
	puts("forked");
	return 0;
}

static void *poster(void *n)
{
	struct work *w = work_open();
	work_post(w, (int)(intptr_t)n);
	work_close(w);
	return NULL;
}

/* Threads record while another one forks. */
static int fork_thread(int children, int n)
{
	pthread_t t[3];
	work = work_open();
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_create(&t[i], NULL, poster, (void *)(intptr_t)n));
	for (int i = 0; i < children; i++) {
		int status;
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			post_once(10);
			_exit(i);
		}
		CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == i);
	}
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	work_post(work, 1);
	puts("forked");
	return 0;
}

/* Children that become another program, by every way there is, while threads record: none of them may wait for what its parent's threads
 * hold. */
static int exec_children(int children, int n)
{
	pthread_t t[3];
	char *argv[] = { "true", NULL };
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_create(&t[i], NULL, poster, (void *)(intptr_t)n));
	for (int i = 0; i < children; i++) {
		int status;
		pid_t pid;
		if (i % 3 == 0)
			CHECK(!posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ));
		else if (i % 3 == 1 && !(pid = vfork())) {
			execve("/bin/true", argv, environ);
			_exit(9);
		} else if (i % 3 == 2 && !(pid = fork())) {
			execve("/bin/true", argv, environ);
			_exit(9);
		}
		CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status));
	}
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	puts("ran them");
	return 0;
}

static int execs(const char *self, int left, int n)
{
	char depth[16], count[16];
	post_once(n);
	printf("%d left\n", left);
	fflush(stdout);
	if (!left)
		return 4;
	snprintf(depth, sizeof depth, "%d", left - 1);
	snprintf(count, sizeof count, "%d", n);
	execl(self, self, "execs", depth, count, NULL);
	return 1;
}

/* ---- threads ---- */

static void *late(void *n)
{
	usleep(20000); /* main is gone by then */
	struct work *w = work_open();
	work_post(w, (int)(intptr_t)n);
	printf("posted after main\n");
	exit(0); /* or the software HCA's thread would keep the process */
}

static pthread_key_t before, after;
static __thread int rounds;
static int in_all;
static void post_counted(int n)
{
	in_all += n;
	work_post(work, n);
}

/* Posts from a destructor of the thread, and asks to be called again: ours may have run by then. */
static void post_again(void *p)
{
	post_counted(1);
	if (++rounds < 6)
		pthread_setspecific(rounds % 2 ? before : after, p);
}

extern int __cxa_thread_atexit_impl(void (*f)(void *), void *arg, void *dso);
extern void *__dso_handle __attribute__((visibility("hidden")));
static void post_object(void *n) { post_counted((int)(intptr_t)n); }

static void *with_destructors(void *p)
{
	pthread_setspecific(before, p);
	post_counted(1); /* our own destructor is set now */
	pthread_setspecific(after, p);
	__cxa_thread_atexit_impl(post_object, (void *)2, __dso_handle);
	return NULL;
}

static int destructors(int threads)
{
	pthread_key_create(&before, post_again);
	work = work_open();
	post_counted(1); /* creates the recorder's key between them */
	pthread_key_create(&after, post_again);
	for (int i = 0; i < threads; i++) {
		pthread_t t;
		CHECK(!pthread_create(&t, NULL, with_destructors, work));
		pthread_join(t, NULL);
	}
	printf("%d posted\n", in_all);
	return 0;
}

static uint64_t *posted; /* shared memory: outlives us */

static void *endless(void *slot)
{
	struct work *w = work_open();
	for (uint64_t *n = slot; work_try(w); ++*n)
		;
	pause(); /* the device has gone at exit before us */
	return NULL;
}

static int running_at_exit(const char *file)
{
	FILE *f = fopen(file, "w+");
	CHECK(f && !ftruncate(fileno(f), 4096));
	posted = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(f), 0);
	CHECK(posted != MAP_FAILED);
	for (int i = 0; i < 4; i++) {
		pthread_t t;
		CHECK(!pthread_create(&t, NULL, endless, &posted[i]));
	}
	for (int i = 0; i < 4; i++)
		while (__atomic_load_n(&posted[i], __ATOMIC_RELAXED) < 1000)
			usleep(1000);
	return 7;
}

/* The first recorded call is made on the smallest stack that a thread may have: fibers, too, have stacks of this size. */
static int small_stack(int n)
{
	pthread_attr_t a;
	pthread_t t;
	CHECK(!pthread_attr_init(&a) && !pthread_attr_setstacksize(&a, 16384));
	CHECK(!pthread_create(&t, &a, poster, (void *)(intptr_t)n));
	pthread_join(t, NULL);
	puts("fits");
	return 0;
}

/* ---- the end ---- */

static int armed;
static void at_exit(void) { work_post(work, 5); }
static void at_quick_exit_(void) { work_post(work, 7); }
__attribute__((destructor)) static void in_destructor(void)
{
	if (armed)
		work_post(work, 11);
}

static int end(const char *how, int n)
{
	work = work_open();
	work_post(work, n);
	atexit(at_exit);
	at_quick_exit(at_quick_exit_);
	armed = 1;
	printf("%d posted\n", n);
	fflush(stdout);
	if (!strcmp(how, "exit"))
		exit(5);
	if (!strcmp(how, "quick_exit"))
		quick_exit(5);
	if (!strcmp(how, "_exit"))
		_exit(5);
	if (!strcmp(how, "exit_group"))
		syscall(SYS_exit_group, 5);
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "segv"))
		raise(SIGSEGV);
	if (!strcmp(how, "xcpu"))
		raise(SIGXCPU); /* what a time limit sends */
	return 5;
}

/* ---- signals ---- */

static void ends(int sig)
{
	(void)sig;
	exit(5);
}

/* Children that a handler ends wherever it interrupts them, which is mostly within the recorder: each mark has a name of its own. */
static int ended_by_handlers(int n)
{
	for (int i = 0; i < n; i++) {
		int status;
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			struct itimerval soon = { .it_value.tv_usec = 2000 + 100 * i };
			if (i % 2)
				sigmatrace_mark("first"); /* the others may end while their captures are made, or before */
			signal(SIGALRM, ends);
			setitimer(ITIMER_REAL, &soon, NULL);
			for (unsigned k = 0;; k++) {
				char name[16];
				snprintf(name, sizeof name, "%u", k);
				sigmatrace_mark(name);
			}
		}
		CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 5);
	}
	puts("ended");
	return 0;
}

static volatile unsigned long in_handlers;
static void on_signal(int sig)
{
	(void)sig;
	sigmatrace_mark("signal");
	sigmatrace_phase_begin("handler");
	sigmatrace_phase_end();
	in_handlers++;
}

/* Two timers at 10 kHz, whose handler calls another layer than the one it interrupts, for so many seconds, or longer where the machine lets few
 * signals come; how often goes to a file. */
static int handlers(int seconds, const char *file)
{
	struct sigaction a = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	struct itimerval every = { { 0, 100 }, { 0, 100 } };
	unsigned long n = 0;
	work = work_open();
	sigfillset(&a.sa_mask);
	sigaction(SIGALRM, &a, NULL);
	sigaction(SIGPROF, &a, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
	setitimer(ITIMER_PROF, &every, NULL);
	for (time_t end = time(NULL) + seconds, last = end + 60; time(NULL) < end || (in_handlers <= 100ul * (unsigned)seconds && time(NULL) < last); n += 100)
		work_post(work, 100);
	setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
	setitimer(ITIMER_PROF, &(struct itimerval){ 0 }, NULL);
	FILE *f = fopen(file, "w");
	CHECK(f);
	fprintf(f, "%lu %lu\n", n, in_handlers);
	fclose(f);
	puts(in_handlers > 100ul * (unsigned)seconds ? "handled" : "hardly any signal came");
	return 0;
}

/* ---- what we leave alone ---- */

static void print_lines(const char *path, const char *const *keys)
{
	char line[512];
	FILE *f = fopen(path, "r");
	CHECK(f);
	while (fgets(line, sizeof line, f))
		for (const char *const *k = keys; *k; k++)
			if (!strncmp(line, *k, strlen(*k)))
				fputs(line, stdout);
	fclose(f);
}

static int entries(const char *path)
{
	int n = 0;
	DIR *d = opendir(path);
	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static int state(int n)
{
	stack_t alternative;
	work = work_open();
	work_post(work, n);
	print_lines("/proc/self/status", (const char *const[]){ "SigBlk", "SigIgn", "SigCgt", "Threads", "NoNewPrivs", NULL });
	CHECK(!sigaltstack(NULL, &alternative));
	printf("descriptors %d, alternative stack %d, children %d, shm %d\n", entries("/proc/self/fd"), alternative.ss_flags, waitpid(-1, NULL, WNOHANG) > 0,
	       entries("/dev/shm"));
	return 0;
}

/* The pages of code, of all objects, that are private copies: somebody wrote to them. */
static int code(int n)
{
	char line[1024], name[1024] = "";
	work = work_open();
	work_post(work, n);
	FILE *f = fopen("/proc/self/smaps", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f)) {
		char rights[8], path[512];
		unsigned long from, to;
		int kb;
		if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %511s", &from, &to, rights, path) == 4)
			snprintf(name, sizeof name, "%s", rights[2] == 'x' && *path == '/' ? path : "");
		else if (*name && sscanf(line, "Anonymous: %d kB", &kb) == 1 && kb)
			printf("%s: %d kB of code written to\n", name, kb);
	}
	fclose(f);
	puts("looked");
	return 0;
}

int main(int argc, char **argv)
{
	int a = argc > 2 ? atoi(argv[2]) : 0, b = argc > 3 ? atoi(argv[3]) : 0;
	if (argc < 2)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(argv[1], "workers"))
		return workers(a, b, argv[4]);
	if (!strcmp(argv[1], "fork_thread"))
		return fork_thread(a, b);
	if (!strcmp(argv[1], "fork_end"))
		return fork_end(a, b);
	if (!strcmp(argv[1], "exec_children"))
		return exec_children(a, b);
	if (!strcmp(argv[1], "execs"))
		return execs(argv[0], a, b);
	if (!strcmp(argv[1], "main_ends")) {
		pthread_t t;
		post_once(a);
		CHECK(!pthread_create(&t, NULL, late, (void *)(intptr_t)a));
		pthread_exit(NULL);
	}
	if (!strcmp(argv[1], "destructors"))
		return destructors(a);
	if (!strcmp(argv[1], "running_at_exit"))
		return running_at_exit(argv[2]);
	if (!strcmp(argv[1], "end"))
		return end(argv[2], b);
	if (!strcmp(argv[1], "small_stack"))
		return small_stack(a);
	if (!strcmp(argv[1], "ended_by_handlers"))
		return ended_by_handlers(a);
	if (!strcmp(argv[1], "handlers"))
		return handlers(a, argv[3]);
	if (!strcmp(argv[1], "state"))
		return state(a);
	if (!strcmp(argv[1], "code"))
		return code(a);
	return 2;
}
