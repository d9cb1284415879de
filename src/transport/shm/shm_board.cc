#include "transport/shm/shm_board.h"

#include <algorithm>
#include <span>

#include "base/format.h"
#include "base/log.h"

namespace tccl::shm {
namespace {

/// For ranks that wait for a rank of their host which waits for another host.
constexpr std::chrono::milliseconds kGraceForOtherHosts{1000};

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

ShmBoard::ShmBoard(Group& group, Heap& heap, AlgorithmName algorithm_name,
                   std::function<void()> poll_interrupt, BackoffPolicy backoff)
    : group_(group),
      heap_(heap),
      algorithm_name_(algorithm_name),
      poll_interrupt_(std::move(poll_interrupt)),
      views_(static_cast<std::size_t>(group.size())),
      backoff_(backoff) {
  record_.sequence = group.identity().first_sequence - 1;
  for (PeerView& view : views_) view.agreed = record_.sequence;
}

void ShmBoard::begin(const OpRecord& call, std::optional<Deadline> deadline,
                     std::chrono::milliseconds timeout) {
  OpRecord record = call;
  record.sequence = record_.sequence + 1;
  record.chain = chained(record_.chain, record);
  record_ = record;
  step_ = 0;
  origin_ = 0;
  deadline_ = deadline;
  timeout_ = timeout;
  // Visible to peers with the first post(). They cannot be so far behind that they still read the
  // entry that this one replaces: see kLogLength.
  group_.mine().log[record.sequence % kLogLength] = record;
}

void ShmBoard::end() {
  if (any_read_) acknowledge_reads();
  if (any_published_) await_acknowledgements();
  window_ = {};
  base_ += step_;
}

void ShmBoard::fail() noexcept {
  if (window_.empty()) return;
  try {
    group_.keep(heap_.detach(window_.data(), window_.size()));
  } catch (const std::exception&) {
    log_warning("late ranks may write to the tensor of a failed operation: no memory", rank());
  }
  window_ = {};
}

Board::Offset ShmBoard::publish_in_place(const void* memory, std::size_t bytes, int reader) {
  const Offset offset = offset_of(memory, bytes);
  if (offset == 0) return 0;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank() && (reader == kEveryone || reader == peer))
      views_[static_cast<std::size_t>(peer)].published_to = true;
  any_published_ = true;
  return offset;
}

const std::byte* ShmBoard::read_in_place(int peer, Offset offset) {
  views_[static_cast<std::size_t>(peer)].read_from = true;
  any_read_ = true;
  return at(peer, offset);
}

void ShmBoard::acknowledge_reads() {
  check_alive();
  group_.mine().acknowledged.store(base_ + step_,
                                   std::memory_order_release);  // pairs with has_acknowledged()
  doorbell_fence();
  for (int peer = 0; peer < size(); ++peer) {
    PeerView& view = views_[static_cast<std::size_t>(peer)];
    if (view.read_from) ring_if_awaited(peer);
    view.read_from = false;
  }
  any_read_ = false;
}

/// A rank that gives up is marked before it returns and may change its memory; so whoever finds no
/// mark after reading has read what was meant. The mark may be a third rank's, hence all are asked.
void ShmBoard::check_alive() const {
  std::atomic_thread_fence(std::memory_order_acquire);
  for (int rank = 0; rank < size(); ++rank)
    if (group_.knows_failure(rank)) throw group_.failure_seen_by(rank);
}

void ShmBoard::await_acknowledgements() {
  for (int peer = 0; peer < size(); ++peer) {
    PeerView& view = views_[static_cast<std::size_t>(peer)];
    if (!view.published_to) continue;
    const auto arrived = [&] { return has_acknowledged(peer); };
    if (!spin_then_yield(arrived, backoff_) && !wait_long(peer, arrived))
      throw explain(peer, [&](int other) {
        return !views_[static_cast<std::size_t>(other)].published_to || has_acknowledged(other);
      });
    view.published_to = false;
  }
  any_published_ = false;
}

bool ShmBoard::has_acknowledged(int peer) const {
  return group_.region(peer).acknowledged.load(std::memory_order_acquire) >=
         base_ + step_;  // pairs with acknowledge_reads()
}

Board::Slot ShmBoard::open_step() {
  const Step step = base_ + step_;
  // Step - kSlots lies where this one goes. A peer that has posted the second step after it has
  // finished reading it: within one operation by the rule of board.h, and a peer that has begun
  // another operation has read all of those before.
  static_assert(kSlots > 2);
  if (step >= kSlots)
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank()) wait_for(peer, step - kSlots + 2);
  std::byte* slot = group_.body(rank()) + group_.layout().slot_offset(step);
  return {group_.mine().steps[step % kSlots].payload, slot, slot + area_bytes()};
}

void ShmBoard::post() {
  StepLine& line = group_.mine().steps[(base_ + step_) % kSlots];
  line.chain = record_.chain;
  ++step_;
  line.position.store(position_of(record_.sequence, step_),
                      std::memory_order_release);  // pairs with wait_for()
  doorbell_fence();
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) ring_if_awaited(peer);
}

void ShmBoard::ring_if_awaited(int peer) {
  CollectiveDoorbell& doorbell = group_.region(peer).collective_doorbell;
  if (doorbell.awaits.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(rank()) + 1)
    doorbell.ring();
}

Board::PeerSlot ShmBoard::await(int peer, std::uint32_t step) {
  const Step number = base_ + origin_ + step;
  wait_for(peer, number);
  const std::byte* slot = group_.body(peer) + group_.layout().slot_offset(number);
  return {line_of(peer, number).payload, slot, slot + area_bytes()};
}

double ShmBoard::factor(int rank) const {
  return group_.region(rank).log[record_.sequence % kLogLength].factor;
}

/// Until the peer has posted the step, which this rank has posted. The peer cannot be so far ahead
/// that it writes the line again: it would need this rank's next step but one.
void ShmBoard::wait_for(int peer, Step step) {
  PeerView& view = views_[static_cast<std::size_t>(peer)];
  if (view.arrived > step) return;
  const StepLine& mine = line_of(rank(), step);
  const StepLine& theirs = line_of(peer, step);
  const Position target = mine.position.load(std::memory_order_relaxed);
  const auto arrived = [&] {
    if (reached(theirs.position.load(std::memory_order_acquire), target))  // pairs with post()
      return true;
    if (poll_hook_) poll_hook_();
    return false;
  };
  if (!spin_then_yield(arrived, backoff_) && !wait_long(peer, arrived))
    throw explain(peer, [&](int other) { return reached(position_seen(other), target); });
  if (theirs.chain != mine.chain) throw_disagreement(peer, common_sequence(peer));
  view.arrived = step + 1;
}

bool ShmBoard::wait_long(int peer, FunctionRef<bool()> arrived) {
  if (!deadline_) deadline_ = deadline_after(timeout_);
  for (PeerView& view : views_) view.heartbeat_changed = {};
  CollectiveDoorbell& doorbell = group_.mine().collective_doorbell;
  doorbell.awaits.store(static_cast<std::uint32_t>(peer) + 1, std::memory_order_relaxed);
  struct NoLonger {
    CollectiveDoorbell& doorbell;
    ~NoLonger() { doorbell.awaits.store(0, std::memory_order_relaxed); }
  } no_longer{doorbell};
  return sleep_until(doorbell, arrived, [&] { return must_give_up(peer); });
}

bool ShmBoard::must_give_up(int peer) {
  compare_logs(peer);
  watch_heartbeats();
  const auto now = Clock::now();
  if (poll_interrupt_ && now >= next_interrupt_poll_) {
    next_interrupt_poll_ = now + kInterruptPeriod;
    poll_interrupt_();
  }
  // Who waits for another host knows better whom all wait for, and its timeout is everyone's.
  const auto grace = poll_hook_ ? kGraceForOtherHosts : std::chrono::milliseconds(0);
  return group_.failed() || group_.state_of(peer) != PeerState::alive || now >= *deadline_ + grace;
}

/// A peer that has done something else may never come to the step that this rank waits for.
void ShmBoard::compare_logs(int peer) {
  PeerView& view = views_[static_cast<std::size_t>(peer)];
  const std::uint32_t common = common_sequence(peer);
  if (common == view.agreed) return;
  const std::uint32_t entry = common % kLogLength;
  if (group_.region(peer).log[entry].chain != group_.mine().log[entry].chain)
    throw_disagreement(peer, common);
  view.agreed = common;
}

/// The last operation that both have begun.
std::uint32_t ShmBoard::common_sequence(int peer) const {
  const Position seen = position_seen(peer);
  return reached(seen, position_of(record_.sequence, 0)) ? record_.sequence
                                                         : static_cast<std::uint32_t>(seen >> 32);
}

void ShmBoard::watch_heartbeats() {
  const auto now = Clock::now();
  for (int peer = 0; peer < size(); ++peer) {
    PeerView& view = views_[static_cast<std::size_t>(peer)];
    const std::uint32_t beat = group_.peer(peer).beats();
    if (view.heartbeat_changed != Clock::time_point() && view.heartbeat == beat) continue;
    view.heartbeat = beat;
    view.heartbeat_changed = now;
  }
}

std::string ShmBoard::operation() const {
  return formatted("{} #{} of group {}", name_of(record_.op), record_.sequence,
                   group_.identity().name);
}

Position ShmBoard::position_seen(int peer) const {
  const StepLine* lines = group_.region(peer).steps;
  Position latest = lines[0].position.load(std::memory_order_acquire);
  for (const StepLine& line : std::span(lines, kSlots)) {
    const Position position = line.position.load(std::memory_order_acquire);
    if (reached(position, latest)) latest = position;
  }
  return latest;
}

void ShmBoard::throw_disagreement(int peer, std::uint32_t sequence) const {
  // The chain may have parted at an earlier operation that did not meet: name the first.
  const OpRecord* mine = group_.mine().log;
  const OpRecord* theirs = group_.region(peer).log;
  const auto differs = [&](std::uint32_t candidate) {
    const OpRecord& a = mine[candidate % kLogLength];
    const OpRecord& b = theirs[candidate % kLogLength];
    return a.sequence == candidate && b.sequence == candidate && a.chain != b.chain;
  };
  std::uint32_t first = sequence;
  for (std::uint32_t back = 1; back < kLogLength / 2 && differs(sequence - back); ++back)
    first = sequence - back;
  const auto said = [&](const OpRecord* log) {
    const OpRecord& record = log[first % kLogLength];
    return describe(record, algorithm_name_(record.algorithm));
  };
  throw Error(Errc::mismatch,
              formatted("operation #{} of group {}: rank {} called {}, but {} called {}", first,
                        group_.identity().name, group_.global_rank(rank()), said(mine),
                        group_.who(peer), said(theirs)),
              {group_.global_rank(rank()), group_.global_rank(peer)});
}

Error ShmBoard::explain(int peer, FunctionRef<bool(int)> arrived) const {
  if (group_.failed()) return group_.failure();
  const PeerState state_of = group_.state_of(peer);
  if (state_of == PeerState::left) return group_.peer_lost_error(peer, operation());
  if (state_of == PeerState::died)
    return {
        Errc::peer_lost,
        formatted("{}; {}", group_.peer_lost_error(peer, operation()).what(), ranks_in_operation()),
        {group_.global_rank(peer)}};
  return explain_timeout(arrived);
}

std::string ShmBoard::ranks_in_operation() const {
  std::vector<int> waiting;
  for (int other = 0; other < size(); ++other)
    if (other == rank() || (reached(position_seen(other), position_of(record_.sequence, 1)) &&
                            group_.state_of(other) == PeerState::alive))
      waiting.push_back(group_.global_rank(other));
  return formatted("rank{} {} waited for it", waiting.size() == 1 ? "" : "s", joined(waiting));
}

Error ShmBoard::explain_timeout(FunctionRef<bool(int)> arrived) const {
  const auto now = Clock::now();
  std::string text = formatted("{}: timeout after {:.1f} s", operation(),
                               std::chrono::duration<double>(timeout_).count());
  std::vector<int> late;
  for (int other = 0; other < size(); ++other) {
    if (other == rank() || arrived(other)) continue;
    const bool joined = reached(position_seen(other), position_of(record_.sequence, 1));
    const PeerView& view = views_[static_cast<std::size_t>(other)];
    const auto silence = now - view.heartbeat_changed;
    text += formatted("; {} {}", group_.who(other),
                      joined ? "has joined it but does not go on" : "has not joined it");
    if (silence >= kStalledAfter)
      text += formatted(" and is stalled: no sign of life for {:.1f} s", seconds(silence));
    late.push_back(group_.global_rank(other));
  }
  return {Errc::timeout, text, late};
}

}  // namespace tccl::shm
