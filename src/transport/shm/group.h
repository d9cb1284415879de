// The members of one group on this host: who they are, whether they live, and how the group dies.
// Members are counted from 0; where people read of one, it has its number in the whole group, which
// may have ranks on other hosts. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "health/local_process.h"
#include "transport/shm/arena.h"
#include "transport/shm/region.h"

namespace tccl::shm {

struct Member {
  std::shared_ptr<LocalProcess> peer;
  Region* region = nullptr;
  std::byte* body = nullptr;

  Member(std::shared_ptr<LocalProcess> p, std::size_t region_offset)
      : peer(std::move(p)),
        region(reinterpret_cast<Region*>(peer->base() + region_offset)),
        body(peer->base() + region->body_offset) {}
};

/// A rank that does not show signs of life, as seen by someone who waits for it.
enum class PeerState { alive, died, left };

class Group {
 public:
  struct Identity {
    std::string name;
    std::uint64_t uid = 0;
    std::uint32_t first_sequence = 1;
  };

  /// Prepares this rank's region; peers may be told of it afterwards.
  Group(Arena& arena, Identity identity, RegionLayout layout);
  ~Group();
  /// `global_ranks`: of the members in the whole group; `number` is this rank's.
  void set_members(std::vector<Member> members, std::vector<int> global_ranks, int global_rank);

  [[nodiscard]] const Identity& identity() const noexcept { return identity_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int global_rank(int member) const { return global_ranks_[index(member)]; }
  [[nodiscard]] const RegionLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] std::size_t region_offset() const noexcept { return leases_.front().offset; }

  [[nodiscard]] Region& mine() const noexcept { return *mine_; }
  [[nodiscard]] Region& region(int rank) const { return *members_[index(rank)].region; }
  [[nodiscard]] std::byte* body(int rank) const { return members_[index(rank)].body; }
  /// What `owner` keeps about `other`.
  [[nodiscard]] PeerLine& line(int owner, int other) const {
    return reinterpret_cast<PeerLine*>(body(owner))[other];
  }
  [[nodiscard]] LocalProcess& peer(int rank) const { return *members_[index(rank)].peer; }
  [[nodiscard]] const std::shared_ptr<LocalProcess>& peer_handle(int rank) const {
    return members_[index(rank)].peer;
  }
  /// "rank 3 (host b, pid 4711)"
  [[nodiscard]] std::string who(int rank) const;
  [[nodiscard]] PeerState state_of(int rank) const noexcept;

  /// More shared memory of this rank, given back together with the region.
  std::byte* lease_more(std::size_t bytes, std::size_t* offset);

  /// Holds something until nobody of the group can touch it any more.
  void keep(std::shared_ptr<const void> thing);

  // --- death of the group ---
  [[nodiscard]] bool failed() const noexcept {
    return mine_->failed_by.load(std::memory_order_acquire) != 0;  // pairs with fail()
  }
  /// Why it failed; call only after failed().
  [[nodiscard]] Error failure() const { return failure_seen_by(rank()); }
  /// Whether that rank has been told. `failure_seen_by` it says why.
  [[nodiscard]] bool knows_failure(int rank) const noexcept;
  [[nodiscard]] Error failure_seen_by(int rank) const;
  /// Why `operation` cannot do without `rank`, which is absent.
  [[nodiscard]] Error peer_lost_error(int rank, const std::string& operation) const;
  /// Declares the group dead for all members. The first reason stays. Returns that reason.
  Error fail(const Error& reason) noexcept;

  // --- end of the membership ---
  void close() noexcept;
  /// Gives the memory back if nobody can touch it any more.
  bool try_reclaim() noexcept;

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  void mark_failed(Region& region) noexcept;

  Arena& arena_;
  Identity identity_;
  RegionLayout layout_;
  std::vector<std::shared_ptr<const void>> kept_;
  std::vector<Lease> leases_;  // header, body, and what was added
  Region* mine_;
  std::vector<Member> members_;
  std::vector<int> global_ranks_;
  int rank_ = 0;
  std::mutex mutex_;  // guards leases_, kept_, reclaimed_ and the writing of the failure record
  bool reclaimed_ = false;
};

}  // namespace tccl::shm
