// The benchmark loop on an MPI library. An MPI error aborts the program, which is MPI's default.
#include <mpi.h>

#include "loop.h"

namespace {

struct Mpi {
  int rank = 0;
  int size = 0;

  void allreduce(float* x, std::size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, x, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  void broadcast(float* x, std::size_t count) {
    MPI_Bcast(x, static_cast<int>(count), MPI_FLOAT, /*root=*/0, MPI_COMM_WORLD);
  }
  void allgather(const float* in, float* out, std::size_t count) {
    const int n = static_cast<int>(count);
    MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
  }
  void alltoall(const float* in, float* out, std::size_t count) {
    const int n = static_cast<int>(count);
    MPI_Alltoall(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
  }
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Mpi library;
  MPI_Comm_rank(MPI_COMM_WORLD, &library.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &library.size);
  const int status = loop::run(library, argc, argv);
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return status;
}
