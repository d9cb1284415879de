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
class RemoteProcess {
 public:
  struct Identity {
    Digest id{};  // random, one per context
    std::string host;
    int pid = 0;
    std::string address;     // in numbers
    std::uint16_t port = 0;  // where its ControlPlane listens
  };
  enum class State : std::uint8_t {
    alive,
    departed,     // it left in good order
    died,         // its connection broke, or nobody listens where it did
    unreachable,  // its host, or the network to it, does not answer
  };

  explicit RemoteProcess(Identity identity) : identity_(std::move(identity)) {}

  [[nodiscard]] const Identity& identity() const noexcept { return identity_; }
  /// "host b, pid 4711"
  [[nodiscard]] std::string where() const;
  /// For waiters, in their loop. Once it has ended, that stays so, in the way that was seen first.
  [[nodiscard]] State state() const noexcept { return state_.load(std::memory_order_acquire); }
  /// Since it last gave a sign of life over a connection; zero before there is one. Long silence
  /// means stalled (stopped, swapped out, in a debugger), not dead.
  [[nodiscard]] Clock::duration silence() const noexcept;

 private:
  friend class ControlPlane;
  void set_state(State state) noexcept {
    State alive = State::alive;  // release: whoever sees the end sees what was told before, too
    state_.compare_exchange_strong(alive, state, std::memory_order_release,
                                   std::memory_order_relaxed);
  }
  void note_heard() noexcept {
    last_heard_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }

  const Identity identity_;
  std::atomic<State> state_{State::alive};
  std::atomic<Clock::rep> last_heard_{0};  // 0: never

  // The rest is its ControlPlane's and guarded by that one's mutex.
  std::string secret_;
  std::string unsent_;  // notices that wait for the first connection
  std::vector<control::Connection*>
      authenticated_;        // notices go over the first, so they stay in order
  bool wanted_ = false;      // somebody asked for a connection
  bool attempting_ = false;  // one is being made from here
  bool ended_ = false;       // so it is decided; end() says so after the last notice was delivered
  bool departed_ = false;    // on one of the connections
  int failed_handshakes_ = 0;
};

/// What one process tells another about a group they share.
struct Notice {
  std::uint64_t group = 0;
  std::uint32_t kind = 0;
  std::string text;  // cut to what fits into a frame, about 4 KiB
};

}  // namespace tccl
