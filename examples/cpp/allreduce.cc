// Sums a vector over all ranks. One process per rank, which meet in a directory that is theirs
// alone:
//
//   . <prefix>/env/setvars.sh
//   cmake -B build && cmake --build build
//   job=$(mktemp -d); for rank in 0 1; do build/allreduce $rank 2 "$job" & done; wait
#include <tccl/tccl.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s <rank> <size> <store directory>\n", argv[0]);
    return 2;
  }
  const int rank = std::atoi(argv[1]);
  const int size = std::atoi(argv[2]);
  try {
    auto context = tccl::Context::create();
    auto store = tccl::file_store(argv[3]);
    auto comm = tccl::Communicator::create(context, *store, rank, size, {});

    std::vector<float> x(1000, static_cast<float>(rank + 1));
    comm->run(
        tccl::allreduce(x.data(), x.data(), x.size(), tccl::DType::float32, tccl::ReduceOp::sum));
    std::printf("rank %d of %d: sum = %g\n", rank, size, x.back());

    comm->close();
    context->close();
  } catch (const tccl::Error& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    return 1;
  }
}
