// What kernels issue to processing elements over the network, as they count it themselves: each request that becomes an element of a queue, in a log on the GPU. How many elements
// a call of NVSHMEM becomes is as its device headers (3.4) have it: one a thread, one for a block's put or get; a whole warp's stores side by side are one where the network
// has short addresses. What goes to the own element takes a queue too where it is atomic.
#pragma once

#include "program.h"

#include <array>
#include <map>
#include <string>
#include <vector>

enum operation { WRITE, READ, ATOMIC };

struct issue {
	unsigned long long address;
	unsigned bytes;
	unsigned short peer, operation;
};

static __device__ struct {
	unsigned long long n, room;
	issue *at;
} issue_log;

// Before the call: address is the caller's own of the symmetric object.
static __device__ void issued(operation o, int peer, const void *address, size_t bytes)
{
	const unsigned long long i = atomicAdd(&issue_log.n, 1ull);

	if (i < issue_log.room)
		issue_log.at[i] = {(unsigned long long)address, (unsigned)bytes, (unsigned short)peer, (unsigned short)o};
}

static void log_issued(unsigned long long room)
{
	issue *at;
	decltype(issue_log) log;

	if (cudaMalloc(&at, room * sizeof *at) != cudaSuccess) {
		printf("FAIL no memory for a log of what is issued\n");
		exit(1);
	}
	log.n = 0;
	log.room = room;
	log.at = at;
	cudaMemcpyToSymbol(issue_log, &log, sizeof log);
}

struct object {
	const char *name;
	const void *address;
	size_t bytes;
};

// A line of JSON into the file $ISSUED.RANK: where the objects are here, and what was issued how often to which object of which other.
static void print_issued(const std::vector<object> &objects)
{
	static const char *const names[] = {"write", "read", "atomic"};
	std::map<std::array<unsigned long long, 5>, unsigned long> counts;
	const char *prefix = getenv("ISSUED"), *comma = "";
	decltype(issue_log) log;

	if (!prefix)
		return;
	cudaMemcpyFromSymbol(&log, issue_log, sizeof log);
	result(log.n <= log.room, "log of what was issued", "%ld of %ld entries", (long)log.n, (long)log.room);
	if (log.n > log.room)
		return;
	std::vector<issue> all(log.n);
	cudaMemcpy(all.data(), log.at, log.n * sizeof(issue), cudaMemcpyDeviceToHost);
	long unknown = 0;
	for (const issue &i : all) {
		size_t k = 0;

		while (k < objects.size() && i.address - (unsigned long long)objects[k].address >= objects[k].bytes)
			k++;
		if (k == objects.size())
			unknown++;
		else
			counts[{i.operation, i.peer, k, i.address - (unsigned long long)objects[k].address, i.bytes}]++;
	}
	result(unknown == 0, "objects of what was issued", "%ld are of none", unknown);
	FILE *f = fopen((std::string(prefix) + "." + std::to_string(rank)).c_str(), "w");
	if (!f) {
		perror(prefix);
		exit(1);
	}
	fprintf(f, "{\"rank\":%d,\"objects\":[", rank);
	for (const object &o : objects) {
		fprintf(f, "%s{\"name\":\"%s\",\"address\":%llu,\"bytes\":%zu}", comma, o.name, (unsigned long long)o.address, o.bytes);
		comma = ",";
	}
	fprintf(f, "],\"issued\":[");
	comma = "";
	for (const auto &c : counts) {
		fprintf(f, "%s\n{\"operation\":\"%s\",\"peer\":%llu,\"object\":\"%s\",\"offset\":%llu,\"bytes\":%llu,\"count\":%lu}", comma, names[c.first[0]], c.first[1],
			objects[c.first[2]].name, c.first[3], c.first[4], c.second);
		comma = ",";
	}
	fprintf(f, "]}\n");
	if (fclose(f)) {
		perror(prefix);
		exit(1);
	}
}
