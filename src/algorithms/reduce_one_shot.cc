// Everyone posts its data piece by piece; whoever needs the result (all ranks, or the root) reduces
// all pieces in rank order. One meeting per piece, P times the arithmetic: for small messages, and
// for all sizes if there are two ranks, where each reads no more than it would in any other way.
#include "algorithms/allreduce_zero_copy.h"
#include "algorithms/patterns.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// `reader`, or everyone, gets the result.
void reduce_pieces(Board& board, const CollectiveTask& task, int reader) {
  const bool needs_result = reader == Board::kEveryone || reader == board.rank();
  const bool keeps_input = !needs_result || task.in() != task.out();
  const std::size_t per_step =
      piece_size(task.bytes(), board.chunk_bytes()) / task.element_bytes() * task.element_bytes();
  const std::uint32_t steps = steps_for(task.bytes(), per_step);
  Sources sources(board.size());
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Range piece = tccl::piece(task.bytes(), per_step, step);
    const std::byte* own = task.in() + piece.begin;
    const Board::Slot slot = board.open_step();
    if (reader != board.rank()) publish(board, task, slot, own, piece.count, reader, keeps_input);
    board.post();
    if (!needs_result) continue;
    for (int rank = 0; rank < board.size(); ++rank)
      sources[rank] = rank == board.rank() ? own : published(board, rank, step, piece.count);
    task.reduce(board, task.out() + piece.begin, sources, piece.count);
  }
}

}  // namespace

void allreduce_one_shot(Board& board, const CollectiveTask& task) {
  if (!allreduce_zero_copy(board, task)) reduce_pieces(board, task, Board::kEveryone);
}

void reduce_one_shot(Board& board, const CollectiveTask& task) {
  reduce_pieces(board, task, task.root());
}

}  // namespace tccl
