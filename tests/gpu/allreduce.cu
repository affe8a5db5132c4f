// NCCL's all-reduce of 1 and 128 MB between ranks, checked and timed: allreduce FILE. Ranks tell NCCL that they are of different hosts, so that it takes the network.
#include "program.h"
#include <algorithm>
#include <nccl.h>
#include <vector>

static void must(ncclResult_t r, const char *what)
{
	if (r == ncclSuccess)
		return;
	printf("FAIL %s: %s: %s\n", what, ncclGetErrorString(r), ncclGetLastError(NULL));
	exit(1);
}

int main(int argc, char **argv)
{
	ncclUniqueId id;
	ncclComm_t comm;
	cudaStream_t stream;
	char host[32];

	if (argc != 2)
		return 2;
	begin();
	snprintf(host, sizeof host, "host%d", rank);
	setenv("NCCL_HOSTID", host, 1);
	if (rank == 0)
		must(ncclGetUniqueId(&id), "ncclGetUniqueId");
	share(argv[1], &id, sizeof id);
	must(ncclCommInitRank(&comm, ranks, id, rank), "ncclCommInitRank");
	cudaStreamCreate(&stream);
	for (size_t mb : {1, 128}) {
		const size_t n = (mb << 20) / sizeof(float);
		const int times = mb == 1 ? 200 : 20, warm = times / 10;
		float *data, *back = static_cast<float *>(malloc(n * sizeof *back));
		std::vector<double> us;
		long wrong = 0;

		cudaMalloc(&data, n * sizeof *data);
		for (size_t i = 0; i < n; i++)
			back[i] = (float)(i % 1000 + rank);
		cudaMemcpy(data, back, n * sizeof *data, cudaMemcpyHostToDevice);
		must(ncclAllReduce(data, data, n, ncclFloat, ncclSum, comm, stream), "ncclAllReduce");
		cudaStreamSynchronize(stream);
		cudaMemcpy(back, data, n * sizeof *data, cudaMemcpyDeviceToHost);
		for (size_t i = 0; i < n; i++)
			wrong += back[i] != (float)(i % 1000 * ranks + ranks * (ranks - 1) / 2);
		char name[64];
		snprintf(name, sizeof name, "all-reduce of %zu MB", mb);
		result(wrong == 0, name, "%ld wrong", wrong);
		cudaMemset(data, 0, n * sizeof *data);
		finish("memset");
		for (int i = -warm; i < times; i++) {
			const double t = now();

			must(ncclAllReduce(data, data, n, ncclFloat, ncclSum, comm, stream), "ncclAllReduce");
			cudaStreamSynchronize(stream);
			if (i >= 0)
				us.push_back((now() - t) * 1e6);
		}
		std::sort(us.begin(), us.end());
		if (rank == 0)
			printf("{\"name\":\"%s\",\"median\":%.1f,\"least\":%.1f,\"most\":%.1f}\n", name, us[us.size() / 2], us[0], us.back());
		fflush(stdout);
		cudaFree(data);
		free(back);
	}
	ncclCommDestroy(comm);
	return failures != 0;
}
