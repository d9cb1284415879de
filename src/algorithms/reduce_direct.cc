// Everyone posts its data piece by piece; whoever needs the result (all ranks, or the root) reduces
// all pieces in rank order. One meeting per piece, P times the arithmetic: for small messages, and
// for all sizes if there are two ranks, where each reads no more than it would in any other way.
#include "algorithms/allreduce_shared.h"
#include "algorithms/patterns.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// `reader`, or everyone, gets the result.
void reduce_pieces(Board& board, const Call& call, int reader) {
  const bool needs_result = reader == Board::kEveryone || reader == board.rank();
  const bool keeps_input = !needs_result || call.in() != call.out();
  const std::size_t per_step =
      piece_size(call.bytes(), board.chunk_bytes()) / call.element_bytes() * call.element_bytes();
  const std::uint32_t steps = steps_for(call.bytes(), per_step);
  Sources sources(board.size());
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Range piece = tccl::piece(call.bytes(), per_step, step);
    const std::byte* own = call.in() + piece.begin;
    const Board::Slot slot = board.open_step();
    if (reader != board.rank()) publish(board, call, slot, own, piece.count, reader, keeps_input);
    board.post();
    if (!needs_result) continue;
    for (int rank = 0; rank < board.size(); ++rank)
      sources[rank] = rank == board.rank() ? own : published(board, rank, step, piece.count);
    call.reduce(board, call.out() + piece.begin, sources, piece.count);
  }
}

}  // namespace

void allreduce_direct(Board& board, const Call& call) {
  if (!allreduce_shared(board, call)) reduce_pieces(board, call, Board::kEveryone);
}

void reduce_direct(Board& board, const Call& call) { reduce_pieces(board, call, call.root()); }

}  // namespace tccl
