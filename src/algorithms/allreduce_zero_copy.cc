// Each rank reduces one slice, straight from everyone's input, and writes it straight into
// everyone's output: all memory is read once and written once.
//
//   step 0: say where input and output lie | look at what all others said | reduce, write
//   step 1: "my slice is in your output"   | await everyone's
//
// Input and output may be the same: a slice of anyone's input is read only by the rank that
// replaces it. If the operation fails, Board::open_window() keeps late ranks from writing into the
// output; it can do so for whole pages only, so the ends travel in the slots of step 0.
#include "algorithms/allreduce_zero_copy.h"

#include <vector>

#include "algorithms/patterns.h"
#include "base/shared_memory.h"
#include "kernels/copy.h"

namespace tccl {
namespace {

/// A meeting costs some 0.5 us; an ordinary all-reduce of this size 30.
constexpr std::size_t kFromBytes = std::size_t{256} << 10;
constexpr std::size_t kLine = 64;  // a multiple of every element

struct Note {
  Board::Offset in;
  Board::Offset out;
};

class ZeroCopyAllreduce {
 public:
  ZeroCopyAllreduce(Board& board, const CollectiveTask& task)
      : board_(board), task_(task), notes_(static_cast<std::size_t>(board.size())) {}

  /// Said by settings alone, so that all ranks agree.
  static bool is_possible(const Board& board, const CollectiveTask& task) {
    return board.size() > 1 && task.bytes() >= std::max(kFromBytes, 4 * page_bytes()) &&
           board.area_bytes() >= 2 * page_bytes();
  }

  /// Whether all ranks can take part.
  bool meet() {
    const Board::Slot slot = board_.open_step();
    Note note{board_.offset_of(task_.in(), task_.bytes()),
              board_.offset_of(task_.out(), task_.bytes())};
    if (note.in == 0 || note.out == 0) note = {};
    std::memcpy(slot.line, &note, sizeof note);
    if (note.in != 0) {
      kernels::copy(slot.input, task_.in(), end_bytes_);
      kernels::copy(slot.input + end_bytes_, task_.in() + end(), end_bytes_);
      board_.open_window(task_.out(), task_.bytes());
    }
    board_.post();
    notes_[index(board_.rank())] = note;
    for (int rank = 0; rank < board_.size(); ++rank)
      if (rank != board_.rank())
        std::memcpy(&notes_[index(rank)], board_.await(rank, 0).line, sizeof note);
    const bool all = std::ranges::all_of(notes_, [](const Note& n) { return n.in != 0; });
    if (!all) board_.close_window();
    return all;
  }

  void run() {
    reduce_end(0, 0);
    reduce_end(end(), end_bytes_);
    const Range slice = own_slice();
    const std::size_t chunk = std::max(kLine, board_.chunk_bytes() / kLine * kLine);
    for (std::size_t done = 0; done < slice.count; done += chunk) {
      board_.check_alive();  // a rank that gave up gets no more than one chunk
      reduce_chunk(slice.begin + done, std::min(chunk, slice.count - done));
    }
    board_.open_step();
    board_.post();
    for (int rank = 0; rank < board_.size(); ++rank)
      if (rank != board_.rank()) board_.await(rank, 1);
    // A rank that gave up may have changed its input before another had read it.
    board_.check_alive();
  }

 private:
  [[nodiscard]] std::size_t end() const { return task_.bytes() - end_bytes_; }

  [[nodiscard]] Range own_slice() const {
    const std::size_t middle = end() - end_bytes_;
    const Range lines = part(pieces(middle, kLine), static_cast<std::size_t>(board_.size()),
                             static_cast<std::size_t>(board_.rank()));
    const Range bytes = piece(middle, kLine, lines.begin);
    return {end_bytes_ + bytes.begin, std::min(lines.count * kLine, middle - bytes.begin)};
  }

  void reduce_end(std::size_t where, std::size_t in_slot) {
    Sources ends(board_.size());
    for (int rank = 0; rank < board_.size(); ++rank)
      ends[rank] =
          rank == board_.rank() ? task_.in() + where : board_.await(rank, 0).input + in_slot;
    task_.reduce(board_, task_.out() + where, ends, end_bytes_);
  }

  void reduce_chunk(std::size_t where, std::size_t bytes) {
    Sources chunk(board_.size());
    for (int rank = 0; rank < board_.size(); ++rank) chunk[rank] = in(rank) + where;
    const int next = (board_.rank() + 1) % board_.size();
    task_.reduce(board_, task_.out() + where, chunk, bytes, out(next) + where);
    for (int rank = 0; rank < board_.size(); ++rank)
      if (rank != board_.rank() && rank != next)
        task_.copy(out(rank) + where, task_.out() + where, bytes);
  }

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] const std::byte* in(int rank) const {
    return board_.at(rank, notes_[index(rank)].in);
  }
  [[nodiscard]] std::byte* out(int rank) const { return board_.at(rank, notes_[index(rank)].out); }

  Board& board_;
  const CollectiveTask& task_;
  std::vector<Note> notes_;
  /// As much as there can be before the first and behind the last whole page.
  const std::size_t end_bytes_ = page_bytes();
};

}  // namespace

bool allreduce_zero_copy(Board& board, const CollectiveTask& task) {
  if (!ZeroCopyAllreduce::is_possible(board, task)) return false;
  ZeroCopyAllreduce shared(board, task);
  if (shared.meet()) {
    shared.run();
    return true;
  }
  board.count_from_here();
  return false;
}

}  // namespace tccl
