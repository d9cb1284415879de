// One-shot allreduce and reduce on one host: step i carries chunk i of every rank's input. Each
// rank that needs the result (all ranks, or the root) reduces the inputs of all ranks in rank
// order.
//
// One synchronisation per chunk, but P times the arithmetic of two_shot: best for small messages,
// and with two ranks for all sizes, because then no algorithm reads less.
#include "algorithms/allreduce_zero_copy.h"
#include "algorithms/partition.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// `result_rank` is the rank that gets the result, or Board::kEveryone.
void reduce_chunks(Board& board, const CollectiveTask& task, int result_rank, Phases phases) {
  const bool needs_result = result_rank == Board::kEveryone || result_rank == board.local_rank();
  const bool unmodified = !needs_result || task.in() != task.out();
  const std::size_t chunk_bytes =
      chunk_size(task.bytes(), board.chunk_bytes()) / task.element_bytes() * task.element_bytes();
  const std::uint32_t steps = steps_for(task.bytes(), chunk_bytes);
  Sources sources(board.size());
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Range chunk = chunk_range(task.bytes(), chunk_bytes, step);
    const std::byte* own = task.in() + chunk.begin;
    if (phases.contribute) {
      const Board::Slot slot = board.open_step();
      if (result_rank != board.local_rank())
        publish(board, task, slot, own, chunk.count, result_rank, unmodified);
      board.post();
    }
    if (!phases.complete || !needs_result) continue;
    for (int rank = 0; rank < board.size(); ++rank)
      sources[rank] = rank == board.local_rank() ? own : published(board, rank, step, chunk.count);
    task.reduce(board, task.out() + chunk.begin, sources, chunk.count);
  }
}

}  // namespace

void allreduce_one_shot(Board& board, const CollectiveTask& task, Phases phases) {
  if (!allreduce_zero_copy(board, task)) reduce_chunks(board, task, Board::kEveryone, phases);
}

void reduce_one_shot(Board& board, const CollectiveTask& task, Phases phases) {
  reduce_chunks(board, task, task.root(), phases);
}

}  // namespace tccl
