/* Hosts that are reached over TCP. What executes requests: exec.h. */
#pragma once

/* A queue pair's number: host, generation, index. */
enum { TCP_HOST_SHIFT = 20, TCP_GENERATIONS = 255 };

#pragma GCC visibility push(hidden)

/* Which of several hosts this is; -1: there is one only. */
int tcp_host(void);
/* Listens for the other hosts' requests to this process. 0, or an errno. */
int tcp_start(void);
/* Ends what is executed for others. `ready` is false then. */
void tcp_stop(void);
void tcp_forked(void);

#pragma GCC visibility pop
