// Each host's ranks reduce what they have for a rank elsewhere, and one of them sends it there: the
// one with the same place on its host. The rank adds up one sum per host, in the order of hosts.
// Blocks may differ in size.
#include "algorithms/in_float32.h"
#include "algorithms/patterns.h"
#include "algorithms/registry.h"
#include "algorithms/wire_sums.h"

namespace tccl {
namespace {

/// Pieces that are on their way between two stages.
constexpr std::uint32_t kLag = 3;

class Scatter {
 public:
  Scatter(Board& board, Wire& wire, const Call& call)
      : board_(board),
        wire_(wire),
        layout_(wire.layout()),
        call_(call),
        sums_(wire, call, wire.format()),
        rank_(wire.rank()),
        host_(layout_.host_of(rank_)),
        longest_(std::max(call.element_bytes(), call.longest_input())),
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
    std::vector<Wire::LetterPtr> parts;
  };

  /// Of one rank's piece. At least one element for every rank fits: see Board::area_bytes.
  [[nodiscard]] std::size_t piece_bytes() const {
    const auto ranks = static_cast<std::size_t>(layout_.ranks());
    const std::size_t largest =
        layout_.most() == 1 ? ranks * Wire::kMostBytes / 2 : board_.chunk_bytes();
    const std::size_t elements =
        piece_size(longest_ * ranks, largest) / ranks / call_.element_bytes();
    const std::size_t bytes = std::max<std::size_t>(1, elements) * call_.element_bytes();
    return std::min(
        {longest_, bytes, Wire::kMostBytes / call_.element_bytes() * call_.element_bytes()});
  }
  [[nodiscard]] Range piece(int rank, std::uint32_t step) const {
    return tccl::piece(call_.input_for(rank).size(), per_rank_, step);
  }
  InFlight& in_flight(std::uint32_t step) { return in_flight_[step % in_flight_.size()]; }

  void send(std::uint32_t step) {
    const Board::Slot slot = board_.open_step();
    copy_in(slot.input, step);
    board_.post();
    for (int host = 0; host < layout_.hosts(); ++host)
      for (const int to : layout_.ranks_of(host))
        if (host != host_ && layout_.partner(host_, layout_.place_of(to)) == rank_)
          send_to(to, step);
    InFlight& state = in_flight(step);
    const Range own = piece(rank_, step);
    state.sum.resize(own.count);
    reduce_here(state.sum.data(), rank_, step);
    state.parts.clear();
    for (int host = 0; own.count != 0 && host < layout_.hosts(); ++host)
      if (host != host_)
        state.parts.push_back(wire_.expect(layout_.partner(host, layout_.place_of(rank_))));
    wire_.let_leave(4 * kLag * static_cast<std::size_t>(layout_.ranks()));
  }

  void copy_in(std::byte* slot, std::uint32_t step) const {
    if (board_.size() == 1) return;
    for (int rank = 0; rank < layout_.ranks(); ++rank) {
      const Range range = piece(rank, step);
      call_.copy(slot + static_cast<std::size_t>(rank) * per_rank_,
                 call_.input_for(rank).data() + range.begin, range.count);
    }
  }

  /// What the ranks of this host have for `rank`.
  void reduce_here(std::byte* sum, int rank, std::uint32_t step) {
    const Range range = piece(rank, step);
    Sources sources(board_.size());
    for (int peer = 0; peer < board_.size(); ++peer)
      sources[peer] = peer == board_.rank() ? call_.input_for(rank).data() + range.begin
                                            : board_.await(peer, step).input +
                                                  static_cast<std::size_t>(rank) * per_rank_;
    call_.reduce_here(board_, layout_.ranks(), sum, sources, range.count);
  }

  void send_to(int rank, std::uint32_t step) {
    const std::size_t bytes = piece(rank, step).count;
    if (bytes == 0) return;
    const Wire::LetterPtr letter = wire_.blank();
    if (sums_.packs()) {
      packing_.resize(bytes);
      reduce_here(packing_.data(), rank, step);
      sums_.pack(letter->data(), packing_.data(), bytes);
    } else {
      reduce_here(letter->data(), rank, step);
    }
    wire_.send(letter, sums_.bytes(bytes), rank);
  }

  void add_up(std::uint32_t step) {
    const Range own = piece(rank_, step);
    if (own.count == 0) return;
    InFlight& state = in_flight(step);
    sums_.add_up(call_.out() + own.begin, state.sum.data(), state.parts, own.count);
    state.parts.clear();
  }

  Board& board_;
  Wire& wire_;
  const Layout& layout_;
  const Call& call_;
  WireSums sums_;
  int rank_;
  int host_;
  std::size_t longest_;
  std::size_t per_rank_;
  std::vector<InFlight> in_flight_;
  std::vector<std::byte> packing_;
};

}  // namespace

void reduce_scatter_lanes(Board& board, Wire& wire, const Call& call) {
  blocks_in_float32(call, wire.rank(), wire.layout().ranks(),
                    [&](const Call& wide) { Scatter(board, wire, wide).run(); });
}

}  // namespace tccl
