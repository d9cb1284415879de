// One-shot broadcast on one host: step i carries chunk i of the root's input, which all other ranks
// copy out. The root waits for readers only when its slots are used up, or if they read its tensor
// in place.
#include "algorithms/partition.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {

void broadcast_one_shot(Board& board, const CollectiveTask& task, Phases phases) {
  const bool is_root = board.local_rank() == task.root();
  const std::size_t chunk_bytes = chunk_size(task.bytes(), board.chunk_bytes());
  const std::uint32_t steps = steps_for(task.bytes(), chunk_bytes);
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Range chunk = chunk_range(task.bytes(), chunk_bytes, step);
    if (phases.contribute) {
      const Board::Slot slot = board.open_step();
      if (is_root) publish(board, task, slot, task.in() + chunk.begin, chunk.count);
      board.post();
    }
    if (phases.complete && !is_root)
      task.copy_out(task.out() + chunk.begin, published(board, task.root(), step, chunk.count),
                    chunk.count, task.bytes());
  }
}

}  // namespace tccl
