// Broadcast over hosts: along a binomial tree of hosts for small messages (log2 H messages deep),
// along a chain of hosts for large ones (every host sends the message once; chunks are pipelined).
//
// Each host has a host root: the root on its own host, local rank 0 elsewhere. For each chunk a
// host root receives from its parent | sends to its children | posts on the board. The other ranks
// of the host copy the chunk out.
#include "algorithms/partition.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// Messages of at least this size use the chain.
constexpr std::size_t kChainBytes = std::size_t{64} << 10;
/// Chunks whose receives are posted ahead of the current step.
constexpr std::uint32_t kReceivesAhead = 4;

class TreeBroadcast {
 public:
  TreeBroadcast(Board& board, NetworkChannel& channel, const CollectiveTask& task)
      : board_(board),
        channel_(channel),
        host_map_(channel.host_map()),
        task_(task),
        chunk_bytes_(chunk_size(task.bytes(),
                                std::min(board.chunk_bytes(), NetworkChannel::kMaxMessageBytes))),
        steps_(steps_for(task.bytes(), chunk_bytes_)) {
    find_parent_and_children();
  }

  void run() {
    if (board_.local_rank() == host_root_) return run_host_root();
    for (std::uint32_t step = 0; step < steps_; ++step) {
      const Range chunk = chunk_range(task_.bytes(), chunk_bytes_, step);
      board_.open_step();
      board_.post();
      task_.copy_out(task_.out() + chunk.begin, published(board_, host_root_, step, chunk.count),
                     chunk.count, task_.bytes());
    }
  }

 private:
  [[nodiscard]] int host_root_of(int host) const {
    return host == host_map_.host_of(task_.root()) ? task_.root() : host_map_.ranks_of(host)[0];
  }

  void find_parent_and_children() {
    const int hosts = host_map_.hosts();
    const int root_host = host_map_.host_of(task_.root());
    const int host = host_map_.host_of(channel_.rank());
    host_root_ = host_map_.local_rank(host_root_of(host));
    const int position = (host - root_host + hosts) % hosts;  // the root's host is at 0
    const auto at = [&](int p) { return host_root_of((root_host + p) % hosts); };
    if (task_.bytes() >= kChainBytes) {
      if (position > 0) parent_ = at(position - 1);
      if (position + 1 < hosts) children_.push_back(at(position + 1));
      return;
    }
    // Binomial tree: the parent's position lacks the lowest set bit; each child's has one more bit
    // set, below that one.
    if (position > 0) parent_ = at(position & (position - 1));
    for (int bit = 1; bit < hosts && (position & bit) == 0; bit *= 2)
      if (position + bit < hosts) children_.insert(children_.begin(), at(position + bit));
  }

  void run_host_root() {
    std::vector<NetworkChannel::MessagePtr> receives;
    for (std::uint32_t step = 0; step < steps_; ++step) {
      const Range chunk = chunk_range(task_.bytes(), chunk_bytes_, step);
      NetworkChannel::MessagePtr message;
      if (parent_ >= 0) {
        while (receives.size() < steps_ && receives.size() < step + kReceivesAhead)
          receives.push_back(channel_.post_receive(parent_));
        message = std::move(receives[step]);
        const std::byte* data = channel_.await(message, chunk.count);
        task_.copy_out(task_.out() + chunk.begin, data, chunk.count, task_.bytes());
      } else if (!children_.empty()) {
        message = channel_.acquire();
        task_.copy(message->data(), task_.in() + chunk.begin, chunk.count);
      }
      if (!children_.empty()) channel_.send(message, chunk.count, children_);
      const Board::Slot slot = board_.open_step();
      if (board_.size() > 1)
        publish(board_, task_, slot, task_.out() + chunk.begin, chunk.count, Board::kEveryone,
                /*unmodified=*/false);
      board_.post();
      channel_.flush(2 * kReceivesAhead);
    }
  }

  Board& board_;
  NetworkChannel& channel_;
  const HostMap& host_map_;
  const CollectiveTask& task_;
  std::size_t chunk_bytes_;
  std::uint32_t steps_;
  int host_root_ = 0;  // local rank
  int parent_ = -1;    // rank; none on the root's host
  std::vector<int> children_;
};

}  // namespace

void broadcast_tree(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  TreeBroadcast(board, channel, task).run();
}

}  // namespace tccl
