/* How programs find the functions of the stand-in CUDA driver by name: cudart asks for them with the version in which each came. */
#include "cuda.h"

#include <string.h>

static const struct entry {
	const char *name; /* as asked for: without suffix */
	int since;
	void *f;
	uint64_t streams; /* 1: only for flags that ask for the legacy default stream, 2: for that of a thread; 0: any */
} table[] = {
#define AS(name, since, f) { #name, since, (void *)f, 0 }
#define TWICE(name, since, of_thread) { #name, since, (void *)name, 1 }, { #name, of_thread, (void *)name##_ptsz, 2 }
#define PLAIN(name, since) AS(name, since, name)
	PLAIN(cuInit, 2000),
	PLAIN(cuDriverGetVersion, 2020),
	PLAIN(cuDeviceGetCount, 2000),
	PLAIN(cuDeviceGet, 2000),
	AS(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2),
	PLAIN(cuDevicePrimaryCtxRetain, 7000),
	AS(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2),
	AS(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2),
	PLAIN(cuCtxGetCurrent, 4000),
	PLAIN(cuCtxSetCurrent, 4000),
	AS(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2),
	AS(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2),
	PLAIN(cuCtxGetDevice, 2000),
	AS(cuMemAlloc, 3020, cuMemAlloc_v2),
	AS(cuMemFree, 3020, cuMemFree_v2),
	PLAIN(cuMemUnmap, 10020),
	PLAIN(cuPointerGetAttribute, 4000),
	AS(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2),
	PLAIN(cuIpcGetMemHandle, 4010),
	AS(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2),
	PLAIN(cuIpcCloseMemHandle, 4010),
	AS(cuMemHostRegister, 6050, cuMemHostRegister_v2),
	AS(cuMemHostRegister, 4000, standin_old_register),
	PLAIN(cuMemHostUnregister, 4000),
	AS(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2),
	PLAIN(cuMemcpyAsync, 4000),
	AS(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2),
	AS(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2),
	AS(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2),
	AS(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2),
	PLAIN(cuStreamCreate, 2000),
	PLAIN(cuStreamCreateWithPriority, 5050),
	AS(cuStreamDestroy, 4000, cuStreamDestroy_v2),
	PLAIN(cuStreamSynchronize, 2000),
	PLAIN(cuStreamQuery, 2000),
	PLAIN(cuThreadExchangeStreamCaptureMode, 10010),
	PLAIN(cuEventCreate, 2000),
	AS(cuEventDestroy, 4000, cuEventDestroy_v2),
	PLAIN(cuEventRecord, 2000),
	PLAIN(cuEventQuery, 2000),
	PLAIN(cuEventSynchronize, 2000),
	AS(cuLaunchKernel, 14000, standin_new_launch),
	TWICE(cuLaunchKernel, 4000, 7000),
	TWICE(cuLaunchKernelEx, 11060, 11060),
	TWICE(cuLaunchCooperativeKernel, 9000, 9000),
	TWICE(cuGraphLaunch, 10000, 10000),
	PLAIN(cuStreamIsCapturing, 10000),
	AS(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2),
	PLAIN(cuStreamEndCapture, 10000),
	PLAIN(cuGraphInstantiateWithFlags, 11040),
	PLAIN(cuFuncGetName, 12030),
	PLAIN(cuModuleUnload, 2000),
	PLAIN(cuDeviceGetPCIBusId, 4010),
	PLAIN(cuDeviceGetName, 2000),
	AS(cuGetProcAddress, 12000, cuGetProcAddress_v2),
	PLAIN(cuGetProcAddress_v2, 11030),
	PLAIN(cuGetProcAddress, 11030),
	PLAIN(cuGetExportTable, 3000),
};

CUresult cuGetProcAddress_v2(const char *name, void **f, int version, uint64_t flags, int *status)
{
	enum { FOUND, NOT_FOUND, VERSION_NOT_SUFFICIENT };
	int s = NOT_FOUND;

	*f = NULL;
	for (size_t i = 0; i < sizeof table / sizeof *table && s != FOUND; i++) {
		if (strcmp(table[i].name, name) || (table[i].streams && table[i].streams != (flags == 2 ? 2 : 1)))
			continue;
		s = version >= table[i].since ? FOUND : VERSION_NOT_SUFFICIENT;
		if (s == FOUND)
			*f = table[i].f;
	}
	if (status)
		*status = s;
	return s == FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *name, void **f, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(name, f, version, flags, NULL);
}

/* Tables are the driver's own business; what programs were seen to take from them is not emulated. One is there, with nothing in it. */
CUresult cuGetExportTable(const void **table_, const CUuuid *id)
{
	static const unsigned char known[16] = { 0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93 };
	static void *const functions[1];

	*table_ = NULL;
	if (memcmp(id, known, sizeof known))
		return CUDA_ERROR_INVALID_VALUE;
	*table_ = functions;
	return CUDA_SUCCESS;
}
