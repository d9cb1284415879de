// LocalGroup: the members of one group on this host: their regions, their state, and the failure of
// the group. Members are numbered by local rank, from 0; error messages name them by global rank.
//
//   LocalGroup group(arena, {"tp", group_uid, 1}, RegionLayout::of(ranks, chunk_bytes));
//   group.set_members(members, global_ranks, own_global_rank);   // after the rendezvous
//
// A failing rank writes a failure record in its own region and marks every member's region as
// failed; each waiting rank then reads the record of the rank that marked its region first.
// Thread safety: every method but set_members() may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "health/local_process.h"
#include "transport/local_membership.h"
#include "transport/shm/arena.h"
#include "transport/shm/region.h"

namespace tccl::shm {

/// A rank of this host: its process, and where its region is mapped here.
struct LocalMember {
  std::shared_ptr<LocalProcess> process;
  RegionHeader* region = nullptr;
  std::byte* body = nullptr;

  LocalMember(std::shared_ptr<LocalProcess> p, std::size_t region_offset)
      : process(std::move(p)),
        region(reinterpret_cast<RegionHeader*>(process->base() + region_offset)),
        body(process->base() + region->body_offset) {}
};

struct GroupIdentity {
  std::string name;
  std::uint64_t group_uid = 0;
  std::uint32_t first_sequence = 1;
};

class LocalGroup final : public LocalMembership {
 public:
  /// Prepares this rank's region; its offset may be sent to peers afterwards.
  LocalGroup(Arena& arena, GroupIdentity identity, RegionLayout layout);
  ~LocalGroup() override;
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;
  /// `global_ranks` by local rank; `global_rank` is this rank's.
  void set_members(std::vector<LocalMember> members, std::vector<int> global_ranks,
                   int global_rank);

  [[nodiscard]] const GroupIdentity& identity() const noexcept { return identity_; }
  [[nodiscard]] const std::string& group_name() const noexcept override { return identity_.name; }
  [[nodiscard]] std::uint64_t group_uid() const noexcept override { return identity_.group_uid; }
  [[nodiscard]] int local_rank() const noexcept override { return local_rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int global_rank(int local_rank) const override {
    return global_ranks_[index(local_rank)];
  }
  [[nodiscard]] const RegionLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] std::size_t region_offset() const noexcept { return allocations_.front().offset; }

  [[nodiscard]] RegionHeader& mine() const noexcept { return *mine_; }
  [[nodiscard]] RegionHeader& region(int local_rank) const {
    return *members_[index(local_rank)].region;
  }
  [[nodiscard]] std::byte* body(int local_rank) const { return members_[index(local_rank)].body; }
  /// What `owner`'s region holds about point-to-point traffic with `other`.
  [[nodiscard]] PeerCounters& peer_counters(int owner, int other) const {
    return reinterpret_cast<PeerCounters*>(body(owner))[other];
  }
  [[nodiscard]] LocalProcess& process(int local_rank) const {
    return *members_[index(local_rank)].process;
  }
  [[nodiscard]] const std::shared_ptr<LocalProcess>& process_handle(int local_rank) const {
    return members_[index(local_rank)].process;
  }
  [[nodiscard]] std::string who(int local_rank) const override;
  [[nodiscard]] PeerState state_of(int local_rank) const noexcept override;
  [[nodiscard]] std::uint32_t liveness_counter(int local_rank) const noexcept override {
    return process(local_rank).heartbeats();
  }

  void note_lost(const LostRank& lost) noexcept override;
  [[nodiscard]] std::vector<LostRank> lost_ranks() const override;

  /// More shared memory of this rank, freed together with the region.
  std::byte* allocate_more(std::size_t bytes, std::size_t* offset);

  /// Keeps `object` alive until no member can access it any more.
  void keep_alive(std::shared_ptr<const void> object);

  // --- failure of the group ---
  [[nodiscard]] bool failed() const noexcept override { return marked_by(*mine_) >= 0; }
  [[nodiscard]] Error failure() const override { return failure_of(local_rank()); }
  /// Whether the region of that rank is marked as failed.
  [[nodiscard]] bool is_marked_failed(int local_rank) const noexcept;
  /// The reason that rank has seen; call only after is_marked_failed(rank).
  [[nodiscard]] Error failure_of(int local_rank) const;
  [[nodiscard]] bool process_has_ended(int local_rank) const noexcept override {
    return process(local_rank).died();  // also after a clean exit, which the pidfd reports
  }
  [[nodiscard]] Error peer_lost_error(int local_rank, const std::string& operation) const override;
  [[nodiscard]] FailureSource failure_source() const override {
    return failure_record(local_rank()).source;
  }
  [[nodiscard]] Error earlier_failure() const override;
  Error fail(const Error& reason, FailureSource source) noexcept override;

  // --- leaving the group ---
  void close() noexcept;
  /// Frees the memory if no member can access it any more.
  bool try_free() noexcept;

 private:
  static std::size_t index(int local_rank) { return static_cast<std::size_t>(local_rank); }
  /// The local rank that marked the region, or -1.
  [[nodiscard]] int marked_by(const RegionHeader& header) const noexcept {
    // Pairs with RegionHeader::mark_failed().
    return shm::marked_by(header.failure_mark.load(std::memory_order_acquire), identity_.group_uid);
  }
  /// What the rank that marked this rank's region has written.
  [[nodiscard]] const FailureRecord& failure_record(int local_rank) const;
  void mark_failed(RegionHeader& other) noexcept;
  [[nodiscard]] Error failure_or(const Error& reason) const noexcept;

  Arena& arena_;
  GroupIdentity identity_;
  RegionLayout layout_;
  std::vector<std::shared_ptr<const void>> kept_alive_;
  std::vector<Allocation> allocations_;  // header, body, and those of allocate_more()
  RegionHeader* mine_;
  std::vector<LocalMember> members_;
  std::vector<int> global_ranks_;
  int local_rank_ = 0;
  /// Guards allocations_, kept_alive_, freed_ and the writing of the failure record.
  std::mutex mutex_;
  bool freed_ = false;
};

}  // namespace tccl::shm
