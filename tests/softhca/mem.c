/* Memory regions: registration, checks, and moving data between processes. */
#include "gpu.h"
#include "hca.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

/* An initiator reads the target's regions under the lock of the target queue
 * pair only; passing through all of ours means that nobody still uses what was
 * just made invalid. */
static void wait_for_deliveries(void)
{
	pthread_mutex_lock(&hca.qps_mu);
	for (int i = 0; i < SHM_QPS; i++)
		if (hca.qps[i]) {
			rx_lock(hca.qps[i]->sh);
			shm_unlock(&hca.qps[i]->sh->rx);
		}
	pthread_mutex_unlock(&hca.qps_mu);
}

static struct ibv_mr *register_region(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access)
{
	const uintptr_t page = 4095;
	uintptr_t first = (uintptr_t)addr & ~page;
	enum mem_kind kind = MEM_HOST;
	uint32_t device = 0;
	struct hca_mr *m;
	struct shm_mr *r;
	int i, rc;

	if (!pd || !len || (uintptr_t)addr + len < (uintptr_t)addr || (access & IBV_ACCESS_ON_DEMAND) ||
	    ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE))) {
		errno = EINVAL;
		return NULL;
	}
	kind = mem_kind_of(addr, &device);
	rc = kind == MEM_GPU ? gpu_prepare(device) : 0;
	if (rc) {
		errno = rc;
		return NULL;
	}
	/* does nothing but say whether the range is mapped */
	if (kind == MEM_HOST && msync((void *)first, (uintptr_t)addr + len - first, MS_ASYNC)) {
		errno = EFAULT;
		return NULL;
	}
	m = calloc(1, sizeof *m);
	if (!m)
		return NULL;
	shm_lock(hca.shm, &hca.shm->tables);
	i = shm_take_mr(hca.shm, hca.slot);
	shm_unlock(&hca.shm->tables);
	if (i < 0) {
		free(m);
		errno = ENOMEM;
		return NULL;
	}
	r = &hca.shm->mr[i];
	r->pdn = to_pd(pd)->pdn;
	r->access = access;
	r->kind = kind;
	r->device = device;
	r->share = kind == MEM_GPU ? share_export((uintptr_t)addr, device) : 0;
	r->addr = (uintptr_t)addr;
	r->iova = iova;
	r->len = len;
	m->index = i;
	m->mr.context = pd->context;
	m->mr.pd = pd;
	m->mr.addr = addr;
	m->mr.length = len;
	m->mr.handle = i;
	m->mr.lkey = m->mr.rkey = (uint32_t)i << 8 | r->tag;
	atomic_store(&r->key, m->mr.lkey);
	atomic_fetch_add(&to_pd(pd)->users, 1);
	hca_log("reg_mr addr %p length %zu iova %#lx access %#x kind %d -> key %#x", addr, len, (unsigned long)iova, access, kind, m->mr.lkey);
	return &m->mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	return register_region(pd, addr, len, (uintptr_t)addr, access);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, int access)
{
	return register_region(pd, addr, len, iova, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access)
{
	return register_region(pd, addr, len, iova, access);
}

/*
 * A dmabuf does not say where its memory is. Programs give it the address that it has for the GPU as the one for remote use; where they do not,
 * they register by address when this fails. Without a descriptor it is asked whether dmabufs are known at all.
 */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd, int access)
{
	uint32_t device;

	(void)offset;
	if (fd < 0 && gpu_driver()) {
		errno = EBADF;
		return NULL;
	}
	if (fd < 0 || mem_kind_of((void *)(uintptr_t)iova, &device) != MEM_GPU) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return register_region(pd, (void *)(uintptr_t)iova, len, iova, access);
}

static bool region_is_mine(const struct hca_mr *m)
{
	const struct shm_mr *r = &hca.shm->mr[m->index];

	return hca.ready && r->taken && r->proc == hca.slot && r->key == m->mr.lkey;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	struct hca_mr *m = (struct hca_mr *)mr;

	if (region_is_mine(m)) {
		struct shm_mr *r = &hca.shm->mr[m->index];

		hca_log("dereg_mr key %#x", mr->lkey);
		atomic_store(&r->key, 0);
		wait_for_deliveries();
		share_withdraw(r->share);
		shm_lock(hca.shm, &hca.shm->tables);
		r->taken = 0;
		shm_unlock(&hca.shm->tables);
	}
	atomic_fetch_sub(&to_pd(mr->pd)->users, 1);
	free(m);
	return 0;
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t len, int access)
{
	struct hca_mr *m = (struct hca_mr *)mr;
	struct shm_mr *r = &hca.shm->mr[m->index];

	if (!region_is_mine(m) || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED))
		return IBV_REREG_MR_ERR_INPUT;
	atomic_store(&r->key, 0);
	wait_for_deliveries();
	if (flags & IBV_REREG_MR_CHANGE_PD) {
		atomic_fetch_sub(&to_pd(mr->pd)->users, 1);
		atomic_fetch_add(&to_pd(pd)->users, 1);
		mr->pd = pd;
		r->pdn = to_pd(pd)->pdn;
	}
	if (flags & IBV_REREG_MR_CHANGE_ACCESS)
		r->access = access;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		mr->addr = addr;
		mr->length = len;
		r->kind = mem_kind_of(addr, &r->device);
		share_withdraw(r->share);
		r->share = r->kind == MEM_GPU ? share_export((uintptr_t)addr, r->device) : 0;
		r->addr = r->iova = (uintptr_t)addr;
		r->len = len;
	}
	r->tag = (r->tag + 1) & 0xff;
	mr->lkey = mr->rkey = m->index << 8 | r->tag;
	atomic_store(&r->key, mr->lkey);
	return 0;
}

int mem_resolve(uint32_t proc, uint32_t pdn, uint32_t key, uint64_t addr, uint32_t len, uint32_t access, struct span *out)
{
	const struct shm_mr *r = &hca.shm->mr[(key >> 8) & (SHM_MRS - 1)];

	if (!key || key >> 8 >= SHM_MRS || atomic_load(&r->key) != key || r->proc != proc || r->pdn != pdn ||
	    (r->access & access) != access || addr < r->iova || addr - r->iova > r->len ||
	    len > r->len - (addr - r->iova)) {
		hca_log("key %#x does not allow access %#x to %u bytes at %#lx", key, access, len, (unsigned long)addr);
		return -1;
	}
	*out = (struct span){
		.addr = addr - r->iova + r->addr,
		.len = len,
		.proc = proc,
		.kind = r->kind,
		.device = r->device,
		.share = r->share,
	};
	return 0;
}

static int copy_here(const struct span *dst, int ndst, const struct span *src, int nsrc)
{
	uint32_t used = 0, filled = 0;

	while (nsrc > 0 && ndst > 0) {
		uint32_t n = src->len - used;

		if (n > dst->len - filled)
			n = dst->len - filled;
		memmove((void *)(uintptr_t)(dst->addr + filled), (const void *)(uintptr_t)(src->addr + used), n);
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

static int to_iov(struct iovec *v, const struct span *s, int n)
{
	int k = 0;

	for (int i = 0; i < n; i++)
		if (s[i].len)
			v[k++] = (struct iovec){ (void *)(uintptr_t)s[i].addr, s[i].len };
	return k;
}

static void advance(struct iovec **v, int *n, size_t by)
{
	while (by && *n) {
		size_t k = by < (*v)->iov_len ? by : (*v)->iov_len;

		(*v)->iov_base = (char *)(*v)->iov_base + k;
		(*v)->iov_len -= k;
		by -= k;
		if (!(*v)->iov_len)
			++*v, --*n;
	}
}

static int copy_between(const struct span *dst, int ndst, const struct span *src, int nsrc)
{
	const bool out = dst[0].proc != hca.slot;
	const pid_t pid = hca.shm->proc[out ? dst[0].proc : src[0].proc].pid;
	struct iovec d_[HCA_MAX_SGE + 2], s_[HCA_MAX_SGE + 2], *d = d_, *s = s_;
	int nd = to_iov(d, dst, ndst), ns = to_iov(s, src, nsrc);
	size_t left = 0;

	for (int i = 0; i < ns; i++)
		left += s[i].iov_len;
	while (left) {
		ssize_t n = out ? process_vm_writev(pid, s, ns, d, nd, 0) : process_vm_readv(pid, d, nd, s, ns, 0);

		if (n <= 0) {
			int e = n ? errno : EFAULT;

			if (e == EPERM || e == ENOSYS)
				fprintf(stderr, "softhca: cannot reach the memory of process %d: %s (process_vm_writev must be allowed)\n", (int)pid, strerror(e));
			hca_log("copy %s process %d: %s", out ? "to" : "from", (int)pid, strerror(e));
			return e;
		}
		left -= n;
		advance(&d, &nd, n);
		advance(&s, &ns, n);
	}
	return 0;
}

int mem_copy(const struct span *dst, int ndst, const struct span *src, int nsrc)
{
	if (!ndst || !nsrc)
		return 0;
	for (int i = 0; i < ndst; i++)
		if (dst[i].kind == MEM_GPU)
			return gpu_move(dst, ndst, src, nsrc);
	for (int i = 0; i < nsrc; i++)
		if (src[i].kind == MEM_GPU)
			return gpu_move(dst, ndst, src, nsrc);
	if (dst[0].proc == hca.slot && src[0].proc == hca.slot)
		return copy_here(dst, ndst, src, nsrc);
	return copy_between(dst, ndst, src, nsrc);
}

/* Sums of the fields that end at the bits of `ends`: no carry passes one. */
static uint64_t add_fields(uint64_t a, uint64_t b, uint64_t ends)
{
	return ((a & ~ends) + (b & ~ends)) ^ ((a ^ b) & ends);
}

uint64_t mem_updated(const struct mem_atomic *a, uint64_t word)
{
	if (a->add)
		return add_fields(word, a->operand, a->operand_mask);
	if ((word ^ a->compare) & a->compare_mask)
		return word;
	return (word & ~a->operand_mask) | (a->operand & a->operand_mask);
}

int mem_update(const struct span *target, const struct mem_atomic *a, uint64_t *old)
{
	struct shm_lock *l = &hca.shm->proc[target->proc].atomics;
	uint64_t word = 0; /* little endian: its first bytes are those of a shorter one */
	const struct span here = { .addr = (uintptr_t)&word, .len = a->size, .proc = hca.slot };
	int e;

	if (target->kind == MEM_GPU)
		return gpu_update(target, a, old);
	shm_lock(hca.shm, l);
	e = mem_copy(&here, 1, target, 1);
	*old = word;
	if (!e) {
		word = mem_updated(a, word);
		if (word != *old)
			e = mem_copy(target, 1, &here, 1);
	}
	shm_unlock(l);
	return e;
}

enum mem_kind mem_kind_of(const void *addr, uint32_t *device)
{
	*device = 0;
	return gpu_memory(addr, device) ? MEM_GPU : MEM_HOST;
}
