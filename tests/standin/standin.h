/* The stand-in CUDA driver, for programs that know that it is one. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A CUfunction: what cuLaunchKernel runs on the stream's thread. Its one argument is a pointer, copied at the launch. */
struct standin_kernel {
	void (*run)(void *argument);
};

/* Where a kernel finds what is at an address of a GPU's memory; the address itself for any other. */
void *standin_gpu(uint64_t address);

/* Gives a kernel the name that the driver tells, which must stay. */
void standin_name(const struct standin_kernel *k, const char *name);

/* How many copies to the host were asked for by cuMemcpyDtoHAsync. */
unsigned long standin_to_host(void);

/* What tools are told of (tests/standin/cupti.c): call and called are around a call that launches, and agree on its number; ran is called on the stream's thread. */
struct standin_ran {
	const char *name;
	uint64_t start, end; /* CLOCK_MONOTONIC, ns */
	uint32_t device, context, stream, call;
	unsigned grid[3], block[3], shared;
};
struct standin_observer {
	/* A call of a function begins, by CUPTI's number of the function: its own number; and ends. */
	uint32_t (*call)(uint32_t function);
	void (*called)(uint32_t function, uint32_t call);
	void (*ran)(const struct standin_ran *r);
};
extern const struct standin_observer *standin_observer;

/* What functions return that are given for a name in another version than those that tests mean. */
enum { STANDIN_OLD = 991, STANDIN_NEW = 992 };

/* The part of cuda.h that programs here use. */
typedef int CUresult;
typedef int CUdevice;
typedef struct ctx *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct standin_kernel *CUfunction;
typedef struct graph *CUgraph;
typedef struct graph *CUgraphExec;
typedef uint64_t CUdeviceptr;
typedef struct {
	char reserved[64];
} CUipcMemHandle;
typedef struct {
	char bytes[16];
} CUuuid;

struct CUlaunchConfig {
	unsigned grid[3], block[3], shared;
	CUstream stream;
	void *attributes;
	unsigned count;
};

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
};

enum { CU_MEMHOSTREGISTER_PORTABLE = 1, CU_MEMHOSTREGISTER_DEVICEMAP = 2, CU_MEMHOSTREGISTER_IOMEMORY = 4 };
enum { CU_POINTER_ATTRIBUTE_CONTEXT = 1, CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9 };

CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuDeviceGetCount(int *n);
CUresult cuDeviceGet(CUdevice *d, int ordinal);
CUresult cuDeviceGetUuid(CUuuid *u, CUdevice d);
CUresult cuDeviceGetUuid_v2(CUuuid *u, CUdevice d);
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice d);
CUresult cuCtxGetCurrent(CUcontext *c);
CUresult cuCtxSetCurrent(CUcontext c);
CUresult cuCtxPushCurrent_v2(CUcontext c);
CUresult cuCtxPopCurrent_v2(CUcontext *c);
CUresult cuCtxGetDevice(CUdevice *d);
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n);
CUresult cuMemFree_v2(CUdeviceptr p);
CUresult cuMemUnmap(CUdeviceptr p, size_t n);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p);
CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr p);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle handle, unsigned flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr p);
CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr p);
CUresult cuMemHostRegister_v2(void *p, size_t n, unsigned flags);
CUresult cuMemHostUnregister(void *p);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *d, void *p, unsigned flags);
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s);
CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, CUstream s);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, CUstream s);
CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n);
CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n);
CUresult cuStreamCreate(CUstream *s, unsigned flags);
CUresult cuStreamCreateWithPriority(CUstream *s, unsigned flags, int priority);
CUresult cuStreamDestroy_v2(CUstream s);
CUresult cuStreamSynchronize(CUstream s);
CUresult cuStreamQuery(CUstream s);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuEventCreate(CUevent *e, unsigned flags);
CUresult cuEventDestroy_v2(CUevent e);
CUresult cuEventRecord(CUevent e, CUstream s);
CUresult cuEventQuery(CUevent e);
CUresult cuEventSynchronize(CUevent e);
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **arguments, void **extra);
CUresult cuLaunchKernelEx(const struct CUlaunchConfig *config, CUfunction f, void **arguments, void **extra);
CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **arguments, void **extra);
CUresult cuLaunchKernelEx_ptsz(const struct CUlaunchConfig *config, CUfunction f, void **arguments, void **extra);
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **arguments);
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **arguments);
CUresult cuStreamBeginCapture_v2(CUstream s, int mode);
CUresult cuStreamEndCapture(CUstream s, CUgraph *g);
CUresult cuStreamIsCapturing(CUstream s, int *state);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *e, CUgraph g, uint64_t flags);
CUresult cuGraphLaunch(CUgraphExec g, CUstream s);
CUresult cuGraphLaunch_ptsz(CUgraphExec g, CUstream s);
CUresult cuFuncGetName(const char **name, CUfunction f);
CUresult cuModuleUnload(void *module);
CUresult cuDeviceGetPCIBusId(char *to, int size, CUdevice d);
CUresult cuDeviceGetName(char *to, int size, CUdevice d);
CUresult cuGetProcAddress(const char *name, void **f, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *name, void **f, int version, uint64_t flags, int *status);
CUresult cuGetExportTable(const void **table, const CUuuid *id);
