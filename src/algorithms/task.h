// A collective as an algorithm sees it: an operation that has been checked, as bytes per rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "base/worker_pool.h"
#include "kernels/reduce.h"
#include "tccl/operation.h"
#include "transport/board.h"

namespace tccl {

/// The least part for a worker. Two threads copy 256 KiB in 4.4 us, one in 7.2; half of that does
/// not pay. (If the worker sleeps it pays from 2 MiB: see WorkerPool::split.)
inline constexpr std::size_t kSplitBytes = std::size_t{128} << 10;

/// One piece of memory per rank. Few ranks need no allocation.
class Sources {
 public:
  explicit Sources(int ranks) : count_(static_cast<std::size_t>(ranks)) {
    if (count_ > kFew) many_.resize(count_);
  }
  const void*& operator[](int rank) { return data()[rank]; }
  [[nodiscard]] std::span<const void* const> all() const {
    return {count_ > kFew ? many_.data() : few_, count_};
  }

 private:
  static constexpr std::size_t kFew = 16;
  const void** data() { return count_ > kFew ? many_.data() : few_; }
  std::size_t count_;
  const void* few_[kFew];
  std::vector<const void*> many_;
};

class CollectiveTask {
 public:
  CollectiveTask(const Operation& operation, WorkerPool& workers)
      : operation_(operation), workers_(workers), element_bytes_(size_of(operation.dtype)) {}

  [[nodiscard]] const Operation& operation() const { return operation_; }
  [[nodiscard]] int root() const { return operation_.root; }
  [[nodiscard]] std::size_t element_bytes() const { return element_bytes_; }
  [[nodiscard]] std::size_t bytes() const { return operation_.count * element_bytes_; }

  /// The whole of a buffer that has the same size on all ranks.
  [[nodiscard]] const std::byte* in() const { return static_cast<const std::byte*>(operation_.in); }
  [[nodiscard]] std::byte* out() const { return static_cast<std::byte*>(operation_.out); }

  /// This rank's data for `rank`, and where data from `rank` goes.
  [[nodiscard]] std::span<const std::byte> input_for(int rank) const {
    if (operation_.in_blocks.empty()) return {in() + offset(rank), bytes()};
    const ConstBlock& block = operation_.in_blocks[static_cast<std::size_t>(rank)];
    return {static_cast<const std::byte*>(block.data), block.count * element_bytes_};
  }
  [[nodiscard]] std::span<std::byte> output_from(int rank) const {
    if (operation_.out_blocks.empty()) return {out() + offset(rank), bytes()};
    const Block& block = operation_.out_blocks[static_cast<std::size_t>(rank)];
    return {static_cast<std::byte*>(block.data), block.count * element_bytes_};
  }

  /// Of the blocks of all ranks, in bytes.
  [[nodiscard]] std::size_t longest_input() const { return longest(operation_.in_blocks); }
  [[nodiscard]] std::size_t longest_output() const { return longest(operation_.out_blocks); }

  /// memcpy with the workers' help, from kSplitBytes per thread. `to` may be `from`.
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const;
  /// The same into a result of `whole` bytes: past the caches if it is large.
  void copy_out(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t whole) const;

  /// Reduces `bytes` bytes of one source per rank, in rank order; with help like copy().
  /// `copy` may be a second destination.
  void reduce(const Board& board, std::byte* destination, const Sources& sources, std::size_t bytes,
              std::byte* copy = nullptr) const;

  // A reduction over hosts has two halves: on each host, then of what the hosts have.
  /// One source per rank of the board; there are `ranks` on all hosts. What it gives is a source of
  /// the other half. Averages are divided here: a sum may not fit into 16 bits.
  void reduce_local(const Board& board, int ranks, std::byte* destination, const Sources& sources,
                    std::size_t bytes) const;
  /// One source per host.
  void reduce_hosts(std::byte* destination, const Sources& sources, std::size_t bytes) const;

  [[nodiscard]] WorkerPool& workers() const { return workers_; }

 private:
  void reduce_by(ReduceOp op, std::span<const double> factors, std::size_t divisor,
                 std::byte* destination, const Sources& sources, std::size_t bytes,
                 std::byte* copy) const;
  [[nodiscard]] std::vector<double> factors_of(const Board& board) const;
  void copy_by(void (*copy)(void*, const void*, std::size_t), std::byte* to, const std::byte* from,
               std::size_t bytes) const;
  template <typename OneBlock>
  [[nodiscard]] std::size_t longest(std::span<const OneBlock> blocks) const {
    if (blocks.empty()) return bytes();
    return std::ranges::max(blocks, {}, &OneBlock::count).count * element_bytes_;
  }
  [[nodiscard]] std::size_t offset(int rank) const {
    return static_cast<std::size_t>(rank) * bytes();
  }

  const Operation& operation_;
  WorkerPool& workers_;
  std::size_t element_bytes_;
};

}  // namespace tccl
