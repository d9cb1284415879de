// Gather, scatter and all-to-all over hosts: every pair of ranks on different hosts exchanges its
// bytes by itself, since each byte has to cross once anyway; the ranks of one host do as they do
// without other hosts. Each message says how many bytes the pair exchanges in all, so that ranks
// which disagree find out.
#include <cstring>
#include <deque>

#include "algorithms/exchange.h"
#include "algorithms/patterns.h"
#include "algorithms/registry.h"
#include "base/format.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr std::size_t kTotalBytes = sizeof(std::uint64_t);
constexpr std::size_t kPieceBytes = Wire::kMostBytes - kTotalBytes;
/// Pieces of each pair that are on their way.
constexpr std::uint32_t kAhead = 3;

class Pairs {
 public:
  Pairs(Board& board, Wire& wire, const Call& call)
      : board_(board), wire_(wire), layout_(wire.layout()), call_(call), rank_(wire.rank()) {
    for (int k = 1; k < layout_.ranks(); ++k) {  // not all to the same rank at once
      const int to = (rank_ + k) % layout_.ranks();
      const int from = (rank_ - k + layout_.ranks()) % layout_.ranks();
      if (!layout_.same_host(rank_, to) && takes_part(call, rank_, to)) receivers_.push_back(to);
      if (!layout_.same_host(rank_, from) && takes_part(call, from, rank_))
        senders_.push_back(from);
    }
  }

  void run() {
    std::uint32_t rounds = 0;
    for (const int to : receivers_) rounds = std::max(rounds, count(outgoing(call_, to).size()));
    for (const int from : senders_) rounds = std::max(rounds, count(incoming(call_, from).size()));
    for (std::uint32_t i = 0; i < std::min(kAhead, rounds); ++i) send(i);
    exchange_here();
    for (std::uint32_t round = 0; round < rounds; ++round) {
      if (round + kAhead < rounds) send(round + kAhead);
      for (const int from : senders_)
        if (round < count(incoming(call_, from).size())) take(from, round);
      wire_.let_leave(2 * kAhead * receivers_.size());
    }
  }

 private:
  /// Also a pair that has nothing for each other exchanges that.
  static std::uint32_t count(std::size_t bytes) { return steps_for(bytes, kPieceBytes); }

  void send(std::uint32_t round) {
    for (const int from : senders_)
      if (round < count(incoming(call_, from).size())) expected_.push_back(wire_.expect(from));
    for (const int to : receivers_) {
      const auto data = outgoing(call_, to);
      if (round >= count(data.size())) continue;
      const Range piece = tccl::piece(data.size(), kPieceBytes, round);
      const Wire::LetterPtr letter = wire_.blank();
      const std::uint64_t total = data.size();
      std::memcpy(letter->data(), &total, sizeof total);
      call_.copy(letter->data() + kTotalBytes, data.data() + piece.begin, piece.count);
      wire_.send(letter, kTotalBytes + piece.count, to);
    }
  }

  void take(int from, std::uint32_t round) {
    const auto target = incoming(call_, from);
    const Wire::LetterPtr letter = std::move(expected_.front());
    expected_.pop_front();
    const std::size_t length = wire_.length_of(letter);
    std::uint64_t total = 0;
    std::memcpy(&total, letter->data(), std::min(length, sizeof total));
    const Range piece = tccl::piece(target.size(), kPieceBytes, round);
    if (total != target.size() || length != kTotalBytes + piece.count)
      throw Error(Errc::mismatch,
                  formatted("{}: rank {} sends {} bytes to rank {}, which expects {}",
                            board_.operation(), from, total, rank_, target.size()),
                  {from, rank_});
    call_.copy_out(target.data() + piece.begin, letter->data() + kTotalBytes, piece.count,
                   target.size());
  }

  /// Among the ranks of this host, as an exchange of bytes.
  void exchange_here() {
    std::vector<ConstBlock> in;
    std::vector<Block> out;
    for (const int other : layout_.ranks_of(layout_.host_of(rank_))) {
      in.push_back({nullptr, 0});
      out.push_back({nullptr, 0});
      if (takes_part(call_, rank_, other)) {
        const auto data = outgoing(call_, other);
        in.back() = {data.data(), data.size()};
      }
      if (takes_part(call_, other, rank_)) {
        const auto data = incoming(call_, other);
        out.back() = {data.data(), data.size()};
      }
    }
    const Operation here = alltoallv(in, out, DType::uint8);
    alltoallv_direct(board_, Call(here, call_.workers()));
  }

  Board& board_;
  Wire& wire_;
  const Layout& layout_;
  const Call& call_;
  int rank_;
  std::vector<int> receivers_;
  std::vector<int> senders_;
  std::deque<Wire::LetterPtr> expected_;  // in the order in which they are taken
};

}  // namespace

void exchange_pairs(Board& board, Wire& wire, const Call& call) { Pairs(board, wire, call).run(); }

}  // namespace tccl
