// How a rank makes a chunk of its input readable for its peers, in one of three places:
//   - inline, in the step's header, up to Board::kInlineBytes;
//   - in place, if the input is in memory that peers map (zero copy): its offset is inline;
//   - in the slot, as a copy.
// publish() chooses; published() finds it on the reader's side.
// Thread safety: one operation, on one thread.
#pragma once

#include <cstring>
#include <span>

#include "algorithms/task.h"
#include "operation/buffers.h"
#include "transport/board.h"

namespace tccl {

/// Smaller chunks are copied: reading in place makes the publisher wait for its readers.
inline constexpr std::size_t kZeroCopyBytes = std::size_t{16} << 10;

/// Writes the offset of `memory` into the inline data of an open step if peers can read it in
/// place, or 0 if they cannot: then the caller copies the input into the slot. Returns whether they
/// can.
inline bool publish_address(Board& board, const Board::Slot& slot,
                            std::span<const std::byte> memory, int reader = Board::kEveryone) {
  const bool is_large = memory.size() >= kZeroCopyBytes;
  const Board::Offset offset =
      is_large ? board.publish_in_place(memory.data(), memory.size(), reader) : 0;
  std::memcpy(slot.inline_data, &offset, sizeof offset);
  return offset != 0;
}

/// The memory that a peer published by publish_address(), or null if it is in the slot.
inline const std::byte* published_address(Board& board, int peer, const Board::PeerSlot& slot) {
  Board::Offset offset;
  std::memcpy(&offset, slot.inline_data, sizeof offset);
  return offset == 0 ? nullptr : board.read_in_place(peer, offset);
}

/// Publishes a chunk of input to `reader` in an open step. `unmodified`: the memory does not change
/// before the operation ends, so it may be read in place.
inline void publish(Board& board, const CollectiveTask& task, const Board::Slot& slot,
                    const std::byte* data, std::size_t bytes, int reader = Board::kEveryone,
                    bool unmodified = true) {
  const std::span<const std::byte> memory(data, unmodified ? bytes : 0);
  if (bytes > Board::kInlineBytes && publish_address(board, slot, memory, reader)) return;
  task.copy(slot.input_of(bytes), data, bytes);
}

/// Waits for a peer's step and returns the chunk that it published.
inline const std::byte* published(Board& board, int peer, std::uint32_t step, std::size_t bytes) {
  const Board::PeerSlot slot = board.await(peer, step);
  if (bytes <= Board::kInlineBytes) return slot.inline_data;
  const std::byte* in_place = published_address(board, peer, slot);
  return in_place != nullptr ? in_place : slot.input;
}

}  // namespace tccl
