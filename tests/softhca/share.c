/*
 * Another process's GPU memory, mapped into this one by CUDA's handles (SOFTHCA_GPU_IPC=1): data goes there and back by our own copies, without the
 * other's copier. Handles are opened by a thread of its own as soon as memory is registered somewhere, since opening one in the middle of a
 * transfer could wait for the kernel that waits for the transfer. What is not open (yet) goes the other way; atomics always do.
 */
#include "gpu.h"
#include "hca.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static struct {
	uint32_t id; /* 0: not open */
	uint32_t refused; /* the id that could not be opened */
	uint64_t mapped, base;
} imports[SHM_SHARES];

static pthread_rwlock_t mu = PTHREAD_RWLOCK_INITIALIZER; /* held while a mapping is used */
static bool running;
static uint32_t by_device; /* in whose context they are opened */

static bool enabled(void)
{
	const char *e = getenv("SOFTHCA_GPU_IPC");

	return e && atoi(e) > 0;
}

static void tell_others(void)
{
	for (unsigned i = 0; i < SHM_PROCS; i++)
		if (i != hca.slot && atomic_load(&hca.shm->proc[i].live))
			shm_wake_on(&hca.shm->proc[i].shares);
}

uint32_t share_export(uint64_t addr, uint32_t device)
{
	const struct gpu_sharing *s = enabled() ? gpu_sharing() : NULL;
	struct shm_share entry = { .proc = hca.slot }, *to = NULL;
	uint64_t base = 0;
	size_t size = 0;
	int rc;

	if (!s || gpu_enter(device))
		return 0;
	rc = s->range(&base, &size, addr);
	if (!rc)
		rc = s->get(entry.handle, base);
	gpu_leave();
	if (rc) { /* memory that was made in another way has none */
		hca_log("memory of device %u at %#lx has no handle: CUDA error %d", device, (unsigned long)addr, rc);
		return 0;
	}
	shm_lock(hca.shm, &hca.shm->tables);
	for (uint32_t n = 0; n < SHM_SHARES && !to; n++) {
		const uint32_t id = ++hca.shm->last_share;

		if (id && !hca.shm->share[id % SHM_SHARES].id) {
			to = &hca.shm->share[id % SHM_SHARES];
			to->proc = entry.proc;
			to->base = base;
			memcpy(to->handle, entry.handle, sizeof to->handle);
			atomic_store(&to->id, id);
		}
	}
	shm_unlock(&hca.shm->tables);
	if (!to)
		return 0;
	tell_others();
	return to->id;
}

void share_withdraw(uint32_t share)
{
	uint32_t id = share;

	if (share && atomic_compare_exchange_strong(&hca.shm->share[share % SHM_SHARES].id, &id, 0))
		tell_others();
}

/* One of the table: opened when it is new, closed when it is gone. */
static void renew(uint32_t i)
{
	const struct shm_share *s = &hca.shm->share[i];
	const uint32_t id = atomic_load(&s->id);
	struct shm_share copy = { .proc = s->proc, .base = s->base };
	uint64_t p;

	if (imports[i].id && imports[i].id != id) {
		pthread_rwlock_wrlock(&mu);
		p = imports[i].mapped;
		imports[i].id = 0;
		pthread_rwlock_unlock(&mu);
		if (!gpu_enter(by_device)) {
			gpu_sharing()->close(p);
			gpu_leave();
		}
		hca_log("closed GPU memory of process %u", s->proc);
	}
	if (!id || imports[i].id == id || imports[i].refused == id || copy.proc == hca.slot)
		return;
	memcpy(copy.handle, s->handle, sizeof copy.handle);
	if (atomic_load(&s->id) != id)
		return; /* it changed in between; whoever did that rings again */
	p = gpu_open_shared(copy.handle, by_device);
	if (!p) {
		imports[i].refused = id;
		return;
	}
	pthread_rwlock_wrlock(&mu);
	imports[i].mapped = p;
	imports[i].base = copy.base;
	imports[i].id = id;
	pthread_rwlock_unlock(&mu);
	hca_log("opened GPU memory of process %u at %#lx", copy.proc, (unsigned long)copy.base);
}

static void *open_new(void *arg)
{
	struct shm_proc *p = &hca.shm->proc[hca.slot];
	const uint32_t epoch = hca.epoch;

	(void)arg;
	if (!gpu_sharing())
		return NULL;
	while (hca.ready && hca.epoch == epoch) {
		const uint32_t seen = atomic_load(&p->shares.wake);

		for (uint32_t i = 0; i < SHM_SHARES && hca.ready; i++)
			renew(i);
		shm_sleep_on(&p->shares, seen, 1000000000);
	}
	return NULL;
}

int share_start(uint32_t device)
{
	pthread_t t;
	sigset_t all, old;
	int rc;

	if (running || !enabled())
		return 0;
	by_device = device;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&t, NULL, open_new, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return rc;
	pthread_detach(t);
	running = true;
	return 0;
}

void share_forked(void)
{
	pthread_rwlock_init(&mu, NULL);
	running = false;
	memset(imports, 0, sizeof imports);
}

int share_copy(const struct span *far, const struct span *near, bool out)
{
	const uint32_t i = far->share % SHM_SHARES;
	int rc = -1;

	if (!far->share || !running)
		return -1;
	pthread_rwlock_rdlock(&mu);
	if (imports[i].id == far->share) {
		const uint64_t there = imports[i].mapped + (far->addr - imports[i].base);
		const uint32_t device = near->kind == MEM_GPU ? near->device : by_device;

		rc = out ? gpu_copy(there, near->addr, far->len, device) : gpu_copy(near->addr, there, far->len, device);
	}
	pthread_rwlock_unlock(&mu);
	return rc;
}
