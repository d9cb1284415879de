// Points in time for waits of the binding. Safe from any thread.
#pragma once

#include <chrono>
#include <thread>

namespace torch_ccl {

using Clock = std::chrono::steady_clock;

/// How often a wait looks for pending signals.
inline constexpr std::chrono::milliseconds kInterruptPeriod{100};

/// A timeout may be as long as timedelta.max: the deadline then never comes.
inline Clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  const auto now = Clock::now();
  const auto longest =
      std::chrono::floor<std::chrono::milliseconds>(Clock::time_point::max() - now);
  return timeout < longest ? now + timeout : Clock::time_point::max();
}

/// Between two looks at something that nobody announces: short ones at first.
class Naps {
 public:
  void take() const {
    const bool is_new = Clock::now() - begin_ < std::chrono::milliseconds(20);
    std::this_thread::sleep_for(std::chrono::microseconds(is_new ? 50 : 1000));
  }

 private:
  Clock::time_point begin_ = Clock::now();
};

}  // namespace torch_ccl
