// Ranks whose system allows them no more threads, descriptors or memory: they fail with a text that
// names the limit, the other ranks with the same text, and none waits for ever.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "base/fd.h"
#include "free_port.h"
#include "harness.h"

namespace faults {
namespace {

/// The ranks of a job that belongs to an ordinary user: root may start threads without limit.
class LimitsProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become a user without other processes";
  }

  std::shared_ptr<tccl::Store> store_of(const Rank& rank) const {
    return tccl::tcp_store("127.0.0.1", port_, rank.rank == 0, 10s);
  }
  std::shared_ptr<tccl::Communicator> join(Rank& rank, tccl::Store& store) const {
    return tccl::Communicator::create(rank.context(), store, rank.rank, rank.size,
                                      {.name = "world", .timeout = 10s});
  }
  static void become_ordinary_user() { check(::setuid(65534) == 0, "setuid"); }
  static void limit(int resource, rlim_t value) {
    const rlimit limits{.rlim_cur = value, .rlim_max = value};
    check(::setrlimit(resource, &limits) == 0, "setrlimit");
  }

  /// Rank 1 reports why it cannot start; the other ranks fail with the same text.
  static void expect_all_fail_with(Ranks& ranks, const std::vector<std::string>& parts) {
    ranks.finish();
    for (const int rank : {0, 1, 2}) {
      const Outcome& outcome = ranks.outcomes[static_cast<std::size_t>(rank)];
      const auto error = outcome.find("error system");
      ASSERT_TRUE(error) << ranks.transcript();
      for (const std::string& part : parts)
        EXPECT_NE(error->text.find(part), std::string::npos) << part << "\n" << error->text;
      if (rank != 1) {
        EXPECT_NE(error->text.find(kPrefix), std::string::npos) << error->text;
      }
      EXPECT_LT(error->time_ms - outcome.find("start")->time_ms, 5000);
    }
  }

  /// Rank 1 reaches a limit before it creates its context.
  void start_with_limit(const std::function<void()>& reach_limit,
                        const std::vector<std::string>& parts) {
    Ranks ranks(3, [&](Rank& rank) {
      auto store = store_of(rank);
      become_ordinary_user();
      rank.report("start");
      if (rank.rank == 1) {
        reach_limit();
        try {
          rank.context();
        } catch (const tccl::Error& error) {
          tccl::Communicator::report_failed_start(*store, 1, 3, {.timeout = 10s}, error.what());
          throw;
        }
      }
      try {
        join(rank, *store);
      } catch (const tccl::Error&) {
        if (rank.rank == 0) std::this_thread::sleep_for(500ms);  // serve the store
        throw;
      }
    });
    expect_all_fail_with(ranks, parts);
  }

  const std::uint16_t port_ = free_port();
  static constexpr const char* kPrefix = "init of group world: rank 1 (host ";
};

TEST_F(LimitsProcess, StartedOperationsCompleteAlthoughNoThreadCanBeStarted) {
  Ranks ranks(2, [&](Rank& rank) {
    auto store = store_of(rank);
    become_ordinary_user();
    auto world = join(rank, *store);
    limit(RLIMIT_NPROC, 1);
    float x = 1;
    int in = 0;
    int out = rank.rank;
    const auto sum = world->start(tccl::allreduce(&x, &x, 1, DType::float32, ReduceOp::sum));
    const auto send = world->start(tccl::send(&out, sizeof out, 1 - rank.rank));
    const auto recv = world->start(tccl::recv(&in, sizeof in, 1 - rank.rank));
    std::atomic<int> callbacks{0};
    for (const auto& work : {sum, send, recv}) work->on_done([&] { ++callbacks; });
    // Nobody waits: the threads of the context do all of it.
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (callbacks < 3) {
      check(std::chrono::steady_clock::now() < end, "the operations complete");
      std::this_thread::sleep_for(1ms);
    }
    check(x == 2 && in == 1 - rank.rank, "the results");
    if (rank.rank == 0) world->run(tccl::recv(&in, sizeof in, 1));  // serve the store
    if (rank.rank == 1) world->run(tccl::send(&out, sizeof out, 0));
  });
  ranks.expect_all_exit_cleanly();
}

/// All memory that malloc() still has under RLIMIT_AS = 0.
class ExhaustedMemory {
 public:
  ExhaustedMemory() {
    ::getrlimit(RLIMIT_AS, &before_);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    check(::setrlimit(RLIMIT_AS, &none) == 0, "setrlimit");
    for (std::size_t bytes = 1 << 20; bytes >= sizeof(Block); bytes /= 2)
      while (auto* block = static_cast<Block*>(std::malloc(bytes))) {
        block->next = first_;
        first_ = block;
      }
  }
  ~ExhaustedMemory() {
    ::setrlimit(RLIMIT_AS, &before_);
    while (first_ != nullptr) std::free(std::exchange(first_, first_->next));
  }
  ExhaustedMemory(const ExhaustedMemory&) = delete;
  ExhaustedMemory& operator=(const ExhaustedMemory&) = delete;

 private:
  struct Block {
    Block* next;
  };
  rlimit before_{};
  Block* first_ = nullptr;
};

TEST_F(LimitsProcess, AMessageThatArrivesWithoutMemoryIsReceivedLater) {
  Ranks ranks(2, [&](Rank& rank) {
    auto world = rank.join("world", 10s);
    world->run(tccl::barrier());
    int message = 7;
    if (rank.rank == 0) {
      world->run(tccl::barrier());
      world->run(tccl::send(&message, sizeof message, 1));  // wakes the progress thread of rank 1
      std::this_thread::sleep_for(300ms);
      world->run(tccl::barrier());
    } else {
      {
        const ExhaustedMemory exhausted;
        world->run(tccl::barrier());
        world->run(tccl::barrier());
      }
      message = 0;
      world->run(tccl::recv(&message, sizeof message, 0));
      check(message == 7, "the message");
    }
  });
  ranks.expect_all_exit_cleanly();
}

TEST_F(LimitsProcess, NoThreads) {
  start_with_limit([] { limit(RLIMIT_NPROC, 1); }, {"cannot start ", "RLIMIT_NPROC", "pids.max"});
}

TEST_F(LimitsProcess, NoThreadsForWorkersIsAWarningThatNamesRankAndGroup) {
  const std::string path = "/tmp/tccl-workers-" + std::to_string(::getpid());
  Ranks ranks(1, [&](Rank& rank) {
    ::setenv("CCL_WORKER_COUNT", "2", 1);
    const int log = ::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    check(::dup2(log, STDERR_FILENO) >= 0, "stderr");
    auto store = store_of(rank);  // has a thread, and so has the context
    rank.context();
    become_ordinary_user();
    limit(RLIMIT_NPROC, 1);
    tccl::Communicator::create(rank.context(), *store, 0, 1, {.name = "tp", .timeout = 10s});
  });
  ranks.expect_all_exit_cleanly();
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  EXPECT_NE(text.str().find(" rank 0 tp warn: only 0 of 2 worker threads could be started: "),
            std::string::npos)
      << text.str();
}

TEST_F(LimitsProcess, NoAddressSpace) {
  start_with_limit([] { limit(RLIMIT_AS, rlim_t{1} << 30); },
                   {"CCL_SHARED_BYTES", "Cannot allocate memory"});
}

/// Forms a group with `available` free descriptors on the victim. Returns the error, or nothing.
std::string error_of_round(Rank& rank, int victim, int available) {
  rlimit limits{};
  check(::getrlimit(RLIMIT_NOFILE, &limits) == 0, "getrlimit");
  const rlimit normal = limits;
  if (rank.rank == victim) {
    const tccl::Fd lowest(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    limits.rlim_cur = static_cast<rlim_t>(lowest.get() + available);
    check(::setrlimit(RLIMIT_NOFILE, &limits) == 0, "setrlimit");
  }
  std::string problem;
  const tccl::Communicator::Options options{.name = "world", .timeout = 10s};
  auto store = tccl::file_store("/tmp/tccl-limits-" + std::to_string(::getppid()) + "/" +
                                std::to_string(available));
  try {
    std::shared_ptr<tccl::Context> context;
    try {
      context = tccl::Context::create();
    } catch (const tccl::Error& error) {
      tccl::Communicator::report_failed_start(*store, rank.rank, rank.size, options, error.what());
      throw;
    }
    tccl::Communicator::create(context, *store, rank.rank, rank.size, options)
        ->run(tccl::barrier());
  } catch (const tccl::Error& error) {
    problem = error.what();
  }
  check(::setrlimit(RLIMIT_NOFILE, &normal) == 0, "setrlimit");
  return problem;
}

/// Whichever step of forming a group finds no free descriptor.
void expect_every_shortage_is_named(int victim) {
  const std::string directory = "/tmp/tccl-limits-" + std::to_string(::getpid());
  Ranks ranks(3, [&](Rank& rank) {
    for (int available = 3; available <= 30; available += 3)
      rank.report("with " + std::to_string(available) + ": " +
                  error_of_round(rank, victim, available));
  });
  ranks.expect_all_exit_cleanly(90s);
  std::filesystem::remove_all(directory);
  std::map<int, int> failures;  // by available descriptors: how many ranks have failed
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (const Line& line : ranks.outcomes[rank].lines) {
      if (line.text.ends_with(": ")) continue;
      ++failures[std::stoi(line.text.substr(std::string("with ").size()))];
      for (const std::string& part :
           {static_cast<int>(rank) == victim ? "" : "rank " + std::to_string(victim) + " (host ",
            std::string("Too many open files: the limit of this process is "),
            std::string("(RLIMIT_NOFILE), `ulimit -n` raises it")})
        EXPECT_NE(line.text.find(part), std::string::npos) << "rank " << rank << " " << line.text;
    }
  }
  // Below a threshold all ranks fail, above it none.
  bool enough = false;
  for (int available = 3; available <= 30; available += 3) {
    enough |= failures[available] == 0;
    EXPECT_EQ(failures[available], enough ? 0 : 3) << available << "\n" << ranks.transcript();
  }
  EXPECT_TRUE(enough);
  EXPECT_EQ(failures[3], 3);
}

TEST(DescriptorsProcess, EveryShortageOfRank0IsNamed) { expect_every_shortage_is_named(0); }
TEST(DescriptorsProcess, EveryShortageOfAnotherRankIsNamed) { expect_every_shortage_is_named(1); }

TEST_F(LimitsProcess, NoDescriptors) {
  start_with_limit(
      [] {
        // The connection to the store takes one.
        const int lowest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
        limit(RLIMIT_NOFILE, static_cast<rlim_t>(lowest) + 2);
      },
      {"Too many open files: the limit of this process is ",
       "(RLIMIT_NOFILE), which only an administrator can raise: it is the hard limit"});
}

}  // namespace
}  // namespace faults
