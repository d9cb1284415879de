// How point-to-point traffic gets from this rank to one other rank and back: cells, in order.
//
// A cell is either a whole small message, the announcement of a large one, the grant of one
// announced the other way, a piece of a granted one, or nothing but what every cell carries.
// Used under the lock of its engine.
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
  std::uint64_t message;        // number given by the message's sender
  std::uint64_t message_bytes;  // of the whole message
};

class Link {
 public:
  virtual ~Link() = default;
  /// The longest payload.
  [[nodiscard]] virtual std::size_t cell_bytes() const noexcept = 0;

  // --- towards the rank ---
  [[nodiscard]] virtual bool has_room() = 0;
  /// Only if there is room.
  virtual void post(const CellHeader& header, const void* payload) = 0;
  /// After one or more posts.
  virtual void wake_receiver() = 0;
  /// The receiver may be busy elsewhere, with no receive that would make it look.
  virtual void wake_progress_thread() = 0;

  // --- from the rank ---
  using Take = FunctionRef<void(const CellHeader& header, const std::byte* payload)>;
  /// Hands over what has come. False if nothing has.
  virtual bool take(Take each) = 0;
  /// False while cells of a rank that has left are still on their way.
  [[nodiscard]] virtual bool is_drained() const = 0;

  // --- messages that were sent before a receive asked for them ---
  virtual void claim_eager(std::uint64_t bytes) = 0;
  /// How much of what this rank has sent was claimed.
  [[nodiscard]] virtual std::uint64_t eager_claimed() const = 0;
};

}  // namespace tccl
