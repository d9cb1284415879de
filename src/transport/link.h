// Point-to-point link between this rank and one other rank: ordered cells in both directions.
//
// A cell has one of five kinds:
//   eager    a whole small message
//   rts      request to send: announces a large message
//   cts      clear to send: the receiver's answer, once a receive has matched
//   data     a part of a large message
//   credit   no payload; only returns credit
//
// Eager flow control by credit, which is counted in bytes: an eager message takes credit of its
// sender. The receiver returns the credit when a receive matches the message. A sender without
// enough credit sends an rts instead.
//
// Thread safety: the caller holds the lock of its P2p object.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/function_ref.h"

namespace tccl {

enum class CellKind : std::uint32_t { eager, rts, cts, data, credit };

struct CellHeader {
  CellKind kind;
  std::uint32_t payload_bytes;
  std::uint64_t tag;
  std::uint64_t message_id;     // of rts, cts and data; assigned by the sender of the message
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
  /// Wakes the peer if it sleeps. Call after one or more post(); take() calls it, too, because the
  /// peer may wait for room.
  virtual void wake_peer() = 0;
  /// Wakes the receiver's progress thread, in case no thread of the receiver polls this link.
  virtual void wake_progress_thread() = 0;

  // --- receiving ---
  using Take = FunctionRef<void(const CellHeader& header, const std::byte* payload)>;
  /// Calls `each` for every arrived cell, in order. Returns false if there was none.
  virtual bool take(Take each) = 0;
  /// Of a rank that has departed: whether all its cells have been taken.
  [[nodiscard]] virtual bool is_drained() const = 0;

  // --- eager flow control ---
  /// A receive has matched an eager message that took this much credit.
  virtual void return_credit(std::uint64_t bytes) = 0;
  /// The credit that the peer has returned so far, in all, as far as known here.
  [[nodiscard]] virtual std::uint64_t returned_credit() const = 0;
};

}  // namespace tccl
