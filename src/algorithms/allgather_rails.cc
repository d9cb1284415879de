// All-gather over hosts. Blocks may differ in size (allgatherv).
//
// Every block crosses the network once per other host: each rank sends its block to its rail peer
// on every other host (the same local rank, modulo the size of that host). A rank posts its own
// block and the blocks that it received on the board, and all local ranks copy them out. A step
// carries one chunk of every block:
//
//   send chunk i + kChunksAhead to the rail peers | receive chunk i of their blocks | post |
//   copy out the blocks that the other local ranks posted
#include <deque>

#include "algorithms/partition.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// Chunks that are sent, and whose receives are posted, ahead of the current step.
constexpr std::uint32_t kChunksAhead = 3;

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
        rail_peers_.push_back(host_map_.rail_peer(host, host_map_.local_rank(rank_)));
    for (const int local : host_map_.ranks_of(host_))
      posted_blocks_.push_back(blocks_posted_by(local));
    chunk_bytes_ = chunk_bytes();
    steps_ = steps_for(longest_, chunk_bytes_);
  }

  void run() {
    for (std::uint32_t i = 0; i < std::min(kChunksAhead, steps_); ++i) send(i);
    for (std::uint32_t step = 0; step < steps_; ++step) {
      if (step + kChunksAhead < steps_) send(step + kChunksAhead);
      const Board::Slot slot = board_.open_step();
      receive_blocks(step, slot.input);
      board_.post();
      for (int peer = 0; peer < board_.size(); ++peer)
        if (peer != board_.local_rank()) copy_blocks(peer, step);
    }
    const auto own = task_.output_from(rank_);
    task_.copy_out(own.data(), task_.in(), own.size(), total_bytes());
  }

 private:
  /// The ranks whose blocks `local` posts for its host: its own first, then those sent to it.
  [[nodiscard]] std::vector<int> blocks_posted_by(int local) const {
    std::vector<int> ranks{local};
    const int own_host = host_map_.host_of(local);
    for (int host = 0; host < host_map_.hosts(); ++host)
      for (const int rank : host_map_.ranks_of(host))
        if (host != own_host && host_map_.rail_peer(own_host, host_map_.local_rank(rank)) == local)
          ranks.push_back(rank);
    return ranks;
  }
  [[nodiscard]] std::size_t total_bytes() const {
    return longest_ * static_cast<std::size_t>(host_map_.ranks());
  }
  /// The same on all hosts: a chunk fits a message, and the chunks that a rank posts fit a slot.
  [[nodiscard]] std::size_t chunk_bytes() const {
    if (host_map_.max_local_size() == 1)
      return chunk_size(longest_, NetworkChannel::kMaxMessageBytes);
    std::size_t most_blocks = 1;
    for (int host = 0; host < host_map_.hosts(); ++host)
      most_blocks = std::max(most_blocks, blocks_posted_by(host_map_.ranks_of(host)[0]).size());
    const std::size_t bytes_in_slot = std::max<std::size_t>(1, board_.area_bytes() / most_blocks);
    return std::min(chunk_size(longest_, NetworkChannel::kMaxMessageBytes), bytes_in_slot);
  }
  [[nodiscard]] Range chunk(int rank, std::uint32_t step) const {
    return chunk_range(task_.output_from(rank).size(), chunk_bytes_, step);
  }

  void send(std::uint32_t step) {
    for (const int from : posted_blocks_[static_cast<std::size_t>(board_.local_rank())])
      if (from != rank_ && chunk(from, step).count != 0)
        receives_.push_back(channel_.post_receive(from));
    const Range own = chunk(rank_, step);
    if (own.count == 0) return;
    const NetworkChannel::MessagePtr message = channel_.acquire();
    task_.copy(message->data(), task_.in() + own.begin, own.count);
    channel_.send(message, own.count, rail_peers_);
    channel_.flush(2 * kChunksAhead);
  }

  void receive_blocks(std::uint32_t step, std::byte* slot) {
    const bool has_readers = board_.size() > 1;
    std::size_t slot_offset = 0;
    for (const int from : posted_blocks_[static_cast<std::size_t>(board_.local_rank())]) {
      const Range range = chunk(from, step);
      const std::byte* data = task_.in() + range.begin;
      if (from != rank_ && range.count != 0) {
        data = channel_.await(receives_.front(), range.count);
        task_.copy_out(task_.output_from(from).data() + range.begin, data, range.count,
                       total_bytes());
      }
      if (has_readers) task_.copy(slot + slot_offset, data, range.count);
      if (from != rank_ && range.count != 0) receives_.pop_front();
      slot_offset += chunk_bytes_;
    }
  }

  void copy_blocks(int peer, std::uint32_t step) {
    const Board::PeerSlot slot = board_.await(peer, step);
    std::size_t slot_offset = 0;
    for (const int from : posted_blocks_[static_cast<std::size_t>(peer)]) {
      const Range range = chunk(from, step);
      task_.copy_out(task_.output_from(from).data() + range.begin, slot.input + slot_offset,
                     range.count, total_bytes());
      slot_offset += chunk_bytes_;
    }
  }

  Board& board_;
  NetworkChannel& channel_;
  const HostMap& host_map_;
  const CollectiveTask& task_;
  int rank_;
  int host_;
  std::size_t longest_;
  std::vector<int> rail_peers_;
  std::vector<std::vector<int>> posted_blocks_;  // by local rank
  std::size_t chunk_bytes_ = 1;
  std::uint32_t steps_ = 1;
  std::deque<NetworkChannel::MessagePtr> receives_;  // posted, in the order of await()
};

}  // namespace

void allgather_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  RailAllgather(board, channel, task).run();
}

}  // namespace tccl
