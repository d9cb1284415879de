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
  Gather(Board& board, NetworkChannel& channel, const CollectiveTask& task)
      : board_(board),
        channel_(channel),
        host_map_(channel.host_map()),
        task_(task),
        rank_(channel.rank()),
        host_(host_map_.host_of(rank_)),
        longest_(task.longest_output()) {
    for (int host = 0; host < host_map_.hosts(); ++host)
      if (host != host_)
        partners_.push_back(host_map_.counterpart(host, host_map_.local_rank(rank_)));
    for (const int local : host_map_.ranks_of(host_)) bundles_.push_back(bundle_of(local));
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
    const auto own = task_.output_from(rank_);
    task_.copy_out(own.data(), task_.in(), own.size(), whole());
  }

 private:
  /// The ranks whose blocks `local` shows to its host: its own first, then those sent to it.
  [[nodiscard]] std::vector<int> bundle_of(int local) const {
    std::vector<int> ranks{local};
    const int own_host = host_map_.host_of(local);
    for (int host = 0; host < host_map_.hosts(); ++host)
      for (const int rank : host_map_.ranks_of(host))
        if (host != own_host &&
            host_map_.counterpart(own_host, host_map_.local_rank(rank)) == local)
          ranks.push_back(rank);
    return ranks;
  }
  [[nodiscard]] std::size_t whole() const {
    return longest_ * static_cast<std::size_t>(host_map_.ranks());
  }
  /// The same on all hosts: a piece fits a message, and all pieces of a bundle fit a slot.
  [[nodiscard]] std::size_t piece_bytes() const {
    if (host_map_.max_local_size() == 1)
      return piece_size(longest_, NetworkChannel::kMaxMessageBytes);
    std::size_t most = 1;
    for (int host = 0; host < host_map_.hosts(); ++host)
      most = std::max(most, bundle_of(host_map_.ranks_of(host)[0]).size());
    const std::size_t in_slot = std::max<std::size_t>(1, board_.area_bytes() / most);
    return std::min(piece_size(longest_, NetworkChannel::kMaxMessageBytes), in_slot);
  }
  [[nodiscard]] Range piece(int rank, std::uint32_t step) const {
    return tccl::piece(task_.output_from(rank).size(), per_step_, step);
  }

  void send(std::uint32_t step) {
    for (const int from : bundles_[static_cast<std::size_t>(board_.rank())])
      if (from != rank_ && piece(from, step).count != 0)
        expected_.push_back(channel_.post_receive(from));
    const Range own = piece(rank_, step);
    if (own.count == 0) return;
    const NetworkChannel::MessagePtr message = channel_.acquire();
    task_.copy(message->data(), task_.in() + own.begin, own.count);
    channel_.send(message, own.count, partners_);
    channel_.flush(2 * kAhead);
  }

  void take_bundle(std::uint32_t step, std::byte* slot) {
    const bool has_readers = board_.size() > 1;
    std::size_t place = 0;
    for (const int from : bundles_[static_cast<std::size_t>(board_.rank())]) {
      const Range range = piece(from, step);
      const std::byte* data = task_.in() + range.begin;
      if (from != rank_ && range.count != 0) {
        data = channel_.await(expected_.front(), range.count);
        task_.copy_out(task_.output_from(from).data() + range.begin, data, range.count, whole());
      }
      if (has_readers) task_.copy(slot + place, data, range.count);
      if (from != rank_ && range.count != 0) expected_.pop_front();
      place += per_step_;
    }
  }

  void copy_bundle(int peer, std::uint32_t step) {
    const Board::PeerSlot slot = board_.await(peer, step);
    std::size_t place = 0;
    for (const int from : bundles_[static_cast<std::size_t>(peer)]) {
      const Range range = piece(from, step);
      task_.copy_out(task_.output_from(from).data() + range.begin, slot.input + place, range.count,
                     whole());
      place += per_step_;
    }
  }

  Board& board_;
  NetworkChannel& channel_;
  const HostMap& host_map_;
  const CollectiveTask& task_;
  int rank_;
  int host_;
  std::size_t longest_;
  std::vector<int> partners_;
  std::vector<std::vector<int>> bundles_;  // by local rank
  std::size_t per_step_ = 1;
  std::uint32_t steps_ = 1;
  std::deque<NetworkChannel::MessagePtr> expected_;
};

}  // namespace

void allgather_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  Gather(board, channel, task).run();
}

}  // namespace tccl
