// Everyone posts its data piece by piece; whoever needs the result (all ranks, or the root) reduces
// all pieces in rank order. One meeting per piece, P times the arithmetic: for small messages.
#include "algorithms/patterns.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

void reduce_pieces(Board& board, const Call& call, bool needs_result) {
  const std::size_t per_step = board.chunk_bytes() / call.element_bytes() * call.element_bytes();
  const std::uint32_t steps = steps_for(call.bytes(), per_step);
  std::vector<const void*> sources(static_cast<std::size_t>(board.size()));
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Range piece = tccl::piece(call.bytes(), per_step, step);
    const std::byte* own = call.in() + piece.begin;
    copy_bytes(board.open_step().input, own, piece.count);
    board.post();
    if (!needs_result) continue;
    for (int rank = 0; rank < board.size(); ++rank)
      sources[static_cast<std::size_t>(rank)] =
          rank == board.rank() ? own : board.await(rank, step).input;
    call.reduce(board, call.out() + piece.begin, sources, piece.count);
  }
}

}  // namespace

void allreduce_direct(Board& board, const Call& call) { reduce_pieces(board, call, true); }

void reduce_direct(Board& board, const Call& call) {
  reduce_pieces(board, call, board.rank() == call.root());
}

}  // namespace tccl
