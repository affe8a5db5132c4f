/* allreduce-client COUNT: MPI_Allreduce of one double, COUNT times; rank 0 prints median and p99 of a call in nanoseconds. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARM = 500 };

static int less(const void *a, const void *b)
{
	return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

int main(int argc, char **argv)
{
	int rank, count = argc > 1 ? atoi(argv[1]) : 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (count < 100)
		return 2;
	double *took = malloc(count * sizeof *took), in = rank, out;
	for (int i = -WARM; i < count; i++) {
		double begin = MPI_Wtime();
		MPI_Allreduce(&in, &out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		if (i >= 0)
			took[i] = MPI_Wtime() - begin;
	}
	qsort(took, count, sizeof *took, less);
	if (!rank)
		printf("%.1f %.1f\n", took[count / 2] * 1e9, took[count / 100 * 99] * 1e9);
	MPI_Finalize();
	return 0;
}
