/* The shared segment: making it, slots, liveness, locks, reaping. */
#include "hca.h"
#include "tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Changes with every change of the layout. */
#define MAGIC 0x0400616368736f66ull
#define HEADER ((sizeof(struct shm) + SHM_PAGE - 1) & ~(size_t)(SHM_PAGE - 1))
#define RINGS (HEADER + (size_t)SHM_PAGES * SHM_PAGE)
#define TOTAL (RINGS + (size_t)SHM_JOB_BYTES_ALL)

/*
 * Byte-range locks on the file itself: byte 0 serialises set-up and exit, byte
 * 1 + slot is held as long as the process lives. The kernel drops them when
 * the process ends or executes another program, whatever way, and a child made
 * by fork does not inherit them: no pid can be mistaken for another.
 */
static int file = -1;
static char path[256];

static int byte_lock(int cmd, short type, off_t byte, struct flock *out)
{
	struct flock f = { .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
	int rc;

	do
		rc = fcntl(file, cmd, &f);
	while (rc && errno == EINTR && cmd == F_SETLKW);
	if (out)
		*out = f;
	return rc;
}

/* Opens the file and locks its first byte; the file may have been removed by
 * the last user between the two. */
static int open_locked(void)
{
	const char *name = getenv("SOFTHCA_SHM");

	if (name)
		snprintf(path, sizeof path, "%s", name);
	else
		snprintf(path, sizeof path, tcp_host() < 0 ? "/dev/shm/softhca-%u" : "/dev/shm/softhca-%u-%d", (unsigned)geteuid(), tcp_host());
	for (;;) {
		struct stat st;

		file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (file < 0)
			return -1;
		if (byte_lock(F_SETLKW, F_WRLCK, 0, NULL))
			return -1;
		if (fstat(file, &st))
			return -1;
		if (st.st_nlink > 0)
			return 0;
		close(file);
	}
}

static struct shm *map_file(void)
{
	struct stat st;
	struct shm *s;

	if (fstat(file, &st))
		return NULL;
	if ((size_t)st.st_size != TOTAL) {
		if (st.st_size != 0) {
			fprintf(stderr, "softhca: %s is not a segment of this version; remove it when no program uses it\n", path);
			errno = EPROTO;
			return NULL;
		}
		if (ftruncate(file, TOTAL) ||
		    (errno = posix_fallocate(file, 0, HEADER)) != 0)
			return NULL;
	}
	s = mmap(NULL, TOTAL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
	if (s == MAP_FAILED)
		return NULL;
	if (s->magic == 0) {
		s->next_page = 1;
		s->size = TOTAL;
		s->magic = MAGIC;
	}
	if (s->magic != MAGIC || s->size != TOTAL) {
		fprintf(stderr, "softhca: %s is not a segment of this version; remove it when no program uses it\n", path);
		munmap(s, TOTAL);
		errno = EPROTO;
		return NULL;
	}
	return s;
}


bool shm_alive(struct shm *s, unsigned slot)
{
	struct flock f;

	if (slot == hca.slot)
		return true;
	if (!atomic_load(&s->proc[slot].live))
		return false;
	return byte_lock(F_GETLK, F_WRLCK, 1 + slot, &f) || f.l_type != F_UNLCK;
}

/* Frees all entries of a slot; `life` is what its queue pairs become. */
static void release_slot(struct shm *s, unsigned slot, enum shm_life life)
{
	for (int i = 0; i < SHM_QPS; i++) {
		struct shm_qp *q = &s->qp[i];

		if (atomic_load(&q->life) != SHM_LIVE || q->proc != slot)
			continue;
		/* waits for a peer that is delivering to it */
		shm_lock(s, &q->rx);
		atomic_store(&q->life, life);
		shm_unlock(&q->rx);
	}
	shm_lock(s, &s->tables);
	for (int i = 0; i < SHM_CQS; i++)
		if (s->cq[i].life == SHM_LIVE && s->cq[i].proc == slot)
			s->cq[i].life = SHM_FREE;
	for (int i = 0; i < SHM_RQS; i++)
		if (s->rq[i].life == SHM_LIVE && s->rq[i].proc == slot)
			s->rq[i].life = SHM_FREE;
	for (int i = 0; i < SHM_MRS; i++)
		if (s->mr[i].taken && s->mr[i].proc == slot) {
			atomic_store(&s->mr[i].key, 0);
			s->mr[i].taken = 0;
		}
	for (int i = 0; i < SHM_SHARES; i++)
		if (s->share[i].id && s->share[i].proc == slot)
			atomic_store(&s->share[i].id, 0);
	for (uint32_t i = 0, n; i < SHM_PAGES; i += n) {
		n = 1;
		if (s->page_owner[i] != slot + 1)
			continue;
		while (i + n < SHM_PAGES && s->page_owner[i + n] == slot + 1)
			n++;
		shm_pages_free(s, i, (size_t)n * SHM_PAGE);
	}
	shm_unlock(&s->tables);
	atomic_store(&s->proc[slot].live, 0);
}

void shm_reap_dead(struct shm *s)
{
	for (unsigned i = 0; i < SHM_PROCS; i++)
		if (i != hca.slot && atomic_load(&s->proc[i].live) && !shm_alive(s, i)) {
			hca_log("reaping slot %u of process %d, which died", i, s->proc[i].pid);
			release_slot(s, i, SHM_DEAD);
		}
}

/* Takes a slot: a free one, else that of a process that died. */
static bool take_slot(struct shm *s)
{
	for (int pass = 0; pass < 2; pass++)
		for (unsigned i = 0; i < SHM_PROCS; i++) {
			struct shm_proc *p = &s->proc[i];
			bool left = atomic_load(&p->live);

			if (left && (pass == 0 || shm_alive(s, i)))
				continue;
			if (byte_lock(F_SETLK, F_WRLCK, 1 + i, NULL))
				continue;
			hca.slot = i; /* what locks are taken with from here on */
			if (left)
				release_slot(s, i, SHM_DEAD);
			atomic_store(&p->pid, getpid());
			atomic_store(&p->engine.sleeping, 0);
			atomic_store(&p->jobs.sleeping, 0);
			for (unsigned k = 0; k < SHM_JOBS; k++)
				atomic_store(&p->job[k].state, SHM_JOB_FREE);
			atomic_store(&p->atomics.owner, 0);
			atomic_store(&p->live, 1);
			return true;
		}
	fprintf(stderr, "softhca: all %d process slots of %s are taken\n", SHM_PROCS, path);
	errno = EUSERS;
	return false;
}

struct shm *shm_attach(void)
{
	static struct shm *mapped; /* survives fork, as does the descriptor */
	struct shm *s;
	struct stat st;

	if (mapped && !byte_lock(F_SETLKW, F_WRLCK, 0, NULL) && !fstat(file, &st) && st.st_nlink > 0)
		s = mapped;
	else
		s = open_locked() ? NULL : map_file();
	if (!s) {
		int e = errno;

		fprintf(stderr, "softhca: cannot use shared segment %s: %s\n", path, strerror(e));
		if (file >= 0)
			close(file);
		file = -1;
		errno = e;
		return NULL;
	}
	mapped = s;
	if (take_slot(s))
		shm_reap_dead(s);
	else
		s = NULL;
	byte_lock(F_SETLK, F_UNLCK, 0, NULL);
	return s;
}

void shm_detach(struct shm *s, unsigned slot)
{
	bool last = true;

	byte_lock(F_SETLKW, F_WRLCK, 0, NULL);
	release_slot(s, slot, SHM_FREE);
	atomic_store(&hca.left, true);
	for (unsigned i = 0; i < SHM_PROCS; i++)
		if (i != slot && atomic_load(&s->proc[i].live) && shm_alive(s, i))
			last = false;
	if (last)
		unlink(path);
	byte_lock(F_SETLK, F_UNLCK, 1 + slot, NULL);
	byte_lock(F_SETLK, F_UNLCK, 0, NULL);
}

static inline void cpu_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

bool shm_lock_stolen(struct shm *s, struct shm_lock *l)
{
	const uint32_t self = hca.slot + 1;

	for (unsigned round = 0;; round++) {
		uint32_t owner = 0;

		if (atomic_compare_exchange_strong_explicit(&l->owner, &owner, self, memory_order_acquire, memory_order_relaxed))
			return false;
		if (round < 100) {
			cpu_pause();
		} else if (round < 1000) {
			sched_yield();
		} else {
			usleep(100);
			if (round % 64 == 0 && !shm_alive(s, owner - 1) &&
			    atomic_compare_exchange_strong(&l->owner, &owner, self))
				return true;
		}
	}
}

void shm_lock(struct shm *s, struct shm_lock *l)
{
	shm_lock_stolen(s, l);
}

void shm_unlock(struct shm_lock *l)
{
	atomic_store_explicit(&l->owner, 0, memory_order_release);
}

void shm_wake_on(struct shm_bell *b)
{
	atomic_fetch_add(&b->wake, 1);
	if (atomic_load(&b->sleeping))
		syscall(SYS_futex, &b->wake, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void shm_wake(struct shm *s, unsigned slot)
{
	shm_wake_on(&s->proc[slot].engine);
}

void shm_sleep_on(struct shm_bell *b, uint32_t seen, int64_t timeout_ns)
{
	struct timespec t = { .tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000 };

	atomic_store(&b->sleeping, 1);
	syscall(SYS_futex, &b->wake, FUTEX_WAIT, seen, timeout_ns < 0 ? NULL : &t, NULL, 0);
	atomic_store(&b->sleeping, 0);
}

void *shm_job_data(struct shm *s, unsigned slot, unsigned job)
{
	return (char *)s + RINGS + ((size_t)slot * SHM_JOB_AREAS + job) * SHM_JOB_BYTES;
}

void *shm_page(struct shm *s, uint32_t page)
{
	return (char *)s + HEADER + (size_t)page * SHM_PAGE;
}

uint32_t shm_pages_alloc(struct shm *s, unsigned slot, size_t bytes)
{
	uint32_t n = (bytes + SHM_PAGE - 1) / SHM_PAGE;
	uint32_t at = s->next_page;

	for (uint32_t looked = 0; n < SHM_PAGES && looked < SHM_PAGES;) {
		uint32_t run = 0;

		if (at + n > SHM_PAGES) {
			looked += SHM_PAGES - at;
			at = 1; /* page 0 stands for "none" */
		}
		while (run < n && !s->page_owner[at + run])
			run++;
		if (run < n) {
			looked += run + 1;
			at += run + 1;
			continue;
		}
		if (posix_fallocate(file, HEADER + (off_t)at * SHM_PAGE, (off_t)n * SHM_PAGE))
			return 0;
		memset(&s->page_owner[at], slot + 1, n);
		s->next_page = at + n < SHM_PAGES ? at + n : 1;
		return at;
	}
	return 0;
}

void shm_pages_free(struct shm *s, uint32_t page, size_t bytes)
{
	uint32_t n = (bytes + SHM_PAGE - 1) / SHM_PAGE;

	if (!page)
		return;
	fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, HEADER + (off_t)page * SHM_PAGE, (off_t)n * SHM_PAGE);
	memset(&s->page_owner[page], 0, n);
}
