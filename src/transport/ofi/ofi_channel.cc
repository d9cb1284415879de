#include "transport/ofi/ofi_channel.h"

#include <algorithm>
#include <cstring>

#include "base/format.h"
#include "health/local_process.h"
#include "transport/ofi/library.h"

namespace tccl::ofi {
namespace {

static_assert(sizeof(OpRecord) == MessageBuffer::kHeaderBytes,
              "the header of a message is its operation's record");

/// After the control connection has reported that a rank has departed or died, its last messages
/// may still arrive on the data connection for this long.
constexpr std::chrono::milliseconds kDepartureGrace{50};
/// Added to the deadline if the awaited rank is not stalled: it may itself wait for a stalled rank,
/// which those that wait for that one report at the deadline.
constexpr std::chrono::milliseconds kGraceForStalledRank{1000};

}  // namespace

OfiChannel::OfiChannel(Network& network, Membership& membership, Options options)
    : network_(network),
      membership_(membership),
      addresses_(std::move(options.addresses)),
      own_group_tag_(options.own_group_tag),
      log_(*options.log),
      algorithm_name_(options.algorithm_name),
      check_interrupt_(std::move(options.check_interrupt)),
      find_lost_rank_(std::move(options.find_lost_rank)),
      counts_(addresses_.size()) {}

void OfiChannel::begin(const OpRecord& record, std::optional<Deadline> deadline,
                       std::chrono::milliseconds timeout) {
  record_ = record;
  deadline_ = deadline;
  timeout_ = timeout;
  failed_since_.reset();
}

void OfiChannel::send(const MessagePtr& message, std::size_t bytes, std::span<const int> to) {
  const auto buffer = std::static_pointer_cast<MessageBuffer>(message);
  std::memcpy(buffer->header(), &record_, sizeof record_);
  for (const int rank : to) {
    membership_.subscribe(rank);
    Request& request = buffer->request_to(rank);
    const std::uint64_t tag =
        tag_of(address(rank).group_tag, TrafficKind::collective, counts(rank).sent);
    wait(rank, std::nullopt, [&] {
      return try_post(rank, "sending to", [&] {
        return network_.endpoint().send(address(rank).fi_addr, tag, buffer->first(bytes), request);
      });
    });
    ++counts(rank).sent;
    membership_.count_sent(rank, TrafficKind::collective);
  }
  remove_completed();
  sends_in_flight_.add(buffer);
}

NetworkChannel::MessagePtr OfiChannel::post_receive(int from) {
  membership_.subscribe(from);
  auto buffer = network_.acquire_buffer();
  const std::uint64_t message_number = counts(from).receives_posted++;
  Request& request = buffer->request_from(from, message_number);
  const std::uint64_t tag = tag_of(own_group_tag_, TrafficKind::collective, message_number);
  wait(from, std::nullopt, [&] {
    return try_post(from, "receiving from", [&] {
      return network_.endpoint().receive(address(from).fi_addr, tag,
                                         buffer->first(kMaxMessageBytes), request);
    });
  });
  return buffer;
}

std::size_t OfiChannel::received_bytes(const MessagePtr& message) {
  auto& buffer = static_cast<MessageBuffer&>(*message);
  const Request& request = buffer.incoming();
  wait(buffer.from(), buffer.message_number(), [&] { return request.done(); });
  if (request.error() != 0)
    throw_send_or_receive_error(buffer.from(), "receiving from",
                                library().strerror(request.error()));
  OpRecord theirs;
  std::memcpy(&theirs, buffer.header(), sizeof theirs);
  check_record(buffer.from(), theirs);
  return request.bytes() - std::min(request.bytes(), MessageBuffer::kHeaderBytes);
}

const std::byte* OfiChannel::await(const MessagePtr& message, std::size_t bytes) {
  const std::size_t length = received_bytes(message);
  const int from = static_cast<MessageBuffer&>(*message).from();
  if (length != bytes)
    throw Error(Errc::mismatch,
                formatted("{}: {} sends {} bytes to rank {}, which expects {}", operation(),
                          membership_.who(from), length, rank(), bytes),
                {from, rank()});
  return message->data();
}

/// In operations that do not synchronise all ranks (broadcast, gather ...) one rank may be ahead of
/// the other: then compare with this rank's operation of the same sequence number.
void OfiChannel::check_record(int from, const OpRecord& theirs) const {
  if (theirs.digest == record_.digest) return;
  if (!is_valid(theirs))
    throw Error(Errc::system,
                formatted("{}: malformed message from {}", operation(), membership_.who(from)),
                {from});
  const OpRecord& mine = log_.contains(theirs.sequence) ? log_.at(theirs.sequence) : record_;
  throw Error(
      Errc::mismatch,
      formatted("operation #{} of group {}: rank {} called {}, but {} called {}{}", mine.sequence,
                membership_.name(), rank(), describe(mine, algorithm_name_(mine.algorithm)),
                membership_.who(from), describe(theirs, algorithm_name_(theirs.algorithm)),
                mine.sequence == theirs.sequence
                    ? std::string()
                    : formatted(" as its operation #{}", theirs.sequence)),
      {rank(), from});
}

void OfiChannel::flush(std::size_t at_most) {
  remove_completed();
  while (sends_in_flight_.size() > at_most) {
    for (const MessageBuffer::Send& send : sends_in_flight_.oldest().sends())
      wait(send.to, std::nullopt, [&] { return send.request->done(); });
    remove_completed();
  }
}

void OfiChannel::remove_completed() {
  if (const auto error = sends_in_flight_.remove_completed_in_order())
    throw_send_or_receive_error(error->rank, "sending to", error->reason);
}

bool OfiChannel::try_post(int rank, const char* what, FunctionRef<bool()> post) {
  try {
    return post();
  } catch (const Error& error) {
    throw_send_or_receive_error(rank, what, error.what());
  }
}

/// If the rank or the group turns out to be lost within kErrorGrace, wait() throws that instead.
void OfiChannel::throw_send_or_receive_error(int rank, const char* what,
                                             const std::string& reason) {
  const Deadline grace_end = deadline_after(kErrorGrace);
  wait(rank, std::nullopt, [&] { return Clock::now() >= grace_end; });
  throw Error(Errc::system,
              formatted("{}: {} {}: {}", operation(), what, membership_.who(rank), reason), {rank});
}

void OfiChannel::wait(int rank, std::optional<std::uint64_t> message_number,
                      FunctionRef<bool()> ready) {
  const auto poll = [&] {
    if (ready()) return true;
    network_.progress();
    return ready();
  };
  if (spin_then_yield(poll, kBackoffNetwork)) return;
  if (!deadline_) deadline_ = deadline_after(timeout_);
  std::optional<Clock::time_point> lost_since;
  sleep_until(EndpointSleeper(network_.endpoint()), poll, [&] {
    check_wait(rank, message_number, lost_since);
    return false;
  });
}

void OfiChannel::check_wait(int rank, std::optional<std::uint64_t> message_number,
                            std::optional<Clock::time_point>& lost_since) {
  const auto now = Clock::now();
  if (membership_.failed()) {
    // The rank that failed in a later operation has done its part of this one: the rest may be under
    // way.
    if (!failed_since_) failed_since_ = now;
    if (!membership_.failed_later_than(record_.sequence) ||
        now - *failed_since_ >= kLaterFailureGrace)
      throw membership_.failure();
    return check_for_interrupt(now);
  }
  if (message_number && membership_.cannot_arrive(rank, TrafficKind::collective, *message_number))
    throw membership_.peer_lost_error(rank, operation());
  // A rank that has departed may have sent the awaited message before, but receives no more.
  const PeerState state = membership_.state_of(rank);
  if (state == PeerState::died || (state == PeerState::departed && !message_number)) {
    if (!lost_since) lost_since = now;
    if (now - *lost_since >= kDepartureGrace) throw membership_.peer_lost_error(rank, operation());
  }
  if (const auto lost = find_lost_rank_()) throw *lost;
  check_for_interrupt(now);
  const bool may_wait_for_another =
      membership_.process(rank)->silence() < membership_.stalled_after(rank);
  if (now >=
      *deadline_ + (may_wait_for_another ? kGraceForStalledRank : std::chrono::milliseconds(0)))
    throw timeout_error(rank, /*receives=*/message_number.has_value());
}

void OfiChannel::check_for_interrupt(Clock::time_point now) {
  if (!check_interrupt_ || now < next_interrupt_check_) return;
  next_interrupt_check_ = now + kInterruptInterval;
  check_interrupt_();
}

Error OfiChannel::timeout_error(int rank, bool receives) const {
  std::string text = formatted("{} timed out after {} (the timeout of this call); ", operation(),
                               text_of(timeout_));
  if (receives)
    text += "nothing received from " + membership_.who(rank);
  else
    text += formatted(
        "the data connection to {} at {} takes no messages", membership_.who(rank),
        network_.endpoint().address_text(addresses_[static_cast<std::size_t>(rank)].fi_addr));
  const auto silence = membership_.process(rank)->silence();
  if (silence >= membership_.stalled_after(rank))
    text += formatted(", which is stalled: no heartbeat for {}", text_of(silence));
  return {Errc::timeout, text, {rank}};
}

std::string OfiChannel::operation() const {
  return formatted("{} #{} of group {}", name_of(record_.op), record_.sequence, membership_.name());
}

void OfiChannel::close(Deadline deadline) noexcept {
  sends_in_flight_.close(network_, membership_, deadline,
                         [] { return true; });  // nothing is queued
}

}  // namespace tccl::ofi
