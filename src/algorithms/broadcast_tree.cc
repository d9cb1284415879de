// From host to host: a small message by a binomial tree, which is short; a large one in a chain, in
// which every host sends it only once. On each host one rank relays, and the others copy from it.
#include "algorithms/patterns.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

constexpr std::size_t kChainBytes = std::size_t{64} << 10;
/// Pieces that are expected ahead.
constexpr std::uint32_t kAhead = 4;

class TreeBroadcast {
 public:
  TreeBroadcast(Board& board, NetworkChannel& channel, const CollectiveTask& task)
      : board_(board),
        channel_(channel),
        host_map_(channel.host_map()),
        task_(task),
        per_step_(piece_size(task.bytes(),
                             std::min(board.chunk_bytes(), NetworkChannel::kMaxMessageBytes))),
        steps_(steps_for(task.bytes(), per_step_)) {
    find_neighbours();
  }

  void run() {
    if (board_.rank() == local_root_) return forward();
    for (std::uint32_t step = 0; step < steps_; ++step) {
      const Range piece = tccl::piece(task_.bytes(), per_step_, step);
      board_.open_step();
      board_.post();
      task_.copy_out(task_.out() + piece.begin, published(board_, local_root_, step, piece.count),
                     piece.count, task_.bytes());
    }
  }

 private:
  [[nodiscard]] int leader_of(int host) const {
    return host == host_map_.host_of(task_.root()) ? task_.root() : host_map_.ranks_of(host)[0];
  }

  void find_neighbours() {
    const int hosts = host_map_.hosts();
    const int root_host = host_map_.host_of(task_.root());
    const int host = host_map_.host_of(channel_.rank());
    local_root_ = host_map_.local_rank(leader_of(host));
    const int distance = (host - root_host + hosts) % hosts;
    const auto at = [&](int d) { return leader_of((root_host + d) % hosts); };
    if (task_.bytes() >= kChainBytes) {
      if (distance > 0) parent_ = at(distance - 1);
      if (distance + 1 < hosts) children_.push_back(at(distance + 1));
      return;
    }
    // The parent lacks the lowest bit; the children have one more, below it.
    if (distance > 0) parent_ = at(distance & (distance - 1));
    for (int bit = 1; bit < hosts && (distance & bit) == 0; bit *= 2)
      if (distance + bit < hosts) children_.insert(children_.begin(), at(distance + bit));
  }

  void forward() {
    std::vector<NetworkChannel::MessagePtr> expected;
    for (std::uint32_t step = 0; step < steps_; ++step) {
      const Range piece = tccl::piece(task_.bytes(), per_step_, step);
      NetworkChannel::MessagePtr message;
      if (parent_ >= 0) {
        while (expected.size() < steps_ && expected.size() < step + kAhead)
          expected.push_back(channel_.post_receive(parent_));
        message = std::move(expected[step]);
        const std::byte* came = channel_.await(message, piece.count);
        task_.copy_out(task_.out() + piece.begin, came, piece.count, task_.bytes());
      } else if (!children_.empty()) {
        message = channel_.acquire();
        task_.copy(message->data(), task_.in() + piece.begin, piece.count);
      }
      if (!children_.empty()) channel_.send(message, piece.count, children_);
      const Board::Slot slot = board_.open_step();
      if (board_.size() > 1)
        publish(board_, task_, slot, task_.out() + piece.begin, piece.count, Board::kEveryone,
                /*stable=*/false);
      board_.post();
      channel_.flush(2 * kAhead);
    }
  }

  Board& board_;
  NetworkChannel& channel_;
  const HostMap& host_map_;
  const CollectiveTask& task_;
  std::size_t per_step_;
  std::uint32_t steps_;
  int local_root_ = 0;
  int parent_ = -1;
  std::vector<int> children_;
};

}  // namespace

void broadcast_tree(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  TreeBroadcast(board, channel, task).run();
}

}  // namespace tccl
