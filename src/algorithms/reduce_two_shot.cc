// Reduce-scatter and all-gather, piece by piece, overlapped.
//
// The data is cut into *pieces* that fit a slot; each piece is cut into one *slice* per rank, which
// that rank reduces. Step i carries two things at once: this rank's contribution to piece i (all
// slices but its own) and its reduced slice of piece i - 1. Everyone then copies the other ranks'
// reduced slices of piece i - 2 while the next step is on its way:
//
//   step i:  copy in piece i | await step i-1 | reduce own slice of piece i-1 | post | copy out i-2
//
// The one wait of a step is for what the peers posted a whole step earlier.
#include "algorithms/allreduce_zero_copy.h"
#include "algorithms/patterns.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

class Pipeline {
 public:
  Pipeline(Board& board, const CollectiveTask& task, bool needs_result)
      : board_(board),
        task_(task),
        needs_result_(needs_result),
        ranks_(static_cast<std::size_t>(board.size())),
        elements_per_piece_(piece_size(task.bytes(), board.chunk_bytes()) / task.element_bytes()),
        sources_(board.size()) {}

  void run() {
    const std::size_t count = task_.operation().count;
    const auto last = static_cast<std::uint32_t>(pieces(count, elements_per_piece_));
    for (std::uint32_t step = 0; step <= last; ++step) {
      const Board::Slot slot = board_.open_step();
      if (step < last) copy_in(step, slot.input);
      if (step >= 1) reduce_own_slice(step - 1, slot.result);
      board_.post();
      if (step >= 2) copy_out(step - 2);
    }
    await_all(last);
    if (last >= 1) copy_out(last - 1);
  }

 private:
  /// Bytes of a rank's slice: where it lies in the piece, and the piece in the whole.
  [[nodiscard]] Range slice(std::uint32_t piece_index, std::size_t rank) const {
    const Range piece = tccl::piece(task_.operation().count, elements_per_piece_, piece_index);
    const Range own = part(piece.count, ranks_, rank);
    return {own.begin * task_.element_bytes(), own.count * task_.element_bytes()};
  }
  [[nodiscard]] std::size_t start(std::uint32_t piece_index) const {
    return piece_index * elements_per_piece_ * task_.element_bytes();
  }

  void copy_in(std::uint32_t piece_index, std::byte* input) const {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      if (static_cast<int>(rank) == board_.rank()) continue;
      const Range own = slice(piece_index, rank);
      task_.copy(input + own.begin, task_.in() + start(piece_index) + own.begin, own.count);
    }
  }

  void reduce_own_slice(std::uint32_t piece_index, std::byte* result) {
    const Range own = slice(piece_index, static_cast<std::size_t>(board_.rank()));
    const std::size_t where = start(piece_index) + own.begin;
    for (int rank = 0; rank < board_.size(); ++rank)
      sources_[rank] = rank == board_.rank() ? task_.in() + where
                                             : board_.await(rank, piece_index).input + own.begin;
    if (!needs_result_) return task_.reduce(board_, result + own.begin, sources_, own.count);
    task_.reduce(board_, task_.out() + where, sources_, own.count, result + own.begin);
  }

  /// The reduced slices of a piece were posted one step after the piece itself.
  void copy_out(std::uint32_t piece_index) {
    if (!needs_result_) return;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      if (static_cast<int>(rank) == board_.rank()) continue;
      const Range own = slice(piece_index, rank);
      task_.copy(task_.out() + start(piece_index) + own.begin,
                 board_.await(static_cast<int>(rank), piece_index + 1).result + own.begin,
                 own.count);
    }
  }

  void await_all(std::uint32_t step) {
    for (int peer = 0; needs_result_ && peer < board_.size(); ++peer)
      if (peer != board_.rank()) board_.await(peer, step);
  }

  Board& board_;
  const CollectiveTask& task_;
  bool needs_result_;
  std::size_t ranks_;
  std::size_t elements_per_piece_;
  Sources sources_;
};

}  // namespace

void allreduce_two_shot(Board& board, const CollectiveTask& task) {
  if (!allreduce_zero_copy(board, task)) Pipeline(board, task, true).run();
}

void reduce_two_shot(Board& board, const CollectiveTask& task) {
  Pipeline(board, task, board.rank() == task.root()).run();
}

}  // namespace tccl
