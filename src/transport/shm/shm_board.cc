#include "transport/shm/shm_board.h"

#include "base/format.h"

#include <algorithm>

namespace tccl::shm {
namespace {

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

ShmBoard::ShmBoard(Group& group, AlgorithmName algorithm_name, std::function<void()> poll_interrupt)
    : group_(group),
      algorithm_name_(algorithm_name),
      poll_interrupt_(std::move(poll_interrupt)),
      views_(static_cast<std::size_t>(group.size())) {
  record_.sequence = group.identity().first_sequence - 1;
  const Position start = position_of(record_.sequence, 0);
  std::ranges::fill(free_at_, start);
  for (View& view : views_) {
    view.seen = start;
    view.agreed = record_.sequence;
  }
}

void ShmBoard::begin(const OpRecord& call, Deadline deadline, std::chrono::milliseconds timeout) {
  OpRecord record = call;
  record.sequence = record_.sequence + 1;
  record.chain = chained(record_.chain, record);
  record_ = record;
  step_ = 0;
  deadline_ = deadline;
  timeout_ = timeout;
  for (View& view : views_) view.heartbeat_changed = {};
  // Visible to peers with the first post(). They cannot be so far behind that they still read the
  // entry that this one replaces: see kLogLength.
  group_.mine().log[record.sequence % kLogLength] = record;
}

void ShmBoard::end() noexcept {
  // Beginning the next operation tells that all of this one has been read.
  const Position last = position_of(record_.sequence, step_);
  for (Position& free_at : free_at_)
    if (!reached(last, free_at)) free_at = position_of(record_.sequence + 1, 1);
  base_ += step_;
}

std::byte* ShmBoard::slot_of(int rank, std::uint32_t step) const {
  return group_.body(rank) + group_.layout().slot_offset(base_ + step);
}

Board::Slot ShmBoard::open_step() {
  const Position needed = free_at_[(base_ + step_) % kSlots];
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) wait_for(peer, needed);
  std::byte* slot = slot_of(rank(), step_);
  return {slot, slot + area_bytes()};
}

void ShmBoard::post() {
  // The rule of board.h: a peer that has posted step i + 2 has finished reading step i.
  free_at_[(base_ + step_) % kSlots] = position_of(record_.sequence, step_ + 3);
  ++step_;
  group_.mine().position.store(position_of(record_.sequence, step_),
                               std::memory_order_release);  // pairs with has_reached()
  ring_fence();
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) group_.region(peer).lane_bell.ring_if_asleep();
}

Board::PeerSlot ShmBoard::await(int peer, std::uint32_t step) {
  wait_for(peer, position_of(record_.sequence, step + 1));
  const std::byte* slot = slot_of(peer, step);
  return {slot, slot + area_bytes()};
}

double ShmBoard::factor(int rank) const {
  return group_.region(rank).log[record_.sequence % kLogLength].factor;
}

bool ShmBoard::has_reached(int peer, Position target) {
  View& view = views_[static_cast<std::size_t>(peer)];
  if (reached(view.seen, target)) return true;
  view.seen = group_.region(peer).position.load(std::memory_order_acquire);  // pairs with post()
  return reached(view.seen, target);
}

void ShmBoard::wait_for(int peer, Position target) {
  if (!has_reached(peer, target)) {
    const bool arrived = wait_until(
        group_.mine().lane_bell, [&] { return has_reached(peer, target); },
        [&] { return must_give_up(peer); });
    if (!arrived) throw explain(peer, target);
  }
  check_agreement(peer);
}

bool ShmBoard::must_give_up(int peer) {
  check_agreement(peer);
  watch_heartbeats();
  const auto now = Clock::now();
  if (poll_interrupt_ && now >= next_interrupt_poll_) {
    next_interrupt_poll_ = now + kInterruptPeriod;
    poll_interrupt_();
  }
  return group_.failed() || group_.absence(peer) != Absence::none || now >= deadline_;
}

void ShmBoard::check_agreement(int peer) {
  View& view = views_[static_cast<std::size_t>(peer)];
  const Position mine = position_of(record_.sequence, 0);
  const std::uint32_t common =
      reached(view.seen, mine) ? record_.sequence : static_cast<std::uint32_t>(view.seen >> 32);
  if (common == view.agreed) return;
  const std::uint32_t entry = common % kLogLength;
  if (group_.region(peer).log[entry].chain != group_.mine().log[entry].chain)
    throw_disagreement(peer, common);
  view.agreed = common;
}

void ShmBoard::watch_heartbeats() {
  const auto now = Clock::now();
  for (int peer = 0; peer < size(); ++peer) {
    View& view = views_[static_cast<std::size_t>(peer)];
    const std::uint32_t beat = group_.peer(peer).heartbeat();
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
  return group_.region(peer).position.load(std::memory_order_acquire);
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
                        group_.identity().name, rank(), said(mine), group_.who(peer), said(theirs)),
              {rank(), peer});
}

Error ShmBoard::explain(int peer, Position target) const {
  if (group_.failed()) return group_.failure();
  const Absence absence = group_.absence(peer);
  if (absence == Absence::left) return group_.loss_of(peer, operation());
  if (absence == Absence::died)
    return {Errc::peer_lost,
            formatted("{}; {}", group_.loss_of(peer, operation()).what(), ranks_in_operation()),
            {peer}};
  return explain_timeout(target);
}

std::string ShmBoard::ranks_in_operation() const {
  std::vector<int> waiting;
  for (int other = 0; other < size(); ++other)
    if (other == rank() || (reached(position_seen(other), position_of(record_.sequence, 1)) &&
                            group_.absence(other) == Absence::none))
      waiting.push_back(other);
  return formatted("rank{} {} waited for it", waiting.size() == 1 ? "" : "s", joined(waiting));
}

Error ShmBoard::explain_timeout(Position target) const {
  const auto now = Clock::now();
  std::string text = formatted("{}: timeout after {:.1f} s", operation(),
                               std::chrono::duration<double>(timeout_).count());
  std::vector<int> late;
  for (int other = 0; other < size(); ++other) {
    if (other == rank() || reached(position_seen(other), target)) continue;
    const bool joined = reached(position_seen(other), position_of(record_.sequence, 1));
    const View& view = views_[static_cast<std::size_t>(other)];
    const auto silence = now - view.heartbeat_changed;
    text += formatted("; {} {}", group_.who(other),
                      joined ? "has joined it but does not go on" : "has not joined it");
    if (silence >= kStalledAfter)
      text += formatted(" and is stalled: no sign of life for {:.1f} s", seconds(silence));
    late.push_back(other);
  }
  return {Errc::timeout, text, late};
}

}  // namespace tccl::shm
