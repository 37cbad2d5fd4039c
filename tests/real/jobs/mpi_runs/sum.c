#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sum of all ranks; with an argument "fail", rank 2 leaves with 9. */
int main(int argc, char **argv) {
    int rank, size, total;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d on %s: the sum is %d\n", rank, size, getenv("SM_CURRENT_HOST"), total);
    fflush(stdout);
    if (argc > 1 && strcmp(argv[1], "fail") == 0 && rank == 2)
        exit(9);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
