// The program has the definitions of base/old_libraries.cc in place of those of libstdc++ and glibc.
#include "base/old_libraries.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tccl {
namespace {

using namespace std::chrono_literals;
using Steady = std::chrono::steady_clock;

/// Counts the objects of it that exist.
struct CountedError : std::runtime_error {
  CountedError() : std::runtime_error("counted") { ++alive; }
  CountedError(const CountedError& other) : std::runtime_error(other) { ++alive; }
  ~CountedError() override { --alive; }
  static inline int alive = 0;
};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CountedError& caught) {
    return caught.what();
  }
}

TEST(OldLibraries, AnExceptionLivesAsLongAsACopyOfItsPointer) {
  std::exception_ptr first = std::make_exception_ptr(CountedError());
  {
    std::vector<std::exception_ptr> copies(1000, first);
    first = nullptr;
    EXPECT_EQ(CountedError::alive, 1);
    EXPECT_EQ(text_of(copies.back()), "counted");
    while (copies.size() > 1) copies.erase(copies.begin() + copies.size() / 2);
    EXPECT_EQ(CountedError::alive, 1);
    EXPECT_EQ(text_of(copies.front()), "counted");
    copies.front() = std::exception_ptr();
    EXPECT_EQ(CountedError::alive, 0);
  }
  EXPECT_EQ(CountedError::alive, 0);
}

TEST(OldLibraries, TooLargeAnArrayIsRefused) {
  EXPECT_THROW((void)std::allocator<long>().allocate(std::numeric_limits<std::size_t>::max()),
               std::bad_array_new_length);
}

TEST(OldLibraries, SharedPointersCountAtomically) {
  const auto shared = std::make_shared<int>(1);
  const auto copy_often = [&shared] {
    for (int i = 0; i < 100000; ++i) const std::shared_ptr<int> copy = shared;
  };
  std::thread first(copy_often), second(copy_often);
  first.join();
  second.join();
  EXPECT_EQ(shared.use_count(), 1);
}

TEST(OldLibraries, ANotificationEndsAWait) {
  std::mutex mutex;
  std::condition_variable changed;
  int state = 0;
  std::thread notifier([&] {
    for (int next : {1, 2}) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return state == 10 * (next - 1); });
      state = next;
      changed.notify_all();
    }
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return state == 1; });
  state = 10;
  changed.notify_all();
  EXPECT_TRUE(changed.wait_until(lock, Steady::now() + 100s, [&] { return state == 2; }));
  lock.unlock();
  notifier.join();
}

TEST(OldLibraries, AWaitEndsAtItsDeadlineOnTheSteadyClock) {
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  const auto deadline = Steady::now() + 30ms;
  EXPECT_FALSE(never.wait_until(lock, deadline, [] { return false; }));
  EXPECT_GE(Steady::now(), deadline);
}

timespec steady_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now;
}

bool is_before(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

/// What happens on glibc before 2.30.
TEST(OldLibraries, AWaitOnTheWallClockEndsAtItsDeadline) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t never = PTHREAD_COND_INITIALIZER;
  ::pthread_mutex_lock(&mutex);
  const timespec deadline = moved_to_clock({0, 30'000'000}, {0, 0}, steady_now());
  int status = 0;
  while (status == 0) status = wait_on_wall_clock(&never, &mutex, CLOCK_MONOTONIC, &deadline);
  EXPECT_EQ(status, ETIMEDOUT);
  // Not to the nanosecond, since the wall clock may be slewed.
  EXPECT_TRUE(is_before(deadline, moved_to_clock({0, 10'000'000}, {0, 0}, steady_now())));
  ::pthread_mutex_unlock(&mutex);
}

TEST(OldLibraries, ADeadlineOnAnotherClock) {
  const auto moved = [](timespec deadline, timespec now, timespec other_now) {
    const timespec result = moved_to_clock(deadline, now, other_now);
    return std::pair(result.tv_sec, result.tv_nsec);
  };
  using Pair = std::pair<time_t, long>;
  EXPECT_EQ(moved({12, 500}, {10, 200}, {1000, 50}), Pair(1002, 350));
  EXPECT_EQ(moved({12, 999'999'999}, {10, 0}, {1000, 2}), Pair(1003, 1));  // carry
  EXPECT_EQ(moved({12, 0}, {10, 999'999'999}, {1000, 1}), Pair(1001, 2));  // borrow
  EXPECT_EQ(moved({9, 0}, {10, 0}, {1000, 0}), Pair(999, 0));              // in the past
  EXPECT_EQ(moved({12, 500'000'000}, {10, 0}, {1000, 500'000'000}), Pair(1003, 0));
}

TEST(OldLibraries, StatusOfADescriptor) {
  char name[] = "/tmp/tccl-status-XXXXXX";
  const int fd = ::mkstemp(name);
  ASSERT_EQ(::write(fd, "12345", 5), 5);
  struct stat status {};
  EXPECT_EQ(::fstat(fd, &status), 0);
  EXPECT_EQ(status.st_size, 5);
  EXPECT_TRUE(S_ISREG(status.st_mode));
  ::close(fd);
  ::unlink(name);
  EXPECT_EQ(::fstat(-1, &status), -1);
  EXPECT_EQ(errno, EBADF);
}

}  // namespace
}  // namespace tccl
