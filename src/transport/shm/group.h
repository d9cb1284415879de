// Group: the members of one group on this host: their regions, their state, and the failure of the
// group. Members are numbered by local rank, from 0; error messages name them by global rank.
//
//   Group group(arena, {"tp", uid, 1}, RegionLayout::of(ranks, chunk_bytes));   // own region ready
//   group.set_members(members, global_ranks, own_global_rank);                  // after rendezvous
//
// A failing rank writes an error record in its own region and marks every member's region as
// failed; each waiting rank then reads the record of the rank that marked its region first.
// Thread safety: every method but set_members() may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "health/local_process.h"
#include "transport/local_members.h"
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

class Group final : public LocalMembers {
 public:
  struct Identity {
    std::string name;
    std::uint64_t uid = 0;
    std::uint32_t first_sequence = 1;
  };

  /// Prepares this rank's region; its offset may be sent to peers afterwards.
  Group(Arena& arena, Identity identity, RegionLayout layout);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  /// `global_ranks` by local rank; `global_rank` is this rank's.
  void set_members(std::vector<Member> members, std::vector<int> global_ranks, int global_rank);

  [[nodiscard]] const Identity& identity() const noexcept { return identity_; }
  [[nodiscard]] const std::string& group_name() const noexcept override { return identity_.name; }
  [[nodiscard]] std::uint64_t group_uid() const noexcept override { return identity_.uid; }
  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int global_rank(int rank) const override { return global_ranks_[index(rank)]; }
  [[nodiscard]] const RegionLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] std::size_t region_offset() const noexcept { return leases_.front().offset; }

  [[nodiscard]] Region& mine() const noexcept { return *mine_; }
  [[nodiscard]] Region& region(int rank) const { return *members_[index(rank)].region; }
  [[nodiscard]] std::byte* body(int rank) const { return members_[index(rank)].body; }
  /// The line in `owner`'s region for traffic with `other`.
  [[nodiscard]] PeerLine& line(int owner, int other) const {
    return reinterpret_cast<PeerLine*>(body(owner))[other];
  }
  [[nodiscard]] LocalProcess& peer(int rank) const { return *members_[index(rank)].peer; }
  [[nodiscard]] const std::shared_ptr<LocalProcess>& peer_handle(int rank) const {
    return members_[index(rank)].peer;
  }
  [[nodiscard]] std::string who(int rank) const override;
  [[nodiscard]] PeerState state_of(int rank) const noexcept override;
  [[nodiscard]] std::uint32_t heartbeat(int rank) const noexcept override {
    return peer(rank).beats();
  }

  /// More shared memory of this rank, freed together with the region.
  std::byte* lease_more(std::size_t bytes, std::size_t* offset);

  /// Keeps `object` alive until no member can access it any more.
  void keep(std::shared_ptr<const void> object);

  // --- failure of the group ---
  [[nodiscard]] bool failed() const noexcept override {
    return mine_->failed_by.load(std::memory_order_acquire) != 0;  // pairs with mark_failed()
  }
  [[nodiscard]] Error failure() const override { return failure_seen_by(rank()); }
  /// Whether the region of that rank is marked as failed.
  [[nodiscard]] bool knows_failure(int rank) const noexcept;
  /// The reason that rank has seen; call only after knows_failure(rank).
  [[nodiscard]] Error failure_seen_by(int rank) const;
  [[nodiscard]] Error peer_lost_error(int rank, const std::string& operation) const override;
  Error fail(const Error& reason) noexcept override;

  // --- leaving the group ---
  void close() noexcept;
  /// Frees the memory if no member can access it any more.
  bool try_reclaim() noexcept;

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  void mark_failed(Region& region) noexcept;

  Arena& arena_;
  Identity identity_;
  RegionLayout layout_;
  std::vector<std::shared_ptr<const void>> kept_;
  std::vector<Lease> leases_;  // header, body, and those of lease_more()
  Region* mine_;
  std::vector<Member> members_;
  std::vector<int> global_ranks_;
  int rank_ = 0;
  std::mutex mutex_;  // guards leases_, kept_, reclaimed_ and the writing of the failure record
  bool reclaimed_ = false;
};

}  // namespace tccl::shm
