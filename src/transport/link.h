// Point-to-point link between this rank and one other rank: ordered cells in both directions.
//
// A cell has one of five kinds:
//   eager      a whole small message
//   announce   rendezvous of a large message (request to send)
//   grant      the receiver's answer to an announce (clear to send)
//   data       a part of a granted message
//   nothing    no payload; carries only the claims below
//
// Eager flow control: a receiver claims the bytes of an eager message when a receive matches it; a
// sender limits the bytes that it has sent and that were not claimed.
//
// Thread safety: the caller holds the lock of its P2p object.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/function_ref.h"

namespace tccl {

enum class CellKind : std::uint32_t { eager, announce, grant, data, nothing };

struct CellHeader {
  CellKind kind;
  std::uint32_t payload_bytes;
  std::uint64_t tag;
  std::uint64_t message;        // number of the message, assigned by its sender
  std::uint64_t message_bytes;  // of the whole message
};

class Link {
 public:
  virtual ~Link() = default;
  /// Length limit of a payload.
  [[nodiscard]] virtual std::size_t cell_bytes() const noexcept = 0;

  // --- sending ---
  /// Whether post() may be called now.
  [[nodiscard]] virtual bool has_room() = 0;
  /// Requires has_room().
  virtual void post(const CellHeader& header, const void* payload) = 0;
  /// Wakes a receiver that sleeps. Call after one or more post().
  virtual void wake_receiver() = 0;
  /// Wakes the receiver's progress thread, in case no thread of the receiver polls this link.
  virtual void wake_progress_thread() = 0;

  // --- receiving ---
  using Take = FunctionRef<void(const CellHeader& header, const std::byte* payload)>;
  /// Calls `each` for every arrived cell, in order. Returns false if there was none.
  virtual bool take(Take each) = 0;
  /// Of a rank that has left: whether all its cells have been taken.
  [[nodiscard]] virtual bool is_drained() const = 0;

  // --- eager flow control ---
  /// A receive has matched an eager message of this length.
  virtual void claim_eager(std::uint64_t bytes) = 0;
  /// Bytes of this rank's eager messages that the peer has claimed, as far as known here.
  [[nodiscard]] virtual std::uint64_t eager_claimed() const = 0;
};

}  // namespace tccl
