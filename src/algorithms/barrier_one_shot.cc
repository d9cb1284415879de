// One-shot barrier on one host: every rank posts one step and awaits that step of all ranks.
#include "algorithms/registry.h"

namespace tccl {

void barrier_one_shot(Board& board, const CollectiveTask& /*task*/, Phases phases) {
  if (phases.contribute) {
    board.open_step();
    board.post();
  }
  if (!phases.complete) return;
  for (int peer = 0; peer < board.size(); ++peer)
    if (peer != board.local_rank()) board.await(peer, 0);
}

}  // namespace tccl
