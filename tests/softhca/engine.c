/*
 * The engine: one thread per process that sleeps until something asks for it.
 * It retries requests that had to wait, raises events other processes caused,
 * and looks whether the peers still live.
 */
#include "devx.h"

#include <signal.h>
#include <string.h>

static const int64_t retry_ns = 5000000, watch_ns = 100000000;

/* Queue pairs whose peer was killed go to the error state: what waits for the
 * peer ends with an error. Returns whether any peer has to be watched. */
static bool watch_peers(bool look)
{
	signed char alive[SHM_PROCS]; /* asked once per process: -1 not yet */
	bool any = false;

	memset(alive, -1, sizeof alive);
	pthread_mutex_lock(&hca.qps_mu);
	for (int i = 1; i < SHM_QPS && hca.ready; i++) {
		struct hca_qp *q = hca.qps[i];
		const uint32_t state = q ? atomic_load(&q->sh->state) : IBV_QPS_RESET;
		const struct shm_qp *t;

		if (!q || q->qp.qp_type != IBV_QPT_RC || state < IBV_QPS_RTR || state == IBV_QPS_ERR)
			continue;
		any = true;
		t = look ? shm_find_qp(hca.shm, q->sh->dest_qpn) : NULL;
		if (!t || t->life == SHM_FREE)
			continue;
		if (t->life == SHM_LIVE) {
			if (alive[t->proc] < 0)
				alive[t->proc] = shm_alive(hca.shm, t->proc) || !atomic_load(&hca.shm->proc[t->proc].live);
			if (alive[t->proc])
				continue;
		}
		if (pthread_mutex_trylock(&q->mu))
			continue; /* next time */
		hca_log("queue pair %#x: the process of its peer %#x died", q->qp.qp_num, q->sh->dest_qpn);
		/* all is flushed, so that it does not ask for qps_mu, held here */
		exec_enter_error(q);
		pthread_mutex_unlock(&q->mu);
	}
	pthread_mutex_unlock(&hca.qps_mu);
	return any;
}

/* Events other processes asked for by bits in our queue pairs. */
static void raise_qp_events(void)
{
	pthread_mutex_lock(&hca.qps_mu);
	for (int i = 1; i < SHM_QPS && hca.ready; i++) {
		struct hca_qp *q = hca.qps[i];
		const uint32_t events = q && atomic_load(&q->sh->events) ? atomic_exchange(&q->sh->events, 0) : 0;

		if (events & SHM_QP_LAST_WQE) {
			if (q->devx && !q->counted)
				devx_last_receive(q->devx);
			else
				raise_async(q->qp.context, IBV_EVENT_QP_LAST_WQE_REACHED, &q->qp);
		}
		if (events & SHM_QP_CQ_ERROR)
			raise_async(q->qp.context, IBV_EVENT_QP_FATAL, &q->qp);
	}
	pthread_mutex_unlock(&hca.qps_mu);
}

static void *run(void *arg)
{
	struct shm_proc *p = &hca.shm->proc[hca.slot];
	uint64_t looked = 0;

	(void)arg;
	while (hca.ready) {
		const uint32_t seen = atomic_load(&p->engine.wake);
		bool look = now_ns() - looked >= (uint64_t)watch_ns, watching;

		if (atomic_load(&hca.pending_count))
			exec_pending(true);
		cq_deliver_events();
		raise_qp_events();
		watching = watch_peers(look);
		if (look)
			looked = now_ns();
		shm_sleep_on(&p->engine, seen, atomic_load(&hca.pending_count) ? retry_ns : watching ? watch_ns : -1);
	}
	return NULL;
}

int engine_start(void)
{
	pthread_attr_t a;
	pthread_t t;
	sigset_t all, old;
	int rc;

	/* the program's signals are for its own threads */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&a);
	pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&a, 256 * 1024);
	rc = pthread_create(&t, &a, run, NULL);
	pthread_attr_destroy(&a);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}
