/*
 * Looks for the adapter under /sys as programs do: by its name below /sys/class/infiniband (NCCL, NVSHMEM: the PCI device, types of GIDs), and by the path
 * that the library gives (UCX: the PCI device's ids). Prints one line for each device.
 * usage: sysfs_check DEVICES
 */
#include <endian.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 2, 3))) static void check(bool good, const char *what, ...)
{
	va_list v;

	if (good)
		return;
	fputs("sysfs_check: ", stderr);
	va_start(v, what);
	vfprintf(stderr, what, v);
	va_end(v);
	fputc('\n', stderr);
	exit(1);
}

__attribute__((format(printf, 3, 4))) static void line(char *to, size_t n, const char *format, ...)
{
	char path[PATH_MAX];
	va_list v;

	va_start(v, format);
	vsnprintf(path, sizeof path, format, v);
	va_end(v);
	FILE *f = fopen(path, "r");

	check(f && fgets(to, (int)n, f), "%s cannot be read", path);
	fclose(f);
	to[strcspn(to, "\n")] = 0;
}

static void look(struct ibv_device *d)
{
	const uint64_t guid = be64toh(ibv_get_device_guid(d));
	const char *name = ibv_get_device_name(d);
	char path[PATH_MAX], real[PATH_MAX], text[256], want[256];
	struct ibv_context *ctx = ibv_open_device(d);
	struct ibv_port_attr port;

	check(ctx && !ibv_query_port(ctx, 1, &port), "%s cannot be opened", name);
	check(strstr(name, "mlx5") != NULL, "'%s' is no name of such an adapter", name);
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/device", name);
	check(realpath(path, real) && !strncmp(real, "/sys/", 5), "%s leads to no device", path);
	line(text, sizeof text, "%s/vendor", real);
	line(text, sizeof text, "%s/class", real);
	for (int i = 0; i < port.gid_tbl_len; i++) {
		union ibv_gid gid;

		line(text, sizeof text, "/sys/class/infiniband/%s/ports/1/gid_attrs/types/%d", name, i);
		check(!strcmp(text, port.link_layer == IBV_LINK_LAYER_ETHERNET ? "RoCE v2" : "IB/RoCE v1"), "GID %d is of type '%s'", i, text);
		line(text, sizeof text, "/sys/class/infiniband/%s/ports/1/gids/%d", name, i);
		check(!ibv_query_gid(ctx, 1, i, &gid), "GID %d", i);
		for (int k = 0, at = 0; k < 16; k += 2)
			at += snprintf(want + at, sizeof want - at, "%s%02x%02x", k ? ":" : "", gid.raw[k], gid.raw[k + 1]);
		check(!strcmp(text, want), "GID %d is %s, not %s", i, text, want);
	}
	line(text, sizeof text, "/sys/class/infiniband/%s/ports/1/lid", name);
	check(strtoul(text, NULL, 0) == port.lid, "LID %s, not %u", text, port.lid);
	line(text, sizeof text, "/sys/class/infiniband/%s/node_guid", name);
	snprintf(want, sizeof want, "%04x:%04x:%04x:%04x", (unsigned)(guid >> 48), (unsigned)(guid >> 32 & 0xffff), (unsigned)(guid >> 16 & 0xffff), (unsigned)(guid & 0xffff));
	check(!strcmp(text, want), "GUID %s, not %s", text, want);
	check(realpath(d->ibdev_path, real) != NULL, "%s is not there", d->ibdev_path);
	for (int i = 0; i < 2; i++)
		*strrchr(real, '/') = 0;
	line(text, sizeof text, "%s/vendor", real);
	check(!strcmp(text, "0x15b3"), "vendor %s", text);
	printf("%s %s\n", name, want);
	ibv_close_device(ctx);
}

int main(int argc, char **argv)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);

	check(argc == 2 && list && n == atoi(argv[1]), "%d devices", n);
	for (int i = 0; i < n; i++)
		look(list[i]);
	ibv_free_device_list(list);
	return 0;
}
