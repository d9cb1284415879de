// One-shot reduce-scatter on one host. Blocks may differ in size (reduce_scatterv).
//
// Step i carries chunk i of every rank's block, side by side in the slot. Each rank posts its input
// for all other ranks and reduces all ranks' inputs for itself, in rank order. If the input is in
// memory that peers can map, they read it there and nothing is copied in.
#include "algorithms/publish.h"
#include "algorithms/registry.h"
#include "algorithms/slices.h"

namespace tccl {
namespace {

/// The whole input, if it may be read in place: one tensor (a list would need one address per
/// block) that the output does not overwrite, except for the block that only this rank reads.
/// Otherwise empty.
std::span<const std::byte> unmodified_input(const Board& board, const CollectiveTask& task) {
  if (!task.operation().in_blocks.empty()) return {};
  const std::span all(task.in(), task.bytes() * static_cast<std::size_t>(board.size()));
  const bool is_unmodified = task.out() == task.input_for(board.local_rank()).data() ||
                             disjoint({task.out(), task.bytes()}, all);
  return is_unmodified ? all : std::span<const std::byte>();
}

}  // namespace

void reduce_scatter_one_shot(Board& board, const CollectiveTask& task, Phases phases) {
  const int self = board.local_rank();
  const std::size_t longest = std::max(task.element_bytes(), task.longest_input());
  const BlockChunks chunks(
      task, board.size(),
      block_chunk_size(task, static_cast<std::size_t>(board.size()), longest, board.chunk_bytes()));
  const std::size_t step_bytes = chunks.bytes_per_step();
  const bool is_inline = step_bytes <= Board::kInlineBytes;
  const std::span<const std::byte> unmodified = unmodified_input(board, task);

  Sources sources(board.size());
  const std::uint32_t steps = steps_for(longest, chunks.chunk_bytes());
  for (std::uint32_t step = 0; step < steps; ++step) {
    if (phases.contribute) {
      const Board::Slot slot = board.open_step();
      if (is_inline || !publish_address(board, slot, unmodified))
        chunks.copy_in(slot.input_of(step_bytes), step, self);
      board.post();
    }
    if (!phases.complete) continue;
    const Range chunk = chunks.range(self, step);
    for (int rank = 0; rank < board.size(); ++rank) {
      if (rank == self) {
        sources[rank] = chunks.input(self, step);
        continue;
      }
      const Board::PeerSlot theirs = board.await(rank, step);
      const std::byte* in_place = is_inline ? nullptr : published_address(board, rank, theirs);
      const std::size_t block_begin = task.input_for(self).size() * static_cast<std::size_t>(self);
      sources[rank] = in_place != nullptr ? in_place + block_begin + chunk.begin
                                          : theirs.input_of(step_bytes) + chunks.slot_offset(self);
    }
    task.reduce(board, task.out() + chunk.begin, sources, chunk.count);
  }
}

}  // namespace tccl
