// Two-shot allreduce and reduce on one host: reduce-scatter and all-gather, pipelined over chunks.
//
// The message is divided into chunks that fit a slot, each chunk into one slice per rank, which
// that rank reduces (partition.h). Step i of a rank does three things at once:
//
//   copy in     this rank's input to chunk i, all slices but its own         -> slot.input
//   reduce      its own slice of chunk i - 1, from every rank's slot.input   -> slot.result
//   copy out    the other ranks' reduced slices of chunk i - 2               -> output
//
//   step i:  copy in i | await step i - 1 | reduce own slice of i - 1 | post | copy out i - 2
//
// So a step waits only for data that peers posted a whole step earlier. A reduce is the same,
// except that only the root copies out.
#include "algorithms/allreduce_zero_copy.h"
#include "algorithms/registry.h"
#include "algorithms/slices.h"

namespace tccl {
namespace {

class TwoShotReduction {
 public:
  TwoShotReduction(Board& board, const CollectiveTask& task, bool needs_result)
      : board_(board),
        task_(task),
        needs_result_(needs_result),
        rank_(static_cast<std::size_t>(board.local_rank())),
        slices_(task.operation().count, task.element_bytes(),
                chunk_size(task.bytes(), board.chunk_bytes()) / task.element_bytes(),
                static_cast<std::size_t>(board.size())),
        sources_(board.size()) {}

  void run() {
    const std::uint32_t chunks = slices_.chunks();
    for (std::uint32_t step = 0; step <= chunks; ++step) {
      const Board::Slot slot = board_.open_step();
      if (step < chunks) copy_in(task_, slices_, step, rank_, slot.input);
      if (step >= 1) reduce_own_slice(step - 1, slot.result);
      board_.post();
      if (step >= 2) copy_out(step - 2);
    }
    await_all(chunks);
    if (chunks >= 1) copy_out(chunks - 1);
  }

 private:
  void reduce_own_slice(std::uint32_t chunk, std::byte* result) {
    const Slice own = slices_.at(chunk, rank_);
    for (int rank = 0; rank < board_.size(); ++rank)
      sources_[rank] = rank == board_.local_rank()
                           ? task_.in() + own.message_offset
                           : board_.await(rank, chunk).input + own.chunk_offset;
    if (!needs_result_) return task_.reduce(board_, result + own.chunk_offset, sources_, own.bytes);
    task_.reduce(board_, task_.out() + own.message_offset, sources_, own.bytes,
                 result + own.chunk_offset);
  }

  /// The reduced slices of a chunk are posted one step after the chunk's input.
  void copy_out(std::uint32_t chunk) {
    if (!needs_result_) return;
    for (std::size_t rank = 0; rank < slices_.per_chunk(); ++rank) {
      if (rank == rank_) continue;
      const Slice slice = slices_.at(chunk, rank);
      task_.copy(task_.out() + slice.message_offset,
                 board_.await(static_cast<int>(rank), chunk + 1).result + slice.chunk_offset,
                 slice.bytes);
    }
  }

  void await_all(std::uint32_t step) {
    for (int peer = 0; needs_result_ && peer < board_.size(); ++peer)
      if (peer != board_.local_rank()) board_.await(peer, step);
  }

  Board& board_;
  const CollectiveTask& task_;
  bool needs_result_;
  std::size_t rank_;
  Slices slices_;
  Sources sources_;
};

}  // namespace

void allreduce_two_shot(Board& board, const CollectiveTask& task) {
  if (!allreduce_zero_copy(board, task)) TwoShotReduction(board, task, true).run();
}

void reduce_two_shot(Board& board, const CollectiveTask& task) {
  TwoShotReduction(board, task, board.local_rank() == task.root()).run();
}

}  // namespace tccl
