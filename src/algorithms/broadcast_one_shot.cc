// The root posts piece after piece; the others copy them out. The root does not wait for anyone
// until its slots are used up, unless they read from its tensor.
#include "algorithms/patterns.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {

void broadcast_one_shot(Board& board, const CollectiveTask& task) {
  const bool is_root = board.rank() == task.root();
  const std::size_t per_step = piece_size(task.bytes(), board.chunk_bytes());
  const std::uint32_t steps = steps_for(task.bytes(), per_step);
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Range piece = tccl::piece(task.bytes(), per_step, step);
    const Board::Slot slot = board.open_step();
    if (is_root) publish(board, task, slot, task.in() + piece.begin, piece.count);
    board.post();
    if (!is_root)
      task.copy_out(task.out() + piece.begin, published(board, task.root(), step, piece.count),
                    piece.count, task.bytes());
  }
}

}  // namespace tccl
