// The region of one rank in a group: its part of the group in its own shared memory, which the
// ranks of its host map. A header page (RegionHeader), and a body with one PeerCounters per peer
// and the slots (RegionLayout).
//
// Only the owner writes here, except atomic words: peers notify the two doorbells, mark the region
// as failed and, in the region of local rank 0, decide how a shrink ends. A region is freed when
// every peer has departed or died (LocalGroup::try_free). A notification that comes later is
// harmless, and a failure mark does not fit (FailureMark).
// Thread safety: see the pairing comment of each atomic.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/wait.h"
#include "operation/operation_log.h"
#include "tccl/error.h"
#include "transport/board.h"
#include "transport/local_membership.h"

namespace tccl::shm {

inline constexpr std::uint32_t kSlots = 4;
/// No rank is kSlots or more operations ahead of another, so a log of kSlots entries would hold the
/// operation of the slower rank. Four times as many: if the digests differ, throw_mismatch() looks
/// back for the first operation that differs.
static_assert(OperationLog::kLength >= 4 * kSlots);

/// Whether a region is marked as failed: the lower half of the group_uid, then 1 + the local rank
/// whose failure record holds the reason, or 0. One word, so that a peer which was slow cannot mark
/// a region that belongs to another group by now: its compare-exchange finds another group_uid.
using FailureMark = std::uint64_t;
constexpr FailureMark unmarked(std::uint64_t group_uid) { return group_uid << 32; }
/// The local rank of the writer of the failure record, or -1.
constexpr int marked_by(FailureMark mark, std::uint64_t group_uid) {
  const bool is_of_group = mark >> 32 == (group_uid & 0xffffffff);
  return is_of_group ? static_cast<int>(static_cast<std::uint32_t>(mark)) - 1 : -1;
}
static_assert(marked_by(unmarked(7), 7) == -1);
static_assert(marked_by(unmarked(7) + 3, 7) == 2);
static_assert(marked_by(unmarked(7) + 3, 8) == -1, "the mark of an earlier group");

/// How far a rank is: sequence number of its collective and number of steps posted in it. The
/// 64-bit value only grows (modulo 2^64, so 32-bit sequence numbers may wrap).
using Position = std::uint64_t;
constexpr Position position_of(std::uint32_t sequence, std::uint32_t steps) {
  return (Position{sequence} << 32) | steps;
}
constexpr bool reached(Position current, Position target) {
  return static_cast<std::int64_t>(current - target) >= 0;
}
static_assert(reached(position_of(0, 1), position_of(0xffffffff, 7)), "sequence numbers wrap");
static_assert(!reached(position_of(5, 2), position_of(5, 3)));

/// Why a rank marked the group as failed. Written once, before any region is marked.
struct FailureRecord {
  Errc code;
  FailureSource source;
  Clock::rep time;  // of the host's monotonic clock
  std::int32_t rank_count;
  std::int32_t ranks[4];
  char text[1600];
};

/// One posted step: its position, digest and inline data, in one cache line.
struct alignas(64) StepHeader {
  std::atomic<Position> position;  // stored last: ShmBoard::post() releases, wait_for() acquires
  std::uint64_t digest;            // of the operation that the step belongs to: see OpRecord
  std::byte inline_data[Board::kInlineBytes];
};
static_assert(sizeof(StepHeader) == 64);

/// Where the thread that runs the owner's collectives sleeps.
struct CollectiveDoorbell : Doorbell {
  std::atomic<std::uint32_t>
      awaits;  // 1 + the rank whose step it waits for: only that rank notifies
};

/// What a rank keeps per peer for point-to-point traffic.
struct alignas(64) PeerCounters {
  std::atomic<std::uint64_t> ring_offset;      // of my ring to that peer; 0: no ring yet
  std::atomic<std::uint64_t> cells_taken;      // cells that I have taken from that peer's ring
  std::atomic<std::uint64_t> returned_credit;  // in all, for its eager messages
};

/// See local_agreement.h.
struct LocalAgreementWords {
  /// Offsets of LocalAgreement's texts in the owner's shared memory; of attempt i at i % 2.
  std::atomic<std::uint64_t> offers[2];
  std::atomic<std::uint64_t> outcomes[2];
  /// In the region of local rank 0: attempt << 32 | 1 + the local rank whose outcome was decided.
  std::atomic<std::uint64_t> decision;
};

/// The first page of a region.
struct RegionHeader {
  alignas(64) std::atomic<std::uint64_t> group_uid;  // any other value: the owner has departed
  std::uint64_t body_offset;                         // in the owner's shared memory
  std::atomic<std::uint32_t> departed;               // 1: the owner has left the group cleanly
  std::atomic<FailureMark> failure_mark;
  std::atomic<std::uint64_t> lost_rank;  // a LostRank, packed by LocalGroup::note_lost()
  LocalAgreementWords agreement;
  StepHeader step_headers[kSlots];  // the owner's last steps; global step i at i % kSlots
  alignas(64) std::atomic<std::uint64_t> acknowledged;  // in-place reads before this step are done
  CollectiveDoorbell collective_doorbell;
  Doorbell p2p_doorbell;  // for threads that wait for the owner's sends and receives
  FailureRecord failure;
  OperationLog log;

  /// Marks the region of a rank of that group. It keeps its first mark; a region that belongs to
  /// another group, or to none, stays as it is.
  void mark_failed(std::uint64_t group, int writer) noexcept {
    FailureMark expected = unmarked(group);
    failure_mark.compare_exchange_strong(
        expected, expected + static_cast<std::uint32_t>(writer) + 1,
        std::memory_order_acq_rel);  // pairs with LocalGroup::marked_by()
  }
};
static_assert(std::atomic<Position>::is_always_lock_free);
static_assert(sizeof(RegionHeader) <= 4096);

/// The layout of the body.
struct RegionLayout {
  std::size_t chunk_bytes;
  std::size_t area_bytes;
  std::size_t slots_offset;
  std::size_t total_bytes;

  static constexpr std::size_t round_up(std::size_t n, std::size_t to) {
    return (n + to - 1) / to * to;
  }
  static RegionLayout of(int size, std::size_t chunk_bytes) {
    const auto ranks = static_cast<std::size_t>(size);
    // At least one largest element, or a pair of 64-bit counts, per rank.
    const std::size_t area = round_up(std::max(chunk_bytes, kMaxElementBytes * ranks), 64);
    const std::size_t slots = round_up(ranks * sizeof(PeerCounters), 4096);
    return {chunk_bytes, area, slots, slots + kSlots * 2 * area};
  }
  [[nodiscard]] std::size_t slot_offset(std::uint64_t global_step) const {
    return slots_offset + (global_step % kSlots) * 2 * area_bytes;
  }
};

}  // namespace tccl::shm
