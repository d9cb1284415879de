// LocalMembership: the ranks of one group on this host, as the other layers see them. Implemented
// by shm::LocalGroup, whose shared memory holds everything the ranks of a host need to know.
//
// Members are numbered by local rank, from 0; error messages name them by global rank.
// Thread safety: every method may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tccl/error.h"

namespace tccl {

/// What a rank that waits for a peer sees of it. A rank that departed has left the group cleanly;
/// one that died has not.
enum class PeerState : std::uint8_t { alive, died, departed };

/// The texts of errors about lost ranks, the same on one host and over hosts. "Connection closed by
/// peer" is what torch's own backends say; programs look for it.
inline std::string died_during(const std::string& rank, const std::string& operation) {
  return rank + " died during " + operation + " (Connection closed by peer)";
}
inline std::string left_before(const std::string& rank, const std::string& group,
                               const std::string& operation) {
  return rank + " left group " + group + ", but " + operation +
         " needs it (Connection closed by peer)";
}

/// A rank of another host that has gone.
struct LostRank {
  /// Ended: it has left or died before it was first contacted.
  enum class Kind : std::uint8_t { none, departed, unreachable, ended, died };
  Kind kind = Kind::none;
  int rank = -1;
  std::uint32_t last_sequence = 0;  // of its last collective, if it has departed
};

/// An operation between hosts goes on for this long after the group has failed in a later one: its
/// last messages may be slower than the notice of the failure.
inline constexpr std::chrono::milliseconds kLaterFailureGrace{250};

/// Where a failure of a group was found.
struct FailureSource {
  int reporter = -1;           // the rank, of any host, that found out; -1: unknown
  std::int64_t sequence = -1;  // of the collective that this rank was in; -1: in none, or unknown
};

class LocalMembership {
 public:
  virtual ~LocalMembership() = default;

  [[nodiscard]] virtual const std::string& group_name() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t group_uid() const noexcept = 0;
  /// The local rank of this process.
  [[nodiscard]] virtual int local_rank() const noexcept = 0;
  [[nodiscard]] virtual int global_rank(int local_rank) const = 0;

  /// "rank 3 (host b, pid 4711)"
  [[nodiscard]] virtual std::string who(int local_rank) const = 0;
  [[nodiscard]] virtual PeerState state_of(int local_rank) const noexcept = 0;
  /// A counter that changes as long as the process of that rank is not stalled.
  [[nodiscard]] virtual std::uint32_t liveness_counter(int local_rank) const noexcept = 0;
  /// Not only that the rank has left the group.
  [[nodiscard]] virtual bool process_has_ended(int local_rank) const noexcept = 0;
  /// The error to throw: `operation` needs this rank, which has died or departed.
  [[nodiscard]] virtual Error peer_lost_error(int local_rank,
                                              const std::string& operation) const = 0;

  /// Not every rank of this host has a connection to a rank of another host, so a rank that learns
  /// that one has gone notes it for the others. The last note of each rank of this host is kept.
  virtual void note_lost(const LostRank& lost) noexcept = 0;
  [[nodiscard]] virtual std::vector<LostRank> lost_ranks() const = 0;

  [[nodiscard]] virtual bool failed() const noexcept = 0;
  /// Why the group failed; call only after failed(), as the next two.
  [[nodiscard]] virtual Error failure() const = 0;
  [[nodiscard]] virtual FailureSource failure_source() const = 0;
  /// Whether the reporter of the failure was in a later collective than `sequence`. It has then done
  /// its part of collective `sequence`, which may complete.
  [[nodiscard]] bool failed_later_than(std::uint32_t sequence) const {
    const std::int64_t failed = failure_source().sequence;
    return failed >= 0 &&
           static_cast<std::int32_t>(static_cast<std::uint32_t>(failed) - sequence) > 0;
  }
  /// For a call that begins after the failure: the reason, with when and in whose call it was found.
  [[nodiscard]] virtual Error earlier_failure() const = 0;
  /// Marks the group as failed for all members of this host. The first reason stays and is
  /// returned.
  virtual Error fail(const Error& reason, FailureSource source) noexcept = 0;
};

}  // namespace tccl
