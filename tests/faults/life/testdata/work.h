/* A queue pair connected to itself, and writes of 64 bytes on it: what the programs here do beside the fault that they provoke. */
#ifndef WORK_H
#define WORK_H

struct work;
/* Opens the first RDMA device. The process ends where there is none. */
struct work *work_open(void);
/* Posts a write and waits for its completion: whether it was one of success. */
int work_try(struct work *w);
/* Does so n times. The process ends where one fails. */
void work_post(struct work *w, int n);
void work_close(struct work *w);

#endif
