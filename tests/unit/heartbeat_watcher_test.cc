// HeartbeatWatcher: silence is the time since the counter last changed.
#include "health/heartbeat_watcher.h"

#include <gtest/gtest.h>

#include "health/local_process.h"

namespace tccl {
namespace {

using namespace std::chrono_literals;

const Clock::time_point kStart{1h};

TEST(HeartbeatWatcher, IsSilentForZeroTimeBeforeTheFirstUpdate) {
  const HeartbeatWatcher watcher;
  EXPECT_EQ(watcher.silence(kStart), 0s);
  EXPECT_FALSE(watcher.is_stalled(kStart, kStalledAfter));
}

TEST(HeartbeatWatcher, CountsFromTheFirstUpdate) {
  HeartbeatWatcher watcher;
  watcher.update(0, kStart);  // 0 is a valid counter value, not "unknown"
  EXPECT_EQ(watcher.silence(kStart + 300ms), 300ms);
}

TEST(HeartbeatWatcher, AnUnchangedCounterProlongsTheSilence) {
  HeartbeatWatcher watcher;
  watcher.update(7, kStart);
  watcher.update(7, kStart + 400ms);
  EXPECT_EQ(watcher.silence(kStart + kStalledAfter), kStalledAfter);
  EXPECT_TRUE(watcher.is_stalled(kStart + kStalledAfter, kStalledAfter));
  EXPECT_FALSE(watcher.is_stalled(kStart + kStalledAfter - 1ns, kStalledAfter));
}

TEST(HeartbeatWatcher, AnyChangeEndsTheSilence) {
  HeartbeatWatcher watcher;
  watcher.update(7, kStart);
  watcher.update(6, kStart + 400ms);  // the counter wraps
  EXPECT_EQ(watcher.silence(kStart + 500ms), 100ms);
}

TEST(HeartbeatWatcher, ResetForgetsTheLastChange) {
  HeartbeatWatcher watcher;
  watcher.update(7, kStart);
  watcher.reset();
  EXPECT_EQ(watcher.silence(kStart + 10s), 0s);
  watcher.update(7, kStart + 10s);
  EXPECT_EQ(watcher.silence(kStart + 10s + 5ms), 5ms);
}

}  // namespace
}  // namespace tccl
