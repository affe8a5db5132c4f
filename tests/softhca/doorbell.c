/*
 * Pages of doorbells, and the thread that looks at them. A page is one that CUDA takes for I/O memory, as a register of a device would be, and
 * that processor and GPU write all the same: the control page of a perf event, whose second half is the user's.
 */
#include "devx.h"
#include "fault.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { REGISTER = 0x800, BUFFERS = 2, BUFFER = 0x100 }; /* BlueFlame's two buffers are written in turn */
enum { BLUEFLAME = 0, SINGLE = 1 }; /* flags of alloc_uar; any other gives a page of its own */

/* As libmlx5 gives them: two registers for BlueFlame are of one page, with one number; and there is one without it in a context, for all who ask. */
struct uar {
	struct mlx5dv_devx_uar u;
	struct ibv_context *context;
	uint32_t flags;
	unsigned users;
	uint8_t *page;
	uint64_t last[BUFFERS];
	struct devx_queue *queues;
	struct uar *next;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int changing; /* somebody waits for the lock: the thread that polls would hardly let go of it */
static struct uar *uars;
static uint32_t last_page;
static bool running;

static void change(void)
{
	atomic_fetch_add(&changing, 1);
	pthread_mutex_lock(&mu);
}

static void changed(void)
{
	pthread_mutex_unlock(&mu);
	atomic_fetch_sub(&changing, 1);
}

static uint64_t *reg(const struct uar *u, int buffer)
{
	return (uint64_t *)((uint8_t *)u->u.reg_addr + buffer * BUFFER);
}

/* The first, or next, of those with the number of u. */
static struct uar *of_page(const struct uar *u, struct uar *after)
{
	struct uar *x = after ? after->next : uars;

	while (x && x->u.page_id != u->u.page_id)
		x = x->next;
	return x;
}

static bool is_shared(const struct uar *u)
{
	unsigned n = 0;

	for (struct uar *x = of_page(u, NULL); x; x = of_page(u, x))
		for (struct devx_queue *d = x->queues; d; d = d->next)
			n++;
	return n > 1;
}

static uint8_t *map_page(void)
{
	struct perf_event_attr a = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof a,
		.config = PERF_COUNT_SW_DUMMY,
		.disabled = 1,
		.exclude_kernel = 1,
		.exclude_hv = 1,
	};
	const int fd = syscall(SYS_perf_event_open, &a, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	void *p = MAP_FAILED;

	if (fd >= 0) {
		p = mmap(NULL, SHM_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
	}
	if (p == MAP_FAILED) { /* good for processors' doorbells */
		hca_log("no page of a perf event: %s", strerror(errno));
		p = mmap(NULL, SHM_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	}
	return p == MAP_FAILED ? NULL : p;
}

static void ring(struct uar *u, int buffer, uint64_t value)
{
	uint8_t b[8];

	memcpy(b, &value, sizeof b);
	/* either the next index alone, or the control segment of the last element */
	const bool control = b[3] || (b[7] & 0x3f);
	const uint16_t to = (uint16_t)(get16(b + 1) + (control ? ((b[7] & 0x3f) * 16 + WQE_BLOCK - 1) / WQE_BLOCK : 0));
	const uint32_t qpn = get24(b + 4);
	const bool shared = is_shared(u);

	u->last[buffer] = value;
	if (fault(FAULT_LOST_DOORBELL)) {
		uint64_t rung = value;

		/* who rang can tell by it that this one is gone */
		if (__atomic_compare_exchange_n(reg(u, buffer), &rung, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			u->last[buffer] = 0;
		return;
	}
	hca_log("doorbell of page %u: queue %#x to %u", u->u.page_id, qpn, to);
	for (struct uar *x = of_page(u, NULL); x; x = of_page(u, x))
		for (struct devx_queue *d = x->queues; d; d = d->next) {
			uint8_t record[4] = { 0 };
			const struct span dst = { .addr = (uintptr_t)record, .len = sizeof record, .proc = hca.slot };
			const struct span src = { .addr = d->record.addr + 4, .len = sizeof record, .proc = hca.slot, .kind = d->record.kind, .device = d->record.device };

			if (d->q->qp.qp_num == qpn)
				devx_ring(d, to);
			/* a later doorbell may have overwritten that of another queue before it was seen */
			if (shared && !mem_copy(&dst, 1, &src, 1))
				devx_ring(d, get16(record + 2));
		}
}

static bool look(void)
{
	bool any = false;

	pthread_mutex_lock(&mu);
	for (struct uar *u = uars; u; u = u->next) {
		for (int i = 0; i < BUFFERS; i++) {
			const uint64_t v = __atomic_load_n(reg(u, i), __ATOMIC_ACQUIRE);

			if (v != u->last[i]) {
				ring(u, i, v);
				any = true;
			}
		}
		for (struct devx_queue *d = u->queues; d; d = d->next)
			if (d->q->posted != d->q->executed && !pthread_mutex_trylock(&d->q->mu)) {
				exec_queue(d->q, false);
				pthread_mutex_unlock(&d->q->mu);
			}
	}
	pthread_mutex_unlock(&mu);
	return rings_look() || any;
}

static void *poll(void *arg)
{
	const bool many_cores = sysconf(_SC_NPROCESSORS_ONLN) >= 8;
	const uint32_t epoch = hca.epoch;
	unsigned idle = 0;

	(void)arg;
	while (hca.ready && hca.epoch == epoch) {
		if (atomic_load(&changing))
			sched_yield();
		else if (look())
			idle = 0;
		else if (++idle < 200 || many_cores)
			__builtin_ia32_pause();
		else /* who sleeps gets the core when it wakes, from programs that poll */
			usleep(20);
	}
	return NULL;
}

static int start(void)
{
	pthread_t t;
	sigset_t all, old;
	int rc;

	if (running)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&t, NULL, poll, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return rc;
	pthread_detach(t);
	running = true;
	return 0;
}

int doorbell_start(void)
{
	int rc;

	change();
	rc = start();
	changed();
	return rc;
}

/* With the lock: the one that is there already, or whose page has a register left. NULL: none. */
static struct uar *alike(const struct ibv_context *c, uint32_t flags)
{
	struct uar *u = uars;

	for (; u; u = u->next)
		if (u->context == c && u->flags == flags && (flags == SINGLE || (flags == BLUEFLAME && of_page(u, NULL) == u && !of_page(u, u))))
			break;
	return u;
}

static void put_in(struct uar *u, struct ibv_context *c, uint32_t flags, const struct uar *beside)
{
	const bool second = beside && beside->u.reg_addr == beside->page + REGISTER;

	u->context = c;
	u->flags = flags;
	u->users = 1;
	u->page = beside ? beside->page : u->page;
	u->u.base_addr = u->page;
	u->u.reg_addr = u->page + REGISTER + (second ? BUFFERS * BUFFER : 0);
	u->u.page_id = beside ? beside->u.page_id : ++last_page;
	for (int i = 0; i < BUFFERS; i++)
		u->last[i] = *reg(u, i);
	u->next = uars;
	uars = u;
}

struct mlx5dv_devx_uar *uar_alloc(struct ibv_context *c, uint32_t flags)
{
	struct uar *u = calloc(1, sizeof *u), *other;
	uint8_t *page = map_page();
	int rc;

	if (!u || !page) {
		free(u);
		if (page)
			munmap(page, SHM_PAGE);
		return NULL;
	}
	u->page = page;
	change();
	rc = start();
	other = rc ? NULL : alike(c, flags);
	if (other && flags == SINGLE) {
		other->users++;
		free(u);
		u = other;
	} else if (!rc) {
		put_in(u, c, flags, other);
	}
	changed();
	if (rc || other)
		munmap(page, SHM_PAGE);
	if (rc) {
		free(u);
		errno = rc;
		return NULL;
	}
	hca_log("alloc_uar %#x -> page %u at %p", flags, u->u.page_id, u->u.reg_addr);
	return &u->u;
}

void uar_free(struct mlx5dv_devx_uar *x)
{
	struct uar *u = (struct uar *)x;
	bool last;

	change();
	if (--u->users) {
		changed();
		return;
	}
	for (struct uar **p = &uars; *p; p = &(*p)->next)
		if (*p == u) {
			*p = u->next;
			break;
		}
	struct uar *left = of_page(u, NULL);
	while (u->queues) {
		struct devx_queue *d = u->queues;

		u->queues = d->next;
		d->uar = left;
		d->next = left ? left->queues : NULL;
		if (left)
			left->queues = d;
	}
	last = !left;
	changed();
	if (last)
		munmap(u->page, SHM_PAGE);
	free(u);
}

struct uar *uar_find(uint32_t page_id)
{
	struct uar *u;

	change();
	for (u = uars; u && u->u.page_id != page_id; u = u->next)
		;
	changed();
	return u;
}

void uar_attach(struct uar *u, struct devx_queue *d)
{
	change();
	d->next = u->queues;
	u->queues = d;
	changed();
}

void uar_detach(struct devx_queue *d)
{
	change();
	for (struct devx_queue **p = d->uar ? &d->uar->queues : NULL; p && *p; p = &(*p)->next)
		if (*p == d) {
			*p = d->next;
			break;
		}
	changed();
}

void doorbell_forked(void)
{
	pthread_mutex_init(&mu, NULL);
	changing = 0;
	uars = NULL;
	running = false;
}
