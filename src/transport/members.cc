#include "transport/members.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <sstream>

#include "base/format.h"

namespace tccl {
namespace {

std::string encoded(const Error& error) {
  std::string text = formatted("{} {}", static_cast<int>(error.code()), error.ranks().size());
  for (const int rank : error.ranks()) text += formatted(" {}", rank);
  return text + "\n" + error.what();
}

/// What another host says is not trusted to be well-formed.
Error decoded(const std::string& text) {
  std::istringstream head(text.substr(0, text.find('\n')));
  int code = static_cast<int>(Errc::internal);
  std::size_t count = 0;
  head >> code >> count;
  std::vector<int> ranks;
  for (int rank = 0; ranks.size() < count && head >> rank;) ranks.push_back(rank);
  const std::size_t end = text.find('\n');
  return {static_cast<Errc>(std::clamp(code, 0, static_cast<int>(Errc::internal))),
          end == std::string::npos ? "a rank of another host has failed" : text.substr(end + 1),
          std::move(ranks)};
}

struct LeaveCounts {
  std::uint64_t collective;
  std::uint64_t point_to_point;
};

}  // namespace

Members::Members(std::shared_ptr<shm::Group> local, HostMap host_map, const Peers& peers,
                 ControlPlane* control)
    : local_(std::move(local)),
      uid_(local_->identity().uid),
      host_map_(std::move(host_map)),
      rank_(local_->global_rank(local_->rank())),
      control_(control) {
  for (const auto& peer : peers) {
    remotes_.push_back(std::make_unique<RemoteState>());
    remotes_.back()->peer = peer;
  }
}

std::string Members::who(int rank) const {
  if (is_local(rank)) return local_->who(local_rank(rank));
  return formatted("rank {} ({})", rank, peer(rank)->where());
}

PeerState Members::state_of(int rank) const noexcept {
  if (is_local(rank)) return local_->state_of(local_rank(rank));
  const RemoteState& other = remote(rank);
  if (other.left.load(std::memory_order_acquire)) return PeerState::left;
  switch (other.peer->state()) {
    case RemoteProcess::State::alive:
      return PeerState::alive;
    case RemoteProcess::State::departed:
      return PeerState::left;
    default:
      return PeerState::died;
  }
}

std::uint32_t Members::heartbeat(int rank) const noexcept {
  if (is_local(rank)) return local_->peer(local_rank(rank)).beats();
  // The moment of its last sign of life, to a tenth of a second.
  const auto last = Clock::now() - peer(rank)->silence();
  return static_cast<std::uint32_t>(last.time_since_epoch() / std::chrono::milliseconds(100));
}

std::string Members::unreachable_hosts() const {
  std::set<std::string> hosts;
  for (const auto& other : remotes_)
    if (other->peer && other->peer->state() == RemoteProcess::State::unreachable)
      hosts.insert(other->peer->identity().host);
  std::string text = hosts.size() == 1 ? "" : "s";  // of "host"
  for (const std::string& host : hosts) text += (host == *hosts.begin() ? " " : ", ") + host;
  return text;
}

Error Members::peer_lost_error(int rank, const std::string& operation) const {
  if (is_local(rank)) return local_->peer_lost_error(local_rank(rank), operation);
  switch (peer(rank)->state()) {
    case RemoteProcess::State::unreachable:
      return {Errc::peer_lost,
              formatted("{} cannot be reached during {}: {} has no answer from host{}", who(rank),
                        operation, who(rank_), unreachable_hosts()),
              {rank}};
    case RemoteProcess::State::died:
      return {Errc::peer_lost, formatted("{} died during {}", who(rank), operation), {rank}};
    default:
      return {Errc::peer_lost,
              formatted("{} left group {}, but {} needs it", who(rank), name(), operation),
              {rank}};
  }
}

Error Members::fail(const Error& reason) noexcept {
  const Error first = local_->fail(reason);
  spread_failure();
  return first;
}

void Members::spread_failure() noexcept {
  const std::lock_guard lock(mutex_);
  if (over_ || told_ || !local_->failed()) return;
  told_ = true;
  for (const auto& other : remotes_)
    if (other->entered) tell_of_failure(*other);
}

void Members::tell(RemoteState& to, GroupNotice kind, std::string text) const noexcept {
  control_->tell(to.peer, {uid_, static_cast<std::uint32_t>(kind), std::move(text)});
}

void Members::tell_of_failure(RemoteState& to) const noexcept {
  tell(to, GroupNotice::failed, encoded(local_->failure()));
}

void Members::enter_first(int rank) {
  RemoteState& other = remote(rank);
  const std::lock_guard lock(mutex_);
  if (over_ || other.entered.exchange(true, std::memory_order_relaxed)) return;
  tell(other, GroupNotice::entered, {});
}

bool Members::will_never_come(int rank, Traffic traffic, std::uint64_t number) const noexcept {
  RemoteState& other = remote(rank);
  const bool has_ended = other.peer->state() == RemoteProcess::State::departed;
  if (!other.left.load(std::memory_order_acquire)) return has_ended;  // pairs with take_notice()
  return number >= other.sent_before_leaving.of(traffic).load(std::memory_order_relaxed);
}

void Members::wake_progress_thread(int rank) noexcept { tell(remote(rank), GroupNotice::wake, {}); }

std::vector<Members::RemoteState*> Members::states_of(const RemoteProcess& peer) const {
  std::vector<RemoteState*> states;
  for (const auto& other : remotes_)
    if (other->peer.get() == &peer) states.push_back(other.get());
  return states;
}

void Members::take_notice(const RemoteProcess& from, const Notice& notice) noexcept {
  for (RemoteState* other : states_of(from)) {
    switch (static_cast<GroupNotice>(notice.kind)) {
      case GroupNotice::entered: {
        const std::lock_guard lock(mutex_);
        const bool is_new = !other->entered.exchange(true, std::memory_order_relaxed);
        if (over_ && is_new)
          tell_of_end(*other);
        else if (!over_ && local_->failed())
          tell_of_failure(*other);
        break;
      }
      case GroupNotice::failed:
        hear_of_failure(notice.text);
        break;
      case GroupNotice::left: {
        if (other->left.load(std::memory_order_relaxed)) break;  // the first counts are right
        LeaveCounts counts{};
        std::memcpy(&counts, notice.text.data(), std::min(notice.text.size(), sizeof counts));
        other->sent_before_leaving.collective.store(counts.collective, std::memory_order_relaxed);
        other->sent_before_leaving.point_to_point.store(counts.point_to_point,
                                                        std::memory_order_relaxed);
        other->left.store(true, std::memory_order_release);  // pairs with will_never_come()
        break;
      }
      case GroupNotice::wake:
        break;  // whoever serves the connection looks for messages
    }
  }
}

void Members::hear_of_failure(const std::string& text) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (over_) return;
  }
  fail(decoded(text));
}

Notice Members::leave() noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(over_, true)) return departure_notice_;
  departure_notice_ = {uid_, static_cast<std::uint32_t>(GroupNotice::left), {}};
  if (local_->failed())
    departure_notice_ = {uid_, static_cast<std::uint32_t>(GroupNotice::failed), encoded(failure())};
  for (const auto& other : remotes_)
    if (other->entered) tell_of_end(*other);
  return departure_notice_;
}

/// A group that has failed is not one that was left in order.
void Members::tell_of_end(RemoteState& to) const noexcept {
  if (static_cast<GroupNotice>(departure_notice_.kind) == GroupNotice::failed)
    control_->tell(to.peer, departure_notice_);
  tell_of_leaving(to);
}

void Members::tell_of_leaving(RemoteState& to) const noexcept {
  const LeaveCounts counts{to.sent.collective.load(std::memory_order_relaxed),
                           to.sent.point_to_point.load(std::memory_order_relaxed)};
  tell(to, GroupNotice::left, std::string(reinterpret_cast<const char*>(&counts), sizeof counts));
}

}  // namespace tccl
