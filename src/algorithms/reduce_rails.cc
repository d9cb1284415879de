// Allreduce over hosts for large messages, and reduce, which differs only in who gets the result.
//
// A rail is one rank of each host (not a network rail): rail r connects the ranks with local rank
// r. There are as many rails as the smallest host has ranks, so every rank of that host uses the
// network. The message is divided into chunks, each chunk into one slice per rail, each slice into
// one share per host (partition.h). A chunk passes four stages, a reduce-scatter and an all-gather
// on two levels:
//
//   send      reduce-scatter on the host: each rail reduces its slice of all local ranks' inputs,
//             and sends every other host its share of the slice
//   reduce    reduce-scatter over hosts: each rail reduces its host's share in host order and sends
//             the sum to the same rail of the other hosts
//   collect   all-gather over hosts: each rail receives the other shares of its slice
//   read      all-gather on the host: every rank copies all slices out
//
// Every byte leaves a host 2 (H - 1) / H times, however many ranks it has. The stages work on
// different chunks, kStageLag steps apart, so that the network does not wait for the board.
#include "algorithms/float32_accumulation.h"
#include "algorithms/host_sums.h"
#include "algorithms/registry.h"
#include "algorithms/slices.h"

namespace tccl {
namespace {

/// Chunks in flight between two stages. More do not fill the network better, but let the hosts
/// drift apart: 1 MiB over 4 hosts at 1 Gbit/s then took 13.9 ms instead of 13.6.
constexpr std::uint32_t kStageLag = 1;
/// Messages in flight per other host.
constexpr std::size_t kMaxInFlight = 2 * kStageLag + 2;

class RailReduction {
 public:
  /// `result_rank` is the rank that gets the result, or Board::kEveryone.
  RailReduction(Board& board, NetworkChannel& channel, const CollectiveTask& task, int result_rank)
      : board_(board),
        channel_(channel),
        host_map_(channel.host_map()),
        task_(task),
        sums_(channel, task, channel.wire_format()),
        result_rank_(result_rank),
        host_(host_map_.host_of(channel.rank())),
        rail_(static_cast<std::size_t>(board.local_rank())),
        rails_(static_cast<std::size_t>(host_map_.min_local_size())),
        hosts_(static_cast<std::size_t>(host_map_.hosts())),
        slices_(task.operation().count, task.element_bytes(), chunk_bytes() / task.element_bytes(),
                rails_) {
    if (!is_on_rail()) return;
    for (std::size_t i = 0; i <= 2 * kStageLag; ++i)
      in_flight_.emplace_back(slices_.at(0, rail_).bytes);
  }

  void run() {
    constexpr std::uint32_t kReadLag = 2 * kStageLag + 1;
    const std::uint32_t chunks = slices_.chunks();
    for (std::uint32_t step = 0; step < chunks + kReadLag; ++step) {
      const Board::Slot slot = board_.open_step();
      if (step < chunks && board_.size() > 1) copy_in(task_, slices_, step, rail_, slot.input);
      if (step >= kReadLag) publish_slice(step - kReadLag, slot.result);
      board_.post();
      if (is_on_rail()) {
        run_stage(step, 0, [&](std::uint32_t chunk) { send(chunk); });
        run_stage(step, kStageLag, [&](std::uint32_t chunk) { reduce(chunk); });
        run_stage(step, 2 * kStageLag, [&](std::uint32_t chunk) { collect(chunk); });
      }
      if (step >= kReadLag) read(step - kReadLag, step);
    }
  }

 private:
  /// Runs a stage on the chunk of `lag` steps before, if there is one.
  void run_stage(std::uint32_t step, std::uint32_t lag,
                 FunctionRef<void(std::uint32_t chunk)> stage) const {
    if (step >= lag && step - lag < slices_.chunks()) stage(step - lag);
  }

  /// This rail's slice of one chunk between the stages.
  struct InFlight {
    explicit InFlight(std::size_t slice_bytes) : sums(slice_bytes) {}
    std::vector<std::byte> sums;                           // the host's sums, later the results
    std::vector<NetworkChannel::MessagePtr> partial_sums;  // of this host's share, by other host
    std::vector<NetworkChannel::MessagePtr> results;       // of the other hosts' shares
  };

  [[nodiscard]] std::size_t chunk_bytes() const {
    // If every host has one rank, no slot limits the chunk, and long messages use the network best.
    const std::size_t largest = host_map_.max_local_size() == 1
                                    ? hosts_ * NetworkChannel::kMaxMessageBytes / 2
                                    : board_.chunk_bytes();
    const std::size_t in_messages = rails_ * hosts_ * NetworkChannel::kMaxMessageBytes;
    const std::size_t wanted = chunk_size(task_.bytes(), std::min(largest, in_messages));
    return std::max(task_.element_bytes(), wanted);
  }
  [[nodiscard]] bool is_on_rail() const { return rail_ < rails_; }
  [[nodiscard]] bool has_result_rank(int host) const {
    return result_rank_ == Board::kEveryone || host == host_map_.host_of(result_rank_);
  }
  [[nodiscard]] bool is_result_rank() const {
    return result_rank_ == Board::kEveryone || result_rank_ == channel_.rank();
  }
  /// The rank of `host` on this rail.
  [[nodiscard]] int rank_on_rail(int host) const { return host_map_.ranks_of(host)[rail_]; }
  InFlight& in_flight(std::uint32_t chunk) { return in_flight_[chunk % in_flight_.size()]; }
  /// The share of `host` of this rail's slice, in bytes from the start of the slice.
  [[nodiscard]] Range share(std::uint32_t chunk, int host) const {
    return slices_.share(slices_.at(chunk, rail_), hosts_, static_cast<std::size_t>(host));
  }

  void send(std::uint32_t chunk) {
    const Slice own = slices_.at(chunk, rail_);
    Sources sources(board_.size());
    for (int rank = 0; rank < board_.size(); ++rank)
      sources[rank] = rank == board_.local_rank()
                          ? task_.in() + own.message_offset
                          : board_.await(rank, chunk).input + own.chunk_offset;
    InFlight& state = in_flight(chunk);
    task_.reduce_local(board_, host_map_.ranks(), state.sums.data(), sources, own.bytes);
    for (std::size_t k = 1; k < hosts_; ++k) {  // each host starts with another receiver
      const int host = static_cast<int>((static_cast<std::size_t>(host_) + k) % hosts_);
      const Range theirs = share(chunk, host);
      const int to = rank_on_rail(host);
      if (theirs.count != 0) send_sums(state.sums.data() + theirs.begin, theirs.count, {&to, 1});
    }
    state.partial_sums.clear();
    const bool has_share = share(chunk, host_).count != 0;
    for (int host = 0; has_share && host < host_map_.hosts(); ++host)
      if (host != host_) state.partial_sums.push_back(channel_.post_receive(rank_on_rail(host)));
    channel_.flush(kMaxInFlight * hosts_);
  }

  NetworkChannel::MessagePtr send_sums(const std::byte* sums, std::size_t bytes,
                                       std::span<const int> to) {
    NetworkChannel::MessagePtr message = channel_.acquire();
    sums_.compress(message->data(), sums, bytes);
    channel_.send(message, sums_.wire_bytes(bytes), to);
    return message;
  }

  void reduce(std::uint32_t chunk) {
    InFlight& state = in_flight(chunk);
    const Range own = share(chunk, host_);
    if (own.count != 0) {
      std::byte* sum = state.sums.data() + own.begin;
      sums_.reduce(sum, sum, state.partial_sums, own.count);
      send_result(sum, own.count);
    }
    state.partial_sums.clear();
    state.results.clear();
    for (int host = 0; has_result_rank(host_) && host < host_map_.hosts(); ++host)
      if (host != host_ && share(chunk, host).count != 0)
        state.results.push_back(channel_.post_receive(rank_on_rail(host)));
  }

  void send_result(std::byte* sum, std::size_t bytes) {
    std::vector<int> to;
    for (int host = 0; host < host_map_.hosts(); ++host)
      if (host != host_ && has_result_rank(host)) to.push_back(rank_on_rail(host));
    if (to.empty()) return;
    const NetworkChannel::MessagePtr sent = send_sums(sum, bytes, to);
    // If compression loses bits, the sending host must use the compressed sum, too: all ranks get
    // the same.
    if (sums_.compresses()) sums_.decompress(sum, sent->data(), bytes);
  }

  void collect(std::uint32_t chunk) {
    if (!has_result_rank(host_)) return;
    InFlight& state = in_flight(chunk);
    std::size_t next = 0;
    for (int host = 0; host < host_map_.hosts(); ++host) {
      const Range theirs = share(chunk, host);
      if (host == host_ || theirs.count == 0) continue;
      const std::byte* data = channel_.await(state.results[next++], sums_.wire_bytes(theirs.count));
      sums_.decompress(state.sums.data() + theirs.begin, data, theirs.count);
    }
    state.results.clear();
    const Slice own = slices_.at(chunk, rail_);
    if (is_result_rank())
      task_.copy_out(task_.out() + own.message_offset, state.sums.data(), own.bytes, task_.bytes());
  }

  void publish_slice(std::uint32_t chunk, std::byte* result) {
    if (!is_on_rail() || board_.size() == 1 || !has_result_rank(host_)) return;
    const Slice own = slices_.at(chunk, rail_);
    task_.copy(result + own.chunk_offset, in_flight(chunk).sums.data(), own.bytes);
  }

  void read(std::uint32_t chunk, std::uint32_t step) {
    if (!is_result_rank()) return;
    for (std::size_t rail = 0; rail < rails_; ++rail) {
      if (rail == rail_) continue;
      const Slice slice = slices_.at(chunk, rail);
      task_.copy_out(task_.out() + slice.message_offset,
                     board_.await(static_cast<int>(rail), step).result + slice.chunk_offset,
                     slice.bytes, task_.bytes());
    }
  }

  Board& board_;
  NetworkChannel& channel_;
  const HostMap& host_map_;
  const CollectiveTask& task_;
  HostSums sums_;
  int result_rank_;
  int host_;
  std::size_t rail_;  // this rank's; not below rails_ if it is on none
  std::size_t rails_;
  std::size_t hosts_;
  Slices slices_;
  std::vector<InFlight> in_flight_;
};

}  // namespace

void allreduce_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  accumulate_in_float32(task, /*has_output=*/true, [&](const CollectiveTask& accumulated) {
    RailReduction(board, channel, accumulated, Board::kEveryone).run();
  });
}

void reduce_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  accumulate_in_float32(task, /*has_output=*/channel.rank() == task.root(),
                        [&](const CollectiveTask& accumulated) {
                          RailReduction(board, channel, accumulated, task.root()).run();
                        });
}

}  // namespace tccl
