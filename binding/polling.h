// Waiting by polling, for conditions that have no wake-up, such as an accelerator's event.
//
//   const PollBackoff backoff;
//   while (!event.query()) backoff.sleep();
//
// base/clock.h is the one header of src/ that the binding includes: it is header-only and depends
// on nothing, and a second copy of deadline_after() would have to saturate in the same way.
// Thread safety: one object per thread.
#pragma once

#include <chrono>
#include <thread>

#include "base/clock.h"

namespace torch_ccl {

using tccl::Clock;
using tccl::Deadline;
using tccl::deadline_after;

/// The pause between two polls: 50 us in the first 20 ms, then 1 ms.
class PollBackoff {
 public:
  void sleep() const {
    const bool is_recent = Clock::now() - start_ < std::chrono::milliseconds(20);
    std::this_thread::sleep_for(std::chrono::microseconds(is_recent ? 50 : 1000));
  }

 private:
  Clock::time_point start_ = Clock::now();
};

}  // namespace torch_ccl
