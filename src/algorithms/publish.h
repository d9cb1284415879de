// How input comes before other ranks: in the line of its step if it is small, where it lies if they
// can reach it there, else in the slot.
#pragma once

#include <cstring>
#include <functional>
#include <span>

#include "algorithms/task.h"
#include "transport/board.h"

namespace tccl {

/// A smaller piece is copied sooner than remote: a remote has to wait until all have read.
inline constexpr std::size_t kZeroCopyBytes = std::size_t{16} << 10;

inline bool disjoint(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less_equal<> before;  // also for unrelated pointers
  return before(a.data() + a.size(), b.data()) || before(b.data() + b.size(), a.data());
}

/// Says in the line of an open step where the input of this rank is: at `memory`, if it can be
/// reached there, or in the slot.
inline bool publish_address(Board& board, const Board::Slot& slot,
                            std::span<const std::byte> memory, int reader = Board::kEveryone) {
  const bool large = memory.size() >= kZeroCopyBytes;
  const Board::Offset offset =
      large ? board.publish_in_place(memory.data(), memory.size(), reader) : 0;
  std::memcpy(slot.line, &offset, sizeof offset);
  return offset != 0;
}

/// What publish_address() gave on the other side, or null.
inline const std::byte* published_address(Board& board, int peer, const Board::PeerSlot& slot) {
  Board::Offset offset;
  std::memcpy(&offset, slot.line, sizeof offset);
  return offset == 0 ? nullptr : board.read_in_place(peer, offset);
}

/// Puts a piece of input before `reader`, in an open step. `stable`: it stays what it is until
/// the operation ends.
inline void publish(Board& board, const CollectiveTask& task, const Board::Slot& slot,
                    const std::byte* data, std::size_t bytes, int reader = Board::kEveryone,
                    bool stable = true) {
  const std::span<const std::byte> memory(data, stable ? bytes : 0);
  if (bytes > Board::kLineBytes && publish_address(board, slot, memory, reader)) return;
  task.copy(slot.input_of(bytes), data, bytes);
}

/// A piece of input that a peer has published.
inline const std::byte* published(Board& board, int peer, std::uint32_t step, std::size_t bytes) {
  const Board::PeerSlot slot = board.await(peer, step);
  if (bytes <= Board::kLineBytes) return slot.line;
  const std::byte* remote = published_address(board, peer, slot);
  return remote != nullptr ? remote : slot.input;
}

}  // namespace tccl
