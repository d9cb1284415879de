// The explorer itself: the classic small programs, and which results of them C++ allows.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <utility>

#include "base/futex.h"
#include "model/explorer.h"

namespace tccl::model {
namespace {

using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;
using Order = std::memory_order;

constexpr Bounds kBounds{.preemptions = 4, .stale_reads = 4};

struct Variables {
  std::atomic<std::uint32_t> x{0};
  std::atomic<std::uint32_t> y{0};
  std::atomic<std::uint32_t> futex{0};
  std::uint32_t data = 0;
};

using Thread = void (*)(Variables&, int& result);

/// All pairs of results of two threads.
std::set<std::pair<int, int>> results_of(Thread first, Thread second) {
  std::set<std::pair<int, int>> results;
  const Outcome outcome = explore(kBounds, [&](Execution& execution) {
    Variables variables;
    execution.share(&variables, sizeof variables);
    int a = -1;
    int b = -1;
    execution.add_thread("first", [&] { first(variables, a); });
    execution.add_thread("second", [&] { second(variables, b); });
    execution.join();
    results.emplace(a, b);
  });
  EXPECT_EQ(outcome.violation, "") << outcome.trace;
  EXPECT_TRUE(outcome.complete);
  return results;
}

std::string violation_of(Thread first, Thread second) {
  return explore(kBounds,
                 [&](Execution& execution) {
                   Variables variables;
                   execution.share(&variables, sizeof variables);
                   int unused = 0;
                   execution.add_thread("first", [&] { first(variables, unused); });
                   execution.add_thread("second", [&] { second(variables, unused); });
                   execution.join();
                 })
      .violation;
}

using Results = std::set<std::pair<int, int>>;

template <Order Store, Order Load, bool Fence>
void store_x_load_y(Variables& v, int& result) {
  v.x.store(1, Store);
  if (Fence) std::atomic_thread_fence(memory_order_seq_cst);
  result = static_cast<int>(v.y.load(Load));
}
template <Order Store, Order Load, bool Fence>
void store_y_load_x(Variables& v, int& result) {
  v.y.store(1, Store);
  if (Fence) std::atomic_thread_fence(memory_order_seq_cst);
  result = static_cast<int>(v.x.load(Load));
}

TEST(Litmus, StoreBuffering) {
  const Results all{{0, 0}, {0, 1}, {1, 0}, {1, 1}};
  EXPECT_EQ(results_of(store_x_load_y<memory_order_relaxed, memory_order_relaxed, false>,
                       store_y_load_x<memory_order_relaxed, memory_order_relaxed, false>),
            all);
  EXPECT_EQ(results_of(store_x_load_y<memory_order_release, memory_order_acquire, false>,
                       store_y_load_x<memory_order_release, memory_order_acquire, false>),
            all);
  EXPECT_EQ(results_of(store_x_load_y<memory_order_relaxed, memory_order_relaxed, true>,
                       store_y_load_x<memory_order_relaxed, memory_order_relaxed, false>),
            all)
      << "a fence on one side is not enough";
}

TEST(Litmus, SeqCstFencesForbidStoreBuffering) {
  const Results expected{{0, 1}, {1, 0}, {1, 1}};
  EXPECT_EQ(results_of(store_x_load_y<memory_order_relaxed, memory_order_relaxed, true>,
                       store_y_load_x<memory_order_relaxed, memory_order_relaxed, true>),
            expected);
}

template <Order Store>
void write_message(Variables& v, int& /*result*/) {
  v.data = 7;
  v.x.store(1, Store);
}
template <Order Load>
void read_message(Variables& v, int& /*result*/) {
  if (v.x.load(Load) == 1) require(v.data == 7, "the message");
}

TEST(Litmus, MessagePassingNeedsReleaseAndAcquire) {
  EXPECT_EQ(violation_of(write_message<memory_order_release>, read_message<memory_order_acquire>),
            "");
  EXPECT_EQ(violation_of(write_message<memory_order_relaxed>, read_message<memory_order_acquire>),
            "data race with thread first");
  EXPECT_EQ(violation_of(write_message<memory_order_release>, read_message<memory_order_relaxed>),
            "data race with thread first");
}

TEST(Litmus, FencesMakeRelaxedAccessesSynchronise) {
  const auto write = [](Variables& v, int& /*result*/) {
    v.data = 7;
    std::atomic_thread_fence(memory_order_release);
    v.x.store(1, memory_order_relaxed);
  };
  const auto read = [](Variables& v, int& /*result*/) {
    if (v.x.load(memory_order_relaxed) == 0) return;
    std::atomic_thread_fence(memory_order_acquire);
    require(v.data == 7, "the message");
  };
  EXPECT_EQ(violation_of(write, read), "");
  EXPECT_EQ(violation_of(write_message<memory_order_relaxed>, read), "data race with thread first");
  EXPECT_EQ(violation_of(write, read_message<memory_order_relaxed>), "data race with thread first");
}

TEST(Litmus, WhatHappensAfterAReleaseIsNotReleased) {
  EXPECT_EQ(violation_of(
                [](Variables& v, int& /*result*/) {
                  v.x.store(1, memory_order_release);
                  v.data = 7;
                },
                [](Variables& v, int& /*result*/) {
                  if (v.x.load(memory_order_acquire) == 1) require(v.data < 8, "any value");
                }),
            "data race with thread first");
}

TEST(Litmus, AnIncrementContinuesTheReleaseSequence) {
  const Outcome outcome = explore(kBounds, [](Execution& execution) {
    Variables v;
    execution.share(&v, sizeof v);
    execution.add_thread("first", [&] {
      v.data = 7;
      v.x.store(1, memory_order_release);
    });
    execution.add_thread("second", [&] { v.x.fetch_add(1, memory_order_relaxed); });
    execution.add_thread("third", [&] {
      if (v.x.load(memory_order_acquire) == 2) require(v.data == 7, "the message");
    });
    execution.join();
  });
  // 2 is the increment of the store of 1: an increment before it is overwritten.
  EXPECT_EQ(outcome.violation, "") << outcome.trace;
  EXPECT_TRUE(outcome.complete);
}

TEST(Litmus, LoadsOfOneVariableDoNotGoBack) {
  const Results results = results_of(
      [](Variables& v, int& result) {
        v.x.store(1, memory_order_relaxed);
        v.x.store(2, memory_order_relaxed);
        result = 0;
      },
      [](Variables& v, int& result) {
        const auto first = static_cast<int>(v.x.load(memory_order_relaxed));
        const auto second = static_cast<int>(v.x.load(memory_order_relaxed));
        result = 10 * first + second;
      });
  EXPECT_EQ(results, (Results{{0, 0}, {0, 1}, {0, 2}, {0, 11}, {0, 12}, {0, 22}}));
}

/// The third thread learns of x through y, which the second wrote after it had read x.
template <bool Fence>
Outcome write_to_read_causality() {
  return explore(kBounds, [](Execution& execution) {
    Variables v;
    execution.share(&v, sizeof v);
    execution.add_thread("first", [&] { v.x.store(1, memory_order_release); });
    execution.add_thread("second", [&] {
      if (v.x.load(memory_order_acquire) == 0) return;
      if (Fence) std::atomic_thread_fence(memory_order_release);
      v.y.store(1, memory_order_relaxed);
    });
    execution.add_thread("third", [&] {
      if (v.y.load(memory_order_relaxed) == 0) return;
      std::atomic_thread_fence(memory_order_acquire);
      require(v.x.load(memory_order_relaxed) == 1, "x before y");
    });
    execution.join();
  });
}

TEST(Litmus, CausalityNeedsAReleaseOnTheWay) {
  EXPECT_EQ(write_to_read_causality<true>().violation, "");
  EXPECT_EQ(write_to_read_causality<false>().violation, "x before y");
}

TEST(Litmus, ALostWakeUpIsFound) {
  const auto wake = [](Variables& v, int& /*result*/) {
    v.x.store(1, memory_order_release);
    v.futex.fetch_add(1, memory_order_release);
    futex_wake_all(v.futex, FutexScope::shared);
  };
  const auto sleep = [](Variables& v, int& /*result*/) {
    const auto seen = v.futex.load(memory_order_acquire);
    if (v.x.load(memory_order_acquire) == 0)
      futex_wait(v.futex, seen, std::chrono::hours(1), FutexScope::shared);
  };
  const auto check_before_the_token = [](Variables& v, int& /*result*/) {
    if (v.x.load(memory_order_acquire) != 0) return;
    const auto seen = v.futex.load(memory_order_acquire);
    futex_wait(v.futex, seen, std::chrono::hours(1), FutexScope::shared);
  };
  EXPECT_EQ(violation_of(wake, sleep), "");
  EXPECT_EQ(violation_of(wake, check_before_the_token),
            "all threads that have not ended sleep: a wake-up was lost");
}

TEST(Litmus, AMutexExcludesAndSynchronises) {
  static std::mutex mutex;
  const auto increment = [](Variables& v, int& /*result*/) {
    const std::lock_guard lock(mutex);
    ++v.data;
    v.x.fetch_add(1, memory_order_relaxed);  // another thread may run here
    ++v.data;
  };
  EXPECT_EQ(violation_of(increment, increment), "");
  EXPECT_EQ(violation_of(increment, [](Variables& v, int& /*result*/) { ++v.data; }),
            "data race with thread first");
}

TEST(Litmus, AnEndlessLoopIsFound) {
  EXPECT_EQ(violation_of([](Variables& v, int& /*result*/) { v.x.store(1, memory_order_relaxed); },
                         [](Variables& v, int& /*result*/) {
                           while (v.x.load(memory_order_relaxed) != 2) {
                           }
                         }),
            "no end after many operations");
}

}  // namespace
}  // namespace tccl::model
