// A validated collective operation as an algorithm sees it: bytes per rank, and copies and
// reductions that use the worker threads.
// Thread safety: one operation, on one thread.
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

/// Smallest part per thread. Two threads copy 256 KiB in 4.4 us, one thread in 7.2; with 128 KiB a
/// second thread gains nothing. (A sleeping worker pays from 2 MiB: see WorkerPool::parallel_for.)
inline constexpr std::size_t kMinBytesPerThread = std::size_t{128} << 10;

/// One input pointer per rank. Up to 16 ranks it does not allocate.
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

  /// The whole input and output, in operations whose buffers have the same size on all ranks.
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

  /// The longest block of all ranks, in bytes.
  [[nodiscard]] std::size_t longest_input() const { return longest(operation_.in_blocks); }
  [[nodiscard]] std::size_t longest_output() const { return longest(operation_.out_blocks); }

  /// What this rank writes to its slot in all, in bytes; the same on all ranks.
  [[nodiscard]] std::size_t published_bytes(int ranks) const {
    const Op op = operation_.op;
    if (op == Op::allgather || op == Op::allgatherv) return longest_output();
    const bool per_rank = op == Op::reduce_scatter || op == Op::reduce_scatterv;
    return per_rank ? longest_input() * static_cast<std::size_t>(ranks) : bytes();
  }

  /// memcpy by several threads, at least kMinBytesPerThread each. `to` may be `from`.
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const;
  /// The same into an output of `total_bytes`: non-temporal stores if that is large.
  void copy_out(std::byte* to, const std::byte* from, std::size_t bytes,
                std::size_t total_bytes) const;

  /// Reduces `bytes` of one source per rank, in rank order, by several threads like copy().
  /// `second_destination`, if not null, receives the same bytes.
  void reduce(const Board& board, std::byte* destination, const Sources& sources, std::size_t bytes,
              std::byte* second_destination = nullptr) const;

  // A reduction over hosts has two stages: over the ranks of each host, then over the hosts.
  /// First stage: one source per rank of the board; `ranks` is the size of the whole group.
  /// The result is a source of the second stage. An average is divided here, because the undivided
  /// sum may overflow a 16-bit float.
  void reduce_local(const Board& board, int ranks, std::byte* destination, const Sources& sources,
                    std::size_t bytes) const;
  /// Second stage: one source per host.
  void reduce_hosts(std::byte* destination, const Sources& sources, std::size_t bytes) const;

  [[nodiscard]] WorkerPool& workers() const { return workers_; }

 private:
  void reduce_with(ReduceOp op, std::span<const double> factors, std::size_t divisor,
                   std::byte* destination, const Sources& sources, std::size_t bytes,
                   std::byte* second_destination) const;
  [[nodiscard]] std::vector<double> factors_of(const Board& board) const;
  void copy_with(void (*copy)(void*, const void*, std::size_t), std::byte* to,
                 const std::byte* from, std::size_t bytes) const;
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
