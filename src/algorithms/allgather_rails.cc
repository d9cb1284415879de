// All-gather over hosts. Blocks may differ in size (allgatherv).
//
// Every block crosses the network once per other host: each rank sends its block to its counterpart
// on every other host (the same local rank, modulo the size of that host). A rank posts a bundle on
// the board, its own block and the blocks that it received, and all local ranks copy all bundles
// out. A step carries one chunk of every block:
//
//   send chunk i + kAhead to the counterparts | receive chunk i of this rank's bundle | post |
//   copy the other local ranks' bundles out
#include <deque>

#include "algorithms/patterns.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// Chunks that are sent, and whose receives are posted, ahead of the current step.
constexpr std::uint32_t kAhead = 3;

class RailAllgather {
 public:
  RailAllgather(Board& board, NetworkChannel& channel, const CollectiveTask& task)
      : board_(board),
        channel_(channel),
        host_map_(channel.host_map()),
        task_(task),
        rank_(channel.rank()),
        host_(host_map_.host_of(rank_)),
        longest_(task.longest_output()) {
    for (int host = 0; host < host_map_.hosts(); ++host)
      if (host != host_)
        counterparts_.push_back(host_map_.counterpart(host, host_map_.local_rank(rank_)));
    for (const int local : host_map_.ranks_of(host_)) bundles_.push_back(bundle_of(local));
    chunk_bytes_ = chunk_bytes();
    steps_ = steps_for(longest_, chunk_bytes_);
  }

  void run() {
    for (std::uint32_t i = 0; i < std::min(kAhead, steps_); ++i) send(i);
    for (std::uint32_t step = 0; step < steps_; ++step) {
      if (step + kAhead < steps_) send(step + kAhead);
      const Board::Slot slot = board_.open_step();
      receive_bundle(step, slot.input);
      board_.post();
      for (int peer = 0; peer < board_.size(); ++peer)
        if (peer != board_.rank()) copy_bundle(peer, step);
    }
    const auto own = task_.output_from(rank_);
    task_.copy_out(own.data(), task_.in(), own.size(), whole());
  }

 private:
  /// The ranks whose blocks `local` posts for its host: its own first, then those sent to it.
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
  /// The same on all hosts: a chunk fits a message, and the chunks of a bundle fit a slot.
  [[nodiscard]] std::size_t chunk_bytes() const {
    if (host_map_.max_local_size() == 1)
      return chunk_size(longest_, NetworkChannel::kMaxMessageBytes);
    std::size_t largest_bundle = 1;
    for (int host = 0; host < host_map_.hosts(); ++host)
      largest_bundle = std::max(largest_bundle, bundle_of(host_map_.ranks_of(host)[0]).size());
    const std::size_t in_slot = std::max<std::size_t>(1, board_.area_bytes() / largest_bundle);
    return std::min(chunk_size(longest_, NetworkChannel::kMaxMessageBytes), in_slot);
  }
  [[nodiscard]] Range chunk(int rank, std::uint32_t step) const {
    return chunk_range(task_.output_from(rank).size(), chunk_bytes_, step);
  }

  void send(std::uint32_t step) {
    for (const int from : bundles_[static_cast<std::size_t>(board_.rank())])
      if (from != rank_ && chunk(from, step).count != 0)
        receives_.push_back(channel_.post_receive(from));
    const Range own = chunk(rank_, step);
    if (own.count == 0) return;
    const NetworkChannel::MessagePtr message = channel_.acquire();
    task_.copy(message->data(), task_.in() + own.begin, own.count);
    channel_.send(message, own.count, counterparts_);
    channel_.flush(2 * kAhead);
  }

  void receive_bundle(std::uint32_t step, std::byte* slot) {
    const bool has_readers = board_.size() > 1;
    std::size_t in_slot = 0;
    for (const int from : bundles_[static_cast<std::size_t>(board_.rank())]) {
      const Range range = chunk(from, step);
      const std::byte* data = task_.in() + range.begin;
      if (from != rank_ && range.count != 0) {
        data = channel_.await(receives_.front(), range.count);
        task_.copy_out(task_.output_from(from).data() + range.begin, data, range.count, whole());
      }
      if (has_readers) task_.copy(slot + in_slot, data, range.count);
      if (from != rank_ && range.count != 0) receives_.pop_front();
      in_slot += chunk_bytes_;
    }
  }

  void copy_bundle(int peer, std::uint32_t step) {
    const Board::PeerSlot slot = board_.await(peer, step);
    std::size_t in_slot = 0;
    for (const int from : bundles_[static_cast<std::size_t>(peer)]) {
      const Range range = chunk(from, step);
      task_.copy_out(task_.output_from(from).data() + range.begin, slot.input + in_slot,
                     range.count, whole());
      in_slot += chunk_bytes_;
    }
  }

  Board& board_;
  NetworkChannel& channel_;
  const HostMap& host_map_;
  const CollectiveTask& task_;
  int rank_;
  int host_;
  std::size_t longest_;
  std::vector<int> counterparts_;
  std::vector<std::vector<int>> bundles_;  // by local rank
  std::size_t chunk_bytes_ = 1;
  std::uint32_t steps_ = 1;
  std::deque<NetworkChannel::MessagePtr> receives_;  // posted, in the order of await()
};

}  // namespace

void allgather_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  RailAllgather(board, channel, task).run();
}

}  // namespace tccl
