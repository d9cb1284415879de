// A process of another host, and what processes of different hosts tell each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/crypto.h"

namespace tccl {

namespace control {
struct Connection;
}

/// A process (strictly: a context) of another host, as this one knows it. Thread-safe.
class RemotePeer {
 public:
  struct Identity {
    Digest id{};  // random, one per context
    std::string host;
    int pid = 0;
    std::string address;     // in numbers
    std::uint16_t port = 0;  // where its Control listens
  };
  enum class End : std::uint8_t {
    none,
    goodbye,      // it left in good order
    died,         // its connection broke, or nobody listens where it did
    unreachable,  // its host, or the network to it, does not answer
  };

  explicit RemotePeer(Identity identity) : identity_(std::move(identity)) {}

  [[nodiscard]] const Identity& identity() const noexcept { return identity_; }
  /// "host b, pid 4711"
  [[nodiscard]] std::string where() const;
  /// For waiters, in their loop. Once it has ended, that stays so, in the way that was seen first.
  [[nodiscard]] End end() const noexcept { return end_.load(std::memory_order_acquire); }
  /// Since it last gave a sign of life over a connection; zero before there is one. Long silence
  /// means stalled (stopped, swapped out, in a debugger), not dead.
  [[nodiscard]] Clock::duration silence() const noexcept;

 private:
  friend class Control;
  void set_end(End end) noexcept {
    End none = End::none;  // release: whoever sees the end sees what was told before, too
    end_.compare_exchange_strong(none, end, std::memory_order_release, std::memory_order_relaxed);
  }
  void heard() noexcept {
    heard_at_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }

  const Identity identity_;
  std::atomic<End> end_{End::none};
  std::atomic<Clock::rep> heard_at_{0};  // 0: never

  // The rest is its Control's and guarded by that one's mutex.
  std::string secret_;
  std::string unsent_;                        // notices that wait for the first connection
  std::vector<control::Connection*> proved_;  // notices go over the first, so they stay in order
  bool wanted_ = false;                       // somebody asked for a connection
  bool attempting_ = false;                   // one is being made from here
  bool ended_ = false;  // so it is decided; end() says so after the last notice was delivered
  bool said_goodbye_ = false;  // on one of the connections
  int failed_handshakes_ = 0;
};

/// What one process tells another about a group they share.
struct Notice {
  std::uint64_t group = 0;
  std::uint32_t kind = 0;
  std::string text;  // cut to what fits into a frame, about 4 KiB
};

}  // namespace tccl
