// Each step carries one piece of every rank's block; a rank reduces the pieces meant for it.
// Blocks may differ in size.
#include "algorithms/patterns.h"
#include "algorithms/registry.h"

namespace tccl {

void reduce_scatter_direct(Board& board, const Call& call) {
  const auto ranks = static_cast<std::size_t>(board.size());
  const auto self = static_cast<std::size_t>(board.rank());
  // At least one element for every rank fits: see Board::area_bytes.
  const std::size_t per_rank =
      std::max<std::size_t>(1, board.chunk_bytes() / ranks / call.element_bytes()) *
      call.element_bytes();
  std::size_t longest = 0;
  for (int rank = 0; rank < board.size(); ++rank)
    longest = std::max(longest, call.input_for(rank).size());

  std::vector<const void*> sources(ranks);
  for (std::uint32_t step = 0; step < steps_for(longest, per_rank); ++step) {
    const Board::Slot slot = board.open_step();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (rank == self) continue;
      const auto block = call.input_for(static_cast<int>(rank));
      const Range piece = tccl::piece(block.size(), per_rank, step);
      copy_bytes(slot.input + rank * per_rank, block.data() + piece.begin, piece.count);
    }
    board.post();
    const auto own = call.input_for(board.rank());
    const Range piece = tccl::piece(own.size(), per_rank, step);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      sources[rank] = rank == self
                          ? own.data() + piece.begin
                          : board.await(static_cast<int>(rank), step).input + self * per_rank;
    call.reduce(board, call.out() + piece.begin, sources, piece.count);
  }
}

}  // namespace tccl
