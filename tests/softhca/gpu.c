#include "gpu.h"
#include "hca.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 16, MEMORY_TYPE = 2, DEVICE_ORDINAL = 9, DEVICE_MEMORY = 2, PORTABLE_MAPPED = 3, NON_BLOCKING = 1, PRIORITY = -5, RELAXED = 2 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool copier; /* has streams of its own */
static bool registered;

static struct {
	void *context;
	void *stream[2];
	_Atomic bool ready;
} devices[DEVICES];

/* cuda.h's types are all plain here: CUresult is an int, handles are pointers. HIP's are the same, and so are numbers of attributes, kinds of memory (since ROCm 6) and flags. */
static struct {
	int (*pointer_attribute)(void *, int, uint64_t);
	int (*retain)(void **, int);
	int (*push)(void *);
	int (*pop)(void **);
	int (*stream_create)(void **, unsigned, int);
	int (*copy)(uint64_t, uint64_t, size_t, void *);
	int (*synchronize)(void *);
	int (*host_register)(void *, size_t, unsigned);
	int (*capture_mode)(int *);
} cuda;

static int (*hip_copy)(uint64_t, uint64_t, size_t, int, void *);

static int copy_by_hip(uint64_t dst, uint64_t src, size_t n, void *stream)
{
	enum { WHATEVER_IT_IS = 4 };

	return hip_copy(dst, src, n, WHATEVER_IT_IS, stream);
}

static const struct name {
	void *to;
	const char *cuda, *hip;
} names[] = {
	{ &cuda.pointer_attribute, "cuPointerGetAttribute", "hipPointerGetAttribute" },
	{ &cuda.retain, "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain" },
	{ &cuda.push, "cuCtxPushCurrent_v2", "hipCtxPushCurrent" },
	{ &cuda.pop, "cuCtxPopCurrent_v2", "hipCtxPopCurrent" },
	{ &cuda.stream_create, "cuStreamCreateWithPriority", "hipStreamCreateWithPriority" },
	{ &cuda.copy, "cuMemcpyAsync", NULL },
	{ &hip_copy, NULL, "hipMemcpyAsync" },
	{ &cuda.synchronize, "cuStreamSynchronize", "hipStreamSynchronize" },
	{ &cuda.host_register, "cuMemHostRegister_v2", "hipHostRegister" },
	{ &cuda.capture_mode, "cuThreadExchangeStreamCaptureMode", "hipThreadExchangeStreamCaptureMode" },
};

static int count_loaded(struct dl_phdr_info *info, size_t size, void *out)
{
	(void)size;
	*(unsigned long long *)out = info->dlpi_adds;
	return 1;
}

/* Only a driver that is loaded already: loading one would start a GPU for programs that have none. */
bool gpu_driver(void)
{
	static _Atomic int state; /* 1: there, -1: there and not usable */
	static _Atomic unsigned long long looked_at; /* what was loaded up to then has no driver: to look for it searches every folder of libraries */
	unsigned long long loaded = 0;
	bool hip = false;
	void *h;

	if (atomic_load(&state))
		return atomic_load(&state) > 0;
	dl_iterate_phdr(count_loaded, &loaded);
	if (atomic_load(&looked_at) == loaded)
		return false;
	h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!h) {
		h = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_NOLOAD);
		hip = h;
	}
	if (!h) {
		atomic_store(&looked_at, loaded);
		return false;
	}
	pthread_mutex_lock(&mu);
	if (!atomic_load(&state)) {
		int found = 1;

		for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
			const char *name = hip ? names[i].hip : names[i].cuda;
			void *f = name ? dlsym(h, name) : NULL;

			if (name && !f) {
				hca_log("the GPU's driver has no %s: memory of GPUs is not reached", name);
				found = -1;
			}
			*(void **)names[i].to = f;
		}
		if (hip)
			cuda.copy = copy_by_hip;
		atomic_store(&state, found);
	}
	pthread_mutex_unlock(&mu);
	return atomic_load(&state) > 0;
}

/* Passed by value in cuda.h: a structure of 64 bytes. */
struct handle {
	uint8_t bytes[64];
};

static int (*open_shared)(uint64_t *, struct handle, unsigned);

const struct gpu_sharing *gpu_sharing(void)
{
	static struct gpu_sharing s;
	static _Atomic int state;

	if (!gpu_driver())
		return NULL;
	pthread_mutex_lock(&mu);
	if (!atomic_load(&state)) {
		void *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

		*(void **)&s.range = dlsym(h, "cuMemGetAddressRange_v2");
		*(void **)&s.get = dlsym(h, "cuIpcGetMemHandle");
		*(void **)&s.close = dlsym(h, "cuIpcCloseMemHandle");
		*(void **)&open_shared = dlsym(h, "cuIpcOpenMemHandle_v2");
		atomic_store(&state, s.range && s.get && s.close && open_shared ? 1 : -1);
	}
	pthread_mutex_unlock(&mu);
	return atomic_load(&state) > 0 ? &s : NULL;
}

int gpu_enter(uint32_t device)
{
	return device >= DEVICES || !devices[device].ready || cuda.push(devices[device].context) ? ENODEV : 0;
}

void gpu_leave(void)
{
	void *old;

	cuda.pop(&old);
}

uint64_t gpu_open_shared(const uint8_t handle[64], uint32_t device)
{
	enum { LAZY_PEER_ACCESS = 1 };
	struct handle h;
	uint64_t p = 0;
	int rc;

	memcpy(h.bytes, handle, sizeof h.bytes);
	if (gpu_enter(device))
		return 0;
	rc = open_shared(&p, h, LAZY_PEER_ACCESS);
	gpu_leave();
	if (rc)
		hca_log("opening another process's GPU memory: CUDA error %d", rc);
	return rc ? 0 : p;
}

bool gpu_memory(const void *addr, uint32_t *device)
{
	unsigned type = 0;
	int ordinal = -1;

	if (!gpu_driver() || cuda.pointer_attribute(&type, MEMORY_TYPE, (uintptr_t)addr) || type != DEVICE_MEMORY ||
	    cuda.pointer_attribute(&ordinal, DEVICE_ORDINAL, (uintptr_t)addr) || ordinal < 0 || ordinal >= DEVICES)
		return false;
	*device = ordinal;
	return true;
}

static int make(uint32_t device)
{
	void *old;
	int rc = 0, mode = RELAXED;

	if (cuda.retain(&devices[device].context, device))
		return ENODEV;
	if (cuda.push(devices[device].context))
		return ENODEV;
	cuda.capture_mode(&mode);
	for (int i = 0; i < 2 && !rc; i++)
		rc = cuda.stream_create(&devices[device].stream[i], NON_BLOCKING, PRIORITY) ? ENOMEM : 0;
	if (!rc && !registered) {
		registered = true;
		/* copies to and from memory that CUDA does not know go through buffers of the driver's own, and wait for the kernels that wait for them */
		rc = cuda.host_register(shm_job_data(hca.shm, 0, 0), SHM_JOB_BYTES_ALL, PORTABLE_MAPPED);
		if (rc)
			hca_log("the jobs' memory is not registered with CUDA: error %d", rc);
		rc = 0;
	}
	cuda.capture_mode(&mode);
	cuda.pop(&old);
	return rc;
}

int gpu_prepare(uint32_t device)
{
	int rc = 0;

	pthread_mutex_lock(&mu);
	if (!devices[device].ready) {
		rc = make(device);
		if (!rc)
			rc = copier_start();
		if (!rc)
			atomic_store(&devices[device].ready, true);
		if (!rc)
			rc = share_start(device);
		hca_log("device %u: %s", device, rc ? "not usable" : "prepared");
	}
	pthread_mutex_unlock(&mu);
	return rc;
}

int gpu_copy(uint64_t dst, uint64_t src, size_t n, uint32_t device)
{
	void *stream, *old;
	int rc, mode = RELAXED;

	if (!n)
		return 0;
	if (device >= DEVICES || !devices[device].ready || cuda.push(devices[device].context))
		return ENODEV;
	stream = devices[device].stream[copier];
	cuda.capture_mode(&mode);
	rc = cuda.copy(dst, src, n, stream);
	if (!rc)
		rc = cuda.synchronize(stream);
	cuda.capture_mode(&mode);
	cuda.pop(&old);
	if (rc)
		hca_log("copying %zu bytes from %#lx to %#lx on device %u: CUDA error %d", n, (unsigned long)src, (unsigned long)dst, device, rc);
	return rc ? EFAULT : 0;
}

void gpu_is_copier(void)
{
	copier = true;
}

void gpu_forked(void)
{
	pthread_mutex_init(&mu, NULL);
	registered = false;
	for (int i = 0; i < DEVICES; i++)
		atomic_store(&devices[i].ready, false); /* a child cannot use its parent's CUDA */
}
