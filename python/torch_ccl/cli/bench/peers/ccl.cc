// The benchmark loop on libtccl. RANK and WORLD_SIZE are environment variables; the rendezvous uses
// a file store next to the loop's shared file.
#include <tccl/tccl.h>

#include "loop.h"

namespace {

struct Tccl {
  int rank;
  int size;
  std::shared_ptr<tccl::Communicator> comm;

  static constexpr auto kFloat = tccl::DType::float32;

  void allreduce(float* x, std::size_t count) {
    comm->run(tccl::allreduce(x, x, count, kFloat, tccl::ReduceOp::sum));
  }
  void broadcast(float* x, std::size_t count) {
    comm->run(tccl::broadcast(x, count, kFloat, /*root=*/0));
  }
  void allgather(const float* in, float* out, std::size_t count) {
    comm->run(tccl::allgather(in, out, count, kFloat));
  }
  void alltoall(const float* in, float* out, std::size_t count) {
    comm->run(tccl::alltoall(in, out, count, kFloat));
  }
};

int from_environment(const char* name) {
  const char* value = std::getenv(name);
  loop::check(value != nullptr, std::string(name) + " is not set");
  return std::stoi(value);
}

}  // namespace

int main(int argc, char** argv) try {
  loop::check(argc > 1, "the shared file is missing");
  const int rank = from_environment("RANK");
  const int size = from_environment("WORLD_SIZE");
  auto context = tccl::Context::create();
  auto store = tccl::file_store(std::string(argv[1]) + ".store");
  Tccl library{rank, size, tccl::Communicator::create(context, *store, rank, size, {})};
  const int status = loop::run(library, argc, argv);
  library.comm->close();
  context->close();
  return status;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
