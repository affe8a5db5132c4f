// NCCL's device interface over GIN, two ranks: puts with signals, counters, values, and three warps at once on queues that share a page of doorbells.
// usage: gin FILE, the environment as ranks.sh makes it. Ranks tell NCCL that they are of different hosts, so that it takes the network.
#include "program.h"
#include <nccl.h>
#include <nccl_device.h>

static const size_t BYTES = 4 << 20;
enum { EXCHANGE, COUNTED, SIGNALS };

static void must(ncclResult_t r, const char *what)
{
	if (r == ncclSuccess)
		return;
	printf("FAIL %s: %s: %s\n", what, ncclGetErrorString(r), ncclGetLastError(NULL));
	exit(1);
}

__global__ void exchange(ncclDevComm comm, ncclWindow_t from, ncclWindow_t to, size_t bytes, int times, uint64_t base)
{
	ncclGin gin(comm, 0);

	if (threadIdx.x)
		return;
	for (int i = 1; i <= times; i++) {
		gin.put(ncclTeamWorld(comm), 1 - comm.rank, to, 0, from, 0, bytes, ncclGin_SignalInc{EXCHANGE});
		gin.flush(ncclCoopThread());
		gin.waitSignal(ncclCoopThread(), EXCHANGE, base + i);
	}
}

__global__ void counted(ncclDevComm comm, ncclWindow_t from, ncclWindow_t to, size_t bytes)
{
	ncclGin gin(comm, 0);

	if (threadIdx.x)
		return;
	gin.put(ncclTeamWorld(comm), 1 - comm.rank, to, 0, from, 0, bytes, ncclGin_SignalInc{COUNTED}, ncclGin_CounterInc{0});
	gin.waitCounter(ncclCoopThread(), 0, 1);
	gin.waitSignal(ncclCoopThread(), COUNTED, 1);
	gin.putValue(ncclTeamWorld(comm), 1 - comm.rank, to, bytes, (uint64_t)(7000 + comm.rank), ncclGin_SignalInc{COUNTED});
	gin.flush(ncclCoopThread());
	gin.waitSignal(ncclCoopThread(), COUNTED, 2);
}

// A counter's completion waits in a companion queue on the page of the first: doorbells of both overwrite each other.
__global__ void together(ncclDevComm comm, ncclWindow_t from, ncclWindow_t to, int times, uint64_t base)
{
	ncclGin gin(comm, 0);
	const int warp = threadIdx.x / 32, peer = 1 - comm.rank;

	if (threadIdx.x % 32 == 0)
		for (int i = 1; i <= times; i++) {
			if (warp == 0) {
				gin.put(ncclTeamWorld(comm), peer, to, 0, from, 0, 64, ncclGin_SignalInc{EXCHANGE}, ncclGin_CounterInc{0});
				gin.waitCounter(ncclCoopThread(), 0, 1 + i);
			} else if (warp == 1) {
				gin.put(ncclTeamWorld(comm), peer, to, 4096, from, 4096, 64, ncclGin_SignalInc{EXCHANGE});
			} else {
				gin.putValue(ncclTeamWorld(comm), peer, to, 8192, (uint64_t)i, ncclGin_SignalInc{EXCHANGE});
			}
			if (warp && i % 8 == 0)
				gin.flush(ncclCoopThread());
		}
	__syncthreads();
	if (threadIdx.x == 0) {
		gin.flush(ncclCoopThread());
		gin.waitSignal(ncclCoopThread(), EXCHANGE, base + 3 * times);
	}
}

int main(int argc, char **argv)
{
	ncclDevCommRequirements need = {};
	ncclWindow_t from_window, to_window;
	ncclUniqueId id;
	ncclDevComm device;
	ncclComm_t comm;
	char *from, *to, host[32], *h = static_cast<char *>(malloc(BYTES));

	if (argc != 2)
		return 2;
	begin();
	snprintf(host, sizeof host, "host%d", rank);
	setenv("NCCL_HOSTID", host, 1);
	if (rank == 0)
		must(ncclGetUniqueId(&id), "ncclGetUniqueId");
	share(argv[1], &id, sizeof id);
	must(ncclCommInitRank(&comm, ranks, id, rank), "ncclCommInitRank");
	must(ncclMemAlloc(reinterpret_cast<void **>(&from), BYTES), "ncclMemAlloc");
	must(ncclMemAlloc(reinterpret_cast<void **>(&to), BYTES), "ncclMemAlloc");
	for (size_t i = 0; i < BYTES; i++)
		h[i] = static_cast<char>(i * 7 + rank);
	cudaMemcpy(from, h, BYTES, cudaMemcpyHostToDevice);
	cudaMemset(to, 0, BYTES);
	must(ncclCommWindowRegister(comm, from, BYTES, &from_window, NCCL_WIN_COLL_SYMMETRIC), "ncclCommWindowRegister");
	must(ncclCommWindowRegister(comm, to, BYTES, &to_window, NCCL_WIN_COLL_SYMMETRIC), "ncclCommWindowRegister");
	need.ginSignalCount = 2;
	need.ginCounterCount = 1;
	need.ginForceEnable = true;
	must(ncclDevCommCreate(comm, &need, &device), "ncclDevCommCreate");

	uint64_t base = 0;
	for (size_t bytes = 8; bytes <= BYTES; bytes *= 64) {
		char name[64];
		long bad = 0;

		exchange<<<1, 32>>>(device, from_window, to_window, bytes, 1, base++);
		finish("exchange");
		cudaMemcpy(h, to, bytes, cudaMemcpyDeviceToHost);
		for (size_t i = 0; i < bytes; i++)
			bad += h[i] != static_cast<char>(i * 7 + 1 - rank);
		snprintf(name, sizeof name, "exchange of %zu bytes", bytes);
		result(bad == 0, name, "%ld wrong", bad);
		const double t = now();

		exchange<<<1, 32>>>(device, from_window, to_window, bytes, 100, base);
		finish("exchange");
		base += 100;
		measured(name, (now() - t) / 100 * 1e6, "us");
	}
	counted<<<1, 32>>>(device, from_window, to_window, 4096);
	finish("counted");
	uint64_t value;
	cudaMemcpy(&value, to + 4096, sizeof value, cudaMemcpyDeviceToHost);
	result(value == 7001ul - rank, "counter and value", "%ld", value);

	const int times = 2000;
	const double t = now();
	together<<<1, 96>>>(device, from_window, to_window, times, base);
	finish("together");
	measured("three warps at once", (now() - t) * 1e6 / (3 * times), "us");
	cudaMemcpy(&value, to + 8192, sizeof value, cudaMemcpyDeviceToHost);
	result(value == times, "last value of three warps at once", "%ld", value);
	ncclDevCommDestroy(comm, &device);
	ncclCommDestroy(comm);
	return failures != 0;
}
