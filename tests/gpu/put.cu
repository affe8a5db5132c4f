// What a put of 8 bytes and its quiet take on each of a number of queues, in rounds that take turns: put FILE QUEUES ROUNDS TIMES, with NVSHMEM_IBGDA_NUM_RC_PER_PE=QUEUES.
// NVSHMEM takes the queue by the block's number: of QUEUES blocks one works.
#include "nvshmem_job.h"
#include <device_host_transport/nvshmem_common_ibgda.h>

#include <algorithm>
#include <vector>

__global__ void put_and_quiet(unsigned long long *to, int peer, int times, int which, long long *cycles)
{
	if ((int)blockIdx.x != which)
		return;
	for (int i = 0; i < times; i++) {
		const long long begin = clock64();

		nvshmem_ulonglong_p(to, i, peer);
		nvshmem_quiet();
		cycles[i] = clock64() - begin;
	}
}

// Where the kernels ring each queue: a register, or a page in its place.
__global__ void bells(int peer, int queues, unsigned long long *out)
{
	for (int i = 0; i < queues; i++)
		out[i] = (unsigned long long)nvshmemi_ibgda_device_state_d.globalmem.rcs[peer * queues + i].tx_wq.bf;
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	const int queues = atoi(argv[2]), rounds = atoi(argv[3]), times = atoi(argv[4]), warm = 5;
	initialize(argv[1]);
	const int me = nvshmem_my_pe(), peer = (me + 1) % ranks;
	unsigned long long *to = everywhere<unsigned long long>(1), *pages;
	long long *cycles;
	int khz = 0;

	cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0);
	cudaMalloc(&cycles, times * sizeof *cycles);
	cudaMalloc(&pages, queues * sizeof *pages);
	bells<<<1, 1>>>(peer, queues, pages);
	finish("bells");
	unsigned long long *page = host_copy(pages, queues);
	std::vector<std::vector<double>> all(queues), medians(queues);
	nvshmem_barrier_all();
	if (me == 0)
		for (int round = -warm; round < rounds; round++)
			for (int k = 0; k < queues; k++) {
				const int q = (k + round + warm) % queues;

				put_and_quiet<<<queues, 1>>>(to, peer, times, q, cycles);
				finish("put_and_quiet");
				if (round < 0)
					continue;
				long long *h = host_copy(cycles, times);
				std::vector<double> us;
				for (int i = 0; i < times; i++)
					us.push_back(h[i] * 1e3 / khz);
				free(h);
				usleep(2000); // what the recorder copies behind its queue's turn is not to fall into the next one's
				all[q].insert(all[q].end(), us.begin(), us.end());
				std::nth_element(us.begin(), us.begin() + times / 2, us.end());
				medians[q].push_back(us[times / 2]);
			}
	nvshmem_barrier_all();
	for (int q = 0; q < queues && me == 0; q++) {
		std::vector<double> &v = all[q];

		std::sort(v.begin(), v.end());
		printf("{\"name\":\"put and quiet\",\"queue\":%d,\"pid\":%d,\"bell\":%llu,\"puts\":%zu,\"median\":%.3f,\"p99\":%.3f,\"rounds\":[", q, (int)getpid(), page[q], v.size() + (size_t)warm * times, v[v.size() / 2],
			v[v.size() * 99 / 100]);
		for (size_t i = 0; i < medians[q].size(); i++)
			printf("%s%.3f", i ? "," : "", medians[q][i]);
		printf("]}\n");
	}
	unsigned long long *last = host_copy(to, 1);
	result(me == 0 || *last == times - 1ull, "last put", "%ld", (long)*last);
	nvshmem_barrier_all();
	nvshmem_finalize();
	return failures != 0;
}
