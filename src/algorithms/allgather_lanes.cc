// Every block goes to every other host once, to the rank with the same place there (counted round
// if that host has fewer), which lays it beside its own for the ranks of its host to copy. Blocks
// may differ in size.
#include <deque>

#include "algorithms/patterns.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// Pieces that are sent and expected ahead.
constexpr std::uint32_t kAhead = 3;

class Gather {
 public:
  Gather(Board& board, Wire& wire, const Call& call)
      : board_(board),
        wire_(wire),
        layout_(wire.layout()),
        call_(call),
        rank_(wire.rank()),
        host_(layout_.host_of(rank_)),
        longest_(call.longest_output()) {
    for (int host = 0; host < layout_.hosts(); ++host)
      if (host != host_) partners_.push_back(layout_.partner(host, layout_.place_of(rank_)));
    for (const int local : layout_.ranks_of(host_)) bundles_.push_back(bundle_of(local));
    per_step_ = piece_bytes();
    steps_ = steps_for(longest_, per_step_);
  }

  void run() {
    for (std::uint32_t i = 0; i < std::min(kAhead, steps_); ++i) send(i);
    for (std::uint32_t step = 0; step < steps_; ++step) {
      if (step + kAhead < steps_) send(step + kAhead);
      const Board::Slot slot = board_.open_step();
      take_bundle(step, slot.input);
      board_.post();
      for (int peer = 0; peer < board_.size(); ++peer)
        if (peer != board_.rank()) copy_bundle(peer, step);
    }
    const auto own = call_.output_from(rank_);
    call_.copy_out(own.data(), call_.in(), own.size(), whole());
  }

 private:
  /// The ranks whose blocks `local` shows to its host: its own first, then those sent to it.
  [[nodiscard]] std::vector<int> bundle_of(int local) const {
    std::vector<int> ranks{local};
    const int own_host = layout_.host_of(local);
    for (int host = 0; host < layout_.hosts(); ++host)
      for (const int rank : layout_.ranks_of(host))
        if (host != own_host && layout_.partner(own_host, layout_.place_of(rank)) == local)
          ranks.push_back(rank);
    return ranks;
  }
  [[nodiscard]] std::size_t whole() const {
    return longest_ * static_cast<std::size_t>(layout_.ranks());
  }
  /// The same on all hosts: a piece fits a message, and all pieces of a bundle fit a slot.
  [[nodiscard]] std::size_t piece_bytes() const {
    if (layout_.most() == 1) return piece_size(longest_, Wire::kMostBytes);
    std::size_t most = 1;
    for (int host = 0; host < layout_.hosts(); ++host)
      most = std::max(most, bundle_of(layout_.ranks_of(host)[0]).size());
    const std::size_t in_slot = std::max<std::size_t>(1, board_.area_bytes() / most);
    return std::min(piece_size(longest_, Wire::kMostBytes), in_slot);
  }
  [[nodiscard]] Range piece(int rank, std::uint32_t step) const {
    return tccl::piece(call_.output_from(rank).size(), per_step_, step);
  }

  void send(std::uint32_t step) {
    for (const int from : bundles_[static_cast<std::size_t>(board_.rank())])
      if (from != rank_ && piece(from, step).count != 0) expected_.push_back(wire_.expect(from));
    const Range own = piece(rank_, step);
    if (own.count == 0) return;
    const Wire::LetterPtr letter = wire_.blank();
    call_.copy(letter->data(), call_.in() + own.begin, own.count);
    wire_.send(letter, own.count, partners_);
    wire_.let_leave(2 * kAhead);
  }

  void take_bundle(std::uint32_t step, std::byte* slot) {
    const bool has_readers = board_.size() > 1;
    std::size_t place = 0;
    for (const int from : bundles_[static_cast<std::size_t>(board_.rank())]) {
      const Range range = piece(from, step);
      const std::byte* data = call_.in() + range.begin;
      if (from != rank_ && range.count != 0) {
        data = wire_.await(expected_.front(), range.count);
        call_.copy_out(call_.output_from(from).data() + range.begin, data, range.count, whole());
      }
      if (has_readers) call_.copy(slot + place, data, range.count);
      if (from != rank_ && range.count != 0) expected_.pop_front();
      place += per_step_;
    }
  }

  void copy_bundle(int peer, std::uint32_t step) {
    const Board::PeerSlot slot = board_.await(peer, step);
    std::size_t place = 0;
    for (const int from : bundles_[static_cast<std::size_t>(peer)]) {
      const Range range = piece(from, step);
      call_.copy_out(call_.output_from(from).data() + range.begin, slot.input + place, range.count,
                     whole());
      place += per_step_;
    }
  }

  Board& board_;
  Wire& wire_;
  const Layout& layout_;
  const Call& call_;
  int rank_;
  int host_;
  std::size_t longest_;
  std::vector<int> partners_;
  std::vector<std::vector<int>> bundles_;  // by local rank
  std::size_t per_step_ = 1;
  std::uint32_t steps_ = 1;
  std::deque<Wire::LetterPtr> expected_;
};

}  // namespace

void allgather_lanes(Board& board, Wire& wire, const Call& call) {
  Gather(board, wire, call).run();
}

}  // namespace tccl
