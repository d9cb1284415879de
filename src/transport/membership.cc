#include "transport/membership.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <set>
#include <sstream>
#include <utility>

#include "base/format.h"

namespace tccl {
namespace {

constexpr const char* kFailedElsewhere = "a rank of another host has failed";

/// The text of a `failed` notice.
std::string encoded(const Error& error, const FailureSource& source) {
  std::string text = formatted("{} {} {} {}", source.reporter, source.sequence,
                               static_cast<int>(error.code()), error.ranks().size());
  for (const int rank : error.ranks()) text += formatted(" {}", rank);
  return text + "\n" + error.what();
}

struct Failure {
  FailureSource source;
  Error error;
};

/// The inverse of encoded(). Text from another host may be malformed.
Failure decoded(const std::string& text) {
  std::istringstream head(text.substr(0, text.find('\n')));
  FailureSource source;
  int code = static_cast<int>(Errc::internal);
  std::size_t count = 0;
  head >> source.reporter >> source.sequence >> code >> count;
  std::vector<int> ranks;
  for (int rank = 0; ranks.size() < count && head >> rank;) ranks.push_back(rank);
  const std::size_t end = text.find('\n');
  return {source,
          {static_cast<Errc>(std::clamp(code, 0, static_cast<int>(Errc::internal))),
           end == std::string::npos ? kFailedElsewhere : text.substr(end + 1), std::move(ranks)}};
}

/// A `shrink` notice is one of these and a part of a message. A notice is at most about 4 KiB long.
constexpr char kMoreParts = '+';
constexpr char kLastPart = '.';
constexpr std::size_t kShrinkPartBytes = 3072;
/// More than ranks that follow the protocol send. A message names each rank at most a few times.
constexpr std::size_t kMaxShrinkMessages = 65'536;
constexpr std::size_t kMaxShrinkMessageBytes = std::size_t{4} << 20;

/// The text of a `departed` notice: messages sent to the receiver of the notice, and the sequence
/// number of the last collective.
struct Departure {
  std::uint64_t collective;
  std::uint64_t point_to_point;
  std::uint32_t last_sequence;
  std::uint32_t unused = 0;  // in place of padding: the struct is sent as bytes
};

}  // namespace

Membership::Membership(std::shared_ptr<LocalMembership> local, HostMap host_map, const Peers& peers,
                       ControlPlane* control)
    : local_(std::move(local)),
      group_uid_(local_->group_uid()),
      host_map_(std::move(host_map)),
      rank_(local_->global_rank(local_->local_rank())),
      control_(control),
      failed_elsewhere_(Errc::internal, kFailedElsewhere) {
  for (const auto& peer : peers) {
    remotes_.push_back(std::make_unique<RemoteState>());
    remotes_.back()->process = peer;
  }
}

std::string Membership::who(int rank) const {
  if (is_local(rank)) return local_->who(local_rank(rank));
  return formatted("rank {} ({})", rank, process(rank)->where());
}

PeerState Membership::state_of(int rank) const noexcept {
  if (is_local(rank)) return local_->state_of(local_rank(rank));
  const RemoteState& other = remote(rank);
  // acquire: pairs with handle_departed()
  if (other.departed.load(std::memory_order_acquire)) return PeerState::departed;
  switch (other.process->state()) {
    case RemoteProcess::State::alive:
      return PeerState::alive;
    case RemoteProcess::State::departed:
      return PeerState::departed;
    default:
      return PeerState::died;
  }
}

bool Membership::process_has_ended(int rank) const noexcept {
  if (is_local(rank)) return local_->process_has_ended(local_rank(rank));
  const auto state = process(rank)->state();
  return state == RemoteProcess::State::died || state == RemoteProcess::State::ended;
}

std::uint32_t Membership::liveness_counter(int rank) const noexcept {
  if (is_local(rank)) return local_->liveness_counter(local_rank(rank));
  // The time at which the process was last heard of, in tenths of a second.
  const auto last = Clock::now() - process(rank)->silence();
  return static_cast<std::uint32_t>(last.time_since_epoch() / std::chrono::milliseconds(100));
}

std::string Membership::unreachable_hosts() const {
  std::set<std::string> hosts;
  for (const auto& other : remotes_)
    if (other->process && other->process->state() == RemoteProcess::State::unreachable)
      hosts.insert(other->process->identity().host);
  std::string text;
  for (const std::string& host : hosts)
    text += (text.empty() ? (hosts.size() == 1 ? "host " : "hosts ") : ", ") + host;
  return text;
}

Error Membership::peer_lost_error(int rank, const std::string& operation) const {
  // A rank may have departed because another one has died, which it noticed elsewhere.
  for (int other = 0; state_of(rank) == PeerState::departed && other < size(); ++other)
    if (state_of(other) == PeerState::died) rank = other;
  if (is_local(rank)) return local_->peer_lost_error(local_rank(rank), operation);
  LostRank lost = lost_rank(rank);
  lost.rank = rank;  // also if its process has departed without a notice of this group
  return lost_error(lost, operation);
}

Error Membership::lost_error(const LostRank& lost, const std::string& operation) const {
  const std::string name_of_lost = who(lost.rank);
  switch (lost.kind) {
    case LostRank::Kind::unreachable: {
      const std::string hosts = unreachable_hosts();  // none if another rank has noted it
      std::string text = formatted("{} cannot be reached during {}", name_of_lost, operation);
      if (!hosts.empty()) text += formatted(": {} has no answer from {}", who(rank_), hosts);
      return {Errc::peer_lost, text, {lost.rank}};
    }
    case LostRank::Kind::ended:
      return {Errc::peer_lost,
              formatted("{} left or died before the host of rank {} first contacted it, for {} "
                        "(Connection closed by peer)",
                        name_of_lost, rank_, operation),
              {lost.rank}};
    case LostRank::Kind::died:
      return {Errc::peer_lost, died_during(name_of_lost, operation), {lost.rank}};
    default:
      return {Errc::peer_lost, left_before(name_of_lost, name(), operation), {lost.rank}};
  }
}

LostRank Membership::lost_rank(int rank) const noexcept {
  const RemoteState& other = remote(rank);
  // First: a process may die after its rank has left the group. Acquire: pairs with
  // handle_departed().
  if (other.departed.load(std::memory_order_acquire))
    return {LostRank::Kind::departed, rank, other.last_sequence.load(std::memory_order_relaxed)};
  switch (other.process->state()) {
    case RemoteProcess::State::unreachable:
      return {LostRank::Kind::unreachable, rank};
    case RemoteProcess::State::ended:
      return {LostRank::Kind::ended, rank};
    case RemoteProcess::State::died:
      return {LostRank::Kind::died, rank};
    default:  // if the process has departed, the notice of this group is still to come
      return {};
  }
}

std::optional<LostRank> Membership::find_lost_rank(std::uint32_t sequence, Losses losses) const {
  const auto is_needed = [&](const LostRank& lost) {
    if (lost.kind == LostRank::Kind::none) return false;
    if (lost.kind != LostRank::Kind::departed) return losses == Losses::all;
    return static_cast<std::int32_t>(sequence - lost.last_sequence) > 0;  // numbers wrap
  };
  for (int rank = 0; rank < size(); ++rank) {
    if (is_local(rank)) continue;
    const LostRank lost = lost_rank(rank);
    if (is_needed(lost)) return lost;
  }
  for (const LostRank& lost : local_->lost_ranks())
    if (is_needed(lost)) return lost;
  return std::nullopt;
}

/// One note per rank: a rank that died is more important than one that departed, and of those the
/// one that left first.
void Membership::note_lost_ranks() noexcept {
  LostRank first;
  for (int rank = 0; rank < size(); ++rank) {
    if (is_local(rank)) continue;
    const LostRank lost = lost_rank(rank);
    const bool left_earlier =
        static_cast<std::int32_t>(lost.last_sequence - first.last_sequence) < 0;
    if (lost.kind > first.kind ||
        (lost.kind == LostRank::Kind::departed && lost.kind == first.kind && left_earlier))
      first = lost;
  }
  const std::lock_guard lock(mutex_);
  if (first.kind != LostRank::Kind::none && !has_departed_) local_->note_lost(first);
}

Error Membership::fail(const Error& reason, std::int64_t sequence) noexcept {
  const Error first = local_->fail(reason, {rank_, sequence});
  propagate_failure();
  return first;
}

void Membership::propagate_failure() noexcept {
  const std::lock_guard lock(mutex_);
  if (has_departed_ || failure_is_sent_ || !local_->failed()) return;
  bool all_sent = true;
  for (const auto& other : remotes_)
    if (other->subscribed.load(std::memory_order_relaxed)) all_sent &= send_failed(*other);
  // Else the monitor thread calls this again. The notice may arrive twice.
  failure_is_sent_ = all_sent;
}

bool Membership::send_notice(RemoteState& to, GroupNotice kind, std::string text) const noexcept {
  return control_->send_notice(to.process,
                               {group_uid_, static_cast<std::uint32_t>(kind), std::move(text)});
}

bool Membership::send_failed(RemoteState& to) const noexcept {
  try {
    return send_notice(to, GroupNotice::failed,
                       encoded(local_->failure(), local_->failure_source()));
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Membership::subscribe_first(int rank) {
  RemoteState& other = remote(rank);
  const std::lock_guard lock(mutex_);
  if (has_departed_ || other.subscribed.exchange(true, std::memory_order_relaxed)) return;
  send_notice(other, GroupNotice::subscribe, {});
}

bool Membership::cannot_arrive(int rank, TrafficKind traffic,
                               std::uint64_t message_number) const noexcept {
  RemoteState& other = remote(rank);
  const bool process_departed = other.process->state() == RemoteProcess::State::departed;
  // acquire: pairs with handle_departed()
  if (!other.departed.load(std::memory_order_acquire)) return process_departed;
  return message_number >= other.sent_before_departure.of(traffic).load(std::memory_order_relaxed);
}

void Membership::wake_progress_thread(int rank) noexcept {
  send_notice(remote(rank), GroupNotice::wake, {});
}

void Membership::send_shrink_message(int rank, std::string_view message) noexcept {
  do {
    const std::string_view part = message.substr(0, kShrinkPartBytes);
    message.remove_prefix(part.size());
    send_notice(remote(rank), GroupNotice::shrink,
                (message.empty() ? kLastPart : kMoreParts) + std::string(part));
  } while (!message.empty());
}

std::vector<std::string> Membership::take_shrink_messages() {
  const std::lock_guard lock(mutex_);
  return std::exchange(shrink_messages_, {});
}

void Membership::handle_shrink(RemoteState& other, std::string_view text) noexcept {
  const std::lock_guard lock(mutex_);
  if (text.empty() || has_departed_ || shrink_messages_.size() >= kMaxShrinkMessages ||
      other.shrink_parts.size() >= kMaxShrinkMessageBytes)
    return;
  other.shrink_parts += text.substr(1);
  if (text.front() == kLastPart) shrink_messages_.push_back(std::exchange(other.shrink_parts, {}));
}

std::vector<Membership::RemoteState*> Membership::states_of(const RemoteProcess& peer) const {
  std::vector<RemoteState*> states;
  for (const auto& other : remotes_)
    if (other->process.get() == &peer) states.push_back(other.get());
  return states;
}

void Membership::handle_notice(const RemoteProcess& from, const Notice& notice) noexcept {
  for (RemoteState* other : states_of(from)) {
    switch (static_cast<GroupNotice>(notice.kind)) {
      case GroupNotice::subscribe:
        handle_subscribe(*other);
        break;
      case GroupNotice::failed:
        handle_failed(notice.text);
        break;
      case GroupNotice::departed:
        handle_departed(*other, notice.text);
        break;
      case GroupNotice::shrink:
        handle_shrink(*other, notice.text);
        break;
      case GroupNotice::wake:
        break;  // handled by the context, before it looks for the group
    }
  }
}

void Membership::handle_subscribe(RemoteState& other) noexcept {
  const std::lock_guard lock(mutex_);
  const bool is_new = !other.subscribed.exchange(true, std::memory_order_relaxed);
  if (has_departed_ && is_new)
    send_departure(other);
  else if (!has_departed_ && local_->failed() && !send_failed(other))
    failure_is_sent_ = false;
}

void Membership::handle_failed(const std::string& text) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (has_departed_) return;
  }
  try {
    const Failure failure = decoded(text);
    local_->fail(failure.error, failure.source);
  } catch (const std::bad_alloc&) {
    local_->fail(failed_elsewhere_, FailureSource{});
  }
  propagate_failure();
}

void Membership::handle_departed(RemoteState& other, const std::string& text) noexcept {
  if (other.departed.load(std::memory_order_relaxed)) return;  // only the first counts are right
  Departure departure{};
  std::memcpy(&departure, text.data(), std::min(text.size(), sizeof departure));
  other.sent_before_departure.collective.store(departure.collective, std::memory_order_relaxed);
  other.sent_before_departure.point_to_point.store(departure.point_to_point,
                                                   std::memory_order_relaxed);
  other.last_sequence.store(departure.last_sequence, std::memory_order_relaxed);
  other.departed.store(true, std::memory_order_release);  // pairs with cannot_arrive(), state_of()
}

const Notice& Membership::depart(std::uint32_t last_sequence) noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(has_departed_, true)) return departure_notice_;
  last_sequence_ = last_sequence;
  departure_notice_ = {group_uid_, static_cast<std::uint32_t>(GroupNotice::departed), {}};
  if (local_->failed()) {
    departure_notice_.kind = static_cast<std::uint32_t>(GroupNotice::failed);
    try {
      departure_notice_.text = encoded(failure(), local_->failure_source());
    } catch (const std::bad_alloc&) {
      // Without text: the group has failed, for a reason that the receiver does not learn.
    }
  }
  for (const auto& other : remotes_)
    if (other->subscribed.load(std::memory_order_relaxed)) send_departure(*other);
  return departure_notice_;
}

/// A rank that leaves a failed group sends the failure first: the peer must not take it for a rank
/// that departed cleanly. Without memory the peer learns only that the process has departed, or ends.
void Membership::send_departure(RemoteState& to) const noexcept {
  if (static_cast<GroupNotice>(departure_notice_.kind) == GroupNotice::failed)
    control_->send_notice(to.process, departure_notice_);
  const Departure departure{to.sent.collective.load(std::memory_order_relaxed),
                            to.sent.point_to_point.load(std::memory_order_relaxed), last_sequence_};
  try {
    send_notice(to, GroupNotice::departed,
                std::string(reinterpret_cast<const char*>(&departure), sizeof departure));
  } catch (const std::bad_alloc&) {
    return;
  }
}

}  // namespace tccl
