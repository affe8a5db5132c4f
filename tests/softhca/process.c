/* The process: registration, fork, exit. */
#include "devx.h"
#include "gpu.h"
#include "stats.h"
#include "tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

struct hca hca = { .slot = SHM_PROCS, .qps_mu = PTHREAD_MUTEX_INITIALIZER, .cqs_mu = PTHREAD_MUTEX_INITIALIZER };

static pthread_mutex_t init_mu = PTHREAD_MUTEX_INITIALIZER;

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

uint32_t round_up_pow2(uint32_t n)
{
	return n <= 1 ? 1 : 1u << (32 - __builtin_clz(n - 1));
}

/* A child has the parent's memory but none of its standing: it registers at
 * its own first open, and what it inherited refuses to work. */
static void in_child(void)
{
	hca.ready = hca.left = false;
	hca.slot = SHM_PROCS;
	hca.epoch++;
	hca.pending = NULL;
	hca.pending_count = 0;
	for (int i = 0; i < SHM_QPS; i++)
		hca.qps[i] = NULL;
	for (int i = 0; i < SHM_CQS; i++)
		hca.cqs[i] = NULL;
	pthread_mutex_init(&hca.qps_mu, NULL);
	pthread_mutex_init(&hca.cqs_mu, NULL);
	pthread_mutex_init(&init_mu, NULL);
	stats_reset();
	doorbell_forked();
	rings_forked();
	tcp_forked();
	gpu_forked();
	copier_forked();
	share_forked();
}

int hca_init(void)
{
	int rc = 0;

	pthread_mutex_lock(&init_mu);
	if (!hca.ready) {
		static bool registered;

		hca.shm = shm_attach();
		if (hca.shm) {
			hca.left = false;
			hca.ready = true;
			/* peers read and write our memory directly */
			prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
			if (!registered)
				pthread_atfork(NULL, NULL, in_child);
			registered = true;
			rc = engine_start();
			if (!rc)
				rc = tcp_start();
			if (rc) {
				hca.ready = false;
				shm_detach(hca.shm, hca.slot);
			} else {
				hca_log("registered in slot %u", hca.slot);
			}
		} else {
			rc = errno;
		}
	}
	pthread_mutex_unlock(&init_mu);
	if (!rc)
		return 0;
	errno = rc;
	return -1;
}

__attribute__((constructor)) static void loaded(void)
{
	const char *log = getenv("SOFTHCA_LOG"), *link = getenv("SOFTHCA_LINK");

	hca.log = log && atoi(log) > 0;
	hca.ethernet = link && !strcmp(link, "ethernet");
}

__attribute__((destructor)) static void unloaded(void)
{
	pthread_mutex_lock(&init_mu);
	if (hca.ready) {
		stats_write();
		/* the engine works under this lock and looks at `ready`; threads that
		 * still run find that their objects are of another epoch */
		pthread_mutex_lock(&hca.qps_mu);
		tcp_stop();
		hca.epoch++;
		shm_detach(hca.shm, hca.slot);
		pthread_mutex_unlock(&hca.qps_mu);
	}
	pthread_mutex_unlock(&init_mu);
}
