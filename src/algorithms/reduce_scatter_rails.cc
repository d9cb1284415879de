// Each host's ranks reduce what they have for a rank elsewhere, and one of them sends it there: the
// one with the same place on its host. The rank adds up one sum per host, in the order of hosts.
// Blocks may differ in size.
#include "algorithms/float32_accumulation.h"
#include "algorithms/host_sums.h"
#include "algorithms/patterns.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// Pieces that are on their way between two stages.
constexpr std::uint32_t kLag = 3;

class Scatter {
 public:
  Scatter(Board& board, NetworkChannel& channel, const CollectiveTask& task)
      : board_(board),
        channel_(channel),
        host_map_(channel.host_map()),
        task_(task),
        sums_(channel, task, channel.format()),
        rank_(channel.rank()),
        host_(host_map_.host_of(rank_)),
        longest_(std::max(task.element_bytes(), task.longest_input())),
        per_rank_(piece_bytes()),
        in_flight_(kLag + 1) {}

  void run() {
    const std::uint32_t steps = steps_for(longest_, per_rank_);
    for (std::uint32_t i = 0; i < steps + kLag; ++i) {
      if (i < steps) send(i);
      if (i >= kLag) add_up(i - kLag);
    }
  }

 private:
  struct InFlight {
    std::vector<std::byte> sum;  // of this host, for this rank
    std::vector<NetworkChannel::MessagePtr> parts;
  };

  /// Of one rank's piece. At least one element for every rank fits: see Board::area_bytes.
  [[nodiscard]] std::size_t piece_bytes() const {
    const auto ranks = static_cast<std::size_t>(host_map_.ranks());
    const std::size_t largest = host_map_.max_local_size() == 1
                                    ? ranks * NetworkChannel::kMaxMessageBytes / 2
                                    : board_.chunk_bytes();
    const std::size_t elements =
        piece_size(longest_ * ranks, largest) / ranks / task_.element_bytes();
    const std::size_t bytes = std::max<std::size_t>(1, elements) * task_.element_bytes();
    return std::min(
        {longest_, bytes,
         NetworkChannel::kMaxMessageBytes / task_.element_bytes() * task_.element_bytes()});
  }
  [[nodiscard]] Range piece(int rank, std::uint32_t step) const {
    return tccl::piece(task_.input_for(rank).size(), per_rank_, step);
  }
  InFlight& in_flight(std::uint32_t step) { return in_flight_[step % in_flight_.size()]; }

  void send(std::uint32_t step) {
    const Board::Slot slot = board_.open_step();
    copy_in(slot.input, step);
    board_.post();
    for (int host = 0; host < host_map_.hosts(); ++host)
      for (const int to : host_map_.ranks_of(host))
        if (host != host_ && host_map_.counterpart(host_, host_map_.local_rank(to)) == rank_)
          send_to(to, step);
    InFlight& state = in_flight(step);
    const Range own = piece(rank_, step);
    state.sum.resize(own.count);
    reduce_local(state.sum.data(), rank_, step);
    state.parts.clear();
    for (int host = 0; own.count != 0 && host < host_map_.hosts(); ++host)
      if (host != host_)
        state.parts.push_back(
            channel_.post_receive(host_map_.counterpart(host, host_map_.local_rank(rank_))));
    channel_.flush(4 * kLag * static_cast<std::size_t>(host_map_.ranks()));
  }

  void copy_in(std::byte* slot, std::uint32_t step) const {
    if (board_.size() == 1) return;
    for (int rank = 0; rank < host_map_.ranks(); ++rank) {
      const Range range = piece(rank, step);
      task_.copy(slot + static_cast<std::size_t>(rank) * per_rank_,
                 task_.input_for(rank).data() + range.begin, range.count);
    }
  }

  /// What the ranks of this host have for `rank`.
  void reduce_local(std::byte* sum, int rank, std::uint32_t step) {
    const Range range = piece(rank, step);
    Sources sources(board_.size());
    for (int peer = 0; peer < board_.size(); ++peer)
      sources[peer] = peer == board_.rank() ? task_.input_for(rank).data() + range.begin
                                            : board_.await(peer, step).input +
                                                  static_cast<std::size_t>(rank) * per_rank_;
    task_.reduce_local(board_, host_map_.ranks(), sum, sources, range.count);
  }

  void send_to(int rank, std::uint32_t step) {
    const std::size_t bytes = piece(rank, step).count;
    if (bytes == 0) return;
    const NetworkChannel::MessagePtr message = channel_.acquire();
    if (sums_.packs()) {
      packing_.resize(bytes);
      reduce_local(packing_.data(), rank, step);
      sums_.pack(message->data(), packing_.data(), bytes);
    } else {
      reduce_local(message->data(), rank, step);
    }
    channel_.send(message, sums_.bytes(bytes), rank);
  }

  void add_up(std::uint32_t step) {
    const Range own = piece(rank_, step);
    if (own.count == 0) return;
    InFlight& state = in_flight(step);
    sums_.add_up(task_.out() + own.begin, state.sum.data(), state.parts, own.count);
    state.parts.clear();
  }

  Board& board_;
  NetworkChannel& channel_;
  const HostMap& host_map_;
  const CollectiveTask& task_;
  HostSums sums_;
  int rank_;
  int host_;
  std::size_t longest_;
  std::size_t per_rank_;
  std::vector<InFlight> in_flight_;
  std::vector<std::byte> packing_;
};

}  // namespace

void reduce_scatter_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  accumulate_blocks_in_float32(
      task, channel.rank(), channel.host_map().ranks(),
      [&](const CollectiveTask& wide) { Scatter(board, channel, wide).run(); });
}

}  // namespace tccl
