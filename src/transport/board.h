// Board: how an algorithm exchanges data with the ranks of its host. Each rank posts steps that all
// ranks can read.
//
// A collective is a series of steps, the same number on every rank. In each step a rank opens its
// slot, writes data for its peers, and posts the step; then it may await the same step of any peer
// and read that peer's slot. A step of a broadcast from rank 0:
//
//   Board::Slot slot = board.open_step();
//   if (board.local_rank() == 0) std::memcpy(slot.input_of(bytes), data, bytes);
//   board.post();
//   if (board.local_rank() != 0) std::memcpy(data, board.await(0, 0).input_of(bytes), bytes);
//
// The rules that make slots safe to reuse:
//   - every rank opens and posts every step, also when it has nothing to write;
//   - a rank awaits only steps that it has posted itself;
//   - when a rank posts step i it has finished reading all steps up to i - 2.
// open_step() waits until no peer can still be reading the slot.
//
// Thread safety: one operation at a time, on one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tccl {

class Board {
 public:
  /// Payloads up to this size are stored in the cache line of the step's header, next to the
  /// position word.
  static constexpr std::size_t kInlineBytes = 48;

  /// Each slot has two areas, because a step of two_shot publishes new input and an earlier result.
  template <class Byte>
  struct BasicSlot {
    Byte* inline_data;
    Byte* input;
    Byte* result;
    /// Where an input of this size is. The writer and its readers must pass the same size.
    [[nodiscard]] Byte* input_of(std::size_t bytes) const {
      return bytes <= kInlineBytes ? inline_data : input;
    }
  };
  using Slot = BasicSlot<std::byte>;
  using PeerSlot = BasicSlot<const std::byte>;

  virtual ~Board() = default;
  /// Ranks of the board are local ranks: the ranks of this host, numbered from 0.
  [[nodiscard]] virtual int local_rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  /// Bytes of one area: at least CCL_CHUNK_BYTES and one largest element per rank.
  [[nodiscard]] virtual std::size_t area_bytes() const noexcept = 0;
  [[nodiscard]] virtual std::size_t chunk_bytes() const noexcept = 0;

  virtual Slot open_step() = 0;
  virtual void post() = 0;
  /// Waits for a step of `peer`. A step is numbered from 0 in each operation; a global step, which
  /// only transport/shm knows, through all operations of the group.
  virtual PeerSlot await(int peer, std::uint32_t step) = 0;

  /// Makes the next step number 0 for await(). All ranks call it at the same step.
  virtual void reset_step_numbers() = 0;

  // --- zero-copy: memory that peers have mapped (Context::allocate) ---
  /// The offset of memory in its owner's shared memory; 0 for memory that peers have not mapped.
  using Offset = std::uint64_t;
  static constexpr int kEveryone = -1;

  [[nodiscard]] virtual Offset offset_of(const void* memory, std::size_t bytes) const = 0;
  /// A peer's memory at an offset that the peer published in this operation.
  [[nodiscard]] virtual std::byte* at(int peer, Offset offset) const = 0;
  /// Lets `reader` (or kEveryone) read this memory in place instead of a slot. Returns 0 if peers
  /// have not mapped it. Each reader must call read_in_place() in the same operation; the operation
  /// ends on this rank when it has ended on all readers.
  virtual Offset publish_in_place(const void* memory, std::size_t bytes, int reader) = 0;
  virtual const std::byte* read_in_place(int peer, Offset offset) = 0;
  /// Peers write to this memory from the next post() to the end of the operation. If the operation
  /// fails, their later writes are discarded.
  virtual void declare_peer_written(std::byte* memory, std::size_t bytes) = 0;
  virtual void clear_peer_written() = 0;
  /// Throws if the group is marked as failed: then a peer may have changed the memory that it
  /// published. Does not check whether processes are alive.
  virtual void throw_if_any_rank_failed() const = 0;

  /// The rank in the whole group of a rank of this host; for error messages.
  [[nodiscard]] virtual int global_rank(int local_rank) const = 0;
  /// "allreduce #812 of group tp", for error messages.
  [[nodiscard]] virtual std::string operation() const = 0;

  /// The premul_sum factor of this rank, or of a rank whose step has been awaited.
  [[nodiscard]] virtual double factor(int local_rank) const = 0;
};

}  // namespace tccl
