// Lists of CPUs, the worker pool options that the planner derives from the settings, and the pool.
#include "base/worker_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "algorithms/task.h"
#include "base/cpu_set.h"
#include "planner/plan_workers.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using Cpus = std::vector<int>;

// ---- lists of CPUs

TEST(Cpus, ListsAndRanges) {
  EXPECT_EQ(parse_cpus("7"), (Cpus{7}));
  EXPECT_EQ(parse_cpus("0,1,2,3,28,29,31,32"), (Cpus{0, 1, 2, 3, 28, 29, 31, 32}));
  EXPECT_EQ(parse_cpus("0-3,28-29,5,5"), (Cpus{0, 1, 2, 3, 28, 29, 5, 5}));
  EXPECT_EQ(parse_cpus("0, 1, 28-29"), (Cpus{0, 1, 28, 29}));
}

TEST(Cpus, InvalidListsAreRejected) {
  for (const char* text : {"", ",", "1,", ",1", "-1", "1-", "3-1", "a", "1 ,2", "1;2", "70000",
                           "0-99999999", "99999999999", "1-2-3"}) {
    EXPECT_THROW(parse_cpus(text), Error) << text;
  }
}

TEST(Cpus, AsText) {
  EXPECT_EQ(cpus_text(Cpus{}), "");
  EXPECT_EQ(cpus_text(Cpus{3}), "3");
  EXPECT_EQ(cpus_text(Cpus{0, 1, 2, 3, 28, 29, 31}), "0-3,28,29,31");
}

// ---- options from the settings

constexpr const char* kTwoTimesFour = "0,1,2,3,28,29,31,32";  // 28 cores per socket, 4 for workers

Settings settings_of(std::optional<int> count, const std::string& affinity = "auto") {
  Settings settings;
  settings.worker_count = count;
  settings.worker_affinity = affinity;
  if (affinity != "auto") settings.worker_cpus = parse_cpus(affinity);
  return settings;
}

Cpus range(int first, int last) {
  Cpus cpus(static_cast<std::size_t>(last - first + 1));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

int default_count(int cpus, int ranks_on_same_cpus) {
  return plan_workers(settings_of({}), {0, 8, {ranks_on_same_cpus}, range(0, cpus - 1)}).count;
}

TEST(WorkerPoolOptions, DefaultIsTheRanksShareOfTheCpus) {
  EXPECT_EQ(default_count(2, 2), 0);
  EXPECT_EQ(default_count(2, 1), 1);
  EXPECT_EQ(default_count(1, 8), 0);
  EXPECT_EQ(default_count(8, 2), 3);
  EXPECT_EQ(default_count(56, 2), 3);
  EXPECT_FALSE(plan_workers(settings_of({}), {0, 1, {1}, range(0, 3)}).start_at_once);
}

TEST(WorkerPoolOptions, DefaultStaysWithinTheQuotaOfTheCgroup) {
  const auto count = [](double quota, int ranks_in_cgroup) {
    return plan_workers(settings_of({}),
                        {0, 8, {1, ranks_in_cgroup}, range(0, 15), CpuQuota{quota, 1}})
        .count;
  };
  EXPECT_EQ(count(0, 8), 3) << "no limit";
  EXPECT_EQ(count(16, 1), 3);
  EXPECT_EQ(count(2, 1), 1);
  EXPECT_EQ(count(2.9, 1), 1);
  EXPECT_EQ(count(4, 2), 1);
  EXPECT_EQ(count(4, 4), 0);
  EXPECT_EQ(count(0.5, 1), 0);
}

TEST(CpusPerRank, IsTheSmallerOfAffinityAndQuota) {
  const Cpus cpus = range(0, 7);
  EXPECT_EQ(cpus_per_rank(cpus, {}, {4, 4}), 2);
  EXPECT_EQ(cpus_per_rank(cpus, {}, {16, 16}), 0.5);
  EXPECT_EQ(cpus_per_rank(cpus, {2, 1}, {4, 4}), 0.5);
  EXPECT_EQ(cpus_per_rank(cpus, {2, 1}, {4, 1}), 2) << "each rank in a container of its own";
  EXPECT_EQ(cpus_per_rank(cpus, {64, 1}, {4, 4}), 2);
}

TEST(WorkerPoolOptions, EachRankTakesItsPartOfTheList) {
  const Settings settings = settings_of(4, kTwoTimesFour);
  EXPECT_EQ(plan_workers(settings, {0, 2, {1}, range(4, 27)}).cpus, (Cpus{0, 1, 2, 3}));
  const WorkerPoolOptions second = plan_workers(settings, {1, 2, {1}, range(32, 55)});
  EXPECT_EQ(second.cpus, (Cpus{28, 29, 31, 32}));
  EXPECT_EQ(second.count, 4);
  EXPECT_TRUE(second.start_at_once);
}

TEST(WorkerPoolOptions, CpuListAloneSetsTheCount) {
  const WorkerPoolOptions plan = plan_workers(settings_of({}, "0-5"), {1, 3, {3}, range(0, 7)});
  EXPECT_EQ(plan.count, 2);
  EXPECT_EQ(plan.cpus, (Cpus{2, 3}));
  EXPECT_TRUE(plan.start_at_once);
}

TEST(WorkerPoolOptions, ShortCpuListPinsTheFirstWorkers) {
  const Settings settings = settings_of(2, "4,5,6");
  EXPECT_EQ(plan_workers(settings, {1, 3, {3}, range(0, 7)}).cpus, (Cpus{6}));
  EXPECT_EQ(plan_workers(settings, {2, 3, {3}, range(0, 7)}).cpus, (Cpus{}));
}

TEST(WorkerPoolOptions, ConsistentSettingsGiveNoWarning) {
  // CPUs reserved for workers, as documented; one of them is the rank's own.
  EXPECT_EQ(worker_settings_conflict(settings_of(4, kTwoTimesFour), {0, 2, {1}, range(4, 27)}), "");
  EXPECT_EQ(worker_settings_conflict(settings_of(4, kTwoTimesFour), {1, 2, {1}, range(32, 55)}),
            "");
  EXPECT_EQ(worker_settings_conflict(settings_of({}, kTwoTimesFour), {0, 4, {4}, range(0, 1)}), "");
  EXPECT_EQ(worker_settings_conflict(settings_of({}), {0, 9, {9}, range(0, 1)}), "");
  EXPECT_EQ(worker_settings_conflict(settings_of(2), {0, 2, {2}, range(0, 1)}), "");
  EXPECT_EQ(worker_settings_conflict(settings_of(0), {0, 2, {2}, range(0, 1)}), "");
}

TEST(WorkerPoolOptions, ConflictingSettingsAreNamed) {
  const std::string text =
      worker_settings_conflict(settings_of(4, "0,1,2"), {0, 2, {2}, range(4, 27)});
  for (const char* value : {"CCL_WORKER_COUNT=4", "CCL_WORKER_AFFINITY=0,1,2 ", "(4-27)", "of 8"})
    EXPECT_NE(text.find(value), std::string::npos) << text;
  EXPECT_NE(worker_settings_conflict(settings_of({}, "0,1,2"), {0, 2, {2}, range(0, 3)}), "");
  EXPECT_NE(worker_settings_conflict(settings_of(4, kTwoTimesFour), {0, 3, {3}, range(0, 55)}), "");
  const std::string crowd = worker_settings_conflict(settings_of(3), {0, 1, {1}, range(0, 1)});
  for (const char* value : {"CCL_WORKER_COUNT=3", "CCL_WORKER_AFFINITY=auto", "(0,1)"})
    EXPECT_NE(crowd.find(value), std::string::npos) << crowd;
}

// ---- the pool

struct Part {
  std::size_t begin;
  std::size_t count;
};

std::vector<Part> parts_of(WorkerPool& workers, std::size_t count, std::size_t grain_size) {
  std::mutex mutex;
  std::vector<Part> parts;
  workers.parallel_for(count, grain_size, [&](std::size_t begin, std::size_t length) {
    const std::lock_guard lock(mutex);
    parts.push_back({begin, length});
  });
  std::ranges::sort(parts, {}, &Part::begin);
  return parts;
}

/// The names of this process's worker threads, and the CPUs each may run on.
std::vector<std::pair<std::string, std::string>> worker_threads() {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    std::string name;
    for (std::string line; std::getline(status, line);) {
      const std::string value = line.substr(std::min(line.find('\t') + 1, line.size()));
      if (line.starts_with("Name:")) name = value;
      if (line.starts_with("Cpus_allowed_list:") && name.starts_with("ccl-worker-"))
        found.emplace_back(name, value);
    }
  }
  std::ranges::sort(found);
  return found;
}

/// A joined thread may stay in /proc for a moment: the kernel wakes the joining thread before it
/// removes the joined one.
bool no_worker_threads_soon() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!worker_threads().empty()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

TEST(WorkerPool, PartsStartAtGrainsAndCoverTheRange) {
  WorkerPool workers({.count = 3});
  for (const std::size_t grain_size : {1, 3, 64}) {
    for (const std::size_t count : {0, 1, 2, 3, 5, 63, 64, 127, 128, 129, 1000, 12345, 100000}) {
      std::size_t end = 0;
      const std::vector<Part> parts = parts_of(workers, count, grain_size);
      for (const Part& part : parts) {
        EXPECT_EQ(part.begin, end);
        EXPECT_EQ(part.begin % grain_size, 0U);
        EXPECT_GE(part.count, std::min(grain_size, count));
        end += part.count;
      }
      EXPECT_EQ(end, count);
      EXPECT_EQ(parts.size() > 1, count >= 2 * grain_size) << count << " by " << grain_size;
    }
  }
}

TEST(WorkerPool, WithoutWorkersTheCallerRunsTheRange) {
  WorkerPool workers({});
  const std::thread::id self = std::this_thread::get_id();
  workers.parallel_for(1000, 1, [&](std::size_t begin, std::size_t count) {
    EXPECT_EQ(std::this_thread::get_id(), self);
    EXPECT_EQ(begin, 0U);
    EXPECT_EQ(count, 1000U);
  });
  EXPECT_EQ(worker_threads().size(), 0U);
}

TEST(WorkerPool, ThreadsStartAtFirstUse) {
  WorkerPool workers({.count = 2});
  parts_of(workers, 10, 6);
  EXPECT_EQ(worker_threads().size(), 0U);
  parts_of(workers, 12, 6);
  EXPECT_EQ(worker_threads().size(), 2U);
  workers.stop();
  EXPECT_TRUE(no_worker_threads_soon());
  EXPECT_EQ(parts_of(workers, 12, 6).size(), 1U);
}

TEST(WorkerPool, WorkersRunParts) {
  WorkerPool workers({.count = 1, .start_at_once = true});
  std::atomic<bool> helped{false};
  const std::thread::id self = std::this_thread::get_id();
  // The caller finishes its first part only after a worker has run one.
  workers.parallel_for(16, 1, [&](std::size_t, std::size_t) {
    if (std::this_thread::get_id() != self) helped = true;
    while (!helped) std::this_thread::yield();
  });
  EXPECT_TRUE(helped);
}

TEST(WorkerPool, SleepingWorkersAreWokenForLargeRangesOnly) {
  WorkerPool workers({.count = 1, .start_at_once = true});
  const std::thread::id self = std::this_thread::get_id();
  std::atomic<bool> helped{false};
  const auto work_slowly = [&](std::size_t, std::size_t) {
    if (std::this_thread::get_id() != self) helped = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it is asleep
  workers.parallel_for(4, 1, work_slowly);
  EXPECT_FALSE(helped);
  workers.parallel_for(4, 1, work_slowly, /*total_count=*/WorkerPool::kMinGrainsToWake);
  EXPECT_TRUE(helped);
}

TEST(WorkerPool, BusyWorkersDoNotDelayOtherCallers) {
  WorkerPool workers({.count = 2, .start_at_once = true});
  std::atomic<bool> go_on{false};
  std::atomic<int> waiting{0};
  std::thread first([&] {
    const auto wait = [&](std::size_t, std::size_t) {
      ++waiting;
      while (!go_on) std::this_thread::yield();
    };
    workers.parallel_for(3, 1, wait, WorkerPool::kMinGrainsToWake);
  });
  while (waiting < 3) std::this_thread::yield();  // all three threads are
  EXPECT_EQ(parts_of(workers, 100, 1).size(), 1U);
  go_on = true;
  first.join();
}

TEST(WorkerPool, EightCallersVisitEachIndexOnce) {
  WorkerPool workers({.count = 3});
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 8; ++caller)
    callers.emplace_back([&, caller] {
      std::vector<int> seen;
      for (std::size_t round = 1; round <= 300; ++round) {
        const std::size_t count = round * static_cast<std::size_t>(caller + 1) % 400;
        seen.assign(count, 0);
        // Plain memory: ThreadSanitizer reports parts that are not ordered before the return.
        const auto see = [&](std::size_t begin, std::size_t length) {
          for (std::size_t i = begin; i < begin + length; ++i) ++seen[i];
        };
        workers.parallel_for(count, round % 5 + 1, see, round % 2 * 1000);
        EXPECT_TRUE(std::ranges::all_of(seen, [](int times) { return times == 1; }));
      }
    });
  for (std::thread& caller : callers) caller.join();
}

TEST(WorkerPool, StartsAndStopsRepeatedly) {
  for (int round = 0; round < 50; ++round) {
    WorkerPool workers({.count = 3, .start_at_once = round % 2 == 0});
    if (round % 3 == 0) parts_of(workers, 100, 1);
  }
  EXPECT_TRUE(no_worker_threads_soon());
}

TEST(WorkerPool, SleepingWorkersUseNoCpuTime) {
  WorkerPool workers({.count = 3, .start_at_once = true});
  parts_of(workers, 100, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto cpu_ns = [] {
    timespec used{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * 1'000'000'000 + used.tv_nsec;
  };
  const auto before = cpu_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(cpu_ns() - before, 3'000'000);
}

TEST(WorkerPool, WorkersRunOnTheirCpus) {
  const Cpus own = cpus_of_this_thread();
  const int cpu = own.back();
  WorkerPool workers({.count = 3, .cpus = {cpu, cpu}, .unpinned_cpus = own, .start_at_once = true});
  const auto threads = worker_threads();
  ASSERT_EQ(threads.size(), 3U);
  EXPECT_EQ(threads[0], (std::pair<std::string, std::string>("ccl-worker-0", std::to_string(cpu))));
  EXPECT_EQ(threads[1].second, std::to_string(cpu));
  EXPECT_EQ(threads[2].first, "ccl-worker-2");
  EXPECT_EQ(parts_of(workers, 1000, 1).size(), 32U);
}

TEST(WorkerPool, WorkersRunOutsideTheCreatorsCpus) {
  const Cpus own = cpus_of_this_thread();
  std::thread([&] {
    ASSERT_TRUE(pin(::pthread_self(), Cpus{own.front()}));
    WorkerPool workers(
        {.count = 2, .cpus = {own.back()}, .unpinned_cpus = own, .start_at_once = true});
    const auto threads = worker_threads();
    ASSERT_EQ(threads.size(), 2U);
    EXPECT_EQ(threads[0].second, std::to_string(own.back()));
    EXPECT_EQ(threads[1].second == std::to_string(own.front()), own.size() == 1);
  }).join();
}

TEST(WorkerPool, WorkersOfMissingCpusAreNotPinned) {
  const Cpus own = cpus_of_this_thread();
  WorkerPool workers(
      {.count = 2, .cpus = {4000, own[0]}, .unpinned_cpus = own, .start_at_once = true});
  const auto threads = worker_threads();
  ASSERT_EQ(threads.size(), 2U);
  EXPECT_EQ(threads[1].second, std::to_string(own[0]));
  EXPECT_EQ(threads[0].second == threads[1].second, own.size() == 1);
  EXPECT_EQ(parts_of(workers, 1000, 1).size(), 24U);
}

TEST(WorkerPool, UnavailableCpusAreFoundAndTheThreadStaysWhereItWas) {
  const Cpus own = cpus_of_this_thread();
  EXPECT_EQ(unavailable_cpus(Cpus{4000, own[0], 4001}), (Cpus{4000, 4001}));
  EXPECT_EQ(unavailable_cpus({}), Cpus());
  EXPECT_EQ(cpus_of_this_thread(), own);
}

// ---- copies by several threads

class ParallelCopy : public ::testing::TestWithParam<std::size_t> {};

TEST_P(ParallelCopy, CopyIsMemcpy) {
  WorkerPool workers({.count = 3});
  const Operation operation = barrier();
  const CollectiveTask task(operation, workers);
  std::vector<std::byte> from(GetParam());
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 >> 3);
  std::vector<std::byte> to(from.size());
  task.copy(to.data(), from.data(), from.size());
  EXPECT_EQ(to, from);
  task.copy(to.data(), to.data(), to.size());
  EXPECT_EQ(to, from);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ParallelCopy,
                         ::testing::Values(0, 1, kMinBytesPerThread - 1, kMinBytesPerThread,
                                           2 * kMinBytesPerThread - 1, 2 * kMinBytesPerThread,
                                           3 * kMinBytesPerThread + 1,
                                           40 * kMinBytesPerThread + 12345));

}  // namespace
}  // namespace tccl
