/* What clients of libfabric share: two processes that begin as ranks 0 and 1 by RANK and WORLD_SIZE, or as the tasks of a Slurm step
 * (meet.h), with a socket between them. */
#ifndef SIGMATRACE_TESTS_OFI_PAIR_H
#define SIGMATRACE_TESTS_OFI_PAIR_H

#include "meet.h"

#include <poll.h>
#include <rdma/fi_errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define OK(call) \
	do { \
		int rc_ = (int)(call); \
		if (rc_) { \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, fi_strerror(-rc_)); \
			exit(1); \
		} \
	} while (0)

/* Starts the program again twice, and ends with the status of the two. In each of them, and in those of a Slurm step: returns its socket. */
static inline int pair_start(char **argv, int *rank)
{
	int pair[2], status = 0, worst = 0;
	pid_t child[2], p;
	int fd = meet_in_step(rank);
	if (fd >= 0)
		return fd;
	if (getenv("PAIR_SOCKET")) {
		*rank = atoi(getenv("RANK"));
		return atoi(getenv("PAIR_SOCKET"));
	}
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	for (int i = 0; i < 2; i++) {
		child[i] = fork();
		CHECK(child[i] >= 0);
		if (!child[i]) { /* begins anew, as a rank that was started as one */
			char text[16];
			close(pair[!i]);
			snprintf(text, sizeof text, "%d", pair[i]);
			setenv("PAIR_SOCKET", text, 1);
			setenv("RANK", i ? "1" : "0", 1);
			setenv("WORLD_SIZE", "2", 1);
			execv("/proc/self/exe", argv);
			_exit(1);
		}
	}
	close(pair[0]);
	close(pair[1]);
	while ((p = wait(&status)) > 0)
		if (status && !worst) {
			worst = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			kill(child[p == child[0]], SIGKILL); /* it would wait for ever */
		}
	exit(worst);
}

static inline void swap(int sock, const void *mine, void *theirs, size_t size)
{
	CHECK(write(sock, mine, size) == (ssize_t)size);
	struct pollfd pf = { .fd = sock, .events = POLLIN };
	CHECK(poll(&pf, 1, 60000) == 1);
	CHECK(recv(sock, theirs, size, MSG_WAITALL) == (ssize_t)size);
}

/* Waits for the peer, which may need our progress to arrive. */
static inline void pair_barrier(int sock, void (*progress)(void))
{
	char c = 'b';
	struct pollfd pf = { .fd = sock, .events = POLLIN };
	CHECK(write(sock, &c, 1) == 1);
	while (poll(&pf, 1, 0) == 0)
		progress();
	CHECK(read(sock, &c, 1) == 1 && c == 'b');
}

#endif
