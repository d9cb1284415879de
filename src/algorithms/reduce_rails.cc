// All-reduce over hosts for large messages, and reduce, which is the same with fewer readers.
//
// A *rail* is one rank of each host; there are as many rails as the smallest host has ranks. The
// data is cut into *pieces*, each piece into one *slice* per rail, each slice into one *share* per
// host:
//
//   send     the ranks of a host reduce what they have; each rail sends every other host its share
//   add up   a rail reduces its host's share of what the hosts have sent, in the order of hosts,
//            and sends the sum to the other hosts
//   finish   a rail takes the sums of the others' shares: now its host has the slice
//   read     all ranks of the host copy the slices
//
// So every byte leaves a host 2 (H - 1) / H times, whatever the number of its ranks. The four
// stages work on different pieces, kLag apart, so that the channel never waits for a meeting.
#include "algorithms/float32_accumulation.h"
#include "algorithms/host_sums.h"
#include "algorithms/patterns.h"
#include "algorithms/registry.h"

namespace tccl {
namespace {

/// Pieces that are on their way between two stages. With more of them the channel is no fuller, but
/// the hosts get ahead of each other: 1 MiB over 4 hosts at 1 Gbit/s took 13.9 ms instead of 13.6.
constexpr std::uint32_t kLag = 1;
/// Messages that have not left yet, per other host.
constexpr std::size_t kMaxLeaving = 2 * kLag + 2;

class Rails {
 public:
  /// `reader` gets the result, or everyone.
  Rails(Board& board, NetworkChannel& channel, const CollectiveTask& task, int reader)
      : board_(board),
        channel_(channel),
        host_map_(channel.host_map()),
        task_(task),
        sums_(channel, task, channel.format()),
        reader_(reader),
        host_(host_map_.host_of(channel.rank())),
        rails_(static_cast<std::size_t>(host_map_.min_local_size())),
        hosts_(static_cast<std::size_t>(host_map_.hosts())),
        elements_per_piece_(piece_bytes() / task.element_bytes()),
        pieces_(static_cast<std::uint32_t>(pieces(task.operation().count, elements_per_piece_))) {
    if (!is_rail()) return;
    const std::size_t slice_bytes = slice(0, rail()).count;
    for (std::size_t i = 0; i <= 2 * kLag; ++i) in_flight_.emplace_back(slice_bytes);
  }

  void run() {
    constexpr std::uint32_t kToReaders = 2 * kLag + 1;
    for (std::uint32_t i = 0; i < pieces_ + kToReaders; ++i) {
      const Board::Slot slot = board_.open_step();
      if (i < pieces_) copy_in(i, slot.input);
      if (i >= kToReaders) publish_slice(i - kToReaders, slot.result);
      board_.post();
      if (is_rail()) {
        work_on(i, 0, [&](std::uint32_t piece) { send(piece); });
        work_on(i, kLag, [&](std::uint32_t piece) { add_up(piece); });
        work_on(i, 2 * kLag, [&](std::uint32_t piece) { finish(piece); });
      }
      if (i >= kToReaders) read(i - kToReaders, i);
    }
  }

 private:
  /// On the piece that came so many steps before, if there is one.
  void work_on(std::uint32_t step, std::uint32_t before,
               FunctionRef<void(std::uint32_t piece)> work) const {
    if (step >= before && step - before < pieces_) work(step - before);
  }

  /// What is under way of one piece in this rank's rail.
  struct InFlight {
    explicit InFlight(std::size_t slice_bytes) : sums(slice_bytes) {}
    std::vector<std::byte> sums;  // the slice: this host's part, later the results
    std::vector<NetworkChannel::MessagePtr> parts;    // of this host's share, from the others
    std::vector<NetworkChannel::MessagePtr> results;  // of the others' shares
  };

  [[nodiscard]] std::size_t piece_bytes() const {
    // Alone on its host a rank needs no slot, and the channel likes long messages.
    const std::size_t largest = host_map_.max_local_size() == 1
                                    ? hosts_ * NetworkChannel::kMaxMessageBytes / 2
                                    : board_.chunk_bytes();
    const std::size_t in_letters = rails_ * hosts_ * NetworkChannel::kMaxMessageBytes;
    const std::size_t wanted = piece_size(task_.bytes(), std::min(largest, in_letters));
    return std::max(task_.element_bytes(), wanted);
  }
  [[nodiscard]] std::size_t rail() const { return static_cast<std::size_t>(board_.rank()); }
  [[nodiscard]] bool is_rail() const { return rail() < rails_; }
  [[nodiscard]] bool has_readers(int host) const {
    return reader_ == Board::kEveryone || host == host_map_.host_of(reader_);
  }
  [[nodiscard]] bool is_reader() const {
    return reader_ == Board::kEveryone || reader_ == channel_.rank();
  }
  [[nodiscard]] int counterpart(int host) const { return host_map_.ranks_of(host)[rail()]; }
  InFlight& in_flight(std::uint32_t piece) { return in_flight_[piece % in_flight_.size()]; }

  /// Bytes of a rail's slice in its piece, and of a host's share in its slice.
  [[nodiscard]] Range slice(std::uint32_t piece, std::size_t rail) const {
    const Range whole = tccl::piece(task_.operation().count, elements_per_piece_, piece);
    return in_bytes(part(whole.count, rails_, rail));
  }
  [[nodiscard]] Range share(std::uint32_t piece, int host) const {
    const std::size_t elements = slice(piece, rail()).count / task_.element_bytes();
    return in_bytes(part(elements, hosts_, static_cast<std::size_t>(host)));
  }
  [[nodiscard]] Range in_bytes(const Range& elements) const {
    return {elements.begin * task_.element_bytes(), elements.count * task_.element_bytes()};
  }
  [[nodiscard]] std::size_t start(std::uint32_t piece) const {
    return piece * elements_per_piece_ * task_.element_bytes();
  }

  void copy_in(std::uint32_t piece, std::byte* input) const {
    if (board_.size() == 1) return;
    for (std::size_t rail = 0; rail < rails_; ++rail) {
      if (rail == this->rail()) continue;
      const Range own = slice(piece, rail);
      task_.copy(input + own.begin, task_.in() + start(piece) + own.begin, own.count);
    }
  }

  void send(std::uint32_t piece) {
    const Range own = slice(piece, rail());
    Sources sources(board_.size());
    for (int rank = 0; rank < board_.size(); ++rank)
      sources[rank] = rank == board_.rank() ? task_.in() + start(piece) + own.begin
                                            : board_.await(rank, piece).input + own.begin;
    InFlight& state = in_flight(piece);
    task_.reduce_local(board_, host_map_.ranks(), state.sums.data(), sources, own.count);
    state.parts.clear();
    const bool has_own = share(piece, host_).count != 0;
    for (std::size_t k = 1; k < hosts_; ++k) {  // not all to the same host at once
      const int host = static_cast<int>((static_cast<std::size_t>(host_) + k) % hosts_);
      const Range theirs = share(piece, host);
      const int to = counterpart(host);
      if (theirs.count != 0) send_sums(state.sums.data() + theirs.begin, theirs.count, {&to, 1});
    }
    for (int host = 0; has_own && host < host_map_.hosts(); ++host)
      if (host != host_) state.parts.push_back(channel_.post_receive(counterpart(host)));
    channel_.flush(kMaxLeaving * hosts_);
  }

  NetworkChannel::MessagePtr send_sums(const std::byte* sums, std::size_t bytes,
                                       std::span<const int> to) {
    NetworkChannel::MessagePtr message = channel_.acquire();
    sums_.pack(message->data(), sums, bytes);
    channel_.send(message, sums_.bytes(bytes), to);
    return message;
  }

  void add_up(std::uint32_t piece) {
    InFlight& state = in_flight(piece);
    const Range own = share(piece, host_);
    if (own.count != 0) {
      std::byte* sum = state.sums.data() + own.begin;
      sums_.add_up(sum, sum, state.parts, own.count);
      send_result(sum, own.count);
    }
    state.parts.clear();
    state.results.clear();
    for (int host = 0; has_readers(host_) && host < host_map_.hosts(); ++host)
      if (host != host_ && share(piece, host).count != 0)
        state.results.push_back(channel_.post_receive(counterpart(host)));
  }

  void send_result(std::byte* sum, std::size_t bytes) {
    std::vector<int> to;
    for (int host = 0; host < host_map_.hosts(); ++host)
      if (host != host_ && has_readers(host)) to.push_back(counterpart(host));
    if (to.empty()) return;
    const NetworkChannel::MessagePtr sent = send_sums(sum, bytes, to);
    // The host that has made a sum must end up with the same bits as those to whom it was sent.
    if (sums_.packs()) sums_.unpack(sum, sent->data(), bytes);
  }

  void finish(std::uint32_t piece) {
    if (!has_readers(host_)) return;
    InFlight& state = in_flight(piece);
    std::size_t next = 0;
    for (int host = 0; host < host_map_.hosts(); ++host) {
      const Range other = share(piece, host);
      if (host == host_ || other.count == 0) continue;
      const std::byte* came = channel_.await(state.results[next++], sums_.bytes(other.count));
      sums_.unpack(state.sums.data() + other.begin, came, other.count);
    }
    state.results.clear();
    const Range own = slice(piece, rail());
    if (is_reader())
      task_.copy_out(task_.out() + start(piece) + own.begin, state.sums.data(), own.count,
                     task_.bytes());
  }

  void publish_slice(std::uint32_t piece, std::byte* result) {
    if (!is_rail() || board_.size() == 1 || !has_readers(host_)) return;
    const Range own = slice(piece, rail());
    task_.copy(result + own.begin, in_flight(piece).sums.data(), own.count);
  }

  void read(std::uint32_t piece, std::uint32_t step) {
    if (!is_reader()) return;
    for (std::size_t rail = 0; rail < rails_; ++rail) {
      if (rail == this->rail()) continue;
      const Range theirs = slice(piece, rail);
      task_.copy_out(task_.out() + start(piece) + theirs.begin,
                     board_.await(static_cast<int>(rail), step).result + theirs.begin, theirs.count,
                     task_.bytes());
    }
  }

  Board& board_;
  NetworkChannel& channel_;
  const HostMap& host_map_;
  const CollectiveTask& task_;
  HostSums sums_;
  int reader_;
  int host_;
  std::size_t rails_;
  std::size_t hosts_;
  std::size_t elements_per_piece_;
  std::uint32_t pieces_;
  std::vector<InFlight> in_flight_;
};

}  // namespace

void allreduce_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  accumulate_in_float32(task, /*has_output=*/true, [&](const CollectiveTask& wide) {
    Rails(board, channel, wide, Board::kEveryone).run();
  });
}

void reduce_rails(Board& board, NetworkChannel& channel, const CollectiveTask& task) {
  accumulate_in_float32(
      task, /*has_output=*/channel.rank() == task.root(),
      [&](const CollectiveTask& wide) { Rails(board, channel, wide, task.root()).run(); });
}

}  // namespace tccl
