/*
 * Collectives and point-to-point messages whose every byte is checked.
 * usage: mpirun ... mpi_check; exit 0 when all data is right.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size, bad;

static unsigned char byte_of(int from, int to, size_t i)
{
	return (unsigned char)(from * 31 + to * 17 + i * 7 + (i >> 8));
}

static void check(const unsigned char *b, size_t n, int from, int to, const char *what)
{
	for (size_t i = 0; i < n; i++)
		if (b[i] != byte_of(from, to, i)) {
			fprintf(stderr, "mpi_check: rank %d: %s from %d, %zu bytes: wrong at %zu\n", rank, what, from, n, i);
			bad++;
			return;
		}
}

static void fill(unsigned char *b, size_t n, int from, int to)
{
	for (size_t i = 0; i < n; i++)
		b[i] = byte_of(from, to, i);
}

static void ring(size_t n)
{
	const int next = (rank + 1) % size, prev = (rank + size - 1) % size;
	unsigned char *out = malloc(n + 1), *in = calloc(1, n + 1);

	fill(out, n, rank, next);
	MPI_Sendrecv(out, (int)n, MPI_BYTE, next, 7, in, (int)n, MPI_BYTE, prev, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	check(in, n, prev, rank, "ring");
	free(out);
	free(in);
}

static void alltoall(size_t n)
{
	unsigned char *out = malloc(n * size), *in = calloc(n, size);

	for (int i = 0; i < size; i++)
		fill(out + i * n, n, rank, i);
	MPI_Alltoall(out, (int)n, MPI_BYTE, in, (int)n, MPI_BYTE, MPI_COMM_WORLD);
	for (int i = 0; i < size; i++)
		check(in + i * n, n, i, rank, "alltoall");
	free(out);
	free(in);
}

static void allreduce(int n)
{
	long *out = malloc(n * sizeof *out), *in = calloc(n, sizeof *in);

	for (int i = 0; i < n; i++)
		out[i] = (long)rank * 1000003 + i;
	MPI_Allreduce(out, in, n, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < n; i++)
		if (in[i] != (long)size * (size - 1) / 2 * 1000003 + (long)i * size) {
			fprintf(stderr, "mpi_check: rank %d: allreduce of %d wrong at %d\n", rank, n, i);
			bad++;
			break;
		}
	free(out);
	free(in);
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = { 0, 1, 8, 200, 4096, 40000, 1 << 20 };
	int total = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		for (int k = 0; k < 5; k++)
			ring(sizes[i]);
		if (sizes[i])
			alltoall(sizes[i] / 4 + 1);
		allreduce((int)(sizes[i] / 8 + 1));
	}
	MPI_Allreduce(&bad, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("mpi_check: %d ranks, %d errors\n", size, total);
	MPI_Finalize();
	return total != 0;
}
