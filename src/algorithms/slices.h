// The slices of a pipelined reduction: their offsets and sizes, and the copy-in stage that
// allreduce and reduce share. partition.h defines chunk, slice and share.
//
//   const Slices slices(count, element_bytes, chunk_elements, slices_per_chunk);
//   const Slice slice = slices.at(chunk, rank);   // slice.chunk_offset: offset in the slot
//                                                 // slice.message_offset: offset in the tensor
// Thread safety: Slices is a value; the rest: one operation, on one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "algorithms/partition.h"
#include "algorithms/task.h"

namespace tccl {

/// All in bytes.
struct Slice {
  std::size_t message_offset;  // offset in the whole message
  std::size_t chunk_offset;    // offset in its chunk, and so in a slot
  std::size_t bytes;
  friend constexpr bool operator==(const Slice&, const Slice&) = default;
};

/// A message of `count` elements in chunks of `chunk_elements`, each in `per_chunk` slices.
class Slices {
 public:
  constexpr Slices(std::size_t count, std::size_t element_bytes, std::size_t chunk_elements,
                   std::size_t per_chunk)
      : count_(count),
        element_bytes_(element_bytes),
        chunk_elements_(chunk_elements),
        per_chunk_(per_chunk) {}

  [[nodiscard]] constexpr std::uint32_t chunks() const {
    return static_cast<std::uint32_t>(chunk_count(count_, chunk_elements_));
  }
  [[nodiscard]] constexpr std::size_t per_chunk() const { return per_chunk_; }

  [[nodiscard]] constexpr Slice at(std::uint32_t chunk, std::size_t index) const {
    const Range whole = chunk_range(count_, chunk_elements_, chunk);
    const Range slice = part(whole.count, per_chunk_, index);
    return {(whole.begin + slice.begin) * element_bytes_, slice.begin * element_bytes_,
            slice.count * element_bytes_};
  }
  /// A host's share of a slice: bytes from the start of the slice.
  [[nodiscard]] constexpr Range share(const Slice& slice, std::size_t hosts,
                                      std::size_t host) const {
    const Range elements = part(slice.bytes / element_bytes_, hosts, host);
    return {elements.begin * element_bytes_, elements.count * element_bytes_};
  }

 private:
  std::size_t count_;
  std::size_t element_bytes_;
  std::size_t chunk_elements_;
  std::size_t per_chunk_;
};
// 10 elements of 4 bytes, chunks of 4 elements, 3 slices per chunk.
static_assert(Slices(10, 4, 4, 3).chunks() == 3);
static_assert(Slices(10, 4, 4, 3).at(0, 0) == Slice{0, 0, 8});
static_assert(Slices(10, 4, 4, 3).at(1, 2) == Slice{28, 12, 4});
static_assert(Slices(10, 4, 4, 3).at(2, 2) == Slice{40, 8, 0});
static_assert(Slices(10, 4, 4, 3).share(Slice{0, 0, 8}, 2, 1) == Range{4, 4});

/// Copies the slices of one chunk that other ranks reduce into the slot. Slice `own` stays in this
/// rank's input, where this rank reads it.
inline void copy_in(const CollectiveTask& task, const Slices& slices, std::uint32_t chunk,
                    std::size_t own, std::byte* slot) {
  for (std::size_t index = 0; index < slices.per_chunk(); ++index) {
    if (index == own) continue;
    const Slice slice = slices.at(chunk, index);
    task.copy(slot + slice.chunk_offset, task.in() + slice.message_offset, slice.bytes);
  }
}

/// The part of every rank's block that one step of a reduce-scatter carries: chunks of the blocks,
/// side by side in the slot. Blocks may differ in size.
class BlockChunks {
 public:
  /// `ranks`: of the group. The slot has room for one chunk of `chunk_bytes` per rank.
  BlockChunks(const CollectiveTask& task, int ranks, std::size_t chunk_bytes)
      : task_(task), ranks_(ranks), chunk_bytes_(chunk_bytes) {}

  [[nodiscard]] std::size_t chunk_bytes() const { return chunk_bytes_; }
  [[nodiscard]] std::size_t bytes_per_step() const {
    return static_cast<std::size_t>(ranks_) * chunk_bytes_;
  }
  /// Bytes of the block for `rank` that belong to a step.
  [[nodiscard]] Range range(int rank, std::uint32_t step) const {
    return chunk_range(task_.input_for(rank).size(), chunk_bytes_, step);
  }
  /// Where the chunk for `rank` starts in a slot.
  [[nodiscard]] std::size_t slot_offset(int rank) const {
    return static_cast<std::size_t>(rank) * chunk_bytes_;
  }
  /// Where it starts in this rank's input.
  [[nodiscard]] const std::byte* input(int rank, std::uint32_t step) const {
    return task_.input_for(rank).data() + range(rank, step).begin;
  }
  static constexpr int kNoRank = -1;
  /// Copies the chunks of all ranks except `own` into the slot.
  void copy_in(std::byte* slot, std::uint32_t step, int own = kNoRank) const {
    for (int rank = 0; rank < ranks_; ++rank)
      if (rank != own)
        task_.copy(slot + slot_offset(rank), input(rank, step), range(rank, step).count);
  }

 private:
  const CollectiveTask& task_;
  int ranks_;
  std::size_t chunk_bytes_;
};

/// Bytes of one rank's chunk in a step of a reduce-scatter over `ranks` blocks of up to
/// `block_bytes` (at least one element), if `step_bytes` fit a step. At least one element: see
/// Board::area_bytes().
inline std::size_t block_chunk_size(const CollectiveTask& task, std::size_t ranks,
                                    std::size_t block_bytes, std::size_t step_bytes) {
  const std::size_t elements =
      chunk_size(block_bytes * ranks, step_bytes) / ranks / task.element_bytes();
  return std::min(block_bytes, std::max<std::size_t>(1, elements) * task.element_bytes());
}

}  // namespace tccl
