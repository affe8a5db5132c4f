#include "gpu.h"

#include <errno.h>

void cuda(CUresult rc, const char *what)
{
	CHECK(!rc, "%s: CUDA error %d", what, rc);
}

static void *on_gpu(size_t n, void **usable)
{
	CUdeviceptr p;

	cuda(cuMemAlloc_v2(&p, n), "cuMemAlloc");
	*usable = standin_gpu(p);
	return (void *)(uintptr_t)p;
}

static void off_gpu(void *p)
{
	cuda(cuMemFree_v2((uintptr_t)p), "cuMemFree");
}

const struct memory gpu_memory = { on_gpu, off_gpu };

void open_end(struct end *e, int device)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CUcontext c;

	cuda(cuInit(0), "cuInit");
	cuda(cuDevicePrimaryCtxRetain(&c, device), "context");
	cuda(cuCtxSetCurrent(c), "context");
	cuda(cuStreamCreate(&e->stream, 1), "stream");
	CHECK(list && list[0], "no device");
	e->ctx = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	e->pd = ibv_alloc_pd(e->ctx);
	e->pdn = domain_number(e->pd);
	cuda(cuMemAlloc_v2(&e->buf, END_SIZE), "cuMemAlloc");
	/* as NVSHMEM registers its heap: the address of the GPU is the one for remote use */
	e->mr = ibv_reg_dmabuf_mr(e->pd, 0, END_SIZE, e->buf, 0, ACCESS);
	CHECK(e->mr, "ibv_reg_dmabuf_mr: %s", strerror(errno));
	CHECK(!ibv_reg_dmabuf_mr(e->pd, 0, END_SIZE, 0, 0, ACCESS) && errno == EOPNOTSUPP, "a dmabuf without an address");
	CHECK(!ibv_reg_dmabuf_mr(e->pd, 0, END_SIZE, 0, -1, ACCESS) && errno == EBADF, "whether dmabufs are known");
}

void bell_for_gpu(struct queue *q)
{
	CUdeviceptr d;

	cuda(cuMemHostRegister_v2(q->uar->reg_addr, 8, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY), "registering a doorbell");
	cuda(cuMemHostGetDevicePointer_v2(&d, q->uar->reg_addr, 0), "a doorbell's address");
	q->bell = (void *)(uintptr_t)d;
}

void start_kernel(struct end *e, struct standin_kernel *k, void *argument)
{
	void *arguments[] = { &argument };

	cuda(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, e->stream, arguments, NULL), "cuLaunchKernel");
}

void launch(struct end *e, void (*f)(void *), void *argument)
{
	struct standin_kernel k = { f };

	start_kernel(e, &k, argument);
	cuda(cuStreamSynchronize(e->stream), "kernel");
}
