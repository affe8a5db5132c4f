/* call-client -o put|tag|am [-n COUNT] [-s SIZE]: two processes joined by UCX; the first times each of COUNT calls, from the call to its
 * completion at this side, by clock_gettime(2), and prints one line: median and p99 of a call in nanoseconds. The tests of ucp-client check
 * data; this one only measures.
 */
#define _GNU_SOURCE
#include "timed.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { WARM = 2000, AM_ID = 7 };
static ucp_context_h context;
static ucp_worker_h worker;

static void make_worker(void)
{
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA | UCP_FEATURE_TAG | UCP_FEATURE_AM };
	ucp_worker_params_t wp = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE };
	CHECK(ucp_init(&params, NULL, &context) == UCS_OK && ucp_worker_create(context, &wp, &worker) == UCS_OK);
}

static void put(int fd, const void *p, size_t n)
{
	CHECK(write(fd, &n, sizeof n) == (ssize_t)sizeof n && write(fd, p, n) == (ssize_t)n);
}

static void *get(int fd)
{
	size_t n, have = 0;
	CHECK(read(fd, &n, sizeof n) == (ssize_t)sizeof n);
	char *p = malloc(n);
	for (ssize_t k; have < n; have += (size_t)k)
		CHECK((k = read(fd, p + have, n - have)) > 0);
	return p;
}

/* The second process: its address, its memory and its key go to the first, and it makes progress until it is killed. */
static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data, size_t length, const ucp_am_recv_param_t *param)
{
	(void)arg, (void)header, (void)header_length, (void)data, (void)length, (void)param;
	return UCS_OK;
}

static void serve(int to, const char *what, size_t size)
{
	ucp_address_t *address;
	void *buffer = malloc(size), *key;
	size_t n;
	ucp_mem_h memory;
	make_worker();
	ucp_mem_map_params_t mp = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
				    .length = size,
				    .flags = UCP_MEM_MAP_ALLOCATE };
	ucp_mem_attr_t attr = { .field_mask = UCP_MEM_ATTR_FIELD_ADDRESS };
	CHECK(ucp_mem_map(context, &mp, &memory) == UCS_OK && ucp_mem_query(memory, &attr) == UCS_OK);
	CHECK(ucp_worker_get_address(worker, &address, &n) == UCS_OK);
	put(to, address, n);
	CHECK(ucp_rkey_pack(context, memory, &key, &n) == UCS_OK);
	put(to, key, n);
	put(to, &attr.address, sizeof attr.address);
	ucp_am_handler_param_t am = { .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB, .id = AM_ID, .cb = on_am };
	CHECK(ucp_worker_set_am_recv_handler(worker, &am) == UCS_OK);
	const ucp_request_param_t plain = { 0 };
	for (ucs_status_ptr_t r = NULL;;) {
		while (ucp_worker_progress(worker))
			;
		if (strcmp(what, "tag"))
			continue;
		if (r && ucp_request_check_status(r) != UCS_INPROGRESS) {
			ucp_request_free(r);
			r = NULL;
		}
		while (!r) {
			r = ucp_tag_recv_nbx(worker, buffer, size, 1, ~0ull, &plain);
			CHECK(!UCS_PTR_IS_ERR(r));
			if (!r)
				ucp_worker_progress(worker);
		}
	}
}

int main(int argc, char **argv)
{
	const char *what = "";
	size_t count = 200000, size = 8;
	int opt, to[2];
	while ((opt = getopt(argc, argv, "o:n:s:")) != -1)
		switch (opt) {
		case 'o': what = optarg; break;
		case 'n': count = strtoull(optarg, NULL, 0); break;
		case 's': size = strtoull(optarg, NULL, 0); break;
		default: return 2;
		}
	if ((strcmp(what, "put") && strcmp(what, "tag") && strcmp(what, "am")) || !count || !size) {
		fprintf(stderr, "usage: call-client -o put|tag|am [-n COUNT] [-s SIZE]\n");
		return 2;
	}
	CHECK(!pipe(to));
	pid_t peer = fork();
	CHECK(peer >= 0);
	if (!peer) {
		serve(to[1], what, size);
		_exit(0);
	}
	make_worker();
	ucp_ep_h ep;
	ucp_rkey_h rkey;
	ucp_ep_params_t ep_params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = get(to[0]) };
	CHECK(ucp_ep_create(worker, &ep_params, &ep) == UCS_OK && ucp_ep_rkey_unpack(ep, get(to[0]), &rkey) == UCS_OK);
	uint64_t remote = *(uint64_t *)get(to[0]);
	void *buffer = calloc(1, size);
	uint32_t *took = malloc(count * sizeof *took);
	const ucp_request_param_t plain = { 0 };
	for (size_t i = 0; i < WARM + count; i++) {
		ucs_status_ptr_t r;
		uint64_t begin = now();
		if (*what == 'p')
			r = ucp_put_nbx(ep, buffer, size, remote, rkey, &plain);
		else if (*what == 't')
			r = ucp_tag_send_nbx(ep, buffer, size, 1, &plain);
		else
			r = ucp_am_send_nbx(ep, AM_ID, NULL, 0, buffer, size, &plain);
		CHECK(!UCS_PTR_IS_ERR(r));
		while (r && ucp_request_check_status(r) == UCS_INPROGRESS)
			ucp_worker_progress(worker);
		uint32_t ns = since(begin);
		if (r)
			ucp_request_free(r);
		if (i >= WARM)
			took[i - WARM] = ns;
		if (i % 64 == 63) /* the other side keeps up, and what UCX does now and then is not in the times */
			for (int k = 0; k < 64; k++)
				ucp_worker_progress(worker);
	}
	kill(peer, SIGKILL);
	waitpid(peer, NULL, 0);
	print_times(took, count);
	return 0;
}
