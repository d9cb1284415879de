#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>

#include "base/format.h"

namespace tccl {
namespace {

constexpr const char* kLevelNames[] = {"error", "warn", "info", "debug", "trace"};

std::atomic<LogLevel> log_level{LogLevel::warn};  // relaxed: orders nothing

/// "2026-11-18T07:33:12.345"
std::string local_time() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto since_epoch =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
  std::tm local{};
  ::localtime_r(&seconds, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &local);
  return formatted("{}.{:03}", text.data(), since_epoch.count() % 1000);
}

std::string this_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

/// A blank would shift the fields of the line.
std::string without_blanks(std::string_view name) {
  std::string text(name.empty() ? "-" : name);
  std::ranges::replace(text, ' ', '_');
  return text;
}

}  // namespace

void set_log_level(LogLevel level) noexcept { log_level.store(level, std::memory_order_relaxed); }

bool is_logged(LogLevel level) noexcept {
  return level <= log_level.load(std::memory_order_relaxed);
}

void log(LogLevel level, const LogSource& source, std::string_view text) {
  if (!is_logged(level)) return;
  static const std::string host = this_host();
  const std::string who =
      source.rank < 0 ? formatted("pid {}", ::getpid()) : formatted("rank {}", source.rank);
  const std::string line =
      formatted("tccl {} {} {} {} {}: {}\n", local_time(), host, who, without_blanks(source.group),
                kLevelNames[static_cast<std::size_t>(level)], text);
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: lines never interleave
}

}  // namespace tccl
