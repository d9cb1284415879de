// Each step carries one piece of every rank's block; a rank reduces the pieces meant for it.
// Blocks may differ in size.
#include "algorithms/patterns.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// Of one rank's piece. At least one element for every rank fits: see Board::area_bytes.
std::size_t piece_bytes(const Board& board, const Call& call, std::size_t longest) {
  const auto ranks = static_cast<std::size_t>(board.size());
  const std::size_t elements =
      piece_size(longest * ranks, board.chunk_bytes()) / ranks / call.element_bytes();
  return std::min(longest, std::max<std::size_t>(1, elements) * call.element_bytes());
}

void copy_in(const Board& board, const Call& call, std::byte* slot, std::size_t per_rank,
             std::uint32_t step) {
  for (int rank = 0; rank < board.size(); ++rank) {
    if (rank == board.rank()) continue;
    const auto block = call.input_for(rank);
    const Range piece = tccl::piece(block.size(), per_rank, step);
    call.copy(slot + static_cast<std::size_t>(rank) * per_rank, block.data() + piece.begin,
              piece.count);
  }
}

/// The input, if it is one tensor (a list would need a place for each block) that the result does
/// not overwrite, but for the block that only this rank reads; else nothing.
std::span<const std::byte> lendable(const Board& board, const Call& call) {
  if (!call.operation().in_blocks.empty()) return {};
  const std::span all(call.in(), call.bytes() * static_cast<std::size_t>(board.size()));
  const bool kept = call.out() == call.input_for(board.rank()).data() ||
                    disjoint({call.out(), call.bytes()}, all);
  return kept ? all : std::span<const std::byte>();
}

}  // namespace

void reduce_scatter_direct(Board& board, const Call& call) {
  const int self = board.rank();
  const std::size_t longest = std::max(call.element_bytes(), call.longest_input());
  const std::size_t per_rank = piece_bytes(board, call, longest);
  const std::size_t step_bytes = per_rank * static_cast<std::size_t>(board.size());
  const bool in_line = step_bytes <= Board::kLineBytes;
  const std::span<const std::byte> lendable_input = lendable(board, call);

  Sources sources(board.size());
  const std::uint32_t steps = steps_for(longest, per_rank);
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Board::Slot slot = board.open_step();
    if (in_line || !lend(board, slot, lendable_input))
      copy_in(board, call, slot.input_of(step_bytes), per_rank, step);
    board.post();
    const auto own = call.input_for(self);
    const Range piece = tccl::piece(own.size(), per_rank, step);
    for (int rank = 0; rank < board.size(); ++rank) {
      if (rank == self) {
        sources[rank] = own.data() + piece.begin;
        continue;
      }
      const Board::PeerSlot theirs = board.await(rank, step);
      const std::byte* lender = in_line ? nullptr : borrow(board, rank, theirs);
      const std::size_t index = static_cast<std::size_t>(self);
      sources[rank] = lender != nullptr ? lender + own.size() * index + piece.begin
                                        : theirs.input_of(step_bytes) + per_rank * index;
    }
    call.reduce(board, call.out() + piece.begin, sources, piece.count);
  }
}

}  // namespace tccl
