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

class Relay {
 public:
  Relay(Board& board, Wire& wire, const Call& call)
      : board_(board),
        wire_(wire),
        layout_(wire.layout()),
        call_(call),
        per_step_(piece_size(call.bytes(), std::min(board.chunk_bytes(), Wire::kMostBytes))),
        steps_(steps_for(call.bytes(), per_step_)) {
    find_neighbours();
  }

  void run() {
    if (board_.rank() == local_root_) return relay();
    for (std::uint32_t step = 0; step < steps_; ++step) {
      const Range piece = tccl::piece(call_.bytes(), per_step_, step);
      board_.open_step();
      board_.post();
      call_.copy_out(call_.out() + piece.begin, published(board_, local_root_, step, piece.count),
                     piece.count, call_.bytes());
    }
  }

 private:
  [[nodiscard]] int relay_of(int host) const {
    return host == layout_.host_of(call_.root()) ? call_.root() : layout_.ranks_of(host)[0];
  }

  void find_neighbours() {
    const int hosts = layout_.hosts();
    const int root_host = layout_.host_of(call_.root());
    const int host = layout_.host_of(wire_.rank());
    local_root_ = layout_.place_of(relay_of(host));
    const int distance = (host - root_host + hosts) % hosts;
    const auto at = [&](int d) { return relay_of((root_host + d) % hosts); };
    if (call_.bytes() >= kChainBytes) {
      if (distance > 0) parent_ = at(distance - 1);
      if (distance + 1 < hosts) children_.push_back(at(distance + 1));
      return;
    }
    // The parent lacks the lowest bit; the children have one more, below it.
    if (distance > 0) parent_ = at(distance & (distance - 1));
    for (int bit = 1; bit < hosts && (distance & bit) == 0; bit *= 2)
      if (distance + bit < hosts) children_.insert(children_.begin(), at(distance + bit));
  }

  void relay() {
    std::vector<Wire::LetterPtr> expected;
    for (std::uint32_t step = 0; step < steps_; ++step) {
      const Range piece = tccl::piece(call_.bytes(), per_step_, step);
      Wire::LetterPtr letter;
      if (parent_ >= 0) {
        while (expected.size() < steps_ && expected.size() < step + kAhead)
          expected.push_back(wire_.expect(parent_));
        letter = std::move(expected[step]);
        const std::byte* came = wire_.await(letter, piece.count);
        call_.copy_out(call_.out() + piece.begin, came, piece.count, call_.bytes());
      } else if (!children_.empty()) {
        letter = wire_.blank();
        call_.copy(letter->data(), call_.in() + piece.begin, piece.count);
      }
      if (!children_.empty()) wire_.send(letter, piece.count, children_);
      const Board::Slot slot = board_.open_step();
      if (board_.size() > 1)
        publish(board_, call_, slot, call_.out() + piece.begin, piece.count, Board::kEveryone,
                /*lendable=*/false);
      board_.post();
      wire_.let_leave(2 * kAhead);
    }
  }

  Board& board_;
  Wire& wire_;
  const Layout& layout_;
  const Call& call_;
  std::size_t per_step_;
  std::uint32_t steps_;
  int local_root_ = 0;
  int parent_ = -1;
  std::vector<int> children_;
};

}  // namespace

void broadcast_relay(Board& board, Wire& wire, const Call& call) { Relay(board, wire, call).run(); }

}  // namespace tccl
