// Ranks as real processes, forked from a test that has no threads of its own.
//
//   Ranks ranks(2, [](Rank& rank) {
//     auto comm = rank.join("world");
//     ...
//     rank.report("done");
//   });
//   ranks.expect_all_exit_cleanly();
//
// An exception of the body is reported as the line "error <code> <text>". Every wait is bounded.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tccl/tccl.h"

namespace faults {

using namespace std::chrono_literals;
using tccl::DType;
using tccl::ReduceOp;

inline double now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

/// The child's side.
class Rank {
 public:
  Rank(int rank, int size, std::string directory, int pipe)
      : rank(rank), size(size), directory_(std::move(directory)), pipe_(pipe) {}

  std::shared_ptr<tccl::Context> context() {
    if (!context_) context_ = tccl::Context::create();
    return context_;
  }
  [[nodiscard]] auto store(const std::string& name) const {
    return tccl::file_store(directory_ + "/" + name);
  }
  std::shared_ptr<tccl::Communicator> join(const std::string& name,
                                           tccl::Milliseconds timeout = 20s,
                                           std::uint32_t first_sequence = 1) {
    return tccl::Communicator::create(
        context(), *store(name), rank, size,
        {.name = name, .timeout = timeout, .first_sequence = first_sequence});
  }
  /// A line for the parent; the time is on a clock that all processes share.
  void report(const std::string& text) const {
    const std::string line = std::to_string(now_ms()) + " " + text + "\n";
    ASSERT_EQ(::write(pipe_, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  }

  const int rank;
  const int size;

 private:
  std::string directory_;
  int pipe_;
  std::shared_ptr<tccl::Context> context_;
};

struct Line {
  double time_ms;
  std::string text;
};

struct Outcome {
  pid_t pid = -1;
  int pipe = -1;
  std::string unread;
  std::vector<Line> lines;
  std::optional<int> status;  // as from waitpid

  [[nodiscard]] std::optional<Line> find(const std::string& start) const {
    for (const Line& line : lines)
      if (line.text.starts_with(start)) return line;
    return std::nullopt;
  }
  [[nodiscard]] bool exited_cleanly() const { return status && *status == 0; }
};

inline int run_body(Rank& rank, const std::function<void(Rank&)>& body) {
  try {
    body(rank);
    return ::testing::Test::HasFailure() ? 3 : 0;
  } catch (const tccl::Error& error) {
    rank.report("error " + std::string(name_of(error.code())) + " " + error.what());
    return 2;
  } catch (const std::exception& error) {
    rank.report(std::string("exception ") + error.what());
    return 4;
  }
}

/// The parent's side: a job of `size` ranks.
class Ranks {
 public:
  Ranks(int size, const std::function<void(Rank&)>& body) {
    char name[] = "/tmp/tccl-test-XXXXXX";
    directory_ = ::mkdtemp(name);
    for (int rank = 0; rank < size; ++rank) start(rank, size, body);
  }
  ~Ranks() {
    for (Outcome& outcome : outcomes) {
      if (!outcome.status) ::kill(outcome.pid, SIGKILL);
      if (!outcome.status) ::waitpid(outcome.pid, nullptr, 0);
      if (outcome.pipe >= 0) ::close(outcome.pipe);
    }
    std::filesystem::remove_all(directory_);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Reads the lines of the ranks until `enough` or until the limit; false at the limit.
  bool read_until(const std::function<bool()>& enough, std::chrono::milliseconds limit) {
    const double end = now_ms() + static_cast<double>(limit.count());
    while (!enough()) {
      const double left = end - now_ms();
      if (left <= 0) return false;
      read_some(static_cast<int>(std::min(left, 20.0)) + 1);
    }
    return true;
  }
  bool all_reported(const std::string& start, std::chrono::milliseconds limit = 30s) {
    return read_until(
        [&] {
          return std::ranges::all_of(outcomes,
                                     [&](const Outcome& o) { return o.find(start).has_value(); });
        },
        limit);
  }
  /// Waits for the end of all ranks but `except`; fails the test if one hangs.
  void finish(std::chrono::milliseconds limit = 40s, int except = -1) {
    const bool ended = read_until(
        [&] {
          reap();
          for (std::size_t i = 0; i < outcomes.size(); ++i)
            if (static_cast<int>(i) != except && !outcomes[i].status) return false;
          return true;
        },
        limit);
    EXPECT_TRUE(ended) << "a rank hangs\n" << transcript();
    read_some(0);
  }
  void expect_all_exit_cleanly(std::chrono::milliseconds limit = 40s) {
    finish(limit);
    for (const Outcome& outcome : outcomes) EXPECT_TRUE(outcome.exited_cleanly()) << transcript();
  }

  double kill_rank(int rank, int signal = SIGKILL) {
    const double time = now_ms();
    ::kill(outcomes[static_cast<std::size_t>(rank)].pid, signal);
    return time;
  }

  [[nodiscard]] std::string transcript() const {
    std::string text;
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      const auto& o = outcomes[rank];
      text += "rank " + std::to_string(rank) + ": status " +
              (o.status ? std::to_string(*o.status) : std::string("running")) + "\n";
      for (const Line& line : o.lines) text += "  " + line.text + "\n";
    }
    return text;
  }

  std::vector<Outcome> outcomes;

 private:
  void start(int rank, int size, const std::function<void(Rank&)>& body) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::setsid();  // like torchrun
      for (const Outcome& earlier : outcomes) ::close(earlier.pipe);
      ::close(ends[0]);
      int code = 0;
      {
        Rank self(rank, size, directory_ + "/store", ends[1]);
        code = run_body(self, body);
      }
      std::fflush(nullptr);
      ::_exit(code);
    }
    ::close(ends[1]);
    outcomes.push_back({.pid = pid, .pipe = ends[0], .unread = {}, .lines = {}, .status = {}});
  }

  void read_some(int timeout_ms) {
    std::vector<pollfd> entries;
    for (const Outcome& o : outcomes) entries.push_back({o.pipe, POLLIN, 0});
    if (::poll(entries.data(), entries.size(), timeout_ms) <= 0) return;
    bool only_ends = true;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = ::read(outcomes[i].pipe, buffer, sizeof buffer);
      if (got > 0) {
        only_ends = false;
        outcomes[i].unread.append(buffer, static_cast<std::size_t>(got));
      }
      split_lines(outcomes[i]);
    }
    if (only_ends) std::this_thread::sleep_for(1ms);  // a closed pipe is always readable
  }

  static void split_lines(Outcome& o) {
    for (std::size_t end; (end = o.unread.find('\n')) != std::string::npos;) {
      const std::string line = o.unread.substr(0, end);
      o.unread.erase(0, end + 1);
      const std::size_t space = line.find(' ');
      o.lines.push_back({std::stod(line.substr(0, space)), line.substr(space + 1)});
    }
  }

  void reap() {
    for (Outcome& o : outcomes) {
      int status = 0;
      if (!o.status && ::waitpid(o.pid, &status, WNOHANG) == o.pid) o.status = status;
    }
  }

  std::string directory_;
};

/// Of /proc/self/fd, for example: to detect leaks.
inline int count_entries(const char* directory) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

inline void check(bool good, const char* what) {
  if (!good) throw std::runtime_error(std::string("check failed: ") + what);
}

}  // namespace faults
