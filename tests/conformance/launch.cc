#include "launch.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace conformance {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPollInterval = std::chrono::milliseconds(5);

/// Expires if no rank makes progress.
class Watchdog {
 public:
  explicit Watchdog(const Launch& launch) : launch_(launch) {}

  [[nodiscard]] bool has_expired() {
    const std::uint64_t progress = launch_.state.progress();
    if (progress != last_progress_) {
      last_progress_ = progress;
      last_change_ = Clock::now();
    }
    return Clock::now() - last_change_ > std::chrono::seconds(launch_.watchdog_s);
  }

  void report() const {
    std::string text = "FAILED no progress for " + std::to_string(launch_.watchdog_s) + " s; in:";
    for (int rank = 0; rank < launch_.ranks; ++rank) {
      const std::uint64_t begun = launch_.state.begun(rank);
      text += " rank " + std::to_string(rank) + " ";
      text += begun == 0 ? "start-up;" : "case " + std::to_string(begun - 1) + ";";
    }
    std::puts(text.c_str());
    std::fflush(stdout);
  }

 private:
  const Launch& launch_;
  std::uint64_t last_progress_ = 0;
  Clock::time_point last_change_ = Clock::now();
};

struct Child {
  int rank;
  pid_t pid;
  bool running = true;
};

[[noreturn]] void run_child(const Launch& launch, int rank, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  launch.body(rank);
  // exit() like main(): static destructors are tested, too.
  std::exit(launch.state.failures(rank) == 0 ? 0 : 1);
}

Child start_child(const Launch& launch, int rank) {
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("fork: " + std::string(std::strerror(errno)));
  if (pid == 0) run_child(launch, rank, parent);
  return {rank, pid};
}

std::string exit_description(int status) {
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

/// Reaps exited children. Returns false if one of them failed.
bool reap(std::vector<Child>& children) {
  bool good = true;
  for (Child& child : children) {
    int status = 0;
    if (!child.running || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    child.running = false;
    if (status == 0) continue;
    good = false;
    std::printf("rank %d ended with %s\n", child.rank, exit_description(status).c_str());
    std::fflush(stdout);
  }
  return good;
}

bool any_running(const std::vector<Child>& children) {
  for (const Child& child : children) {
    if (child.running) return true;
  }
  return false;
}

void kill_all(const std::vector<Child>& children) {
  for (const Child& child : children) {
    if (!child.running) continue;
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
  }
}

}  // namespace

bool run_as_processes(const Launch& launch) {
  std::fflush(stdout);  // children would print it again
  std::vector<Child> children;
  for (int rank = 0; rank < launch.ranks; ++rank) children.push_back(start_child(launch, rank));
  Watchdog watchdog(launch);
  bool good = true;
  while (any_running(children)) {
    good = reap(children) && good;
    if (watchdog.has_expired()) {
      watchdog.report();
      kill_all(children);
      return false;
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  return good;
}

bool run_as_threads(const Launch& launch) {
  std::atomic<int> running = launch.ranks;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < launch.ranks; ++rank) {
    threads.emplace_back([&launch, &running, rank] {
      launch.body(rank);
      running.fetch_sub(1, std::memory_order_relaxed);
    });
  }
  Watchdog watchdog(launch);
  while (running.load(std::memory_order_relaxed) > 0) {
    if (watchdog.has_expired()) {
      watchdog.report();
      std::_Exit(1);
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  for (std::thread& thread : threads) thread.join();
  return true;
}

}  // namespace conformance
