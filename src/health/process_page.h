// The page at the start of each process's shared memory that shows its state to the other processes
// of the host: alive, stalled, departed or dead.
//
// The monitor thread holds `liveness_mutex`, a robust mutex. When the process dies, the kernel sets
// FUTEX_OWNER_DIED in the mutex word within a fraction of a millisecond, long before it tears down
// the memory of the process. Peers read that word with a plain load.
// Thread safety: the mutex and the atomics; `token` is written before peers map the page.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/crypto.h"

namespace tccl {

struct ProcessPage {
  Bytes32 token;                   // random; proves that a mapping is the memory of the PeerInfo
  pthread_mutex_t liveness_mutex;  // robust, held by the monitor thread
  alignas(64) std::atomic<std::uint32_t> heartbeats;  // incremented every kLocalHeartbeatInterval
  std::atomic<std::uint32_t> departed;                // 1 after a clean close
  alignas(64) std::atomic<std::uint32_t> progress_signal;  // wakes the owner's progress thread
};

inline constexpr auto kLocalHeartbeatInterval = std::chrono::milliseconds(200);
/// A counter that does not change for this long means stalled (stopped, swapped out, in a
/// debugger), not dead.
inline constexpr auto kStalledAfter = std::chrono::milliseconds(700);

}  // namespace tccl
