/*
 * Memory of a GPU is reached by the process that has it: others leave it jobs in the segment, with the data beside them. One thread does them, and
 * waits for nobody, whatever its process does: so initiators may wait for it under any lock. It does every atomic on its GPUs' memory, which
 * makes them atomic among each other.
 */
#include "gpu.h"
#include "hca.h"
#include "stats.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/uio.h>

enum { WINDOW = SHM_JOBS - 1 }; /* of one copy: somebody else gets in between */

static bool running;

static void work(unsigned i)
{
	struct shm_job *j = &hca.shm->proc[hca.slot].job[i];
	const uint64_t data = (uintptr_t)shm_job_data(hca.shm, hca.slot, i);
	uint64_t *const word = (uint64_t *)(uintptr_t)data; /* which CUDA knows, unlike one of the stack */

	switch (j->op) {
	case SHM_JOB_WRITE:
		j->error = gpu_copy(j->addr, data, j->len, j->device);
		break;
	case SHM_JOB_READ:
		j->error = gpu_copy(data, j->addr, j->len, j->device);
		break;
	default:
		*word = 0;
		j->error = gpu_copy(data, j->addr, j->atomic.size, j->device);
		j->old = *word;
		*word = mem_updated(&j->atomic, j->old);
		if (!j->error && *word != j->old)
			j->error = gpu_copy(j->addr, data, j->atomic.size, j->device);
	}
	atomic_store_explicit(&j->state, SHM_JOB_DONE, memory_order_release);
}

static void *serve(void *arg)
{
	struct shm_proc *p = &hca.shm->proc[hca.slot];

	(void)arg;
	gpu_is_copier();
	while (!hca.left) { /* also while the process ends: it waits for peers that deliver, and they for this */
		const uint32_t seen = atomic_load(&p->jobs.wake);
		uint64_t idle = 0, since = 0;

		do {
			bool any = false;

			for (unsigned i = 0; i < SHM_JOBS; i++)
				if (atomic_load_explicit(&p->job[i].state, memory_order_acquire) == SHM_JOB_READY) {
					work(i);
					any = true;
				}
			if (any)
				since = now_ns();
			idle = now_ns() - since;
		} while (since && idle < 20000);
		shm_sleep_on(&p->jobs, seen, 100000000);
	}
	return NULL;
}

int copier_start(void)
{
	pthread_t t;
	sigset_t all, old;
	int rc;

	if (running)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&t, NULL, serve, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return rc;
	pthread_detach(t);
	running = true;
	return 0;
}

void copier_forked(void)
{
	running = false;
}

/* A free job of a process; -1 when the process is gone. */
static int take(unsigned proc)
{
	struct shm_job *jobs = hca.shm->proc[proc].job;

	for (unsigned round = 1;; round++) {
		for (int i = 0; i < SHM_JOBS; i++) {
			uint32_t free = SHM_JOB_FREE;

			if (atomic_compare_exchange_strong(&jobs[i].state, &free, SHM_JOB_TAKEN + hca.slot)) {
				jobs[i].by = hca.slot;
				return i;
			}
			/* what a killed initiator left, unless it is being done; `by` is written after it was taken */
			const uint32_t by = free >= SHM_JOB_TAKEN ? free - SHM_JOB_TAKEN : jobs[i].by;

			if (round % 1024 == 0 && free != SHM_JOB_FREE && free != SHM_JOB_READY && !shm_alive(hca.shm, by))
				atomic_compare_exchange_strong(&jobs[i].state, &free, SHM_JOB_FREE);
		}
		if (round % 1024 == 0 && !shm_alive(hca.shm, proc))
			return -1;
		sched_yield();
	}
}

static void submit(unsigned proc, int i)
{
	struct shm_proc *p = &hca.shm->proc[proc];

	atomic_store_explicit(&p->job[i].state, SHM_JOB_READY, memory_order_release);
	shm_wake_on(&p->jobs);
}

/* Waits for a job. 0, or an errno. */
static int finish(unsigned proc, int i)
{
	struct shm_job *j = &hca.shm->proc[proc].job[i];

	for (unsigned round = 1; atomic_load_explicit(&j->state, memory_order_acquire) != SHM_JOB_DONE; round++) {
		if (round % 4096 == 0 && !shm_alive(hca.shm, proc))
			return ESRCH;
		if (round % 64 == 0)
			sched_yield();
	}
	return j->error;
}

static void give_back(unsigned proc, int i)
{
	atomic_store_explicit(&hca.shm->proc[proc].job[i].state, SHM_JOB_FREE, memory_order_release);
}

static int here(uint64_t dst, uint64_t src, size_t n, const struct span *local)
{
	if (local->kind == MEM_GPU)
		return gpu_copy(dst, src, n, local->device);
	memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, n);
	return 0;
}

/* Memory of another process's GPU, in chunks of which some are under way at the same time. */
static int by_jobs(const struct span *far, const struct span *near, bool out)
{
	int id[SHM_JOBS], rc = 0;
	uint32_t first = 0, next = 0;
	const uint32_t chunks = (far->len + SHM_JOB_BYTES - 1) / SHM_JOB_BYTES;

	while (first < next || (next < chunks && !rc)) {
		const bool more = next < chunks && !rc && next - first < WINDOW;
		const uint32_t k = more ? next : first, at = k * SHM_JOB_BYTES;
		const uint32_t n = far->len - at < SHM_JOB_BYTES ? far->len - at : SHM_JOB_BYTES;

		if (more) {
			const int i = take(far->proc);

			if (i < 0)
				return ESRCH;
			struct shm_job *j = &hca.shm->proc[far->proc].job[i];

			j->op = out ? SHM_JOB_WRITE : SHM_JOB_READ;
			j->device = far->device;
			j->addr = far->addr + at;
			j->len = n;
			if (out)
				rc = here((uintptr_t)shm_job_data(hca.shm, far->proc, i), near->addr + at, n, near);
			if (rc) {
				give_back(far->proc, i);
				continue;
			}
			submit(far->proc, i);
			id[k % SHM_JOBS] = i;
			next++;
		} else {
			const int i = id[k % SHM_JOBS], e = finish(far->proc, i);

			if (e == ESRCH)
				return e;
			if (!rc)
				rc = e;
			if (!rc && !out)
				rc = here(near->addr + at, (uintptr_t)shm_job_data(hca.shm, far->proc, i), n, near);
			give_back(far->proc, i);
			first++;
		}
	}
	return rc;
}

/* Memory of our GPU and of another process's host. */
static int by_bounce(const struct span *far, const struct span *near, bool out)
{
	static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
	const uint64_t bounce = (uintptr_t)shm_job_data(hca.shm, hca.slot, SHM_JOBS);
	int rc = 0;

	pthread_mutex_lock(&mu);
	for (uint32_t at = 0; at < far->len && !rc; at += SHM_JOB_BYTES) {
		const uint32_t n = far->len - at < SHM_JOB_BYTES ? far->len - at : SHM_JOB_BYTES;
		const struct span f = { .addr = far->addr + at, .len = n, .proc = far->proc };
		const struct span b = { .addr = bounce, .len = n, .proc = hca.slot };

		if (out)
			rc = gpu_copy(b.addr, near->addr + at, n, near->device);
		if (!rc)
			rc = out ? mem_copy(&f, 1, &b, 1) : mem_copy(&b, 1, &f, 1);
		if (!rc && !out)
			rc = gpu_copy(near->addr + at, b.addr, n, near->device);
	}
	pthread_mutex_unlock(&mu);
	return rc;
}

static int piece(const struct span *dst, const struct span *src)
{
	const bool out = dst->proc != hca.slot;
	const struct span *far = out ? dst : src, *near = out ? src : dst;

	if (far->proc == hca.slot)
		return gpu_copy(dst->addr, src->addr, dst->len, dst->kind == MEM_GPU ? dst->device : src->device);
	if (far->kind != MEM_GPU)
		return by_bounce(far, near, out);
	const int rc = share_copy(far, near, out);

	stats_gpu(rc >= 0, far->len);
	return rc >= 0 ? rc : by_jobs(far, near, out);
}

int gpu_move(const struct span *dst, int ndst, const struct span *src, int nsrc)
{
	uint32_t used = 0, filled = 0;

	while (nsrc > 0 && ndst > 0) {
		struct span d = *dst, s = *src;
		uint32_t n = s.len - used;

		if (n > d.len - filled)
			n = d.len - filled;
		d.addr += filled;
		s.addr += used;
		d.len = s.len = n;
		const int rc = n ? (d.kind == MEM_GPU || s.kind == MEM_GPU ? piece(&d, &s) : mem_copy(&d, 1, &s, 1)) : 0;

		if (rc)
			return rc;
		used += n;
		filled += n;
		if (used == src->len) {
			src++, nsrc--;
			used = 0;
		}
		if (filled == dst->len) {
			dst++, ndst--;
			filled = 0;
		}
	}
	return 0;
}

int gpu_update(const struct span *target, const struct mem_atomic *a, uint64_t *old)
{
	const int i = take(target->proc);
	struct shm_job *j;
	int rc;

	if (i < 0)
		return ESRCH;
	j = &hca.shm->proc[target->proc].job[i];
	j->op = SHM_JOB_UPDATE;
	j->device = target->device;
	j->addr = target->addr;
	j->atomic = *a;
	submit(target->proc, i);
	rc = finish(target->proc, i);
	if (rc == ESRCH)
		return rc;
	*old = j->old;
	give_back(target->proc, i);
	return rc;
}
