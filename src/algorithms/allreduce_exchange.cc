// For small messages: one rank of each host reduces what its host has and sends that to those of
// all other hosts; everyone adds up the same sums in the same order. One message's time.
#include "algorithms/in_float32.h"
#include "algorithms/patterns.h"
#include "algorithms/publish.h"
#include "algorithms/registry.h"
#include "algorithms/wire_sums.h"

namespace tccl {
namespace {

/// The one that speaks for its host.
constexpr int kSpeaker = 0;

std::vector<int> other_speakers(const Wire& wire) {
  const Layout& layout = wire.layout();
  std::vector<int> ranks;
  for (int host = 0; host < layout.hosts(); ++host)
    if (host != layout.host_of(wire.rank())) ranks.push_back(layout.ranks_of(host)[kSpeaker]);
  return ranks;
}

class Exchange {
 public:
  Exchange(Board& board, Wire& wire, const Call& call)
      : board_(board),
        wire_(wire),
        call_(call),
        sums_(wire, call, WireFormat::same),  // only large ones are packed
        others_(other_speakers(wire)) {}

  void run() {
    const std::size_t largest = std::min(board_.chunk_bytes(), Wire::kMostBytes);
    const std::size_t per_piece = largest / call_.element_bytes() * call_.element_bytes();
    const std::uint32_t last = steps_for(call_.bytes(), per_piece);
    for (std::uint32_t index = 0; index < last; ++index) {
      const Range piece = tccl::piece(call_.bytes(), per_piece, index);
      board_.rank() == kSpeaker ? speak(piece, 2 * index) : listen(piece, 2 * index);
    }
  }

 private:
  void speak(const Range& piece, std::uint32_t step) {
    std::vector<Wire::LetterPtr> letters;
    for (const int other : others_) letters.push_back(wire_.expect(other));
    board_.open_step();
    board_.post();
    const Wire::LetterPtr own = wire_.blank();
    Sources ranks(board_.size());
    for (int rank = 0; rank < board_.size(); ++rank)
      ranks[rank] =
          rank == kSpeaker ? call_.in() + piece.begin : published(board_, rank, step, piece.count);
    call_.reduce_here(board_, wire_.layout().ranks(), own->data(), ranks, piece.count);
    wire_.send(own, piece.count, others_);
    sums_.add_up(call_.out() + piece.begin, own->data(), letters, piece.count);
    const Board::Slot slot = board_.open_step();
    if (board_.size() > 1)
      publish(board_, call_, slot, call_.out() + piece.begin, piece.count, Board::kEveryone,
              /*lendable=*/false);
    board_.post();
  }

  void listen(const Range& piece, std::uint32_t step) {
    publish(board_, call_, board_.open_step(), call_.in() + piece.begin, piece.count, kSpeaker,
            call_.in() != call_.out());
    board_.post();
    board_.open_step();
    board_.post();
    call_.copy(call_.out() + piece.begin, published(board_, kSpeaker, step + 1, piece.count),
               piece.count);
  }

  Board& board_;
  Wire& wire_;
  const Call& call_;
  WireSums sums_;
  std::vector<int> others_;
};

}  // namespace

void allreduce_exchange(Board& board, Wire& wire, const Call& call) {
  in_float32(call, /*has_output=*/true,
             [&](const Call& wide) { Exchange(board, wire, wide).run(); });
}

void barrier_exchange(Board& board, Wire& wire, const Call& call) {
  Exchange(board, wire, call).run();
}

}  // namespace tccl
