#include "tccl/operation.h"

#include <array>

namespace tccl {

std::string_view name_of(Op op) {
  constexpr std::array<std::string_view, kOpCount> kNames = {
      "barrier",         "broadcast",      "allreduce", "reduce",     "allgather", "gather",
      "scatter",         "reduce_scatter", "alltoall",  "allgatherv", "gatherv",   "scatterv",
      "reduce_scatterv", "alltoallv",      "send",      "recv"};
  return kNames[static_cast<std::size_t>(op)];
}

}  // namespace tccl
