// For small messages: one rank of each host reduces what its host has and sends that to those of
// all other hosts; everyone adds up the same sums in the same order. One message's time.
#include "algorithms/float32_accumulation.h"
#include "algorithms/host_sums.h"
#include "algorithms/patterns.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// The one that speaks for its host.
constexpr int kLeader = 0;

std::vector<int> other_leaders(const NetworkChannel& channel) {
  const HostMap& host_map = channel.host_map();
  std::vector<int> ranks;
  for (int host = 0; host < host_map.hosts(); ++host)
    if (host != host_map.host_of(channel.rank())) ranks.push_back(host_map.ranks_of(host)[kLeader]);
  return ranks;
}

class Exchange {
 public:
  Exchange(Board& board, NetworkChannel& channel, const CollectiveTask& task)
      : board_(board),
        channel_(channel),
        task_(task),
        sums_(channel, task, WireFormat::same),  // only large ones are packed
        others_(other_leaders(channel)) {}

  void run() {
    const std::size_t largest = std::min(board_.chunk_bytes(), NetworkChannel::kMaxMessageBytes);
    const std::size_t per_piece = largest / task_.element_bytes() * task_.element_bytes();
    const std::uint32_t last = steps_for(task_.bytes(), per_piece);
    for (std::uint32_t index = 0; index < last; ++index) {
      const Range piece = tccl::piece(task_.bytes(), per_piece, index);
      board_.rank() == kLeader ? run_leader(piece, 2 * index) : run_follower(piece, 2 * index);
    }
  }

 private:
  void run_leader(const Range& piece, std::uint32_t step) {
    std::vector<NetworkChannel::MessagePtr> messages;
    for (const int other : others_) messages.push_back(channel_.post_receive(other));
    board_.open_step();
    board_.post();
    const NetworkChannel::MessagePtr own = channel_.acquire();
    Sources ranks(board_.size());
    for (int rank = 0; rank < board_.size(); ++rank)
      ranks[rank] =
          rank == kLeader ? task_.in() + piece.begin : published(board_, rank, step, piece.count);
    task_.reduce_local(board_, channel_.host_map().ranks(), own->data(), ranks, piece.count);
    channel_.send(own, piece.count, others_);
    sums_.add_up(task_.out() + piece.begin, own->data(), messages, piece.count);
    const Board::Slot slot = board_.open_step();
    if (board_.size() > 1)
      publish(board_, task_, slot, task_.out() + piece.begin, piece.count, Board::kEveryone,
              /*stable=*/false);
    board_.post();
  }

  void run_follower(const Range& piece, std::uint32_t step) {
    publish(board_, task_, board_.open_step(), task_.in() + piece.begin, piece.count, kLeader,
            task_.in() != task_.out());
    board_.post();
    board_.open_step();
    board_.post();
    task_.copy(task_.out() + piece.begin, published(board_, kLeader, step + 1, piece.count),
               piece.count);
  }

  Board& board_;
  NetworkChannel& channel_;
  const CollectiveTask& task_;
  HostSums sums_;
  std::vector<int> others_;
};

}  // namespace

void allreduce_leader_alltoall(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  accumulate_in_float32(task, /*has_output=*/true,
                        [&](const CollectiveTask& wide) { Exchange(board, channel, wide).run(); });
}

void barrier_leader_alltoall(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  Exchange(board, channel, task).run();
}

}  // namespace tccl
