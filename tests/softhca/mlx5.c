/*
 * libmlx5.so.1. What is named here works; everything else of the library's
 * interface is a generated stub.
 */
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <string.h>

/*
 * True makes programs look for DEVX objects and doorbell pages, which are not
 * emulated; false leads them to the verbs path of the same device.
 */
bool mlx5dv_is_supported(struct ibv_device *device)
{
	(void)device;
	return false;
}

struct ibv_context *mlx5dv_open_device(struct ibv_device *device, struct mlx5dv_context_attr *attr)
{
	if (attr && (attr->flags & MLX5DV_CONTEXT_FLAGS_DEVX)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return ibv_open_device(device);
}

int mlx5dv_query_device(struct ibv_context *context, struct mlx5dv_context *out)
{
	(void)context;
	memset(out, 0, sizeof *out);
	return EOPNOTSUPP;
}
