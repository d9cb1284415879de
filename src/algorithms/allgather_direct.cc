// Everyone posts its block piece by piece; everyone copies everyone's. Blocks may differ in size.
#include "algorithms/patterns.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// The input may be this rank's own block of the output, but no other.
bool keeps_input(const Board& board, const Call& call) {
  const std::span input(call.in(), call.output_from(board.rank()).size());
  for (int rank = 0; rank < board.size(); ++rank)
    if (rank != board.rank() && !disjoint(call.output_from(rank), input)) return false;
  return true;
}

}  // namespace

void allgather_direct(Board& board, const Call& call) {
  const std::size_t longest = call.longest_output();
  const std::size_t per_step = piece_size(longest, board.chunk_bytes());
  const std::size_t own_bytes = call.output_from(board.rank()).size();
  const bool lendable = keeps_input(board, call);
  const std::size_t whole = longest * static_cast<std::size_t>(board.size());
  const std::uint32_t steps = steps_for(longest, per_step);
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Range own = piece(own_bytes, per_step, step);
    publish(board, call, board.open_step(), call.in() + own.begin, own.count, Board::kEveryone,
            lendable);
    board.post();
    for (int peer = 0; peer < board.size(); ++peer) {
      if (peer == board.rank()) continue;
      const auto target = call.output_from(peer);
      const Range theirs = piece(target.size(), per_step, step);
      call.copy_out(target.data() + theirs.begin, published(board, peer, step, theirs.count),
                    theirs.count, whole);
    }
  }
  call.copy_out(call.output_from(board.rank()).data(), call.in(), own_bytes, whole);
}

}  // namespace tccl
