// A process of another host, and the notices that processes of different hosts send each other.
// Thread safety: every method may be called from any thread; Notice is a value.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/crypto.h"

namespace tccl {

/// A process (strictly: a context) of another host, as this process sees it. ControlPlane creates
/// and updates it.
class RemoteProcess {
 public:
  struct Identity {
    Bytes32 id{};  // random, one per context
    std::string host;
    int pid = 0;
    std::string address;     // numeric
    std::uint16_t port = 0;  // on which its ControlPlane listens
  };
  enum class State : std::uint8_t {
    alive,
    departed,     // it closed cleanly
    died,         // its connection broke
    ended,        // never connected: its port refuses connections, so it has left or died
    unreachable,  // its host, or the network to it, does not answer
  };

  RemoteProcess(const RemoteProcess&) = delete;
  RemoteProcess& operator=(const RemoteProcess&) = delete;

  [[nodiscard]] const Identity& identity() const noexcept { return identity_; }
  /// "host b, pid 4711"
  [[nodiscard]] std::string where() const;
  /// For polling loops. The first state other than alive is final.
  [[nodiscard]] State state() const noexcept {
    return state_.load(std::memory_order_acquire);  // pairs with the release in set_state()
  }
  /// Time since it last sent something over a connection; zero before there is one. Long silence
  /// means stalled (stopped, swapped out, in a debugger), not dead.
  [[nodiscard]] Clock::duration silence() const noexcept;

 protected:
  explicit RemoteProcess(Identity identity) : identity_(std::move(identity)) {}
  ~RemoteProcess() = default;

  void set_state(State state) noexcept {
    State alive = State::alive;
    // Release: a thread that sees the new state also sees the notices delivered before it.
    state_.compare_exchange_strong(alive, state, std::memory_order_release,
                                   std::memory_order_relaxed);
  }
  void note_heard() noexcept {
    // Relaxed: a time stamp that orders nothing; read by silence().
    last_heard_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }

 private:
  const Identity identity_;
  std::atomic<State> state_{State::alive};
  std::atomic<Clock::rep> last_heard_{0};  // 0: never
};

/// What one process tells another about a group that they share.
struct Notice {
  std::uint64_t group_uid = 0;
  std::uint32_t kind = 0;
  std::string text;  // truncated to what fits into a frame, about 4 KiB
};

}  // namespace tccl
