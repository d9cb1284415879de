#include "algorithms/task.h"

#include <array>

#include "kernels/copy.h"

namespace tccl {
namespace {

/// With more ranks on a host, no cores are left for worker threads.
constexpr std::size_t kMaxSourcesInParallel = 64;

/// Outputs of this size do not stay in the caches: non-temporal stores are 10 % faster at 64 MiB,
/// but slower at 4 MiB.
constexpr std::size_t kNontemporalBytes = std::size_t{32} << 20;

}  // namespace

void CollectiveTask::copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
  copy_with(kernels::copy, to, from, bytes);
}

void CollectiveTask::copy_out(std::byte* to, const std::byte* from, std::size_t bytes,
                              std::size_t total_bytes) const {
  copy_with(total_bytes < kNontemporalBytes ? kernels::copy : kernels::copy_nontemporal, to, from,
            bytes);
}

void CollectiveTask::copy_with(void (*copy)(void*, const void*, std::size_t), std::byte* to,
                               const std::byte* from, std::size_t bytes) const {
  if (to == from) return;
  const auto copy_part = [=](std::size_t begin, std::size_t count) {
    copy(to + begin, from + begin, count);
  };
  workers_.parallel_for(bytes, kMinBytesPerThread, copy_part, this->bytes());
}

std::vector<double> CollectiveTask::factors_of(const Board& board) const {
  std::vector<double> factors;
  if (operation_.reduction.op == ReduceOp::premul_sum)
    for (int rank = 0; rank < board.size(); ++rank) factors.push_back(board.factor(rank));
  return factors;
}

void CollectiveTask::reduce(const Board& board, std::byte* destination, const Sources& sources,
                            std::size_t bytes, std::byte* second_destination) const {
  reduce_with(operation_.reduction.op, factors_of(board), 0, destination, sources, bytes,
              second_destination);
}

void CollectiveTask::reduce_local(const Board& board, int ranks, std::byte* destination,
                                  const Sources& sources, std::size_t bytes) const {
  reduce_with(operation_.reduction.op, factors_of(board), static_cast<std::size_t>(ranks),
              destination, sources, bytes, nullptr);
}

void CollectiveTask::reduce_hosts(std::byte* destination, const Sources& sources,
                                  std::size_t bytes) const {
  const ReduceOp op = operation_.reduction.op;
  // The first stage has applied the factors and the divisor.
  const bool is_sum = op == ReduceOp::premul_sum || op == ReduceOp::avg;
  reduce_with(is_sum ? ReduceOp::sum : op, {}, 0, destination, sources, bytes, nullptr);
}

void CollectiveTask::reduce_with(ReduceOp op, std::span<const double> factors, std::size_t divisor,
                                 std::byte* destination, const Sources& all, std::size_t bytes,
                                 std::byte* second_destination) const {
  if (bytes == 0) return;
  const std::span<const void* const> sources = all.all();
  const auto reduce = [&](std::size_t begin, std::span<const void* const> from, std::size_t count) {
    kernels::reduce(destination + begin, from, count, operation_.dtype, op, factors,
                    second_destination ? second_destination + begin : nullptr, divisor);
  };
  if (bytes < 2 * kMinBytesPerThread || sources.size() > kMaxSourcesInParallel)
    return reduce(0, sources, bytes / element_bytes_);
  const auto reduce_part = [&](std::size_t begin, std::size_t count) {
    std::array<const void*, kMaxSourcesInParallel> from;
    for (std::size_t i = 0; i < sources.size(); ++i)
      from[i] = static_cast<const std::byte*>(sources[i]) + begin * element_bytes_;
    reduce(begin * element_bytes_, {from.data(), sources.size()}, count);
  };
  workers_.parallel_for(bytes / element_bytes_, kMinBytesPerThread / element_bytes_, reduce_part,
                        operation_.count);
}

}  // namespace tccl
