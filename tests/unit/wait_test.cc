// The wait policy: the order of its phases with a Sleeper that records its calls, and doorbells
// between threads.
#include "base/wait.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace tccl {
namespace {

using namespace std::chrono_literals;
using Calls = std::vector<std::string>;

struct RecordingSleeper {
  Calls& calls;
  int prepare() {
    calls.emplace_back("prepare");
    return 7;
  }
  void sleep(int token) { calls.push_back("sleep " + std::to_string(token)); }
};

TEST(SleepUntil, ChecksAfterPrepareAndBeforeSleep) {
  Calls calls;
  int checks = 0;
  const auto ready = [&] {
    calls.emplace_back("ready");
    return ++checks == 2;
  };
  const auto give_up = [&] {
    calls.emplace_back("give_up");
    return false;
  };
  EXPECT_TRUE(sleep_until(RecordingSleeper{calls}, ready, give_up));
  EXPECT_EQ(calls, (Calls{"prepare", "ready", "give_up", "sleep 7", "prepare", "ready"}));
}

TEST(SleepUntil, ChecksOnceMoreAfterGivingUp) {
  Calls calls;
  bool is_posted = false;
  // The peer posts its data and exits between the check of the data and the check of the peer.
  const auto give_up = [&] { return is_posted = true; };
  EXPECT_TRUE(sleep_until(
      RecordingSleeper{calls}, [&] { return is_posted; }, give_up));
  EXPECT_FALSE(sleep_until(
      RecordingSleeper{calls}, [] { return false; }, [] { return true; }));
  EXPECT_EQ(calls, (Calls{"prepare", "prepare"}));
}

TEST(SpinThenYield, ReturnsFalseAfterTheTimeOfThePolicy) {
  const auto start = Clock::now();
  EXPECT_FALSE(spin_then_yield([] { return false; }, {1ms, 3ms}));
  EXPECT_GE(Clock::now() - start, 3ms);
}

TEST(SpinThenYield, ChecksBeforeItReadsTheClock) {
  int checks = 0;
  EXPECT_TRUE(spin_then_yield([&] { return ++checks == 1; }, {0ms, 0ms}));
  EXPECT_EQ(checks, 1);
}

class DoorbellScope : public ::testing::TestWithParam<FutexScope> {};

TEST_P(DoorbellScope, WakesASleeper) {
  Doorbell doorbell;
  std::atomic<bool> is_set{false};
  std::thread notifier([&] {
    while (doorbell.sleepers.load() == 0) std::this_thread::yield();
    is_set.store(true);
    doorbell_fence();
    doorbell.notify_if_sleeping(GetParam());
  });
  // An hour's interval: only the notification ends the sleep.
  EXPECT_TRUE(sleep_until(
      DoorbellSleeper(doorbell, GetParam(), 1h), [&] { return is_set.load(); },
      [] { return false; }));
  notifier.join();
  EXPECT_EQ(doorbell.sleepers.load(), 0U);
}

INSTANTIATE_TEST_SUITE_P(All, DoorbellScope,
                         ::testing::Values(FutexScope::local, FutexScope::shared),
                         [](const auto& info) {
                           return info.param == FutexScope::local ? "local" : "shared";
                         });

TEST(Doorbell, IsNotNotifiedWithoutASleeper) {
  Doorbell doorbell;
  doorbell.notify_if_sleeping();
  EXPECT_EQ(doorbell.notifications.load(), 0U);
}

}  // namespace
}  // namespace tccl
