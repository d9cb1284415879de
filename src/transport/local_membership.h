// LocalMembership: the ranks of one group on this host, as the other layers see them. Implemented
// by shm::LocalGroup, whose shared memory holds everything the ranks of a host need to know.
//
// Members are numbered by local rank, from 0; error messages name them by global rank.
// Thread safety: every method may be called from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "tccl/error.h"

namespace tccl {

/// What a rank that waits for a peer sees of it. A rank that departed has left the group cleanly;
/// one that died has not.
enum class PeerState : std::uint8_t { alive, died, departed };

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
  /// The error to throw: `operation` needs this rank, which has died or departed.
  [[nodiscard]] virtual Error peer_lost_error(int local_rank,
                                              const std::string& operation) const = 0;

  [[nodiscard]] virtual bool failed() const noexcept = 0;
  /// Why the group failed; call only after failed().
  [[nodiscard]] virtual Error failure() const = 0;
  /// Marks the group as failed for all members of this host. The first reason stays and is
  /// returned.
  virtual Error fail(const Error& reason) noexcept = 0;
};

}  // namespace tccl
