// Log lines: their format, and which levels are written.
#include "base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace tccl {
namespace {

/// What `write` writes to stderr, at this level.
template <class Write>
std::vector<std::string> lines_of(LogLevel level, Write write) {
  set_log_level(level);
  ::testing::internal::CaptureStderr();
  write();
  std::istringstream text(::testing::internal::GetCapturedStderr());
  set_log_level(LogLevel::warn);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

const std::string kHead = R"(tccl \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} \S+ )";

TEST(Log, ALineHasTimeHostRankGroupAndLevel) {
  const auto lines = lines_of(LogLevel::warn, [] {
    log(LogLevel::warn, {.rank = 3, .group = "world"}, "first");
    log(LogLevel::error, {.rank = 0, .group = "my group"}, "second");
    log_warning("third");
    log_warning("fourth", 7);
  });
  ASSERT_EQ(lines.size(), 4U);
  const std::string pid = std::to_string(::getpid());
  EXPECT_TRUE(std::regex_match(lines[0], std::regex(kHead + "rank 3 world warn: first")));
  EXPECT_TRUE(std::regex_match(lines[1], std::regex(kHead + "rank 0 my_group error: second")));
  EXPECT_TRUE(std::regex_match(lines[2], std::regex(kHead + "pid " + pid + " - warn: third")));
  EXPECT_TRUE(std::regex_match(lines[3], std::regex(kHead + "rank 7 - warn: fourth")));
}

TEST(Log, LevelsAboveTheChosenOneAreNotWritten) {
  for (int chosen = 0; chosen < 5; ++chosen) {
    const auto lines = lines_of(static_cast<LogLevel>(chosen), [] {
      for (int level = 0; level < 5; ++level) log(static_cast<LogLevel>(level), {}, "x");
    });
    EXPECT_EQ(lines.size(), static_cast<std::size_t>(chosen) + 1);
  }
}

TEST(Log, LinesOfSeveralThreadsDoNotInterleave) {
  constexpr int kThreads = 4, kLines = 200;
  const std::string text(500, 'x');
  const auto lines = lines_of(LogLevel::warn, [&] {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kThreads; ++rank)
      threads.emplace_back([&, rank] {
        for (int i = 0; i < kLines; ++i) log_warning(text, rank);
      });
    for (std::thread& thread : threads) thread.join();
  });
  ASSERT_EQ(lines.size(), std::size_t{kThreads} * kLines);
  const std::regex format(kHead + R"(rank \d - warn: x{500})");
  for (const std::string& line : lines) EXPECT_TRUE(std::regex_match(line, format)) << line;
}

}  // namespace
}  // namespace tccl
