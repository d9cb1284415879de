// Reduce-scatter over hosts. Blocks may differ in size (reduce_scatterv).
//
// A step carries one chunk of every rank's block. For each rank of another host, one local rank,
// its rail peer (the same local rank, modulo the size of the host), reduces the local ranks'
// inputs for that rank and sends it the sum. Every rank then reduces one sum per host, in host
// order:
//
//   send     copy in | post | for each remote rank whose rail peer this rank is: reduce the local
//            inputs, send | reduce the local inputs for this rank
//   reduce   this rank's chunk, kReduceLag steps later: its host's sum and one message per other
//            host
#include "algorithms/float32_accumulation.h"
#include "algorithms/host_sums.h"
#include "algorithms/registry.h"
#include "algorithms/slices.h"

namespace tccl {
namespace {

/// Chunks in flight between the two stages.
constexpr std::uint32_t kReduceLag = 3;

class RailReduceScatter {
 public:
  RailReduceScatter(Board& board, NetworkChannel& channel, const CollectiveTask& task)
      : board_(board),
        channel_(channel),
        host_map_(channel.host_map()),
        task_(task),
        sums_(channel, task, channel.wire_format()),
        rank_(channel.rank()),
        host_(host_map_.host_of(rank_)),
        longest_(std::max(task.element_bytes(), task.longest_input())),
        chunks_(task, host_map_.ranks(), chunk_bytes()),
        in_flight_(kReduceLag + 1) {}

  void run() {
    const std::uint32_t steps = steps_for(longest_, chunks_.chunk_bytes());
    for (std::uint32_t i = 0; i < steps + kReduceLag; ++i) {
      if (i < steps) send(i);
      if (i >= kReduceLag) reduce(i - kReduceLag);
    }
  }

 private:
  struct InFlight {
    std::vector<std::byte> sum;                            // of this host's inputs for this rank
    std::vector<NetworkChannel::MessagePtr> partial_sums;  // of the other hosts
  };

  [[nodiscard]] std::size_t chunk_bytes() const {
    const auto ranks = static_cast<std::size_t>(host_map_.ranks());
    const std::size_t step_bytes = host_map_.max_local_size() == 1
                                       ? ranks * NetworkChannel::kMaxMessageBytes / 2
                                       : board_.chunk_bytes();
    const std::size_t element = task_.element_bytes();
    return std::min(block_chunk_size(task_, ranks, longest_, step_bytes),
                    NetworkChannel::kMaxMessageBytes / element * element);
  }
  InFlight& in_flight(std::uint32_t step) { return in_flight_[step % in_flight_.size()]; }
  [[nodiscard]] int rail_peer_on(int host, int rank) const {
    return host_map_.rail_peer(host, host_map_.local_rank(rank));
  }

  void send(std::uint32_t step) {
    const Board::Slot slot = board_.open_step();
    if (board_.size() > 1) chunks_.copy_in(slot.input, step);
    board_.post();
    for (int host = 0; host < host_map_.hosts(); ++host)
      for (const int to : host_map_.ranks_of(host))
        if (host != host_ && rail_peer_on(host_, to) == rank_) send_to(to, step);
    InFlight& state = in_flight(step);
    const std::size_t own_bytes = chunks_.range(rank_, step).count;
    state.sum.resize(own_bytes);
    reduce_local(state.sum.data(), rank_, step);
    state.partial_sums.clear();
    for (int host = 0; own_bytes != 0 && host < host_map_.hosts(); ++host)
      if (host != host_)
        state.partial_sums.push_back(channel_.post_receive(rail_peer_on(host, rank_)));
    channel_.flush(4 * kReduceLag * static_cast<std::size_t>(host_map_.ranks()));
  }

  /// Reduces the local ranks' inputs for `rank`.
  void reduce_local(std::byte* sum, int rank, std::uint32_t step) {
    Sources sources(board_.size());
    for (int peer = 0; peer < board_.size(); ++peer)
      sources[peer] = peer == board_.local_rank()
                          ? chunks_.input(rank, step)
                          : board_.await(peer, step).input + chunks_.slot_offset(rank);
    task_.reduce_local(board_, host_map_.ranks(), sum, sources, chunks_.range(rank, step).count);
  }

  void send_to(int rank, std::uint32_t step) {
    const std::size_t bytes = chunks_.range(rank, step).count;
    if (bytes == 0) return;
    const NetworkChannel::MessagePtr message = channel_.acquire();
    if (sums_.compresses()) {
      decompressed_.resize(bytes);
      reduce_local(decompressed_.data(), rank, step);
      sums_.compress(message->data(), decompressed_.data(), bytes);
    } else {
      reduce_local(message->data(), rank, step);
    }
    channel_.send(message, sums_.wire_bytes(bytes), rank);
  }

  void reduce(std::uint32_t step) {
    const Range own = chunks_.range(rank_, step);
    if (own.count == 0) return;
    InFlight& state = in_flight(step);
    sums_.reduce(task_.out() + own.begin, state.sum.data(), state.partial_sums, own.count);
    state.partial_sums.clear();
  }

  Board& board_;
  NetworkChannel& channel_;
  const HostMap& host_map_;
  const CollectiveTask& task_;
  HostSums sums_;
  int rank_;
  int host_;
  std::size_t longest_;
  BlockChunks chunks_;
  std::vector<InFlight> in_flight_;
  std::vector<std::byte> decompressed_;
};

}  // namespace

void reduce_scatter_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  accumulate_blocks_in_float32(task, channel.rank(), channel.host_map().ranks(),
                               [&](const CollectiveTask& accumulated) {
                                 RailReduceScatter(board, channel, accumulated).run();
                               });
}

}  // namespace tccl
