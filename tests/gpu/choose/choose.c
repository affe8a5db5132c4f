/*
 * A preload before the recorder, for measurements: which queues of a program the recorder comes to know, so that one process has queues without it, and with parts of it.
 * CHOOSE has a letter for each page of doorbells in the order that the program takes them, the last one for all that follow:
 *   n  not: page and queue are the adapter's, and the recorder never hears of them
 *   f  forward: the recorder has the page, but not its queue, so it passes doorbells on and can read no elements
 *   r  record
 * Those pages count that are taken with the flags CHOOSE_FLAGS, without it dedicated ones, as NVSHMEM has for its queues of requests.
 * CHOOSE_LOG.PID gets each page's letter and address.
 */
#include "../../softhca/devx.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEDICATED = 1u << 31, CREATE_QP = 0x500 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static unsigned pages;
static char letter = 'r'; /* of the last page; a program makes its queue next */

/* The adapter itself, past everything that is preloaded. */
static const struct softhca_devx *adapter(void)
{
	static const struct softhca_devx *found;
	void *h = found ? NULL : dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
	const struct softhca_devx *(*get)(void) = h ? (const struct softhca_devx *(*)(void))dlsym(h, "softhca_devx") : NULL;

	if (get)
		found = get();
	if (!found) {
		fprintf(stderr, "choose: the software HCA is not loaded\n");
		abort();
	}
	return found;
}

static void note(const struct mlx5dv_devx_uar *uar)
{
	const char *prefix = getenv("CHOOSE_LOG");
	char path[4096];
	FILE *f;

	if (!prefix || !uar)
		return;
	snprintf(path, sizeof path, "%s.%d", prefix, (int)getpid());
	f = fopen(path, "a");
	if (!f)
		return;
	fprintf(f, "{\"pid\":%d,\"page\":%u,\"letter\":\"%c\",\"address\":%lu}\n", (int)getpid(), pages - 1, letter, (unsigned long)uar->reg_addr);
	fclose(f);
}

struct mlx5dv_devx_uar *mlx5dv_devx_alloc_uar(struct ibv_context *context, uint32_t flags)
{
	struct mlx5dv_devx_uar *(*next)(struct ibv_context *, uint32_t) = (struct mlx5dv_devx_uar * (*)(struct ibv_context *, uint32_t)) dlsym(RTLD_NEXT, "mlx5dv_devx_alloc_uar");
	const char *letters = getenv("CHOOSE"), *which = getenv("CHOOSE_FLAGS");
	struct mlx5dv_devx_uar *uar;

	if (!next)
		next = adapter()->alloc_uar;
	if (flags != (which ? strtoul(which, NULL, 0) : DEDICATED) || !letters || !*letters)
		return next(context, flags);
	pthread_mutex_lock(&mu);
	letter = letters[pages < strlen(letters) ? pages : strlen(letters) - 1];
	pages++;
	uar = letter == 'n' ? adapter()->alloc_uar(context, flags) : next(context, flags);
	note(uar);
	pthread_mutex_unlock(&mu);
	return uar;
}

struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *context, const void *in, size_t inlen, void *out, size_t outlen)
{
	typedef struct mlx5dv_devx_obj *create(struct ibv_context *, const void *, size_t, void *, size_t);
	create *next = (create *)dlsym(RTLD_NEXT, "mlx5dv_devx_obj_create");
	const uint8_t *mailbox = in;

	if (!next || (inlen >= 2 && (mailbox[0] << 8 | mailbox[1]) == CREATE_QP && letter != 'r'))
		next = adapter()->obj_create;
	return next(context, in, inlen, out, outlen);
}
