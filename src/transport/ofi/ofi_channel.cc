#include "transport/ofi/ofi_channel.h"

#include <algorithm>
#include <cstring>

#include "base/format.h"
#include "health/local_process.h"
#include "transport/ofi/library.h"

namespace tccl::ofi {
namespace {

static_assert(sizeof(OpRecord) == MessageBuffer::kHeaderBytes,
              "each message says what it belongs to");

/// The end of a process is told by another connection than that of its data, which may still come.
constexpr auto kLastWords = std::chrono::milliseconds(50);
/// Each look is a system call, so there is no use in spinning between them. Whoever sleeps comes
/// back tens of microseconds late.
constexpr BackoffPolicy kNetworkBackoff{std::chrono::microseconds(0),
                                        std::chrono::microseconds(500)};

}  // namespace

OfiChannel::OfiChannel(Network& network, Members& members, Options options)
    : network_(network),
      members_(members),
      addresses_(std::move(options.addresses)),
      own_group_id_(options.own_group_id),
      log_(*options.log),
      algorithm_name_(options.algorithm_name),
      poll_interrupt_(std::move(options.poll_interrupt)),
      counts_(addresses_.size()) {}

void OfiChannel::begin(const OpRecord& record, std::optional<Deadline> deadline,
                       std::chrono::milliseconds timeout) {
  record_ = record;
  deadline_ = deadline;
  timeout_ = timeout;
}

void OfiChannel::send(const MessagePtr& message, std::size_t bytes, std::span<const int> to) {
  const auto buffer = std::static_pointer_cast<MessageBuffer>(message);
  std::memcpy(buffer->header(), &record_, sizeof record_);
  for (const int rank : to) {
    members_.enter(rank);
    Request& request = buffer->request_to(rank);
    const std::uint64_t tag =
        tag_of(address(rank).group_id, Traffic::collective, counts(rank).sent);
    wait(rank, std::nullopt, [&] {
      return attempt(rank, "sending to", [&] {
        return network_.endpoint().send(address(rank).peer, tag, buffer->first(bytes), request);
      });
    });
    ++counts(rank).sent;
    members_.count_sent(rank, Traffic::collective);
  }
  collect_sent();
  outgoing_.push_back(buffer);
}

NetworkChannel::MessagePtr OfiChannel::post_receive(int from) {
  members_.enter(from);
  auto buffer = network_.acquire_buffer();
  const std::uint64_t number = counts(from).expected++;
  Request& request = buffer->request_from(from, number);
  const std::uint64_t tag = tag_of(own_group_id_, Traffic::collective, number);
  wait(from, std::nullopt, [&] {
    return attempt(from, "receiving from", [&] {
      return network_.endpoint().receive(address(from).peer, tag, buffer->first(kMaxMessageBytes),
                                         request);
    });
  });
  return buffer;
}

std::size_t OfiChannel::received_bytes(const MessagePtr& message) {
  auto& buffer = static_cast<MessageBuffer&>(*message);
  const Request& request = buffer.incoming();
  wait(buffer.from(), buffer.number(), [&] { return request.done(); });
  if (request.error() != 0)
    throw_failed(buffer.from(), "receiving from", library().strerror(request.error()));
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
                          members_.who(from), length, rank(), bytes),
                {from, rank()});
  return message->data();
}

/// Operations that do not meet (a broadcast has no reason to wait for its leaves) leave one rank
/// ahead of the other: then what it called before is compared.
void OfiChannel::check_record(int from, const OpRecord& theirs) const {
  if (theirs.chain == record_.chain) return;
  if (!is_valid(theirs))
    throw Error(Errc::system,
                formatted("{}: what came from {} makes no sense", operation(), members_.who(from)),
                {from});
  const OpRecord& mine = log_.contains(theirs.sequence) ? log_.at(theirs.sequence) : record_;
  throw Error(
      Errc::mismatch,
      formatted("operation #{} of group {}: rank {} called {}, but {} called {}{}", mine.sequence,
                members_.name(), rank(), describe(mine, algorithm_name_(mine.algorithm)),
                members_.who(from), describe(theirs, algorithm_name_(theirs.algorithm)),
                mine.sequence == theirs.sequence
                    ? std::string()
                    : formatted(" as its operation #{}", theirs.sequence)),
      {rank(), from});
}

void OfiChannel::flush(std::size_t at_most) {
  collect_sent();
  while (outgoing_.size() > at_most) {
    for (const MessageBuffer::Send& sending : outgoing_.front()->sends())
      wait(sending.to, std::nullopt, [&] { return sending.request->done(); });
    collect_sent();
  }
}

void OfiChannel::collect_sent() {
  while (!outgoing_.empty() && outgoing_.front()->is_idle()) {
    check_sent(*outgoing_.front());
    outgoing_.pop_front();
  }
}

void OfiChannel::check_sent(const MessageBuffer& buffer) {
  for (const auto& [to, request] : buffer.sends())
    if (request->error() != 0) throw_failed(to, "sending to", library().strerror(request->error()));
}

bool OfiChannel::attempt(int rank, const char* what, FunctionRef<bool()> action) {
  try {
    return action();
  } catch (const Error& error) {
    throw_failed(rank, what, error.what());
  }
}

/// libfabric says that something went wrong, and the control connection why, a moment later.
void OfiChannel::throw_failed(int rank, const char* what, const std::string& why) {
  const Deadline patience = deadline_after(kLastWords * 10);
  wait(rank, std::nullopt, [&] { return Clock::now() >= patience; });
  throw Error(Errc::system, formatted("{}: {} {}: {}", operation(), what, members_.who(rank), why),
              {rank});
}

void OfiChannel::wait(int rank, std::optional<std::uint64_t> number, FunctionRef<bool()> ready) {
  const auto look = [&] {
    if (ready()) return true;
    network_.progress();
    return ready();
  };
  if (spin_then_yield(look, kNetworkBackoff)) return;
  if (!deadline_) deadline_ = deadline_after(timeout_);
  std::optional<Clock::time_point> lost_since;
  while (!look()) {
    throw_if_hopeless(rank, number, lost_since);
    network_.endpoint().sleep(kSleepInterval);
  }
}

void OfiChannel::throw_if_hopeless(int rank, std::optional<std::uint64_t> number,
                                   std::optional<Clock::time_point>& lost_since) {
  if (members_.failed()) throw members_.failure();
  const auto now = Clock::now();
  if (number && members_.will_never_come(rank, Traffic::collective, *number))
    throw members_.peer_lost_error(rank, operation());
  // Who has left in order may have sent what is waited for, but takes nothing any more.
  const PeerState state_of = members_.state_of(rank);
  if (state_of == PeerState::died || (state_of == PeerState::left && !number)) {
    if (!lost_since) lost_since = now;
    if (now - *lost_since >= kLastWords) throw members_.peer_lost_error(rank, operation());
  }
  if (poll_interrupt_ && now >= next_interrupt_poll_) {
    next_interrupt_poll_ = now + kInterruptPeriod;
    poll_interrupt_();
  }
  if (now >= *deadline_) throw timed_out(rank, number ? "nothing came from" : "no room to send to");
}

Error OfiChannel::timed_out(int rank, const char* why) const {
  std::string text =
      formatted("{}: timeout after {:.1f} s; {} {}", operation(),
                std::chrono::duration<double>(timeout_).count(), why, members_.who(rank));
  const auto silence = members_.peer(rank)->silence();
  if (silence >= members_.stalled_after(rank))
    text += formatted(", which is stalled: no sign of life for {:.1f} s",
                      std::chrono::duration<double>(silence).count());
  return {Errc::timeout, text, {rank}};
}

std::string OfiChannel::operation() const {
  return formatted("{} #{} of group {}", name_of(record_.op), record_.sequence, members_.name());
}

void OfiChannel::close(Deadline deadline) noexcept {
  const auto is_pointless = [&](const MessageBuffer& buffer) {
    return std::ranges::all_of(buffer.sends(), [&](const MessageBuffer::Send& sending) {
      return members_.state_of(sending.to) != PeerState::alive;
    });
  };
  try {
    while (!outgoing_.empty() && !members_.failed() && Clock::now() < deadline) {
      network_.progress();
      if (outgoing_.front()->is_idle() || is_pointless(*outgoing_.front()))
        outgoing_.pop_front();
      else
        network_.endpoint().sleep(std::chrono::milliseconds(1));
    }
  } catch (const Error&) {
    // The network is gone, and with it what was to leave.
  }
  outgoing_.clear();
}

}  // namespace tccl::ofi
