/*
 * Libraries that are not linked to libibverbs open it and ask for versions
 * (NCCL does). Both names must be one library; a superseded version must fail
 * in order; closing it must not take the engine's code away.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <unistd.h>

#define CHECK(cond)                                                     \
	do {                                                            \
		if (!(cond)) {                                          \
			fprintf(stderr, "dlopen_check: not true: %s\n", #cond); \
			return 1;                                       \
		}                                                       \
	} while (0)

int main(void)
{
	void *short_name = dlopen("libibverbs.so", RTLD_NOW);
	void *long_name = dlopen("libibverbs.so.1", RTLD_NOW);
	struct ibv_device **(*list)(int *);
	struct ibv_context *(*open_device)(struct ibv_device *), *(*old_open)(struct ibv_device *);
	int (*close_device)(struct ibv_context *);
	struct ibv_device **devices;
	struct ibv_context *c;
	int n = 0;

	CHECK(short_name && short_name == long_name);
	*(void **)&list = dlvsym(long_name, "ibv_get_device_list", "IBVERBS_1.1");
	*(void **)&open_device = dlvsym(long_name, "ibv_open_device", "IBVERBS_1.1");
	*(void **)&old_open = dlvsym(long_name, "ibv_open_device", "IBVERBS_1.0");
	*(void **)&close_device = dlvsym(long_name, "ibv_close_device", "IBVERBS_1.1");
	CHECK(list && open_device && old_open && close_device && old_open != open_device);
	CHECK(dlsym(long_name, "ibv_open_device") == (void *)open_device);
	CHECK(dlvsym(long_name, "ibv_reg_dmabuf_mr", "IBVERBS_1.12"));
	CHECK(!dlvsym(long_name, "ibv_open_device", "IBVERBS_1.5"));
	devices = list(&n);
	CHECK(devices && n == 1);
	errno = 0;
	CHECK(!old_open(devices[0]) && errno == EOPNOTSUPP);
	c = open_device(devices[0]);
	CHECK(c);
	CHECK(!close_device(c));
	dlclose(short_name);
	dlclose(long_name);
	usleep(300000); /* the engine still runs */
	return 0;
}
