// Gather, scatter and all-to-all are one thing: some pairs of ranks have bytes for each other.
// A step carries one piece for every destination, side by side in the slot.
//
// In the v-forms a rank knows only its own sizes. They go with the first piece, so that every rank
// then knows the whole matrix, finds the same disagreements and computes the same number of steps.

#include "algorithms/alltoall.h"
#include "algorithms/patterns.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"
#include "base/format.h"
#include "base/function_ref.h"
#include "tccl/error.h"

namespace tccl {
namespace {

struct SizePair {
  std::uint64_t sent;
  std::uint64_t expected;
};
static_assert(sizeof(SizePair) <= kMaxElementBytes, "one per rank must fit an area");

void write_own_sizes(const Board& board, const CollectiveTask& task, SizePair* sizes) {
  const int self = board.rank();
  for (int other = 0; other < board.size(); ++other)
    sizes[other] = {
        takes_part(task, self, other) ? outgoing(task, other).size() : 0,
        takes_part(task, other, self) ? incoming(task, other).size() : 0,
    };
}

void check_pair(const Board& board, int from, int to, std::uint64_t sent, std::uint64_t expected) {
  if (sent == expected) return;
  throw Error(
      Errc::mismatch,
      formatted("{}: rank {} sends {} bytes to rank {}, which expects {}", board.operation(),
                board.global_rank(from), sent, board.global_rank(to), expected),
      {board.global_rank(from), board.global_rank(to)});
}

/// Where the pieces of one step lie: side by side, one for each destination.
class HostLeaders {
 public:
  HostLeaders(const Board& board, const CollectiveTask& task) {
    // A gather has one destination, which may use the whole area.
    const Op op = task.operation().op;
    count_ = op == Op::gather || op == Op::gatherv ? 1 : static_cast<std::size_t>(board.size());
  }
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::size_t offset(int to, std::size_t piece_bytes) const {
    return count_ == 1 ? 0 : static_cast<std::size_t>(to) * piece_bytes;
  }

 private:
  std::size_t count_;
};

/// `bytes` bytes, or what is left of them behind `begin`.
Range part_behind(std::uint64_t total, std::size_t begin, std::size_t bytes) {
  return begin < total ? Range{begin, std::min<std::size_t>(bytes, total - begin)}
                       : Range{total, 0};
}

void copy_in(const Board& board, const CollectiveTask& task, const HostLeaders& places,
             std::byte* slot, std::size_t begin, std::size_t piece_bytes) {
  for (int to = 0; to < board.size(); ++to) {
    if (to == board.rank() || !takes_part(task, board.rank(), to)) continue;
    const auto data = outgoing(task, to);
    const Range out = part_behind(data.size(), begin, piece_bytes);
    if (out.count != 0)
      task.copy(slot + places.offset(to, piece_bytes), data.data() + out.begin, out.count);
  }
}

/// One piece of what comes from a rank, of which at most `largest` bytes come from each.
void copy_out(const Board& board, const CollectiveTask& task, int from, const std::byte* piece,
              std::size_t begin, std::size_t piece_bytes, std::size_t largest) {
  const auto data = incoming(task, from);
  const Range in = part_behind(data.size(), begin, piece_bytes);
  task.copy_out(data.data() + in.begin, piece, in.count,
                largest * static_cast<std::size_t>(board.size()));
}

void copy_own(const Board& board, const CollectiveTask& task) {
  if (!takes_part(task, board.rank(), board.rank())) return;
  const auto from = outgoing(task, board.rank());
  if (!from.empty()) copy_out(board, task, board.rank(), from.data(), 0, from.size(), from.size());
}

/// All that this rank sends, if it lies in one piece of memory and nothing that comes in overwrites
/// it; else nothing.
std::span<const std::byte> stable_input(const Board& board, const CollectiveTask& task) {
  std::span<const std::byte> all;
  for (int to = 0; to < board.size(); ++to) {
    if (!takes_part(task, board.rank(), to)) continue;
    const auto data = outgoing(task, to);
    if (data.empty()) continue;
    if (!all.empty() && all.data() + all.size() != data.data()) return {};
    all = {all.empty() ? data.data() : all.data(), all.size() + data.size()};
  }
  for (int from = 0; from < board.size(); ++from)
    if (takes_part(task, from, board.rank()) && !disjoint(incoming(task, from), all)) return {};
  return all;
}

bool publish_address_to_readers(Board& board, const CollectiveTask& task, const Board::Slot& slot,
                                std::span<const std::byte> own) {
  const Op op = task.operation().op;
  const bool gathers = op == Op::gather || op == Op::gatherv;
  return publish_address(board, slot, own, gathers ? task.root() : Board::kEveryone);
}

/// All that lies behind the first `begin` bytes of what each pair exchanges, `largest` at most.
/// `before_mine(rank)`: how many bytes that rank sends to the ranks before this one.
void exchange(Board& board, const CollectiveTask& task, const HostLeaders& places,
              std::size_t largest, std::size_t begin, std::uint32_t first_step,
              FunctionRef<std::size_t(int)> before_mine) {
  const std::span<const std::byte> own = stable_input(board, task);
  const std::size_t rest = std::max<std::size_t>(1, largest - begin);
  const std::size_t per_rank =
      std::min(rest, piece_size(rest * places.count(), board.area_bytes()) / places.count());
  const std::size_t step_bytes = per_rank * places.count();
  const bool in_line = step_bytes <= Board::kLineBytes;
  for (std::uint32_t step = 0; step < steps_for(rest, per_rank); ++step, begin += per_rank) {
    const Board::Slot slot = board.open_step();
    if (in_line || !publish_address_to_readers(board, task, slot, own))
      copy_in(board, task, places, slot.input_of(step_bytes), begin, per_rank);
    board.post();
    for (int from = 0; from < board.size(); ++from) {
      if (from == board.rank() || !takes_part(task, from, board.rank())) continue;
      const Board::PeerSlot theirs = board.await(from, first_step + step);
      const std::byte* remote = in_line ? nullptr : published_address(board, from, theirs);
      const std::byte* piece =
          remote != nullptr ? remote + before_mine(from) + begin
                            : theirs.input_of(step_bytes) + places.offset(board.rank(), per_rank);
      copy_out(board, task, from, piece, begin, per_rank, largest);
    }
  }
}

/// The largest of all pairs, once every pair agrees.
std::size_t check_sizes(const Board& board, std::span<const SizePair* const> sizes) {
  std::size_t largest = 0;
  for (int from = 0; from < board.size(); ++from)
    for (int to = 0; to < board.size(); ++to) {
      const std::uint64_t sent = sizes[static_cast<std::size_t>(from)][to].sent;
      check_pair(board, from, to, sent, sizes[static_cast<std::size_t>(to)][from].expected);
      largest = std::max<std::size_t>(largest, sent);
    }
  return largest;
}

/// How many bytes each rank sends to the ranks before this one.
std::vector<std::size_t> bytes_before(const Board& board, std::span<const SizePair* const> sizes) {
  std::vector<std::size_t> before;
  for (const SizePair* of_rank : sizes) {
    std::size_t bytes = 0;
    for (int to = 0; to < board.rank(); ++to) bytes += of_rank[to].sent;
    before.push_back(bytes);
  }
  return before;
}

void exchange_equal(Board& board, const CollectiveTask& task) {
  const HostLeaders places(board, task);
  exchange(board, task, places, task.bytes(), 0, 0,
           [&](int /*from*/) { return places.offset(board.rank(), task.bytes()); });
  copy_own(board, task);
}

void exchange_uneven(Board& board, const CollectiveTask& task) {
  const HostLeaders places(board, task);
  const std::size_t first_piece = piece_size(0, board.area_bytes()) / places.count();
  const Board::Slot slot = board.open_step();
  auto* own = reinterpret_cast<SizePair*>(slot.input);
  write_own_sizes(board, task, own);
  copy_in(board, task, places, slot.result, 0, first_piece);
  board.post();
  std::vector<const SizePair*> sizes(static_cast<std::size_t>(board.size()));
  for (int rank = 0; rank < board.size(); ++rank)
    sizes[static_cast<std::size_t>(rank)] =
        rank == board.rank() ? own : reinterpret_cast<const SizePair*>(board.await(rank, 0).input);
  const std::size_t largest = check_sizes(board, sizes);
  const std::vector<std::size_t> before_mine = bytes_before(board, sizes);
  for (int from = 0; from < board.size(); ++from)
    if (from != board.rank() && takes_part(task, from, board.rank()))
      copy_out(board, task, from,
               board.await(from, 0).result + places.offset(board.rank(), first_piece), 0,
               first_piece, largest);
  if (largest > first_piece)
    exchange(board, task, places, largest, first_piece, 1,
             [&](int from) { return before_mine[static_cast<std::size_t>(from)]; });
  copy_own(board, task);
}

}  // namespace

void gather_one_shot(Board& board, const CollectiveTask& task) { exchange_equal(board, task); }
void scatter_one_shot(Board& board, const CollectiveTask& task) { exchange_equal(board, task); }
void alltoall_one_shot(Board& board, const CollectiveTask& task) { exchange_equal(board, task); }
void gatherv_one_shot(Board& board, const CollectiveTask& task) { exchange_uneven(board, task); }
void scatterv_one_shot(Board& board, const CollectiveTask& task) { exchange_uneven(board, task); }
void alltoallv_one_shot(Board& board, const CollectiveTask& task) { exchange_uneven(board, task); }

}  // namespace tccl
