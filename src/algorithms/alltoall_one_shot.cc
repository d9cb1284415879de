// One-shot gather, scatter and all-to-all on one host, in one form: some pairs of ranks exchange
// bytes (alltoall.h).
//
// A step carries one chunk per destination, side by side in the slot. Each rank posts its chunks
// and copies the chunks for itself out of every slot. If a rank's input is one range of mapped
// memory, its peers read it in place and nothing is copied in.
//
// In the v-operations a rank knows only its own sizes. Step 0 carries the sizes and the first
// chunks: then every rank has the whole matrix of sizes, detects the same mismatches and computes
// the same number of steps.
#include "algorithms/alltoall.h"
#include "algorithms/partition.h"
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
  const int self = board.local_rank();
  for (int other = 0; other < board.size(); ++other)
    sizes[other] = {
        sends_to(task, self, other) ? outgoing(task, other).size() : 0,
        sends_to(task, other, self) ? incoming(task, other).size() : 0,
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

/// Positions of a step's chunks in the slot: side by side, one per destination.
class SlotLayout {
 public:
  SlotLayout(const Board& board, const CollectiveTask& task) {
    // A gather has one destination, whose chunk may fill the slot.
    const Op op = task.operation().op;
    count_ = op == Op::gather || op == Op::gatherv ? 1 : static_cast<std::size_t>(board.size());
  }
  /// Chunks per slot.
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::size_t offset(int to, std::size_t chunk_bytes) const {
    return count_ == 1 ? 0 : static_cast<std::size_t>(to) * chunk_bytes;
  }

 private:
  std::size_t count_;
};

/// The `bytes` from `begin` on, as far as `total` has them.
Range range_from(std::uint64_t total, std::size_t begin, std::size_t bytes) {
  return begin < total ? Range{begin, std::min<std::size_t>(bytes, total - begin)}
                       : Range{total, 0};
}

void copy_in(const Board& board, const CollectiveTask& task, const SlotLayout& layout,
             std::byte* slot, std::size_t begin, std::size_t chunk_bytes) {
  for (int to = 0; to < board.size(); ++to) {
    if (to == board.local_rank() || !sends_to(task, board.local_rank(), to)) continue;
    const auto data = outgoing(task, to);
    const Range chunk = range_from(data.size(), begin, chunk_bytes);
    if (chunk.count != 0)
      task.copy(slot + layout.offset(to, chunk_bytes), data.data() + chunk.begin, chunk.count);
  }
}

/// Copies the chunk at `begin` of the data from a rank. No pair exchanges more than `largest`
/// bytes.
void copy_out(const Board& board, const CollectiveTask& task, int from, const std::byte* source,
              std::size_t begin, std::size_t chunk_bytes, std::size_t largest) {
  const auto data = incoming(task, from);
  const Range chunk = range_from(data.size(), begin, chunk_bytes);
  task.copy_out(data.data() + chunk.begin, source, chunk.count,
                largest * static_cast<std::size_t>(board.size()));
}

void copy_own(const Board& board, const CollectiveTask& task) {
  if (!sends_to(task, board.local_rank(), board.local_rank())) return;
  const auto from = outgoing(task, board.local_rank());
  if (!from.empty())
    copy_out(board, task, board.local_rank(), from.data(), 0, from.size(), from.size());
}

/// All that this rank sends, if it may be read in place: one contiguous range that no incoming data
/// overwrites. Otherwise empty.
std::span<const std::byte> unmodified_input(const Board& board, const CollectiveTask& task) {
  std::span<const std::byte> all;
  for (int to = 0; to < board.size(); ++to) {
    if (!sends_to(task, board.local_rank(), to)) continue;
    const auto data = outgoing(task, to);
    if (data.empty()) continue;
    if (!all.empty() && all.data() + all.size() != data.data()) return {};
    all = {all.empty() ? data.data() : all.data(), all.size() + data.size()};
  }
  for (int from = 0; from < board.size(); ++from)
    if (sends_to(task, from, board.local_rank()) && !disjoint(incoming(task, from), all)) return {};
  return all;
}

bool publish_address_to_readers(Board& board, const CollectiveTask& task, const Board::Slot& slot,
                                std::span<const std::byte> own) {
  const Op op = task.operation().op;
  const bool is_gather = op == Op::gather || op == Op::gatherv;
  return publish_address(board, slot, own, is_gather ? task.root() : Board::kEveryone);
}

/// Exchanges the data of each pair from byte `begin` on, in steps from `first_step` on. `largest`
/// is the most that any pair exchanges. `offset_in(rank)`: where this rank's data starts in that
/// rank's input.
void exchange(Board& board, const CollectiveTask& task, const SlotLayout& layout,
              std::size_t largest, std::size_t begin, std::uint32_t first_step,
              FunctionRef<std::size_t(int)> offset_in) {
  const std::span<const std::byte> own = unmodified_input(board, task);
  const std::size_t rest = std::max<std::size_t>(1, largest - begin);
  const std::size_t chunk_bytes =
      std::min(rest, chunk_size(rest * layout.count(), board.area_bytes()) / layout.count());
  const std::size_t step_bytes = chunk_bytes * layout.count();
  const bool is_inline = step_bytes <= Board::kInlineBytes;
  for (std::uint32_t step = 0; step < steps_for(rest, chunk_bytes); ++step, begin += chunk_bytes) {
    const Board::Slot slot = board.open_step();
    if (is_inline || !publish_address_to_readers(board, task, slot, own))
      copy_in(board, task, layout, slot.input_of(step_bytes), begin, chunk_bytes);
    board.post();
    for (int from = 0; from < board.size(); ++from) {
      if (from == board.local_rank() || !sends_to(task, from, board.local_rank())) continue;
      const Board::PeerSlot theirs = board.await(from, first_step + step);
      const std::byte* in_place = is_inline ? nullptr : published_address(board, from, theirs);
      const std::byte* source =
          in_place != nullptr
              ? in_place + offset_in(from) + begin
              : theirs.input_of(step_bytes) + layout.offset(board.local_rank(), chunk_bytes);
      copy_out(board, task, from, source, begin, chunk_bytes, largest);
    }
  }
}

/// Throws Error{mismatch} if a sender and its receiver disagree; returns the largest size of a
/// pair.
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

/// By rank: where this rank's data starts in that rank's input.
std::vector<std::size_t> input_offsets(const Board& board, std::span<const SizePair* const> sizes) {
  std::vector<std::size_t> offsets;
  for (const SizePair* of_rank : sizes) {
    std::size_t bytes = 0;
    for (int to = 0; to < board.local_rank(); ++to) bytes += of_rank[to].sent;
    offsets.push_back(bytes);
  }
  return offsets;
}

void exchange_equal(Board& board, const CollectiveTask& task) {
  const SlotLayout layout(board, task);
  exchange(board, task, layout, task.bytes(), 0, 0,
           [&](int /*from*/) { return layout.offset(board.local_rank(), task.bytes()); });
  copy_own(board, task);
}

void exchange_uneven(Board& board, const CollectiveTask& task) {
  const SlotLayout layout(board, task);
  const std::size_t first_chunk = chunk_size(0, board.area_bytes()) / layout.count();
  const Board::Slot slot = board.open_step();
  auto* own = reinterpret_cast<SizePair*>(slot.input);
  write_own_sizes(board, task, own);
  copy_in(board, task, layout, slot.result, 0, first_chunk);
  board.post();
  std::vector<const SizePair*> sizes(static_cast<std::size_t>(board.size()));
  for (int rank = 0; rank < board.size(); ++rank)
    sizes[static_cast<std::size_t>(rank)] =
        rank == board.local_rank() ? own
                                   : reinterpret_cast<const SizePair*>(board.await(rank, 0).input);
  const std::size_t largest = check_sizes(board, sizes);
  const std::vector<std::size_t> offsets = input_offsets(board, sizes);
  for (int from = 0; from < board.size(); ++from)
    if (from != board.local_rank() && sends_to(task, from, board.local_rank()))
      copy_out(board, task, from,
               board.await(from, 0).result + layout.offset(board.local_rank(), first_chunk), 0,
               first_chunk, largest);
  if (largest > first_chunk)
    exchange(board, task, layout, largest, first_chunk, 1,
             [&](int from) { return offsets[static_cast<std::size_t>(from)]; });
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
