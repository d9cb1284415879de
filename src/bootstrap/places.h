// Which rank is on which host, as all ranks of a group tell each other through the store.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "bootstrap/gathering.h"
#include "bootstrap/meeting.h"
#include "bootstrap/meeting_packets.h"

namespace tccl {

/// By rank: the rank that hosts the meeting on its host.
using Places = std::vector<int>;

/// Keys of one meeting: another one on the same store has another secret.
Desk desk_of(const Invitation& invitation, std::function<void()> look_around);

/// Every rank says who hosts its meeting; the hosts then read where all are.
void report_place(const Desk& desk, const Invitation& invitation, int host_rank);
/// Once all hosts have read it.
void forget_places(const Desk& desk) noexcept;

/// For ranks that come when the meeting of those before them has failed already, and for hosts that
/// wait for another one.
void leave_failure(const Desk& desk, const Verdict& verdict);
void throw_if_failed_before(const Desk& desk);

/// Learns where all ranks are, on a thread of its own: meanwhile the host looks after its guests,
/// who cannot say where they are before they have met it.
class RollCall {
 public:
  explicit RollCall(const Invitation& invitation);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  /// Readable when it is over.
  [[nodiscard]] int fd() const { return done_.get(); }
  [[nodiscard]] bool is_over() const { return over_.load(std::memory_order_acquire); }
  Places result();

 private:
  void run(const Invitation& invitation);

  Fd done_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> over_{false};
  Places places_;
  std::exception_ptr problem_;
  std::thread thread_;
};

}  // namespace tccl
