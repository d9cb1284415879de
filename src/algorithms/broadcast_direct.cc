// The root posts piece after piece; the others copy them out. The root does not wait for anyone
// until its slots are used up, unless they read from its tensor.
#include "algorithms/patterns.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {

void broadcast_direct(Board& board, const Call& call) {
  const bool is_root = board.rank() == call.root();
  const std::size_t per_step = piece_size(call.bytes(), board.chunk_bytes());
  const std::uint32_t steps = steps_for(call.bytes(), per_step);
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Range piece = tccl::piece(call.bytes(), per_step, step);
    const Board::Slot slot = board.open_step();
    if (is_root) publish(board, call, slot, call.in() + piece.begin, piece.count);
    board.post();
    if (!is_root)
      call.copy_out(call.out() + piece.begin, published(board, call.root(), step, piece.count),
                    piece.count, call.bytes());
  }
}

}  // namespace tccl
