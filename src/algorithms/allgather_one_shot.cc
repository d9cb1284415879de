// One-shot all-gather on one host. Blocks may differ in size (allgatherv).
//
// Step i carries chunk i of every rank's block: each rank posts its own chunk and copies the chunks
// of all other ranks out.
#include "algorithms/partition.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// Whether the input stays unchanged until the end: it may overlap this rank's own block of the
/// output, but no other block.
bool leaves_input_unmodified(const Board& board, const CollectiveTask& task) {
  const std::span input(task.in(), task.output_from(board.local_rank()).size());
  for (int rank = 0; rank < board.size(); ++rank)
    if (rank != board.local_rank() && !disjoint(task.output_from(rank), input)) return false;
  return true;
}

}  // namespace

void allgather_one_shot(Board& board, const CollectiveTask& task, Phases phases) {
  const std::size_t longest = task.longest_output();
  const std::size_t chunk_bytes = chunk_size(longest, board.chunk_bytes());
  const std::size_t own_bytes = task.output_from(board.local_rank()).size();
  const bool unmodified = leaves_input_unmodified(board, task);
  const std::size_t total_bytes = longest * static_cast<std::size_t>(board.size());
  const std::uint32_t steps = steps_for(longest, chunk_bytes);
  for (std::uint32_t step = 0; step < steps; ++step) {
    if (phases.contribute) {
      const Range own = chunk_range(own_bytes, chunk_bytes, step);
      publish(board, task, board.open_step(), task.in() + own.begin, own.count, Board::kEveryone,
              unmodified);
      board.post();
    }
    if (!phases.complete) continue;
    for (int peer = 0; peer < board.size(); ++peer) {
      if (peer == board.local_rank()) continue;
      const auto target = task.output_from(peer);
      const Range theirs = chunk_range(target.size(), chunk_bytes, step);
      task.copy_out(target.data() + theirs.begin, published(board, peer, step, theirs.count),
                    theirs.count, total_bytes);
    }
  }
  if (phases.complete)
    task.copy_out(task.output_from(board.local_rank()).data(), task.in(), own_bytes, total_bytes);
}

}  // namespace tccl
