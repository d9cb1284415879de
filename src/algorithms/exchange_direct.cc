// Gather, scatter and all-to-all are one thing: some pairs of ranks have bytes for each other.
// A step carries one piece for every destination, side by side in the slot.
//
// In the v-forms a rank knows only its own sizes. They are exchanged in a first step, so that every
// rank knows the whole matrix, finds the same disagreements and computes the same number of steps.

#include "algorithms/patterns.h"
#include "algorithms/registry.h"
#include "base/format.h"
#include "tccl/error.h"

namespace tccl {
namespace {

/// Bytes from rank to rank.
class Traffic {
 public:
  explicit Traffic(int ranks) : ranks_(static_cast<std::size_t>(ranks)), bytes_(ranks_ * ranks_) {}
  std::uint64_t& at(int from, int to) { return bytes_[index(from, to)]; }
  [[nodiscard]] std::uint64_t at(int from, int to) const { return bytes_[index(from, to)]; }
  [[nodiscard]] std::uint64_t largest() const { return *std::ranges::max_element(bytes_); }

 private:
  [[nodiscard]] std::size_t index(int from, int to) const {
    return static_cast<std::size_t>(from) * ranks_ + static_cast<std::size_t>(to);
  }
  std::size_t ranks_;
  std::vector<std::uint64_t> bytes_;
};

bool takes_part(const Call& call, int from, int to) {
  switch (call.operation().op) {
    case Op::gather:
    case Op::gatherv:
      return to == call.root();
    case Op::scatter:
    case Op::scatterv:
      return from == call.root();
    default:
      return true;
  }
}

Traffic equal_traffic(const Board& board, const Call& call) {
  Traffic traffic(board.size());
  for (int from = 0; from < board.size(); ++from)
    for (int to = 0; to < board.size(); ++to)
      if (takes_part(call, from, to)) traffic.at(from, to) = call.bytes();
  return traffic;
}

/// A gather has one input and a scatter one output; the others have one per rank.
std::span<const std::byte> outgoing(const Call& call, int to) {
  const Op op = call.operation().op;
  if (op == Op::gather || op == Op::gatherv) return {call.in(), call.bytes()};
  return call.input_for(to);
}
std::span<std::byte> incoming(const Call& call, int from) {
  const Op op = call.operation().op;
  if (op == Op::scatter || op == Op::scatterv) return {call.out(), call.bytes()};
  return call.output_from(from);
}

struct SizePair {
  std::uint64_t sent;
  std::uint64_t expected;
};
static_assert(sizeof(SizePair) <= kMaxElementBytes, "one per rank must fit an area");

void write_own_sizes(const Board& board, const Call& call, SizePair* sizes) {
  const int self = board.rank();
  for (int other = 0; other < board.size(); ++other)
    sizes[other] = {
        takes_part(call, self, other) ? outgoing(call, other).size() : 0,
        takes_part(call, other, self) ? incoming(call, other).size() : 0,
    };
}

void check_pair(const Board& board, int from, int to, std::uint64_t sent, std::uint64_t expected) {
  if (sent == expected) return;
  throw Error(Errc::mismatch,
              formatted("{}: rank {} sends {} bytes to rank {}, which expects {}",
                        board.operation(), from, sent, to, expected),
              {from, to});
}

Traffic exchange_sizes(Board& board, const Call& call) {
  const int self = board.rank();
  auto* own = reinterpret_cast<SizePair*>(board.open_step().input);
  write_own_sizes(board, call, own);
  board.post();
  std::vector<const SizePair*> sizes(static_cast<std::size_t>(board.size()));
  for (int rank = 0; rank < board.size(); ++rank)
    sizes[static_cast<std::size_t>(rank)] =
        rank == self ? own : reinterpret_cast<const SizePair*>(board.await(rank, 0).input);
  Traffic traffic(board.size());
  for (int from = 0; from < board.size(); ++from)
    for (int to = 0; to < board.size(); ++to) {
      traffic.at(from, to) = sizes[static_cast<std::size_t>(from)][to].sent;
      check_pair(board, from, to, traffic.at(from, to),
                 sizes[static_cast<std::size_t>(to)][from].expected);
    }
  return traffic;
}

void exchange(Board& board, const Call& call, const Traffic& traffic, std::uint32_t first_step) {
  const int self = board.rank();
  // A gather has one destination, which may use the whole area.
  const bool one_destination =
      call.operation().op == Op::gather || call.operation().op == Op::gatherv;
  const auto places = one_destination ? 1 : static_cast<std::size_t>(board.size());
  const std::size_t largest = std::max<std::size_t>(1, traffic.largest());
  const std::size_t per_rank =
      std::min(largest, piece_size(largest * places, board.area_bytes()) / places);
  const std::size_t step_bytes = per_rank * places;
  const auto place = [&](int to) {
    return one_destination ? 0 : static_cast<std::size_t>(to) * per_rank;
  };

  const std::uint32_t steps = steps_for(largest, per_rank);
  for (std::uint32_t step = 0; step < steps; ++step) {
    std::byte* slot = board.open_step().input_of(step_bytes);
    for (int to = 0; to < board.size(); ++to) {
      const Range out = piece(traffic.at(self, to), per_rank, step);
      if (to != self && out.count != 0)
        call.copy(slot + place(to), outgoing(call, to).data() + out.begin, out.count);
    }
    board.post();
    for (int from = 0; from < board.size(); ++from) {
      const Range in = piece(traffic.at(from, self), per_rank, step);
      if (from != self && in.count != 0)
        call.copy(incoming(call, from).data() + in.begin,
                  board.await(from, first_step + step).input_of(step_bytes) + place(self),
                  in.count);
    }
  }
  if (traffic.at(self, self) != 0)
    call.copy(incoming(call, self).data(), outgoing(call, self).data(), traffic.at(self, self));
}

void exchange_equal(Board& board, const Call& call) {
  exchange(board, call, equal_traffic(board, call), 0);
}
void exchange_uneven(Board& board, const Call& call) {
  const Traffic traffic = exchange_sizes(board, call);
  exchange(board, call, traffic, 1);
}

}  // namespace

void gather_direct(Board& board, const Call& call) { exchange_equal(board, call); }
void scatter_direct(Board& board, const Call& call) { exchange_equal(board, call); }
void alltoall_direct(Board& board, const Call& call) { exchange_equal(board, call); }
void gatherv_direct(Board& board, const Call& call) { exchange_uneven(board, call); }
void scatterv_direct(Board& board, const Call& call) { exchange_uneven(board, call); }
void alltoallv_direct(Board& board, const Call& call) { exchange_uneven(board, call); }

}  // namespace tccl
