#include "communicator/p2p.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/format.h"
#include "communicator/progress.h"
#include "kernels/copy.h"
#include "tccl/error.h"
#include "transport/shm/shm_link.h"

namespace tccl {
namespace {

/// Eager messages that a receiver has not claimed may take this much of its memory per sender;
/// after that even small messages are announced.
constexpr std::uint64_t kUnclaimedBytes = 1u << 20;
/// A sender that finds no room progress_signal this often.
constexpr auto kWakeInterval = std::chrono::milliseconds(5);
/// At the end: for messages that were sent to ranks that have not taken them yet.
constexpr std::chrono::milliseconds kLastWords{10'000};
/// What an unclaimed message costs the receiver besides its bytes.
constexpr std::uint64_t charge(std::uint64_t bytes) { return bytes + 128; }

template <class... Args>
std::exception_ptr make_error(Errc code, std::vector<int> ranks, fmt::format_string<Args...> format,
                              Args&&... args) {
  return std::make_exception_ptr(
      Error(code, formatted(format, std::forward<Args>(args)...), std::move(ranks)));
}

}  // namespace

P2pWork::P2pWork(std::shared_ptr<P2p> engine, const Operation& operation,
                 Communicator::CallOptions options, std::uint64_t number)
    : WorkState(std::move(options)),
      engine_(std::move(engine)),
      operation_(operation),
      number_(number),
      deadline_(deadline_after(this->options().timeout)) {}

void P2pWork::help_until_done(Deadline deadline) { engine_->wait_for(*this, deadline); }

std::string P2pWork::description() const { return engine_->describe(*this); }

bool P2pWork::cancel() noexcept { return !is_inherited() && engine_->cancel(*this); }

P2p::P2p(std::shared_ptr<Members> members, std::unique_ptr<ofi::OfiP2p> ofi_p2p,
         std::size_t eager_bytes, Progress& progress, WorkState::Submit run_elsewhere,
         std::function<void()> poll_interrupt, BackoffPolicy backoff)
    : owned_members_(std::move(members)),
      members_(*owned_members_),
      ofi_p2p_(std::move(ofi_p2p)),
      eager_bytes_(eager_bytes),
      progress_(progress),
      run_elsewhere_(std::move(run_elsewhere)),
      poll_interrupt_(std::move(poll_interrupt)),
      backoff_(backoff),
      outgoing_(static_cast<std::size_t>(members_.size())),
      incoming_(static_cast<std::size_t>(members_.size())) {
  for (int rank = 0; rank < members_.size(); ++rank) {
    auto& link = outgoing_[static_cast<std::size_t>(rank)].link;
    if (members_.is_local(rank))
      link = std::make_unique<shm::ShmLink>(members_.local(), members_.host_map().local_rank(rank),
                                            eager_bytes_);
    else
      link = ofi_p2p_->link_to(rank);
  }
}

std::shared_ptr<P2pWork> P2p::start(const Operation& operation, Communicator::CallOptions options) {
  std::vector<WorkPtr> finished;
  WorkPtr work;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) throw Error(Errc::aborted, formatted("group {} is closed", members_.name()));
    work = std::make_shared<P2pWork>(shared_from_this(), operation, std::move(options),
                                     next_number_++);
    outstanding_.insert(work);
    outstanding_count_.fetch_add(1, std::memory_order_relaxed);
    if (operation.op == Op::recv) enter_traffic_with(operation.root);
    if (operation.op == Op::send)
      outgoing_[static_cast<std::size_t>(operation.root)].unannounced.push_back(work);
    else
      match_unexpected(work);
    advance_locked();
    finished = take_finished_locked();
  }
  complete(finished);
  if (!work->done() || needs_progress()) progress_.notify();
  return work;
}

/// Who waits for a rank of another host must hear of its end, also if nothing was exchanged yet.
void P2p::enter_traffic_with(int source) {
  if (!members_.over_several_hosts()) return;
  for (int rank = 0; rank < members_.size(); ++rank)
    if ((source == rank || source == kAnySource) && !members_.is_local(rank)) members_.enter(rank);
}

bool P2p::advance(bool look_for_trouble) {
  std::vector<WorkPtr> finished;
  bool moved = false;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    moved = advance_locked();
    if (look_for_trouble) {
      this->look_for_trouble();  // after the data: a peer may have left in order
      last_look_.store(Clock::now(), std::memory_order_relaxed);
    }
    finished = take_finished_locked();
  }
  complete(finished);
  return moved || !finished.empty();
}

/// Throws nothing: what goes wrong here (no memory for a channel) is the end of the group.
bool P2p::advance_locked() {
  bool moved = false;
  try {
    if (ofi_p2p_) ofi_p2p_->collect();
    for (int rank = 0; rank < members_.size(); ++rank) moved |= take_cells(rank);
    for (int rank = 0; rank < members_.size(); ++rank) moved |= push_cells(rank);
  } catch (const Error& error) {
    fail_all(std::make_exception_ptr(members_.fail(error)));
  } catch (const std::exception& error) {
    const Error reason(Errc::internal, formatted("group {}: {}", members_.name(), error.what()));
    fail_all(std::make_exception_ptr(members_.fail(reason)));
  }
  return moved;
}

/// A thread in wait_for(). Callbacks of the work it waits for run on it, when it no longer attends
/// to the engine: that spares a switch to another thread and back.
class P2p::Waiting {
 public:
  Waiting(P2p& engine, const P2pWork& work) : engine_(engine), work_(work), outer_(innermost_wait) {
    innermost_wait = this;
    engine_.waiters_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Waiting() {
    innermost_wait = outer_;
    engine_.last_attended_.store(Clock::now(), std::memory_order_relaxed);
    engine_.waiters_.fetch_sub(1, std::memory_order_release);  // pairs with is_attended()
    if (callbacks_) callbacks_();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  /// Where callbacks of `work` should run if this thread has completed it.
  static WorkState::Submit submit_for(const P2pWork& work, const WorkState::Submit& elsewhere) {
    if (innermost_wait == nullptr || &innermost_wait->work_ != &work) return elsewhere;
    return [waiting = innermost_wait](std::function<void()> callbacks) {
      waiting->callbacks_ = std::move(callbacks);
    };
  }

 private:
  static thread_local Waiting* innermost_wait;
  P2p& engine_;
  const P2pWork& work_;
  Waiting* outer_;
  std::function<void()> callbacks_;
};

thread_local P2p::Waiting* P2p::Waiting::innermost_wait = nullptr;

void P2p::wait_for(P2pWork& work, Deadline deadline) {
  struct Leaving {
    P2p& engine;
    ~Leaving() {
      if (engine.needs_progress()) engine.progress_.notify();  // nobody attends to it any more
    }
  } leaving{*this};
  auto next_poll = Clock::now() + kInterruptPeriod;
  while (!work.done() && Clock::now() < deadline) {
    attend_until(work, std::min(deadline, next_poll));
    if (work.done() || Clock::now() < next_poll) continue;
    // Not while attending: a signal handler may do anything, also close the group.
    next_poll = Clock::now() + kInterruptPeriod;
    if (poll_interrupt_) poll_interrupt_();
  }
}

void P2p::attend_until(P2pWork& work, Deadline deadline) {
  const Waiting waiting(*this, work);
  const auto something_moves = [&] { return work.done() || advance(false) || work.done(); };
  const auto give_up = [&] {
    advance(true);
    return work.done() || Clock::now() >= deadline;
  };
  // As long as something moves it is too early to sleep: each turn begins with spinning.
  auto next_look = Clock::now() + kSleepInterval;
  while (!work.done() && Clock::now() < deadline) {
    if (!spin_then_yield(something_moves, backoff_)) sleep_for(work, something_moves, give_up);
    if (Clock::now() < next_look) continue;
    next_look = Clock::now() + kSleepInterval;
    give_up();
  }
}

/// A rank of this host rings the doorbell; data of another host shows at the network's descriptor.
void P2p::sleep_for(const P2pWork& work, FunctionRef<bool()> something_moves,
                    FunctionRef<bool()> give_up) {
  const int peer = work.operation_.root;
  if (!ofi_p2p_ || (peer != kAnySource && members_.is_local(peer))) {
    sleep_until(members_.local().mine().p2p_doorbell, something_moves, give_up);
    return;
  }
  const auto slice = peer == kAnySource ? std::chrono::milliseconds(1) : kSleepInterval;
  while (!something_moves() && !give_up()) ofi_p2p_->network().endpoint().sleep(slice);
}

// --- receiving ---

bool P2p::take_cells(int source) {
  Link& link = *outgoing_[static_cast<std::size_t>(source)].link;
  return link.take([&](const CellHeader& header, const std::byte* payload) {
    take_cell(source, header, payload);
  });
}

void P2p::take_cell(int source, const CellHeader& header, const std::byte* payload) {
  const auto peer = static_cast<std::size_t>(source);
  switch (header.kind) {
    case CellKind::eager:
    case CellKind::announce: {
      const bool eager = header.kind == CellKind::eager;
      if (eager && header.payload_bytes != header.message_bytes) return;
      if (const WorkPtr receive = match(source, header.tag)) {
        eager ? deliver_eager(receive, source, payload, header.payload_bytes)
              : grant(receive, source, header.message, header.message_bytes);
        return;
      }
      unexpected_.push_back({source,
                             header.tag,
                             header.message,
                             header.message_bytes,
                             eager,
                             {payload, payload + header.payload_bytes}});
      return;
    }
    case CellKind::grant: {
      Outgoing& to = outgoing_[peer];
      if (auto node = to.awaiting_grant.extract(header.message))
        to.granted.push_back(node.mapped());
      return;
    }
    case CellKind::nothing:
      return;
    case CellKind::data: {
      const auto found = incoming_[peer].granted.find(header.message);
      if (found == incoming_[peer].granted.end()) return;  // cancelled meanwhile
      const WorkPtr receive = found->second;
      if (header.payload_bytes > receive->operation_.count - receive->moved_bytes_) return;
      kernels::copy(static_cast<std::byte*>(receive->operation_.out) + receive->moved_bytes_,
                    payload, header.payload_bytes);
      receive->moved_bytes_ += header.payload_bytes;
      if (receive->moved_bytes_ < receive->operation_.count) return;
      incoming_[peer].granted.erase(found);
      finish(receive, nullptr);
      return;
    }
  }
}

P2p::WorkPtr P2p::match(int source, std::uint64_t tag) {
  const auto found = std::ranges::find_if(receives_, [&](const WorkPtr& receive) {
    const Operation& wanted = receive->operation_;
    return (wanted.root == source || wanted.root == kAnySource) && wanted.tag == tag;
  });
  if (found == receives_.end()) return nullptr;
  WorkPtr receive = *found;
  receives_.erase(found);
  return receive;
}

void P2p::match_unexpected(const WorkPtr& receive) {
  const Operation& wanted = receive->operation_;
  const auto found = std::ranges::find_if(unexpected_, [&](const Unexpected& message) {
    return (wanted.root == message.source || wanted.root == kAnySource) &&
           wanted.tag == message.tag;
  });
  if (found == unexpected_.end()) {
    receives_.push_back(receive);
    return;
  }
  const Unexpected message = std::move(*found);
  unexpected_.erase(found);
  message.eager ? deliver_eager(receive, message.source, message.payload.data(), message.bytes)
                : grant(receive, message.source, message.message, message.bytes);
}

bool P2p::size_agrees(const WorkPtr& receive, int source, std::uint64_t bytes) {
  receive->set_source(source);
  if (bytes == receive->operation_.count) return true;
  finish(receive, make_error(Errc::mismatch, {members_.rank(), source},
                             "group {}: rank {} receives {} bytes with tag {}, but {} sent {}",
                             members_.name(), members_.rank(), receive->operation_.count,
                             receive->operation_.tag, members_.who(source), bytes));
  return false;
}

void P2p::deliver_eager(const WorkPtr& receive, int source, const std::byte* payload,
                        std::uint64_t bytes) {
  outgoing_[static_cast<std::size_t>(source)].link->claim_eager(charge(bytes));
  if (!size_agrees(receive, source, bytes)) return;
  kernels::copy(receive->operation_.out, payload, bytes);
  finish(receive, nullptr);
}

void P2p::grant(const WorkPtr& receive, int source, std::uint64_t message, std::uint64_t bytes) {
  if (!size_agrees(receive, source, bytes)) return;
  const auto peer = static_cast<std::size_t>(source);
  incoming_[peer].granted[message] = receive;
  outgoing_[peer].grants.push_back(message);
}

// --- sending ---

bool P2p::push_cells(int destination) {
  Outgoing& to = outgoing_[static_cast<std::size_t>(destination)];
  bool moved = false;
  while (push_one(to)) moved = true;
  if (moved) to.link->wake_receiver();
  return moved;
}

bool P2p::push_one(Outgoing& to) {
  if (to.grants.empty() && to.unannounced.empty() && to.granted.empty()) return false;
  if (!to.link->has_room()) {
    wake_progress_thread(to);
    return false;
  }
  if (!to.grants.empty()) {
    to.link->post({CellKind::grant, 0, 0, to.grants.front(), 0}, nullptr);
    to.grants.pop_front();
  } else if (!to.unannounced.empty()) {
    announce(to);
  } else {
    push_piece(to);
  }
  return true;
}

/// More than once: the receiver may not have entered the group yet.
void P2p::wake_progress_thread(Outgoing& to) {
  const auto now = Clock::now();
  if (now - to.last_wake < kWakeInterval) return;
  to.last_wake = now;
  to.link->wake_progress_thread();
}

void P2p::announce(Outgoing& to) {
  const WorkPtr work = std::move(to.unannounced.front());
  to.unannounced.pop_front();
  const Operation& message = work->operation_;
  if (may_be_eager(to, message.count)) {
    to.eager_sent += charge(message.count);
    to.link->post(
        {CellKind::eager, static_cast<std::uint32_t>(message.count), message.tag, 0, message.count},
        message.in);
    finish(work, nullptr);
    return;
  }
  const std::uint64_t number = work->message_ = next_message_++;
  to.awaiting_grant[number] = work;
  to.link->post({CellKind::announce, 0, message.tag, number, message.count}, nullptr);
}

bool P2p::may_be_eager(const Outgoing& to, std::uint64_t bytes) const {
  return bytes <= std::min<std::uint64_t>(eager_bytes_, to.link->cell_bytes()) &&
         to.eager_sent - to.link->eager_claimed() + charge(bytes) <= kUnclaimedBytes;
}

void P2p::push_piece(Outgoing& to) {
  const WorkPtr work = to.granted.front();
  const std::uint64_t left = work->operation_.count - work->moved_bytes_;
  const auto bytes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(left, to.link->cell_bytes()));
  to.link->post({CellKind::data, bytes, 0, work->message_, 0},
                static_cast<const std::byte*>(work->operation_.in) + work->moved_bytes_);
  work->moved_bytes_ += bytes;
  if (work->moved_bytes_ < work->operation_.count) return;
  to.granted.pop_front();
  finish(work, nullptr);
}

// --- ends, good and bad ---

void P2p::finish(const WorkPtr& work, std::exception_ptr error) {
  if (outstanding_.erase(work) == 0) return;
  outstanding_count_.fetch_sub(1, std::memory_order_relaxed);
  work->pending_error_ = std::move(error);
  finished_.push_back(work);
}

std::vector<P2p::WorkPtr> P2p::take_finished_locked() {
  if (!finished_.empty()) completing_.fetch_add(1, std::memory_order_relaxed);
  return std::exchange(finished_, {});
}

void P2p::complete(const std::vector<WorkPtr>& finished) {
  if (finished.empty()) return;
  for (const WorkPtr& work : finished) {
    if (!work->pending_error_) continue;
    try {
      std::rethrow_exception(work->pending_error_);
    } catch (const Error& error) {
      // Any failure but a local cancellation ends the group, so that the peer learns of it too.
      if (error.code() != Errc::aborted)
        work->pending_error_ = std::make_exception_ptr(members_.fail(error));
    }
  }
  for (const WorkPtr& work : finished)
    work->complete(work->pending_error_, Waiting::submit_for(*work, run_elsewhere_));
  doorbell_fence();
  members_.local()
      .mine()
      .p2p_doorbell.ring_if_sleeping();  // another thread here may wait for one of them
  completing_.fetch_sub(1, std::memory_order_release);  // pairs with close()
}

void P2p::look_for_trouble() {
  if (members_.failed()) return fail_all(std::make_exception_ptr(members_.failure()));
  for (const WorkPtr& work : std::vector<WorkPtr>(outstanding_.begin(), outstanding_.end())) {
    const std::exception_ptr error = trouble_with(*work);
    if (!error) continue;
    advance_locked();  // its last words may have come between the look at data and that at death
    if (outstanding_.contains(work)) return fail_all(error);
  }
}

std::exception_ptr P2p::trouble_with(P2pWork& work) {
  PeerState state_of = PeerState::alive;
  const int lost = lost_peer(work, &state_of);
  if (state_of != PeerState::alive)
    return std::make_exception_ptr(members_.peer_lost_error(lost, describe(work)));
  watch_heartbeat(work);
  return Clock::now() >= work.deadline_ ? timed_out(work) : nullptr;
}

void P2p::watch_heartbeat(P2pWork& work) const {
  if (work.operation_.root == kAnySource) return;
  const std::uint32_t beat = members_.heartbeat(work.operation_.root);
  if (beat == work.heartbeat_ && work.heartbeat_changed_ != Clock::time_point()) return;
  work.heartbeat_ = beat;
  work.heartbeat_changed_ = Clock::now();
}

/// A rank that has left is not gone before its last message has come.
PeerState P2p::state_of(int rank) const {
  const PeerState seen = members_.state_of(rank);
  const bool more_comes = seen == PeerState::left && !members_.is_local(rank) &&
                          !outgoing_[static_cast<std::size_t>(rank)].link->is_drained();
  return more_comes ? PeerState::alive : seen;
}

/// The peer without which the operation cannot end. A receive from anyone ends with the first
/// death, or when everyone has left.
int P2p::lost_peer(const P2pWork& work, PeerState* state_of) const {
  if (work.operation_.root != kAnySource) {
    if (work.operation_.root != members_.rank()) *state_of = this->state_of(work.operation_.root);
    return work.operation_.root;
  }
  int left = 0;
  int last = -1;
  for (int rank = 0; rank < members_.size(); ++rank) {
    if (rank == members_.rank()) continue;
    const PeerState a = this->state_of(rank);
    if (a == PeerState::alive) continue;
    last = rank;
    ++left;
    if (a == PeerState::died) {
      *state_of = a;
      return rank;
    }
  }
  if (left != 0 && left == members_.size() - 1) *state_of = PeerState::left;
  return last;
}

std::string P2p::describe(const P2pWork& work) const {
  const Operation& o = work.operation_;
  const std::string other = o.root == kAnySource ? "any rank" : formatted("rank {}", o.root);
  return formatted("{} #{} ({} bytes {} {}, tag {}) of group {}", name_of(o.op), work.number_,
                   o.count, o.op == Op::send ? "to" : "from", other, o.tag, members_.name());
}

std::exception_ptr P2p::timed_out(P2pWork& work) const {
  const double limit = std::chrono::duration<double>(work.options().timeout).count();
  const auto silence = Clock::now() - work.heartbeat_changed_;
  std::string text = formatted("{}: timeout after {:.1f} s", describe(work), limit);
  std::vector<int> ranks;
  if (work.operation_.root != kAnySource) {
    ranks.push_back(work.operation_.root);
    const bool stalled = silence >= members_.stalled_after(work.operation_.root);
    text += formatted(
        "; {} {}", members_.who(work.operation_.root),
        stalled ? "is stalled: it shows no sign of life" : "lives but has not matched it");
  }
  return make_error(Errc::timeout, std::move(ranks), "{}", text);
}

void P2p::fail_all(const std::exception_ptr& error) {
  const std::vector<WorkPtr> all(outstanding_.begin(), outstanding_.end());
  for (const WorkPtr& work : all) finish(work, error);
  receives_.clear();
  for (Incoming& from : incoming_) from.granted.clear();
  for (Outgoing& to : outgoing_) {
    to.grants.clear();
    to.unannounced.clear();
    to.awaiting_grant.clear();
    to.granted.clear();
  }
}

bool P2p::cancel(const P2pWork& work) {
  const auto withdraw_from = [&](auto& queue) {
    const auto found = std::ranges::find(queue, &work, &WorkPtr::get);
    if (found == queue.end()) return false;
    const WorkPtr cancelled = *found;
    queue.erase(found);
    finish(cancelled, make_error(Errc::aborted, {}, "{} was cancelled", describe(*cancelled)));
    return true;
  };
  std::vector<WorkPtr> finished;
  bool withdrawn = false;
  {
    const std::lock_guard lock(mutex_);
    withdrawn =
        work.operation_.op == Op::recv
            ? withdraw_from(receives_)
            : withdraw_from(outgoing_[static_cast<std::size_t>(work.operation_.root)].unannounced);
    finished = take_finished_locked();
  }
  complete(finished);
  return withdrawn;
}

void P2p::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    const auto cancelled = make_error(Errc::aborted, {}, "group {} was closed", members_.name());
    const std::list<WorkPtr> receives = std::exchange(receives_, {});
    for (const WorkPtr& work : receives) finish(work, cancelled);
  }
  advance(false);  // completes them
  while (has_outstanding()) {
    if (!advance(true)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  if (ofi_p2p_) ofi_p2p_->close(deadline_after(kLastWords));
  // Whoever waits has nothing left to wait for, but may still be about to leave its doorbell.
  while (is_attended() || completing_.load(std::memory_order_acquire) != 0) sched_yield();
}

}  // namespace tccl
