#include "transport/ofi/ofi_p2p.h"

#include <cstring>

#include "base/format.h"
#include "kernels/copy.h"

namespace tccl::ofi {
namespace {

/// Cells per link that are queued or in flight.
constexpr std::size_t kMaxCells = 16;
constexpr std::size_t kCellBytes = std::size_t{64} << 10;
/// Minimum time between two wake-ups of a peer's progress thread.
constexpr auto kWakeNoticeInterval = std::chrono::milliseconds(200);
/// Cells further ahead of the next expected one are invalid.
constexpr std::uint64_t kMaxReorderDistance = std::uint64_t{1} << 20;
/// Credit is returned with the next cell, or with a credit cell after this many bytes.
constexpr std::uint64_t kMaxUnreturnedCredit = std::uint64_t{256} << 10;

/// Header of a cell.
struct Envelope {
  CellAddress address;
  std::uint64_t cell_number;      // among the source's cells for this rank
  std::uint64_t returned_credit;  // in all, by the source
  CellHeader cell;
};
static_assert(sizeof(Envelope) <= MessageBuffer::kHeaderBytes);

}  // namespace

class OfiLink final : public Link {
 public:
  OfiLink(OfiP2p& p2p, int rank) : p2p_(p2p), rank_(rank) {}

  [[nodiscard]] std::size_t cell_bytes() const noexcept override { return kCellBytes; }

  /// libfabric does not accept a cell while it connects: that cell is queued.
  [[nodiscard]] bool has_room() override {
    while (!cells_.empty() && cells_.front()->is_idle()) cells_.pop_front();
    return p2p_.send_queued(rank_) && cells_.size() < kMaxCells;
  }

  void post(const CellHeader& header, const void* payload) override {
    p2p_.membership_.subscribe(rank_);
    auto buffer = p2p_.network_.acquire_buffer();
    if (header.payload_bytes > kCellBytes) throw Error(Errc::internal, "a cell is too long");
    const RankAddress& to = p2p_.addresses_[static_cast<std::size_t>(rank_)];
    const Envelope envelope{{p2p_.membership_.group_uid(), to.group_tag, p2p_.membership_.rank()},
                            posted_++,
                            credit_,
                            header};
    sent_credit_ = credit_;
    std::memcpy(buffer->header(), &envelope, sizeof envelope);
    kernels::copy(buffer->data(), payload, header.payload_bytes);
    buffer->request_to(rank_);
    cells_.push_back(buffer);
    p2p_.queued_[rank_] = {std::move(buffer), header.payload_bytes};
    p2p_.send_queued(rank_);
    p2p_.update_sending();
  }

  void wake_peer() override {}  // libfabric's wait object does
  /// Rate-limited: a stopped receiver would accumulate wake-up notices.
  void wake_progress_thread() override {
    const auto now = Clock::now();
    if (now - last_wake_ < kWakeNoticeInterval) return;
    last_wake_ = now;
    p2p_.membership_.wake_progress_thread(rank_);
  }

  bool take(Take each) override {
    auto& from = p2p_.incoming_[static_cast<std::size_t>(rank_)];
    bool any = false;
    for (auto found = from.arrived_cells.find(from.next); found != from.arrived_cells.end();
         found = from.arrived_cells.find(from.next)) {
      const auto buffer = std::move(found->second);
      from.arrived_cells.erase(found);
      ++from.next;
      Envelope envelope;
      std::memcpy(&envelope, buffer->header(), sizeof envelope);
      received_credit_ = envelope.returned_credit;
      if (envelope.cell.kind != CellKind::credit) each(envelope.cell, buffer->data());
      any = true;
    }
    if (credit_ - sent_credit_ >= kMaxUnreturnedCredit && has_room())
      post({CellKind::credit, 0, 0, 0, 0}, nullptr);
    return any;
  }

  [[nodiscard]] bool is_drained() const override {
    return p2p_.membership_.cannot_arrive(rank_, TrafficKind::point_to_point,
                                          p2p_.incoming_[static_cast<std::size_t>(rank_)].next);
  }
  void return_credit(std::uint64_t bytes) override { credit_ += bytes; }
  [[nodiscard]] std::uint64_t returned_credit() const override { return received_credit_; }

 private:
  OfiP2p& p2p_;
  int rank_;
  std::uint64_t posted_ = 0;
  Clock::time_point last_wake_;
  std::uint64_t credit_ = 0;           // in all: its eager messages that matched a receive here
  std::uint64_t sent_credit_ = 0;      // the part of it that was sent to that rank
  std::uint64_t received_credit_ = 0;  // in all, from that rank
  std::deque<std::shared_ptr<MessageBuffer>> cells_;  // queued or in flight
};

OfiP2p::OfiP2p(Network& network, Membership& membership, std::vector<RankAddress> addresses,
               std::uint32_t own_group_tag)
    : network_(network),
      membership_(membership),
      addresses_(std::move(addresses)),
      own_group_tag_(own_group_tag),
      incoming_(addresses_.size()) {}

std::unique_ptr<Link> OfiP2p::link_to(int rank) { return std::make_unique<OfiLink>(*this, rank); }

bool OfiP2p::send_queued(int rank) {
  const auto found = queued_.find(rank);
  if (found == queued_.end()) return true;
  // libfabric would try for ever to connect to a process that has died.
  const bool is_pointless = membership_.failed() || membership_.state_of(rank) != PeerState::alive;
  if (!is_pointless && !try_send(rank, found->second)) return false;
  queued_.erase(found);
  return true;
}

bool OfiP2p::send_all_queued() {
  for (int rank = 0; !queued_.empty() && rank < membership_.size(); ++rank) send_queued(rank);
  return queued_.empty();
}

bool OfiP2p::try_send(int rank, const QueuedCell& cell) {
  const RankAddress& to = addresses_[static_cast<std::size_t>(rank)];
  const std::uint64_t tag = tag_of(to.group_tag, TrafficKind::point_to_point, 0);
  try {
    if (!network_.endpoint().send(to.fi_addr, tag, cell.buffer->first(cell.bytes),
                                  *cell.buffer->sends().front().request))
      return false;
  } catch (const Error& error) {
    note_send_error(rank, error.what());
    return true;
  }
  membership_.count_sent(rank, TrafficKind::point_to_point);
  sends_in_flight_.add(cell.buffer);
  return true;
}

void OfiP2p::collect() {
  for (const auto& buffer : network_.take_cells(own_group_tag_)) add_arrived(buffer);
  if (const auto error = sends_in_flight_.remove_completed())
    note_send_error(error->rank, error->reason);
  send_all_queued();
  update_sending();
  if (send_error_) throw_if_unexplained();
}

void OfiP2p::note_send_error(int rank, const std::string& reason) {
  if (!send_error_) send_error_ = {rank, reason, Clock::now()};
}

/// If the peer or the group is lost, the waits of its messages report that.
void OfiP2p::throw_if_unexplained() {
  if (membership_.failed() || membership_.state_of(send_error_->rank) != PeerState::alive) return;
  if (Clock::now() - send_error_->since < kErrorGrace) return;
  throw Error(Errc::system,
              formatted("group {}: sending to {}: {}", membership_.name(),
                        membership_.who(send_error_->rank), send_error_->reason),
              {send_error_->rank});
}

/// A malformed cell of a rank of the group fails the group.
void OfiP2p::add_arrived(const std::shared_ptr<MessageBuffer>& buffer) {
  Envelope envelope;
  std::memcpy(&envelope, buffer->header(), sizeof envelope);
  const int source = envelope.address.source;
  const bool is_remote =
      source >= 0 && source < membership_.size() && !membership_.is_local(source);
  if (!is_remote) return network_.warn_dropped("it names no rank of another host");
  Incoming& from = incoming_[static_cast<std::size_t>(source)];
  const std::size_t payload_bytes = buffer->incoming().bytes() - MessageBuffer::kHeaderBytes;
  if (envelope.cell.payload_bytes != payload_bytes ||
      envelope.cell_number - from.next >= kMaxReorderDistance)
    throw Error(
        Errc::system,
        formatted("group {}: {} sent rank {} a malformed cell (number {}, {} bytes, of which "
                  "{} arrived; the next number is {})",
                  membership_.name(), membership_.who(source), membership_.rank(),
                  envelope.cell_number, envelope.cell.payload_bytes, payload_bytes, from.next),
        {source});
  from.arrived_cells[envelope.cell_number] = buffer;
}

void OfiP2p::close(Deadline deadline) noexcept {
  sends_in_flight_.close(network_, membership_, deadline, [this] { return send_all_queued(); });
  queued_.clear();
  update_sending();
  network_.release_group_tag(own_group_tag_);
}

}  // namespace tccl::ofi
