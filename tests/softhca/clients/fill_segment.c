/*
 * Makes completion queues until there is no room. On a full file system that is
 * an error and not a signal, and what is given back can be used again.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

enum { MAX = 4096, DEPTH = 8191 };

int main(void)
{
	static struct ibv_cq *cq[MAX];
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *c = list && list[0] ? ibv_open_device(list[0]) : NULL;
	int n = 0, e;

	if (!c) {
		fprintf(stderr, "fill_segment: cannot open the device: %s\n", strerror(errno));
		return 1;
	}
	while (n < MAX && (cq[n] = ibv_create_cq(c, DEPTH, NULL, NULL, 0)))
		n++;
	e = errno;
	printf("fill_segment: %d queues, then: %s\n", n, n < MAX ? strerror(e) : "no limit found");
	if (!n || n == MAX || e != ENOMEM)
		return 1;
	for (int i = 0; i < n; i++)
		if (ibv_destroy_cq(cq[i]))
			return 1;
	for (int i = 0; i < n; i++) {
		cq[i] = ibv_create_cq(c, DEPTH, NULL, NULL, 0);
		if (!cq[i]) {
			fprintf(stderr, "fill_segment: no room for queue %d the second time\n", i);
			return 1;
		}
	}
	for (int i = 0; i < n; i++)
		ibv_destroy_cq(cq[i]);
	return ibv_close_device(c);
}
