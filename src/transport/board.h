// How an algorithm sees its group: a board on which each rank posts steps for all to read.
//
// A collective is a sequence of steps, the same number on every rank. In each step a rank opens its
// slot, writes what others need, and posts it; then it may await any peer's same step and read that
// peer's slot. The rules that make slots safe to reuse:
//   - every rank opens and posts every step, also when it has nothing to write;
//   - a rank awaits only steps that it has posted itself;
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
  /// What is this small travels in the cache line of the flag that says it is there.
  static constexpr std::size_t kLineBytes = 48;

  /// Each slot has two areas, because a pipelined step publishes new input and an earlier result.
  template <class Byte>
  struct BasicSlot {
    Byte* line;
    Byte* input;
    Byte* result;
    /// Where an input of this size lies. Whoever writes and whoever reads must say the same size.
    [[nodiscard]] Byte* input_of(std::size_t bytes) const {
      return bytes <= kLineBytes ? line : input;
    }
  };
  using Slot = BasicSlot<std::byte>;
  using PeerSlot = BasicSlot<const std::byte>;

  virtual ~Board() = default;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  /// Bytes of one area: at least CCL_CHUNK_BYTES and one largest element per rank.
  [[nodiscard]] virtual std::size_t area_bytes() const noexcept = 0;
  [[nodiscard]] virtual std::size_t chunk_bytes() const noexcept = 0;

  /// Where a rank's memory lies, as all ranks know it; 0 for memory that they cannot reach.
  using Offset = std::uint64_t;
  static constexpr int kEveryone = -1;

  virtual Slot open_step() = 0;
  virtual void post() = 0;
  virtual PeerSlot await(int peer, std::uint32_t step) = 0;

  /// The next step is number 0 for await(). All ranks call it at the same step.
  virtual void count_from_here() = 0;

  // --- memory that peers can reach (Context::allocate) ---
  [[nodiscard]] virtual Offset offset_of(const void* memory, std::size_t bytes) const = 0;
  /// A peer's memory at a offset that it named in this operation.
  [[nodiscard]] virtual std::byte* at(int peer, Offset offset) const = 0;
  /// Lets `reader` read this memory in offset instead of a slot, if it can be reached. Everyone to
  /// whom it was remote must read_in_place it in the same operation, which ends here when they have
  /// ended it.
  virtual Offset publish_in_place(const void* memory, std::size_t bytes, int reader) = 0;
  virtual const std::byte* read_in_place(int peer, Offset offset) = 0;
  /// From the next post() to the end of the operation, peers may write there; if it fails, what
  /// they still write is lost.
  virtual void open_window(std::byte* memory, std::size_t bytes) = 0;
  virtual void close_window() = 0;
  /// Throws if the group has failed: what peers have may no longer be what it was.
  virtual void check_alive() const = 0;

  /// What messages to people call a rank of the board: its number in the whole group, which may
  /// have ranks on other hosts.
  [[nodiscard]] virtual int global_rank(int rank) const = 0;
  /// For messages: "allreduce #812 of group tp".
  [[nodiscard]] virtual std::string operation() const = 0;

  /// The premul_sum factor of a rank whose step has been awaited, or of this rank.
  [[nodiscard]] virtual double factor(int rank) const = 0;
};

}  // namespace tccl
