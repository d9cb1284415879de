// Zero-copy allreduce: each rank reduces one slice of the message directly from every rank's input
// and writes it directly into every rank's output. All memory is read once and written once.
//
//   step 0: post the offsets of input and output | await all ranks' offsets | reduce, write
//   step 1: post: this rank's slice is in every output | await all ranks
//
// Input and output may be the same: only the rank that overwrites a slice reads it. If the
// operation fails, Board::declare_peer_written() keeps late ranks from writing into the output. It
// protects whole pages only, so the two ends of the message (one page each) go through the
// slots of step 0, and every rank reduces them itself.
#include "algorithms/allreduce_zero_copy.h"

#include <vector>

#include "algorithms/partition.h"
#include "base/shared_memory.h"
#include "kernels/copy.h"

namespace tccl {
namespace {

/// A step costs some 0.5 us; an allreduce of this size with copies takes 30.
constexpr std::size_t kMinBytes = std::size_t{256} << 10;
constexpr std::size_t kCacheLine = 64;  // a multiple of every element size

/// Posted by each rank in step 0; zeros if one of its buffers is not mapped by its peers.
struct BufferOffsets {
  Board::Offset in;
  Board::Offset out;
};

class ZeroCopyAllreduce {
 public:
  ZeroCopyAllreduce(Board& board, const CollectiveTask& task)
      : board_(board), task_(task), offsets_(static_cast<std::size_t>(board.size())) {}

  /// Depends on sizes and settings only, so all ranks agree.
  static bool is_possible(const Board& board, const CollectiveTask& task) {
    return board.size() > 1 && task.bytes() >= std::max(kMinBytes, 4 * page_bytes()) &&
           board.area_bytes() >= 2 * page_bytes();
  }

  /// Step 0. Returns whether all ranks' buffers are mapped.
  bool exchange_offsets() {
    const Board::Slot slot = board_.open_step();
    BufferOffsets own{board_.offset_of(task_.in(), task_.bytes()),
                      board_.offset_of(task_.out(), task_.bytes())};
    if (own.in == 0 || own.out == 0) own = {};
    std::memcpy(slot.inline_data, &own, sizeof own);
    if (own.in != 0) {
      kernels::copy(slot.input, task_.in(), end_bytes_);
      kernels::copy(slot.input + end_bytes_, task_.in() + tail_begin(), end_bytes_);
      board_.declare_peer_written(task_.out(), task_.bytes());
    }
    board_.post();
    offsets_[index(board_.local_rank())] = own;
    for (int rank = 0; rank < board_.size(); ++rank)
      if (rank != board_.local_rank())
        std::memcpy(&offsets_[index(rank)], board_.await(rank, 0).inline_data, sizeof own);
    const bool all =
        std::ranges::all_of(offsets_, [](const BufferOffsets& each) { return each.in != 0; });
    if (!all) board_.clear_peer_written();
    return all;
  }

  void run() {
    reduce_end(0, 0);
    reduce_end(tail_begin(), end_bytes_);
    const Range slice = own_slice();
    const std::size_t chunk = std::max(kCacheLine, board_.chunk_bytes() / kCacheLine * kCacheLine);
    for (std::size_t done = 0; done < slice.count; done += chunk) {
      board_.throw_if_any_rank_failed();  // after a failure, write at most one more chunk
      reduce_chunk(slice.begin + done, std::min(chunk, slice.count - done));
    }
    board_.open_step();
    board_.post();
    for (int rank = 0; rank < board_.size(); ++rank)
      if (rank != board_.local_rank()) board_.await(rank, 1);
    // After a failure elsewhere, a rank's input may have changed before this rank read it.
    board_.throw_if_any_rank_failed();
  }

 private:
  [[nodiscard]] std::size_t tail_begin() const { return task_.bytes() - end_bytes_; }

  [[nodiscard]] Range own_slice() const {
    const std::size_t middle = tail_begin() - end_bytes_;
    const Range lines =
        part(chunk_count(middle, kCacheLine), static_cast<std::size_t>(board_.size()),
             static_cast<std::size_t>(board_.local_rank()));
    const Range bytes = chunk_range(middle, kCacheLine, lines.begin);
    return {end_bytes_ + bytes.begin, std::min(lines.count * kCacheLine, middle - bytes.begin)};
  }

  /// `begin`: offset of the end in the message; `slot_offset`: in the slots of step 0.
  void reduce_end(std::size_t begin, std::size_t slot_offset) {
    Sources ends(board_.size());
    for (int rank = 0; rank < board_.size(); ++rank)
      ends[rank] = rank == board_.local_rank() ? task_.in() + begin
                                               : board_.await(rank, 0).input + slot_offset;
    task_.reduce(board_, task_.out() + begin, ends, end_bytes_);
  }

  void reduce_chunk(std::size_t begin, std::size_t bytes) {
    Sources sources(board_.size());
    for (int rank = 0; rank < board_.size(); ++rank) sources[rank] = in(rank) + begin;
    const int next = (board_.local_rank() + 1) % board_.size();
    task_.reduce(board_, task_.out() + begin, sources, bytes, out(next) + begin);
    for (int rank = 0; rank < board_.size(); ++rank)
      if (rank != board_.local_rank() && rank != next)
        task_.copy(out(rank) + begin, task_.out() + begin, bytes);
  }

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] const std::byte* in(int rank) const {
    return board_.at(rank, offsets_[index(rank)].in);
  }
  [[nodiscard]] std::byte* out(int rank) const {
    return board_.at(rank, offsets_[index(rank)].out);
  }

  Board& board_;
  const CollectiveTask& task_;
  std::vector<BufferOffsets> offsets_;
  /// At most this many bytes precede the first whole page and follow the last.
  const std::size_t end_bytes_ = page_bytes();
};

}  // namespace

bool allreduce_zero_copy(Board& board, const CollectiveTask& task) {
  if (!ZeroCopyAllreduce::is_possible(board, task)) return false;
  ZeroCopyAllreduce zero_copy(board, task);
  if (zero_copy.exchange_offsets()) {
    zero_copy.run();
    return true;
  }
  board.reset_step_numbers();
  return false;
}

}  // namespace tccl
