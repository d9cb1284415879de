// How an algorithm sees its group: a board on which each rank posts steps for all to read.
//
// A collective is a sequence of steps, the same number on every rank. In each step a rank opens its
// slot, writes what others need, and posts it; then it may await any peer's same step and read that
// peer's slot. The rules that make slots safe to reuse:
//   - every rank opens and posts every step, also when it has nothing to write;
//   - when a rank posts step i it has finished reading all steps up to i - 2.
// The board does the rest: open_step() waits until nobody can still be reading the slot.
//
// One operation at a time, on one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tccl {

class Board {
 public:
  /// Each slot has two areas, because a pipelined step publishes new input and an earlier result.
  struct Slot {
    std::byte* input;
    std::byte* result;
  };
  struct PeerSlot {
    const std::byte* input;
    const std::byte* result;
  };

  virtual ~Board() = default;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  /// Bytes of one area: at least CCL_CHUNK_BYTES and one largest element per rank.
  [[nodiscard]] virtual std::size_t area_bytes() const noexcept = 0;
  [[nodiscard]] virtual std::size_t chunk_bytes() const noexcept = 0;

  virtual Slot open_step() = 0;
  virtual void post() = 0;
  virtual PeerSlot await(int peer, std::uint32_t step) = 0;

  /// For messages: "allreduce #812 of group tp".
  [[nodiscard]] virtual std::string operation() const = 0;

  /// The premul_sum factor of a rank whose step has been awaited, or of this rank.
  [[nodiscard]] virtual double factor(int rank) const = 0;
};

}  // namespace tccl
