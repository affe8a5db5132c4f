// What the programs for GPUs share.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <cuda_runtime.h>
#include <unistd.h>

static int rank, ranks, failures;

static void result(bool good, const char *name, const char *format, long a = 0, long b = 0)
{
	printf("%s %s", good ? "ok" : "FAIL", name);
	if (!good) {
		printf(": ");
		printf(format, a, b);
		failures++;
	}
	printf("\n");
	fflush(stdout);
}

// Waits for the kernels; ends the program when one failed.
static void finish(const char *what)
{
	const cudaError_t e = cudaDeviceSynchronize();

	if (e != cudaSuccess) {
		printf("FAIL %s: %s\n", what, cudaGetErrorString(e));
		exit(1);
	}
}

static void measured(const char *name, double value, const char *unit)
{
	printf("{\"name\":\"%s\",\"value\":%.2f,\"unit\":\"%s\",\"rank\":%d}\n", name, value, unit, rank);
	fflush(stdout);
}

static double now()
{
	timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

// Bytes from the first rank to all, by a file that appears with its whole content.
static void share(const char *path, void *bytes, size_t n)
{
	char partial[512];

	snprintf(partial, sizeof partial, "%s.partial", path);
	if (rank == 0) {
		FILE *f = fopen(partial, "wb");

		if (!f || fwrite(bytes, n, 1, f) != 1 || fclose(f) || rename(partial, path)) {
			perror(path);
			exit(1);
		}
		return;
	}
	for (int i = 0; i < 600 && access(path, R_OK); i++)
		usleep(100000);
	FILE *f = fopen(path, "rb");

	if (!f || fread(bytes, n, 1, f) != 1) {
		perror(path);
		exit(1);
	}
	fclose(f);
}

static void begin()
{
	int devices = 0;

	rank = atoi(getenv("RANK"));
	ranks = atoi(getenv("WORLD_SIZE"));
	if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
		printf("FAIL no GPU\n");
		exit(1);
	}
	cudaSetDevice(rank % devices);
}
