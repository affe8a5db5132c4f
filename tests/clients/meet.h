/* How two processes on two hosts find each other: one waits at a TCP port, the other connects to it. */
#ifndef SIGMATRACE_TESTS_MEET_H
#define SIGMATRACE_TESTS_MEET_H

#include "tally.h"

#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>

/* Without a host: waits at the port. With one: connects to it; patient is for how many tenths of a second it may not be there yet. */
static inline int meet_host(const char *host, const char *port, int patient)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE }, *a;
	CHECK(!getaddrinfo(host, port, &hints, &a));
	for (;; patient--, usleep(100000)) {
		int fd = socket(a->ai_family, a->ai_socktype, 0), one = 1;
		CHECK(fd >= 0);
		if (host && connect(fd, a->ai_addr, a->ai_addrlen)) {
			CHECK(patient > 0 && errno == ECONNREFUSED);
			close(fd);
			continue;
		}
		if (!host) {
			CHECK(!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
			CHECK(!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 1));
			int s = accept(fd, NULL, NULL);
			CHECK(s >= 0 && !close(fd));
			fd = s;
		}
		freeaddrinfo(a);
		return fd;
	}
}

/* As the two tasks of a Slurm step, of which the first runs on PAIR_HOST: returns the socket between them and sets *rank. -1 elsewhere. */
static inline int meet_in_step(int *rank)
{
	const char *host = getenv("PAIR_HOST"), *task = getenv("SLURM_PROCID");
	if (!host || !task)
		return -1;
	*rank = atoi(task);
	return meet_host(*rank ? host : NULL, "18601", 200);
}

#endif
