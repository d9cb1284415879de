#include "transport/shm/group.h"

#include "base/format.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace tccl::shm {
namespace {

std::vector<Lease> lease_both(Arena& arena, std::size_t body_bytes) {
  const Lease header = arena.lease_header();
  try {
    return {header, arena.lease(body_bytes)};
  } catch (...) {
    arena.give_back(header);
    throw;
  }
}

}  // namespace

Group::Group(Arena& arena, Identity identity, RegionLayout layout)
    : arena_(arena),
      identity_(std::move(identity)),
      layout_(layout),
      leases_(lease_both(arena, layout.total_bytes)),
      mine_(reinterpret_cast<Region*>(arena.at(leases_.front()))) {
  // Zeroed memory is a valid region. It is not overwritten as a whole: members of an earlier group
  // at this offset may still load the uid, atomically, to learn that the owner has left.
  mine_->body_offset = leases_.back().offset;
  for (StepLine& line : mine_->steps)
    line.position.store(position_of(identity_.first_sequence - 1, 0), std::memory_order_relaxed);
  mine_->uid.store(identity_.uid, std::memory_order_release);  // pairs with state_of()
}

Group::~Group() {
  // Without members no other rank has seen the region: the rendezvous failed.
  if (members_.empty())
    for (const Lease& lease : leases_) arena_.give_back(lease);
}

void Group::set_members(std::vector<Member> members, std::vector<int> global_ranks,
                        int global_rank) {
  rank_ = static_cast<int>(std::ranges::find(global_ranks, global_rank) - global_ranks.begin());
  members_ = std::move(members);
  global_ranks_ = std::move(global_ranks);
}

std::string Group::who(int rank) const {
  return formatted("rank {} ({})", global_rank(rank), peer(rank).where());
}

PeerState Group::state_of(int rank) const noexcept {
  const Region& other = region(rank);
  // Check for departure first: a process that exited in good order has released its mutex.
  if (other.uid.load(std::memory_order_acquire) != identity_.uid ||
      other.closed.load(std::memory_order_acquire) != 0 ||  // pairs with close(), try_reclaim()
      peer(rank).has_departed())
    return PeerState::left;
  return peer(rank).died() ? PeerState::died : PeerState::alive;
}

std::byte* Group::lease_more(std::size_t bytes, std::size_t* offset) {
  const std::lock_guard lock(mutex_);
  leases_.push_back(arena_.lease(bytes));
  *offset = leases_.back().offset;
  return arena_.at(leases_.back());
}

void Group::keep(std::shared_ptr<const void> object) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(object));
}

bool Group::knows_failure(int rank) const noexcept {
  return region(rank).uid.load(std::memory_order_acquire) == identity_.uid &&
         region(rank).failed_by.load(std::memory_order_acquire) != 0;  // pairs with mark_failed()
}

Error Group::failure_seen_by(int rank) const {
  const auto reporter =
      region(rank).failed_by.load(std::memory_order_acquire);  // pairs with mark_failed()
  const FailureRecord& record = region(static_cast<int>(reporter) - 1).failure;
  std::vector<int> ranks(record.ranks, record.ranks + record.rank_count);
  return {record.code, record.text, std::move(ranks)};
}

Error Group::peer_lost_error(int rank, const std::string& operation) const {
  if (state_of(rank) == PeerState::died)
    return {
        Errc::peer_lost, formatted("{} died during {}", who(rank), operation), {global_rank(rank)}};
  // It may have left because the group failed, before the failing rank could mark our region.
  if (knows_failure(rank)) return failure_seen_by(rank);
  return {Errc::peer_lost,
          formatted("{} left group {}, but {} needs it", who(rank), identity_.name, operation),
          {global_rank(rank)}};
}

Error Group::fail(const Error& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (reclaimed_) return reason;   // the memory may belong to another group now
  if (failed()) return failure();  // the first failing rank marks the others
  FailureRecord& record = mine_->failure;
  record.code = reason.code();
  std::strncpy(record.text, reason.what(), sizeof record.text - 1);
  record.rank_count =
      static_cast<std::int32_t>(std::min(reason.ranks().size(), std::size(record.ranks)));
  std::copy_n(reason.ranks().begin(), record.rank_count, record.ranks);
  mark_failed(*mine_);
  // The loads of uid pair with Group() and try_reclaim().
  for (int rank = 0; rank < size(); ++rank)
    if (region(rank).uid.load(std::memory_order_acquire) == identity_.uid)
      mark_failed(region(rank));
  return failure();
}

void Group::mark_failed(Region& other) noexcept {
  // A region that is marked already keeps its first reason.
  std::uint32_t expected = 0;
  other.failed_by.compare_exchange_strong(
      expected, static_cast<std::uint32_t>(rank()) + 1,
      std::memory_order_acq_rel);  // pairs with failed(), knows_failure()
  doorbell_fence();
  other.collective_doorbell.ring_if_sleeping();
  other.p2p_doorbell.ring_if_sleeping();
}

void Group::close() noexcept {
  mine_->closed.store(1, std::memory_order_release);  // pairs with state_of()
  doorbell_fence();
  // The loads of uid pair with Group() and try_reclaim().
  for (int rank = 0; rank < size(); ++rank) {
    if (region(rank).uid.load(std::memory_order_acquire) != identity_.uid) continue;
    region(rank).collective_doorbell.ring_if_sleeping();
    region(rank).p2p_doorbell.ring_if_sleeping();
  }
}

bool Group::try_reclaim() noexcept {
  for (int rank = 0; rank < size(); ++rank)
    if (rank != this->rank() && state_of(rank) == PeerState::alive) return false;
  const std::lock_guard lock(mutex_);
  reclaimed_ = true;
  mine_->uid.store(0, std::memory_order_release);  // pairs with state_of()
  for (const Lease& lease : leases_) arena_.give_back(lease);
  leases_.clear();
  kept_.clear();
  return true;
}

}  // namespace tccl::shm
