// Each step carries one piece of every rank's block; a rank reduces the pieces meant for it.
// Blocks may differ in size.
#include "algorithms/patterns.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// Of one rank's piece. At least one element for every rank fits: see Board::area_bytes.
std::size_t piece_bytes(const Board& board, const CollectiveTask& task, std::size_t longest) {
  const auto ranks = static_cast<std::size_t>(board.size());
  const std::size_t elements =
      piece_size(longest * ranks, board.chunk_bytes()) / ranks / task.element_bytes();
  return std::min(longest, std::max<std::size_t>(1, elements) * task.element_bytes());
}

void copy_in(const Board& board, const CollectiveTask& task, std::byte* slot, std::size_t per_rank,
             std::uint32_t step) {
  for (int rank = 0; rank < board.size(); ++rank) {
    if (rank == board.rank()) continue;
    const auto block = task.input_for(rank);
    const Range piece = tccl::piece(block.size(), per_rank, step);
    task.copy(slot + static_cast<std::size_t>(rank) * per_rank, block.data() + piece.begin,
              piece.count);
  }
}

/// The input, if it is one tensor (a list would need a place for each block) that the result does
/// not overwrite, but for the block that only this rank reads; else nothing.
std::span<const std::byte> stable_input(const Board& board, const CollectiveTask& task) {
  if (!task.operation().in_blocks.empty()) return {};
  const std::span all(task.in(), task.bytes() * static_cast<std::size_t>(board.size()));
  const bool kept = task.out() == task.input_for(board.rank()).data() ||
                    disjoint({task.out(), task.bytes()}, all);
  return kept ? all : std::span<const std::byte>();
}

}  // namespace

void reduce_scatter_one_shot(Board& board, const CollectiveTask& task) {
  const int self = board.rank();
  const std::size_t longest = std::max(task.element_bytes(), task.longest_input());
  const std::size_t per_rank = piece_bytes(board, task, longest);
  const std::size_t step_bytes = per_rank * static_cast<std::size_t>(board.size());
  const bool in_line = step_bytes <= Board::kLineBytes;
  const std::span<const std::byte> stable = stable_input(board, task);

  Sources sources(board.size());
  const std::uint32_t steps = steps_for(longest, per_rank);
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Board::Slot slot = board.open_step();
    if (in_line || !publish_address(board, slot, stable))
      copy_in(board, task, slot.input_of(step_bytes), per_rank, step);
    board.post();
    const auto own = task.input_for(self);
    const Range piece = tccl::piece(own.size(), per_rank, step);
    for (int rank = 0; rank < board.size(); ++rank) {
      if (rank == self) {
        sources[rank] = own.data() + piece.begin;
        continue;
      }
      const Board::PeerSlot theirs = board.await(rank, step);
      const std::byte* remote = in_line ? nullptr : published_address(board, rank, theirs);
      const std::size_t index = static_cast<std::size_t>(self);
      sources[rank] = remote != nullptr ? remote + own.size() * index + piece.begin
                                        : theirs.input_of(step_bytes) + per_rank * index;
    }
    task.reduce(board, task.out() + piece.begin, sources, piece.count);
  }
}

}  // namespace tccl
