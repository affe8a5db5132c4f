/* Shared by clients whose queues and data are in the memory of GPUs, and are filled and rung by kernels of the stand-in CUDA driver. */
#pragma once

#include "../../standin/standin.h"
#include "check.h"
#include "devx.h"

enum { END_SIZE = 1 << 22, END_HALF = END_SIZE / 2 };

struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	CUdeviceptr buf; /* END_SIZE bytes */
	CUstream stream;
	uint32_t pdn;
};

extern const struct memory gpu_memory;

enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

void cuda(CUresult rc, const char *what);
/* Makes the device's context the calling thread's. */
void open_end(struct end *e, int device);
/* The page as CUDA gives it to kernels. */
void bell_for_gpu(struct queue *q);
/* Starts a kernel, which stays where it is. */
void start_kernel(struct end *e, struct standin_kernel *k, void *argument);
/* Runs one to its end. */
void launch(struct end *e, void (*f)(void *), void *argument);
