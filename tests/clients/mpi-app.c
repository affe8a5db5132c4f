/* mpi-app [-n ROUNDS] [-a] [-m] [-s FILE]: an MPI program that checks all its data: alltoall, allreduce, and a ring of point-to-point messages of 8 bytes
 * to 256 KiB (-a: alltoall alone; -m: marks the epochs "rounds" and "end" by sigmatrace.h; -s: before all, rank 0 sends rank 1 messages until the file exists, in
 * three tags, each from and to a place of its own: the distance from the address that both print is its number). Rank 0 prints "mpi-app ok RANKS ROUNDS"; each rank prints its point-to-point calls as clients here do
 * (the library makes more sends and receives of its own for the collective calls).
 */
#define _GNU_SOURCE
#include "../../preload/sigmatrace.h"
#include "tally.h"

#include <mpi.h>
#include <string.h>

enum { SENDS, RECVS, OPS };
static struct tally did[OPS] = { [SENDS] = { .name = "mpi_send" }, [RECVS] = { .name = "mpi_recv" } };
enum { BLOCK = 4096 };

static int rank, ranks;

static void alltoall(int round)
{
	uint8_t *out = malloc((size_t)ranks * BLOCK), *in = malloc((size_t)ranks * BLOCK);
	for (int r = 0; r < ranks; r++)
		memset(out + (size_t)r * BLOCK, rank * 16 + r + round, BLOCK);
	MPI_Alltoall(out, BLOCK, MPI_BYTE, in, BLOCK, MPI_BYTE, MPI_COMM_WORLD);
	for (int r = 0; r < ranks; r++)
		for (int i = 0; i < BLOCK; i++)
			CHECK(in[(size_t)r * BLOCK + i] == (uint8_t)(r * 16 + rank + round));
	free(out), free(in);
}

static void allreduce(int round)
{
	static long out[1000], in[1000];
	for (int i = 0; i < 1000; i++)
		out[i] = rank + i + round;
	MPI_Allreduce(out, in, 1000, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < 1000; i++)
		CHECK(in[i] == (long)ranks * (ranks - 1) / 2 + (long)ranks * (i + round));
}

static void ring(int round)
{
	static uint8_t out[1 << 18], in[1 << 18];
	int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
	for (int size = 8; size <= (int)sizeof out; size *= 8) {
		MPI_Request req[2];
		memset(out, rank + round + size, size);
		MPI_Irecv(in, size, MPI_BYTE, from, round, MPI_COMM_WORLD, &req[0]);
		MPI_Isend(out, size, MPI_BYTE, to, round, MPI_COMM_WORLD, &req[1]);
		MPI_Waitall(2, req, MPI_STATUSES_IGNORE);
		for (int i = 0; i < size; i++)
			CHECK(in[i] == (uint8_t)(from + round + size));
		did[SENDS].count++, did[SENDS].bytes += size;
		did[RECVS].count++, did[RECVS].bytes += size;
	}
}

enum { NUMBERED = 1 << 20 };
static uint64_t numbered[NUMBERED];

static void stream(const char *until)
{
	if (rank < 2)
		printf("numbered %d %llu\n", rank, (unsigned long long)(uintptr_t)numbered);
	fflush(stdout);
	for (uint64_t i = 0, last = 0; !last && rank < 2; i++) {
		if (rank == 1) {
			MPI_Recv(&numbered[i], 8, MPI_BYTE, 0, (int)(i % 3), MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			last = numbered[i] == UINT64_MAX;
			CHECK(last || numbered[i] == i);
			continue;
		}
		usleep(200);
		last = i == NUMBERED - 1 || !access(until, F_OK);
		numbered[i] = last ? UINT64_MAX : i;
		MPI_Send(&numbered[i], 8, MPI_BYTE, 1, (int)(i % 3), MPI_COMM_WORLD);
	}
}

int main(int argc, char **argv)
{
	int rounds = 10, only_alltoall = 0, marks = 0, opt;
	const char *numbers = NULL;
	MPI_Init(&argc, &argv);
	while ((opt = getopt(argc, argv, "n:ams:")) != -1)
		switch (opt) {
		case 'n': rounds = atoi(optarg); break;
		case 'm': marks = 1; break;
		case 's': numbers = optarg; break;
		case 'a': only_alltoall = 1; break;
		default: MPI_Abort(MPI_COMM_WORLD, 2);
		}
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (numbers)
		stream(numbers);
	if (marks)
		sigmatrace_mark("rounds");
	for (int i = 0; i < rounds; i++) {
		alltoall(i);
		if (only_alltoall)
			continue;
		allreduce(i);
		ring(i);
	}
	if (marks)
		sigmatrace_mark("end");
	MPI_Barrier(MPI_COMM_WORLD);
	tally_report(did, OPS);
	if (rank == 0)
		printf("mpi-app ok %d %d\n", ranks, rounds);
	MPI_Finalize();
	return 0;
}
