#include "transport/shm/local_group.h"

#include "base/format.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace tccl::shm {
namespace {

std::vector<Allocation> allocate_both(Arena& arena, std::size_t body_bytes) {
  const Allocation header = arena.allocate_header();
  try {
    return {header, arena.allocate(body_bytes)};
  } catch (...) {
    arena.deallocate(header);
    throw;
  }
}

}  // namespace

LocalGroup::LocalGroup(Arena& arena, GroupIdentity identity, RegionLayout layout)
    : arena_(arena),
      identity_(std::move(identity)),
      layout_(layout),
      allocations_(allocate_both(arena, layout.total_bytes)),
      mine_(reinterpret_cast<RegionHeader*>(arena.at(allocations_.front()))) {
  // Zeroed memory is a valid region. It is not overwritten as a whole: members of an earlier group
  // at this offset may still load group_uid, atomically, to learn that the owner has departed.
  mine_->body_offset = allocations_.back().offset;
  for (StepHeader& header : mine_->step_headers)  // relaxed: group_uid, below, publishes them
    header.position.store(position_of(identity_.first_sequence - 1, 0), std::memory_order_relaxed);
  mine_->failure_mark.store(unmarked(identity_.group_uid), std::memory_order_relaxed);
  mine_->group_uid.store(identity_.group_uid, std::memory_order_release);  // pairs with state_of()
}

LocalGroup::~LocalGroup() {
  // Without members no other rank has seen the region: the rendezvous failed.
  if (members_.empty())
    for (const Allocation& allocation : allocations_) arena_.deallocate(allocation);
}

void LocalGroup::set_members(std::vector<LocalMember> members, std::vector<int> global_ranks,
                             int global_rank) {
  local_rank_ =
      static_cast<int>(std::ranges::find(global_ranks, global_rank) - global_ranks.begin());
  members_ = std::move(members);
  global_ranks_ = std::move(global_ranks);
}

std::string LocalGroup::who(int local_rank) const {
  return formatted("rank {} ({})", global_rank(local_rank), process(local_rank).where());
}

PeerState LocalGroup::state_of(int local_rank) const noexcept {
  const RegionHeader& other = region(local_rank);
  // Check for departure first: a process that exited cleanly has released its mutex. The loads pair
  // with LocalGroup() and try_free() (group_uid) and with close() (departed).
  if (other.group_uid.load(std::memory_order_acquire) != identity_.group_uid ||
      other.departed.load(std::memory_order_acquire) != 0 || process(local_rank).has_departed())
    return PeerState::departed;
  return process(local_rank).died() ? PeerState::died : PeerState::alive;
}

void LocalGroup::note_lost(const LostRank& lost) noexcept {
  // Relaxed: the value is all there is to know.
  mine_->lost_rank.store(std::uint64_t{lost.last_sequence} << 32 |
                             static_cast<std::uint64_t>(lost.kind) << 24 |
                             static_cast<std::uint64_t>(lost.rank),
                         std::memory_order_relaxed);
}

std::vector<LostRank> LocalGroup::lost_ranks() const {
  std::vector<LostRank> lost;
  for (const LocalMember& member : members_) {
    const std::uint64_t packed = member.region->lost_rank.load(std::memory_order_relaxed);
    const auto kind = static_cast<LostRank::Kind>(packed >> 24 & 0xff);
    // Pairs with LocalGroup() and try_free(): the region may belong to another group now.
    if (kind == LostRank::Kind::none ||
        member.region->group_uid.load(std::memory_order_acquire) != identity_.group_uid)
      continue;
    lost.push_back(
        {kind, static_cast<int>(packed & 0xffffff), static_cast<std::uint32_t>(packed >> 32)});
  }
  return lost;
}

std::byte* LocalGroup::allocate_more(std::size_t bytes, std::size_t* offset) {
  const std::lock_guard lock(mutex_);
  allocations_.push_back(arena_.allocate(bytes));
  *offset = allocations_.back().offset;
  return arena_.at(allocations_.back());
}

void LocalGroup::keep_alive(std::shared_ptr<const void> object) {
  const std::lock_guard lock(mutex_);
  kept_alive_.push_back(std::move(object));
}

bool LocalGroup::is_marked_failed(int local_rank) const noexcept {
  return marked_by(region(local_rank)) >= 0;
}

const FailureRecord& LocalGroup::failure_record(int local_rank) const {
  return region(marked_by(region(local_rank))).failure;
}

Error LocalGroup::earlier_failure() const {
  const FailureRecord& record = failure_record(local_rank());
  const auto age = Clock::now().time_since_epoch() - Clock::duration(record.time);
  const Error reason = failure();
  return {reason.code(),
          formatted("group {} failed {} ago in a call of rank {}: {}", identity_.name, text_of(age),
                    record.source.reporter, reason.what()),
          reason.ranks()};
}

Error LocalGroup::failure_of(int local_rank) const {
  const FailureRecord& record = failure_record(local_rank);
  std::vector<int> ranks(record.ranks, record.ranks + record.rank_count);
  return {record.code, record.text, std::move(ranks)};
}

Error LocalGroup::peer_lost_error(int local_rank, const std::string& operation) const {
  if (state_of(local_rank) == PeerState::died)
    return {Errc::peer_lost, died_during(who(local_rank), operation), {global_rank(local_rank)}};
  // It may have departed because the group failed, before the failing rank could mark our region.
  if (is_marked_failed(local_rank)) return failure_of(local_rank);
  // Or because another rank has died, which it noticed elsewhere.
  for (int other = 0; other < size(); ++other)
    if (state_of(other) == PeerState::died) return peer_lost_error(other, operation);
  return {Errc::peer_lost,
          left_before(who(local_rank), identity_.name, operation),
          {global_rank(local_rank)}};
}

Error LocalGroup::fail(const Error& reason, FailureSource source) noexcept {
  const std::lock_guard lock(mutex_);
  if (freed_) return reason;  // the memory may belong to another group now
  if (failed()) {             // the first failing rank marks the others
    // The caller may now change memory that it has published. Whoever reads the change sees that
    // rank's mark: pairs with the fence of ShmBoard::throw_if_any_rank_failed().
    std::atomic_thread_fence(std::memory_order_release);
    return failure_or(reason);
  }
  FailureRecord& record = mine_->failure;
  record.code = reason.code();
  record.source = source;
  record.time = Clock::now().time_since_epoch().count();
  std::strncpy(record.text, reason.what(), sizeof record.text - 1);
  record.rank_count =
      static_cast<std::int32_t>(std::min(reason.ranks().size(), std::size(record.ranks)));
  std::copy_n(reason.ranks().begin(), record.rank_count, record.ranks);
  mark_failed(*mine_);
  for (int local_rank = 0; local_rank < size(); ++local_rank) mark_failed(region(local_rank));
  return failure_or(reason);
}

/// Without memory for the first reason: this rank's own.
Error LocalGroup::failure_or(const Error& reason) const noexcept {
  try {
    return failure();
  } catch (const std::bad_alloc&) {
    return reason;
  }
}

void LocalGroup::mark_failed(RegionHeader& other) noexcept {
  other.mark_failed(identity_.group_uid, local_rank());
  doorbell_fence();
  other.collective_doorbell.notify_if_sleeping();
  other.p2p_doorbell.notify_if_sleeping();
}

void LocalGroup::close() noexcept {
  mine_->departed.store(1, std::memory_order_release);  // pairs with state_of()
  doorbell_fence();
  // The loads of group_uid pair with LocalGroup() and try_free().
  for (int local_rank = 0; local_rank < size(); ++local_rank) {
    if (region(local_rank).group_uid.load(std::memory_order_acquire) != identity_.group_uid)
      continue;
    region(local_rank).collective_doorbell.notify_if_sleeping();
    region(local_rank).p2p_doorbell.notify_if_sleeping();
  }
}

bool LocalGroup::try_free() noexcept {
  for (int local_rank = 0; local_rank < size(); ++local_rank)
    if (local_rank != this->local_rank() && state_of(local_rank) == PeerState::alive) return false;
  const std::lock_guard lock(mutex_);
  freed_ = true;
  mine_->group_uid.store(0, std::memory_order_release);  // pairs with state_of()
  for (const Allocation& allocation : allocations_) arena_.deallocate(allocation);
  allocations_.clear();
  kept_alive_.clear();
  return true;
}

}  // namespace tccl::shm
