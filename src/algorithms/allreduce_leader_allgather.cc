// Allreduce and barrier over hosts for small messages: an all-gather of the hosts' sums among one
// leader per host.
//
// A chunk takes two board steps:
//   step 0   the leader reduces the inputs of its host's ranks and sends the sum to all leaders
//   step 1   the leader reduces the sums of all hosts in host order and posts the result, which
//            the other ranks of its host copy
// So the latency is that of one message. Every host computes the same sums in the same order.
#include "algorithms/float32_accumulation.h"
#include "algorithms/host_sums.h"
#include "algorithms/partition.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

constexpr int kLeaderLocalRank = 0;

std::vector<int> other_leaders(const NetworkChannel& channel) {
  const HostMap& host_map = channel.host_map();
  std::vector<int> ranks;
  for (int host = 0; host < host_map.hosts(); ++host)
    if (host != host_map.host_of(channel.rank()))
      ranks.push_back(host_map.ranks_of(host)[kLeaderLocalRank]);
  return ranks;
}

class LeaderAllgather {
 public:
  LeaderAllgather(Board& board, NetworkChannel& channel, const CollectiveTask& task)
      : board_(board),
        channel_(channel),
        task_(task),
        sums_(channel, task, WireFormat::uncompressed),  // only the rails algorithms compress
        other_leaders_(other_leaders(channel)) {}

  void run() {
    const std::size_t largest = std::min(board_.chunk_bytes(), NetworkChannel::kMaxMessageBytes);
    const std::size_t chunk_bytes = largest / task_.element_bytes() * task_.element_bytes();
    const std::uint32_t chunks = steps_for(task_.bytes(), chunk_bytes);
    for (std::uint32_t index = 0; index < chunks; ++index) {
      const Range chunk = chunk_range(task_.bytes(), chunk_bytes, index);
      board_.local_rank() == kLeaderLocalRank ? run_leader(chunk, 2 * index)
                                              : run_follower(chunk, 2 * index);
    }
  }

 private:
  void run_leader(const Range& chunk, std::uint32_t step) {
    std::vector<NetworkChannel::MessagePtr> receives;
    for (const int other : other_leaders_) receives.push_back(channel_.post_receive(other));
    board_.open_step();
    board_.post();
    const NetworkChannel::MessagePtr own = channel_.acquire();
    Sources ranks(board_.size());
    for (int rank = 0; rank < board_.size(); ++rank)
      ranks[rank] = rank == kLeaderLocalRank ? task_.in() + chunk.begin
                                             : published(board_, rank, step, chunk.count);
    task_.reduce_local(board_, channel_.host_map().ranks(), own->data(), ranks, chunk.count);
    channel_.send(own, chunk.count, other_leaders_);
    sums_.reduce(task_.out() + chunk.begin, own->data(), receives, chunk.count);
    const Board::Slot slot = board_.open_step();
    if (board_.size() > 1)
      publish(board_, task_, slot, task_.out() + chunk.begin, chunk.count, Board::kEveryone,
              /*unmodified=*/false);
    board_.post();
  }

  void run_follower(const Range& chunk, std::uint32_t step) {
    publish(board_, task_, board_.open_step(), task_.in() + chunk.begin, chunk.count,
            kLeaderLocalRank, task_.in() != task_.out());
    board_.post();
    board_.open_step();
    board_.post();
    task_.copy(task_.out() + chunk.begin,
               published(board_, kLeaderLocalRank, step + 1, chunk.count), chunk.count);
  }

  Board& board_;
  NetworkChannel& channel_;
  const CollectiveTask& task_;
  HostSums sums_;
  std::vector<int> other_leaders_;
};

}  // namespace

void allreduce_leader_allgather(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  accumulate_in_float32(task, /*has_output=*/true, [&](const CollectiveTask& accumulated) {
    LeaderAllgather(board, channel, accumulated).run();
  });
}

void barrier_leader_allgather(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  LeaderAllgather(board, channel, task).run();
}

}  // namespace tccl
