#include "algorithms/call.h"

namespace tccl {

void Call::reduce(const Board& board, std::byte* destination, const Sources& sources,
                  std::size_t bytes) const {
  if (bytes == 0) return;
  std::vector<double> factors;
  if (operation_.reduction.op == ReduceOp::premul_sum)
    for (int rank = 0; rank < board.size(); ++rank) factors.push_back(board.factor(rank));
  kernels::reduce(destination, sources.all(), bytes / element_bytes_, operation_.dtype,
                  operation_.reduction.op, factors);
}

}  // namespace tccl
