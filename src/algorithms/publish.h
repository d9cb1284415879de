// How input comes before other ranks: in the line of its step if it is small, where it lies if they
// can reach it there, else in the slot.
#pragma once

#include <cstring>
#include <functional>
#include <span>

#include "algorithms/call.h"
#include "transport/board.h"

namespace tccl {

/// A smaller piece is copied sooner than lent: a lender has to wait until all have read.
inline constexpr std::size_t kLendBytes = std::size_t{16} << 10;

inline bool disjoint(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less_equal<> before;  // also for unrelated pointers
  return before(a.data() + a.size(), b.data()) || before(b.data() + b.size(), a.data());
}

/// Says in the line of an open step where the input of this rank is: at `memory`, if it can be
/// reached there, or in the slot.
inline bool lend(Board& board, const Board::Slot& slot, std::span<const std::byte> memory,
                 int reader = Board::kEveryone) {
  const bool large = memory.size() >= kLendBytes;
  const Board::Place place = large ? board.lend(memory.data(), memory.size(), reader) : 0;
  std::memcpy(slot.line, &place, sizeof place);
  return place != 0;
}

/// What lend() gave on the other side, or null.
inline const std::byte* borrow(Board& board, int peer, const Board::PeerSlot& slot) {
  Board::Place place;
  std::memcpy(&place, slot.line, sizeof place);
  return place == 0 ? nullptr : board.borrow(peer, place);
}

/// Puts a piece of input before `reader`, in an open step. `lendable`: it stays what it is until
/// the operation ends.
inline void publish(Board& board, const Call& call, const Board::Slot& slot, const std::byte* data,
                    std::size_t bytes, int reader = Board::kEveryone, bool lendable = true) {
  const std::span<const std::byte> memory(data, lendable ? bytes : 0);
  if (bytes > Board::kLineBytes && lend(board, slot, memory, reader)) return;
  call.copy(slot.input_of(bytes), data, bytes);
}

/// A piece of input that a peer has published.
inline const std::byte* published(Board& board, int peer, std::uint32_t step, std::size_t bytes) {
  const Board::PeerSlot slot = board.await(peer, step);
  if (bytes <= Board::kLineBytes) return slot.line;
  const std::byte* lent = borrow(board, peer, slot);
  return lent != nullptr ? lent : slot.input;
}

}  // namespace tccl
