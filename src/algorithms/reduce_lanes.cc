// All-reduce over hosts for large messages, and reduce, which is the same with fewer readers.
//
// A *lane* is one rank of each host; there are as many lanes as the smallest host has ranks. The
// data is cut into *pieces*, each piece into one *slice* per lane, each slice into one *share* per
// host:
//
//   send     the ranks of a host reduce what they have; each lane sends every other host its share
//   add up   a lane reduces its host's share of what the hosts have sent, in the order of hosts,
//            and sends the sum to the other hosts
//   finish   a lane takes the sums of the others' shares: now its host has the slice
//   read     all ranks of the host copy the slices
//
// So every byte leaves a host 2 (H - 1) / H times, whatever the number of its ranks. The four
// stages work on different pieces, kLag apart, so that the wire never waits for a meeting.
#include "algorithms/in_float32.h"
#include "algorithms/patterns.h"
#include "algorithms/registry.h"
#include "algorithms/wire_sums.h"

namespace tccl {
namespace {

/// Pieces that are on their way between two stages. With more of them the wire is no fuller, but
/// the hosts get ahead of each other: 1 MiB over 4 hosts at 1 Gbit/s took 13.9 ms instead of 13.6.
constexpr std::uint32_t kLag = 1;
/// Messages that have not left yet, per other host.
constexpr std::size_t kMostLeaving = 2 * kLag + 2;

class Lanes {
 public:
  /// `reader` gets the result, or everyone.
  Lanes(Board& board, Wire& wire, const Call& call, int reader)
      : board_(board),
        wire_(wire),
        layout_(wire.layout()),
        call_(call),
        sums_(wire, call, wire.format()),
        reader_(reader),
        host_(layout_.host_of(wire.rank())),
        lanes_(static_cast<std::size_t>(layout_.fewest())),
        hosts_(static_cast<std::size_t>(layout_.hosts())),
        elements_per_piece_(piece_bytes() / call.element_bytes()),
        pieces_(static_cast<std::uint32_t>(pieces(call.operation().count, elements_per_piece_))) {
    if (!is_lane()) return;
    const std::size_t slice_bytes = slice(0, lane()).count;
    for (std::size_t i = 0; i <= 2 * kLag; ++i) in_flight_.emplace_back(slice_bytes);
  }

  void run() {
    constexpr std::uint32_t kToReaders = 2 * kLag + 1;
    for (std::uint32_t i = 0; i < pieces_ + kToReaders; ++i) {
      const Board::Slot slot = board_.open_step();
      if (i < pieces_) copy_in(i, slot.input);
      if (i >= kToReaders) publish_slice(i - kToReaders, slot.result);
      board_.post();
      if (is_lane()) {
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

  /// What is under way of one piece in this rank's lane.
  struct InFlight {
    explicit InFlight(std::size_t slice_bytes) : sums(slice_bytes) {}
    std::vector<std::byte> sums;           // the slice: this host's part, later the results
    std::vector<Wire::LetterPtr> parts;    // of this host's share, from the others
    std::vector<Wire::LetterPtr> results;  // of the others' shares
  };

  [[nodiscard]] std::size_t piece_bytes() const {
    // Alone on its host a rank needs no slot, and the wire likes long messages.
    const std::size_t largest =
        layout_.most() == 1 ? hosts_ * Wire::kMostBytes / 2 : board_.chunk_bytes();
    const std::size_t in_letters = lanes_ * hosts_ * Wire::kMostBytes;
    const std::size_t wanted = piece_size(call_.bytes(), std::min(largest, in_letters));
    return std::max(call_.element_bytes(), wanted);
  }
  [[nodiscard]] std::size_t lane() const { return static_cast<std::size_t>(board_.rank()); }
  [[nodiscard]] bool is_lane() const { return lane() < lanes_; }
  [[nodiscard]] bool has_readers(int host) const {
    return reader_ == Board::kEveryone || host == layout_.host_of(reader_);
  }
  [[nodiscard]] bool is_reader() const {
    return reader_ == Board::kEveryone || reader_ == wire_.rank();
  }
  [[nodiscard]] int counterpart(int host) const { return layout_.ranks_of(host)[lane()]; }
  InFlight& in_flight(std::uint32_t piece) { return in_flight_[piece % in_flight_.size()]; }

  /// Bytes of a lane's slice in its piece, and of a host's share in its slice.
  [[nodiscard]] Range slice(std::uint32_t piece, std::size_t lane) const {
    const Range whole = tccl::piece(call_.operation().count, elements_per_piece_, piece);
    return in_bytes(part(whole.count, lanes_, lane));
  }
  [[nodiscard]] Range share(std::uint32_t piece, int host) const {
    const std::size_t elements = slice(piece, lane()).count / call_.element_bytes();
    return in_bytes(part(elements, hosts_, static_cast<std::size_t>(host)));
  }
  [[nodiscard]] Range in_bytes(const Range& elements) const {
    return {elements.begin * call_.element_bytes(), elements.count * call_.element_bytes()};
  }
  [[nodiscard]] std::size_t start(std::uint32_t piece) const {
    return piece * elements_per_piece_ * call_.element_bytes();
  }

  void copy_in(std::uint32_t piece, std::byte* input) const {
    if (board_.size() == 1) return;
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      if (lane == this->lane()) continue;
      const Range own = slice(piece, lane);
      call_.copy(input + own.begin, call_.in() + start(piece) + own.begin, own.count);
    }
  }

  void send(std::uint32_t piece) {
    const Range own = slice(piece, lane());
    Sources sources(board_.size());
    for (int rank = 0; rank < board_.size(); ++rank)
      sources[rank] = rank == board_.rank() ? call_.in() + start(piece) + own.begin
                                            : board_.await(rank, piece).input + own.begin;
    InFlight& state = in_flight(piece);
    call_.reduce_here(board_, layout_.ranks(), state.sums.data(), sources, own.count);
    state.parts.clear();
    const bool has_own = share(piece, host_).count != 0;
    for (std::size_t k = 1; k < hosts_; ++k) {  // not all to the same host at once
      const int host = static_cast<int>((static_cast<std::size_t>(host_) + k) % hosts_);
      const Range theirs = share(piece, host);
      const int to = counterpart(host);
      if (theirs.count != 0) send_sums(state.sums.data() + theirs.begin, theirs.count, {&to, 1});
    }
    for (int host = 0; has_own && host < layout_.hosts(); ++host)
      if (host != host_) state.parts.push_back(wire_.expect(counterpart(host)));
    wire_.let_leave(kMostLeaving * hosts_);
  }

  Wire::LetterPtr send_sums(const std::byte* sums, std::size_t bytes, std::span<const int> to) {
    Wire::LetterPtr letter = wire_.blank();
    sums_.pack(letter->data(), sums, bytes);
    wire_.send(letter, sums_.bytes(bytes), to);
    return letter;
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
    for (int host = 0; has_readers(host_) && host < layout_.hosts(); ++host)
      if (host != host_ && share(piece, host).count != 0)
        state.results.push_back(wire_.expect(counterpart(host)));
  }

  void send_result(std::byte* sum, std::size_t bytes) {
    std::vector<int> to;
    for (int host = 0; host < layout_.hosts(); ++host)
      if (host != host_ && has_readers(host)) to.push_back(counterpart(host));
    if (to.empty()) return;
    const Wire::LetterPtr sent = send_sums(sum, bytes, to);
    // The host that has made a sum must end up with the same bits as those to whom it was sent.
    if (sums_.packs()) sums_.unpack(sum, sent->data(), bytes);
  }

  void finish(std::uint32_t piece) {
    if (!has_readers(host_)) return;
    InFlight& state = in_flight(piece);
    std::size_t next = 0;
    for (int host = 0; host < layout_.hosts(); ++host) {
      const Range other = share(piece, host);
      if (host == host_ || other.count == 0) continue;
      const std::byte* came = wire_.await(state.results[next++], sums_.bytes(other.count));
      sums_.unpack(state.sums.data() + other.begin, came, other.count);
    }
    state.results.clear();
    const Range own = slice(piece, lane());
    if (is_reader())
      call_.copy_out(call_.out() + start(piece) + own.begin, state.sums.data(), own.count,
                     call_.bytes());
  }

  void publish_slice(std::uint32_t piece, std::byte* result) {
    if (!is_lane() || board_.size() == 1 || !has_readers(host_)) return;
    const Range own = slice(piece, lane());
    call_.copy(result + own.begin, in_flight(piece).sums.data(), own.count);
  }

  void read(std::uint32_t piece, std::uint32_t step) {
    if (!is_reader()) return;
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      if (lane == this->lane()) continue;
      const Range theirs = slice(piece, lane);
      call_.copy_out(call_.out() + start(piece) + theirs.begin,
                     board_.await(static_cast<int>(lane), step).result + theirs.begin, theirs.count,
                     call_.bytes());
    }
  }

  Board& board_;
  Wire& wire_;
  const Layout& layout_;
  const Call& call_;
  WireSums sums_;
  int reader_;
  int host_;
  std::size_t lanes_;
  std::size_t hosts_;
  std::size_t elements_per_piece_;
  std::uint32_t pieces_;
  std::vector<InFlight> in_flight_;
};

}  // namespace

void allreduce_lanes(Board& board, Wire& wire, const Call& call) {
  in_float32(call, /*has_output=*/true,
             [&](const Call& wide) { Lanes(board, wire, wide, Board::kEveryone).run(); });
}

void reduce_lanes(Board& board, Wire& wire, const Call& call) {
  in_float32(call, /*has_output=*/wire.rank() == call.root(),
             [&](const Call& wide) { Lanes(board, wire, wide, call.root()).run(); });
}

}  // namespace tccl
