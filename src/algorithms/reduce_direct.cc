// Everyone posts its data piece by piece; whoever needs the result (all ranks, or the root) reduces
// all pieces in rank order. One meeting per piece, P times the arithmetic: for small messages, and
// for all sizes if there are two ranks, where each reads no more than it would in any other way.
#include "algorithms/patterns.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

void reduce_pieces(Board& board, const Call& call, bool needs_result) {
  const std::size_t per_step =
      piece_size(call.bytes(), board.chunk_bytes()) / call.element_bytes() * call.element_bytes();
  const std::uint32_t steps = steps_for(call.bytes(), per_step);
  Sources sources(board.size());
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Range piece = tccl::piece(call.bytes(), per_step, step);
    const std::byte* own = call.in() + piece.begin;
    call.copy(board.open_step().input_of(piece.count), own, piece.count);
    board.post();
    if (!needs_result) continue;
    for (int rank = 0; rank < board.size(); ++rank)
      sources[rank] = rank == board.rank() ? own : board.await(rank, step).input_of(piece.count);
    call.reduce(board, call.out() + piece.begin, sources, piece.count);
  }
}

}  // namespace

void allreduce_direct(Board& board, const Call& call) { reduce_pieces(board, call, true); }

void reduce_direct(Board& board, const Call& call) {
  reduce_pieces(board, call, board.rank() == call.root());
}

}  // namespace tccl
