#include "transport/ofi/ofi_p2p.h"

#include <algorithm>
#include <cstring>

#include "base/format.h"
#include "kernels/copy.h"
#include "transport/ofi/library.h"

namespace tccl::ofi {
namespace {

/// Cells of one link that have not left yet.
constexpr std::size_t kMaxLeaving = 16;
constexpr std::size_t kCellBytes = std::size_t{64} << 10;
constexpr auto kWakeInterval = std::chrono::milliseconds(200);
/// A rank is never so many cells ahead of what was taken.
constexpr std::uint64_t kFarAhead = std::uint64_t{1} << 20;
/// Within which another connection tells why a message could not be sent.
constexpr auto kExplanationTime = std::chrono::milliseconds(500);
/// The other side is told of claimed messages with the next cell, and at the latest after this
/// many bytes.
constexpr std::uint64_t kUntoldBytes = std::uint64_t{256} << 10;

/// In front of a cell.
struct Envelope {
  CellAddress address;
  std::uint64_t number;  // of that source's cells for this rank
  std::uint64_t eager_claimed;
  CellHeader cell;
};
static_assert(sizeof(Envelope) <= MessageBuffer::kHeaderBytes);

}  // namespace

class OfiLink final : public Link {
 public:
  OfiLink(OfiP2p& ofi_p2p, int rank) : box_(ofi_p2p), rank_(rank) {}

  [[nodiscard]] std::size_t cell_bytes() const noexcept override { return kCellBytes; }

  /// Posting may fail for want of a connection: a cell that libfabric did not take waits.
  [[nodiscard]] bool has_room() override {
    while (!leaving_.empty() && leaving_.front()->is_idle()) leaving_.pop_front();
    return box_.send_waiting(rank_) && leaving_.size() < kMaxLeaving;
  }

  void post(const CellHeader& header, const void* payload) override {
    box_.members_.enter(rank_);
    auto buffer = box_.network_.acquire_buffer();
    if (header.payload_bytes > kCellBytes) throw Error(Errc::internal, "a cell is too long");
    const RankAddress& to = box_.addresses_[static_cast<std::size_t>(rank_)];
    const Envelope envelope{
        {box_.members_.uid(), to.group_id, box_.members_.rank()}, posted_++, claimed_, header};
    told_ = claimed_;
    std::memcpy(buffer->header(), &envelope, sizeof envelope);
    kernels::copy(buffer->data(), payload, header.payload_bytes);
    buffer->request_to(rank_);
    leaving_.push_back(buffer);
    box_.waiting_[rank_] = {std::move(buffer), header.payload_bytes};
    box_.send_waiting(rank_);
    box_.note_sending();
  }

  void wake_receiver() override {}
  /// Seldom: a receiver that is stopped would be swamped with them.
  void wake_progress_thread() override {
    const auto now = Clock::now();
    if (now - last_wake_ < kWakeInterval) return;
    last_wake_ = now;
    box_.members_.wake_progress_thread(rank_);
  }

  bool take(Take each) override {
    auto& from = box_.incoming_[static_cast<std::size_t>(rank_)];
    bool any = false;
    for (auto found = from.waiting.find(from.next); found != from.waiting.end();
         found = from.waiting.find(from.next)) {
      const auto buffer = std::move(found->second);
      from.waiting.erase(found);
      ++from.next;
      Envelope envelope;
      std::memcpy(&envelope, buffer->header(), sizeof envelope);
      their_claims_ = envelope.eager_claimed;
      if (envelope.cell.kind != CellKind::nothing) each(envelope.cell, buffer->data());
      any = true;
    }
    if (claimed_ - told_ >= kUntoldBytes && has_room())
      post({CellKind::nothing, 0, 0, 0, 0}, nullptr);
    return any;
  }

  [[nodiscard]] bool is_drained() const override {
    return box_.members_.will_never_come(rank_, Traffic::point_to_point,
                                         box_.incoming_[static_cast<std::size_t>(rank_)].next);
  }
  void claim_eager(std::uint64_t bytes) override { claimed_ += bytes; }
  [[nodiscard]] std::uint64_t eager_claimed() const override { return their_claims_; }

 private:
  OfiP2p& box_;
  int rank_;
  std::uint64_t posted_ = 0;
  Clock::time_point last_wake_;
  std::uint64_t claimed_ = 0;       // bytes of its eager messages that found a receive here
  std::uint64_t told_ = 0;          // of these, what it knows of
  std::uint64_t their_claims_ = 0;  // the same the other way
  std::deque<std::shared_ptr<MessageBuffer>> leaving_;
};

OfiP2p::OfiP2p(Network& network, Members& members, std::vector<RankAddress> addresses,
               std::uint32_t own_group_id)
    : network_(network),
      members_(members),
      addresses_(std::move(addresses)),
      own_group_id_(own_group_id),
      incoming_(addresses_.size()) {}

std::unique_ptr<Link> OfiP2p::link_to(int rank) { return std::make_unique<OfiLink>(*this, rank); }

bool OfiP2p::send_waiting(int rank) {
  const auto found = waiting_.find(rank);
  if (found == waiting_.end()) return true;
  // To one that is gone libfabric would connect again and again.
  const bool pointless = members_.failed() || members_.state_of(rank) != PeerState::alive;
  if (!pointless && !try_to_send(rank, found->second)) return false;
  waiting_.erase(found);
  return true;
}

bool OfiP2p::try_to_send(int rank, const Waiting& cell) {
  const RankAddress& to = addresses_[static_cast<std::size_t>(rank)];
  const std::uint64_t tag = tag_of(to.group_id, Traffic::point_to_point, 0);
  try {
    if (!network_.endpoint().send(to.peer, tag, cell.buffer->first(cell.bytes),
                                  *cell.buffer->sends().front().request))
      return false;
  } catch (const Error& error) {
    note_trouble(rank, error.what());
    return true;
  }
  members_.count_sent(rank, Traffic::point_to_point);
  outgoing_.push_back(cell.buffer);
  return true;
}

void OfiP2p::collect() {
  for (const auto& buffer : network_.take_cells(own_group_id_)) accept(buffer);
  std::erase_if(outgoing_, [&](const auto& buffer) {
    if (!buffer->is_idle()) return false;
    const auto& [to, request] = buffer->sends().front();
    if (request->error() != 0) note_trouble(to, library().strerror(request->error()));
    return true;
  });
  if (!waiting_.empty())
    for (int rank = 0; rank < members_.size(); ++rank) send_waiting(rank);
  note_sending();
  if (trouble_) throw_if_unexplained();
}

void OfiP2p::note_trouble(int rank, const std::string& why) {
  if (!trouble_) trouble_ = {rank, why, Clock::now()};
}

/// Of a peer that is gone the control connection tells, and why, a moment later.
void OfiP2p::throw_if_unexplained() {
  if (members_.failed() || members_.state_of(trouble_->rank) != PeerState::alive) return;
  if (Clock::now() - trouble_->since < kExplanationTime) return;
  throw Error(Errc::system,
              formatted("group {}: sending to {}: {}", members_.name(),
                        members_.who(trouble_->rank), trouble_->why),
              {trouble_->rank});
}

/// What is not as it should be did not come from a rank of this group: anyone can send.
void OfiP2p::accept(const std::shared_ptr<MessageBuffer>& buffer) {
  Envelope envelope;
  std::memcpy(&envelope, buffer->header(), sizeof envelope);
  const int source = envelope.address.source;
  const bool is_remote = source >= 0 && source < members_.size() && !members_.is_local(source);
  if (!is_remote || envelope.address.group_uid != members_.uid() ||
      envelope.cell.payload_bytes != buffer->incoming().bytes() - MessageBuffer::kHeaderBytes)
    return;
  Incoming& from = incoming_[static_cast<std::size_t>(source)];
  if (envelope.number - from.next < kFarAhead) from.waiting[envelope.number] = buffer;
}

void OfiP2p::close(Deadline deadline) noexcept {
  const auto is_gone = [&](int rank) { return members_.state_of(rank) != PeerState::alive; };
  try {
    while (!(outgoing_.empty() && waiting_.empty()) && !members_.failed() &&
           Clock::now() < deadline) {
      network_.progress();
      std::erase_if(waiting_, [&](const auto& each) { return is_gone(each.first); });
      for (int rank = 0; rank < members_.size(); ++rank) send_waiting(rank);
      std::erase_if(outgoing_, [&](const auto& buffer) {
        return buffer->is_idle() || is_gone(buffer->sends().front().to);
      });
      network_.endpoint().sleep(std::chrono::milliseconds(outgoing_.empty() ? 0 : 1));
    }
  } catch (const Error&) {
    // The network is gone, and with it what was to leave.
  }
  outgoing_.clear();
  waiting_.clear();
  note_sending();
  network_.release_group_id(own_group_id_);
}

}  // namespace tccl::ofi
