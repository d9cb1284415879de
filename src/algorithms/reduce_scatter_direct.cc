// Each step carries one piece of every rank's block; a rank reduces the pieces meant for it.
// Blocks may differ in size.
#include "algorithms/patterns.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

std::size_t longest_block(const Board& board, const Call& call) {
  std::size_t longest = call.element_bytes();
  for (int rank = 0; rank < board.size(); ++rank)
    longest = std::max(longest, call.input_for(rank).size());
  return longest;
}

/// Of one rank's piece. At least one element for every rank fits: see Board::area_bytes.
std::size_t piece_bytes(const Board& board, const Call& call, std::size_t longest) {
  const auto ranks = static_cast<std::size_t>(board.size());
  const std::size_t elements =
      piece_size(longest * ranks, board.chunk_bytes()) / ranks / call.element_bytes();
  return std::min(longest, std::max<std::size_t>(1, elements) * call.element_bytes());
}

}  // namespace

void reduce_scatter_direct(Board& board, const Call& call) {
  const int self = board.rank();
  const std::size_t longest = longest_block(board, call);
  const std::size_t per_rank = piece_bytes(board, call, longest);
  const std::size_t step_bytes = per_rank * static_cast<std::size_t>(board.size());
  const auto place = [&](int rank) { return static_cast<std::size_t>(rank) * per_rank; };

  Sources sources(board.size());
  const std::uint32_t steps = steps_for(longest, per_rank);
  for (std::uint32_t step = 0; step < steps; ++step) {
    std::byte* slot = board.open_step().input_of(step_bytes);
    for (int rank = 0; rank < board.size(); ++rank) {
      if (rank == self) continue;
      const auto block = call.input_for(rank);
      const Range piece = tccl::piece(block.size(), per_rank, step);
      call.copy(slot + place(rank), block.data() + piece.begin, piece.count);
    }
    board.post();
    const auto own = call.input_for(self);
    const Range piece = tccl::piece(own.size(), per_rank, step);
    for (int rank = 0; rank < board.size(); ++rank)
      sources[rank] = rank == self ? own.data() + piece.begin
                                   : board.await(rank, step).input_of(step_bytes) + place(self);
    call.reduce(board, call.out() + piece.begin, sources, piece.count);
  }
}

}  // namespace tccl
