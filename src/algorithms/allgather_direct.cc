// Everyone posts its block piece by piece; everyone copies everyone's. Blocks may differ in size.
#include "algorithms/patterns.h"
#include "algorithms/registry.h"

namespace tccl {

void allgather_direct(Board& board, const Call& call) {
  std::size_t longest = 0;
  for (int rank = 0; rank < board.size(); ++rank)
    longest = std::max(longest, call.output_from(rank).size());
  const std::size_t per_step = piece_size(longest, board.chunk_bytes());
  const std::size_t own_bytes = call.output_from(board.rank()).size();
  const std::uint32_t steps = steps_for(longest, per_step);
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Range own = piece(own_bytes, per_step, step);
    call.copy(board.open_step().input_of(own.count), call.in() + own.begin, own.count);
    board.post();
    for (int peer = 0; peer < board.size(); ++peer) {
      if (peer == board.rank()) continue;
      const auto target = call.output_from(peer);
      const Range theirs = piece(target.size(), per_step, step);
      call.copy(target.data() + theirs.begin, board.await(peer, step).input_of(theirs.count),
                theirs.count);
    }
  }
  call.copy(call.output_from(board.rank()).data(), call.in(), own_bytes);
}

}  // namespace tccl
