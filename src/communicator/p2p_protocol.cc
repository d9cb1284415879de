#include "communicator/p2p_protocol.h"

#include <algorithm>

#include "base/format.h"
#include "kernels/copy.h"
#include "tccl/error.h"
#include "transport/shm/shm_link.h"

namespace tccl {
namespace {

/// Eager messages that a receiver has not matched may use this much of its memory per sender.
constexpr std::uint64_t kMaxUnmatchedBytes = 1u << 20;
/// A sender that finds no room wakes the receiver's progress thread this often.
constexpr auto kFullLinkWakeInterval = std::chrono::milliseconds(5);
/// The memory that an unmatched message of this size takes at the receiver.
constexpr std::uint64_t memory_cost(std::uint64_t bytes) { return bytes + 128; }

}  // namespace

P2pProtocol::P2pProtocol(shm::LocalGroup& group, Membership& membership, ofi::OfiP2p* ofi_p2p,
                         std::size_t eager_bytes)
    : membership_(membership),
      ofi_p2p_(ofi_p2p),
      eager_bytes_(eager_bytes),
      peers_(static_cast<std::size_t>(membership.size())) {
  for (int rank = 0; rank < membership_.size(); ++rank) {
    if (membership_.is_local(rank))
      queues(rank).link = std::make_unique<shm::ShmLink>(
          group, membership_.host_map().local_rank(rank), eager_bytes_);
    else
      queues(rank).link = ofi_p2p_->link_to(rank);
  }
}

void P2pProtocol::start(const P2pWorkPtr& work) {
  outstanding_.insert(work);
  outstanding_count_.fetch_add(1, std::memory_order_relaxed);
  if (work->operation.op == Op::send)
    queues(work->operation.peer()).queued.push_back(work);
  else
    start_receive(work);
}

void P2pProtocol::start_receive(const P2pWorkPtr& receive) {
  subscribe_to(receive->operation.peer());
  const auto message = match_queue_.take_message(receive->operation);
  if (!message) return match_queue_.post(receive);
  message->eager ? deliver_eager(receive, message->source, message->payload.data(), message->bytes)
                 : accept_rts(receive, message->source, message->message_id, message->bytes);
}

/// Also if they have exchanged no message yet: a receiver must get the departure notice of a rank
/// of another host.
void P2pProtocol::subscribe_to(int source) {
  if (!membership_.over_several_hosts()) return;
  for (int rank = 0; rank < membership_.size(); ++rank)
    if ((source == rank || source == kAnySource) && !membership_.is_local(rank))
      membership_.subscribe(rank);
}

bool P2pProtocol::advance() {
  bool moved = false;
  if (ofi_p2p_) ofi_p2p_->collect();
  for (int rank = 0; rank < membership_.size(); ++rank) moved |= take_cells(rank);
  for (int rank = 0; rank < membership_.size(); ++rank) moved |= post_cells(rank);
  return moved;
}

// --- receiving ---

bool P2pProtocol::take_cells(int source) {
  return queues(source).link->take([&](const CellHeader& header, const std::byte* payload) {
    take_cell(source, header, payload);
  });
}

void P2pProtocol::take_cell(int source, const CellHeader& header, const std::byte* payload) {
  if (header.payload_bytes > queues(source).link->cell_bytes())
    throw malformed_cell(source, header, "longer than a cell");
  switch (header.kind) {
    case CellKind::eager:
    case CellKind::rts:
      return take_message(source, header, payload);
    case CellKind::cts:
      if (auto node = queues(source).awaiting_cts.extract(header.message_id))
        queues(source).cleared.push_back(std::move(node.mapped()));
      return;
    case CellKind::data:
      return take_data(source, header, payload);
    case CellKind::credit:
      return;
  }
  throw malformed_cell(source, header, "of no kind that this version knows");
}

/// The cells of a rank arrive in order and complete: dropping one would stall its message.
Error P2pProtocol::malformed_cell(int source, const CellHeader& header,
                                  const std::string& problem) const {
  return {Errc::system,
          formatted("group {}: {} sent rank {} a malformed cell (kind {}, {} bytes of a message of "
                    "{} bytes): it is {}",
                    membership_.name(), membership_.who(source), membership_.rank(),
                    static_cast<std::uint32_t>(header.kind), header.payload_bytes,
                    header.message_bytes, problem),
          {source}};
}

void P2pProtocol::take_message(int source, const CellHeader& header, const std::byte* payload) {
  const bool eager = header.kind == CellKind::eager;
  if (eager && header.payload_bytes != header.message_bytes)
    throw malformed_cell(source, header, "not the whole message");
  const P2pWorkPtr receive = match_queue_.take_receive(source, header.tag);
  if (!receive)
    return match_queue_.add_unexpected({source,
                                        header.tag,
                                        header.message_id,
                                        header.message_bytes,
                                        eager,
                                        {payload, payload + header.payload_bytes}});
  eager ? deliver_eager(receive, source, payload, header.payload_bytes)
        : accept_rts(receive, source, header.message_id, header.message_bytes);
}

void P2pProtocol::take_data(int source, const CellHeader& header, const std::byte* payload) {
  auto& receiving = queues(source).receiving;
  const auto found = receiving.find(header.message_id);
  if (found == receiving.end()) return;  // failed meanwhile
  const P2pWorkPtr receive = found->second;
  if (header.payload_bytes > receive->operation.count - receive->moved_bytes)
    throw malformed_cell(source, header,
                         formatted("longer than the rest of the message, {} bytes",
                                   receive->operation.count - receive->moved_bytes));
  kernels::copy(static_cast<std::byte*>(receive->operation.out) + receive->moved_bytes, payload,
                header.payload_bytes);
  receive->moved_bytes += header.payload_bytes;
  if (receive->moved_bytes < receive->operation.count) return;
  receiving.erase(found);
  finish(receive, nullptr);
}

bool P2pProtocol::check_size(const P2pWorkPtr& receive, int source, std::uint64_t bytes) {
  receive->set_source(source);
  if (bytes == receive->operation.count) return true;
  finish(receive, std::make_exception_ptr(Error(
                      Errc::mismatch,
                      formatted("group {}: rank {} receives {} bytes with tag {}, but {} sent {}",
                                membership_.name(), membership_.rank(), receive->operation.count,
                                receive->operation.tag, membership_.who(source), bytes),
                      {membership_.rank(), source})));
  return false;
}

void P2pProtocol::deliver_eager(const P2pWorkPtr& receive, int source, const std::byte* payload,
                                std::uint64_t bytes) {
  queues(source).link->return_credit(memory_cost(bytes));
  if (!check_size(receive, source, bytes)) return;
  kernels::copy(receive->operation.out, payload, bytes);
  finish(receive, nullptr);
}

void P2pProtocol::accept_rts(const P2pWorkPtr& receive, int source, std::uint64_t message_id,
                             std::uint64_t bytes) {
  if (!check_size(receive, source, bytes)) return;
  queues(source).receiving[message_id] = receive;
  queues(source).cts_to_send.push_back(message_id);
}

// --- sending ---

bool P2pProtocol::post_cells(int destination) {
  PeerQueues& to = queues(destination);
  bool moved = false;
  while (post_one(to)) moved = true;
  if (moved) to.link->wake_peer();
  return moved;
}

bool P2pProtocol::post_one(PeerQueues& to) {
  if (to.cts_to_send.empty() && to.queued.empty() && to.cleared.empty()) return false;
  if (!to.link->has_room()) {
    wake_progress_thread(to);
    return false;
  }
  if (!to.cts_to_send.empty()) {
    to.link->post({CellKind::cts, 0, 0, to.cts_to_send.front(), 0}, nullptr);
    to.cts_to_send.pop_front();
  } else if (!to.queued.empty()) {
    post_message(to);
  } else {
    post_data(to);
  }
  return true;
}

/// Repeatedly: the receiver may not have created its end of the group yet.
void P2pProtocol::wake_progress_thread(PeerQueues& to) {
  const auto now = Clock::now();
  if (now - to.last_wake < kFullLinkWakeInterval) return;
  to.last_wake = now;
  to.link->wake_progress_thread();
}

/// Posts the next message, or its rts.
void P2pProtocol::post_message(PeerQueues& to) {
  const P2pWorkPtr work = std::move(to.queued.front());
  to.queued.pop_front();
  const Operation& send = work->operation;
  if (may_be_eager(to, send.count)) {
    to.used_credit += memory_cost(send.count);
    to.link->post(
        {CellKind::eager, static_cast<std::uint32_t>(send.count), send.tag, 0, send.count},
        send.in);
    finish(work, nullptr);
    return;
  }
  work->message_id = next_message_id_++;
  to.awaiting_cts[work->message_id] = work;
  to.link->post({CellKind::rts, 0, send.tag, work->message_id, send.count}, nullptr);
}

bool P2pProtocol::may_be_eager(const PeerQueues& to, std::uint64_t bytes) const {
  return bytes <= std::min<std::uint64_t>(eager_bytes_, to.link->cell_bytes()) &&
         to.used_credit - to.link->returned_credit() + memory_cost(bytes) <= kMaxUnmatchedBytes;
}

/// Posts the next part of a message whose cts has arrived.
void P2pProtocol::post_data(PeerQueues& to) {
  const P2pWorkPtr work = to.cleared.front();
  const std::uint64_t bytes_left = work->operation.count - work->moved_bytes;
  const auto bytes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes_left, to.link->cell_bytes()));
  to.link->post({CellKind::data, bytes, 0, work->message_id, 0},
                static_cast<const std::byte*>(work->operation.in) + work->moved_bytes);
  work->moved_bytes += bytes;
  if (work->moved_bytes < work->operation.count) return;
  to.cleared.pop_front();
  finish(work, nullptr);
}

// --- the end of a work ---

void P2pProtocol::finish(const P2pWorkPtr& work, std::exception_ptr error) {
  if (outstanding_.erase(work) == 0) return;
  outstanding_count_.fetch_sub(1, std::memory_order_relaxed);
  work->pending_error = std::move(error);
  finished_.push_back(work);
}

bool P2pProtocol::cancel(P2pWork& work, const Error& reason) {
  P2pWorkPtr cancelled;
  if (work.operation.op == Op::recv) {
    cancelled = match_queue_.remove(work);
  } else {
    auto& queued = queues(work.operation.peer()).queued;
    const auto found = std::ranges::find(queued, &work, &P2pWorkPtr::get);
    if (found != queued.end()) {
      cancelled = std::move(*found);
      queued.erase(found);
    }
  }
  if (!cancelled) return false;
  work.is_cancelled = true;
  finish(cancelled, std::make_exception_ptr(reason));
  return true;
}

void P2pProtocol::cancel_receives(const std::exception_ptr& error) {
  for (const P2pWorkPtr& work : match_queue_.take_all_receives()) {
    work->is_cancelled = true;
    finish(work, error);
  }
}

void P2pProtocol::fail_all(const std::exception_ptr& error) {
  const std::vector<P2pWorkPtr> all(outstanding_.begin(), outstanding_.end());
  for (const P2pWorkPtr& work : all) finish(work, error);
  match_queue_.take_all_receives();
  for (PeerQueues& peer : peers_) {
    peer.cts_to_send.clear();
    peer.queued.clear();
    peer.awaiting_cts.clear();
    peer.cleared.clear();
    peer.receiving.clear();
  }
}

}  // namespace tccl
