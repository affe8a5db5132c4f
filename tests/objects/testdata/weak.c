/* weak: prints for each provider whether a function of its library is there. */
#include <stdio.h>

extern int ibv_open_device(void) __attribute__((weak));
extern int fi_fabric(void) __attribute__((weak));
extern int mlx5dv_init_obj(void) __attribute__((weak));
extern int ucp_put_nbx(void) __attribute__((weak));

int main(void)
{
	if (ibv_open_device)
		puts("ibverbs");
	if (fi_fabric)
		puts("libfabric");
	if (mlx5dv_init_obj)
		puts("mlx5dv");
	if (ucp_put_nbx)
		puts("ucx");
	return 0;
}
