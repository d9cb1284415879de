// Shrinking a group on one host: after ranks were killed, and when the attempt itself fails.
// Between hosts: hosts/hosts_shrink.cc.
#include <numeric>

#include "harness.h"
#include "thread_ranks.h"

namespace faults {
namespace {

using Excluded = std::vector<int>;

void expect_sum(tccl::Communicator& comm) {
  std::vector<float> x(10'000, static_cast<float>(comm.rank() + 1));
  comm.run(tccl::allreduce(x.data(), x.data(), x.size(), DType::float32, ReduceOp::sum));
  const int sum = comm.size() * (comm.size() + 1) / 2;
  for (const float value : x) check(value == static_cast<float>(sum), "the sum");
}

std::shared_ptr<tccl::Communicator> shrink(tccl::Communicator& comm, const Excluded& excluded,
                                           tccl::Milliseconds timeout = 20s) {
  return comm.shrink(excluded, {.name = "smaller", .timeout = timeout});
}

std::string error_of_shrink(tccl::Communicator& comm, const Excluded& excluded,
                            tccl::Milliseconds timeout = 20s) {
  try {
    shrink(comm, excluded, timeout);
  } catch (const tccl::Error& error) {
    return std::string(name_of(error.code())) + " " + error.what();
  }
  throw std::runtime_error("shrink() succeeded");
}

void check_contains(const std::string& text, const std::string& part) {
  check(text.find(part) != std::string::npos, (part + " in: " + text).c_str());
}

/// Runs collectives until one fails; returns the ranks that its error names.
Excluded run_until_failure(tccl::Communicator& comm) {
  float x = 1;
  try {
    for (;;) comm.run(tccl::allreduce(&x, &x, 1, DType::float32, ReduceOp::max));
  } catch (const tccl::Error& error) {
    check(error.code() == tccl::Errc::peer_lost, error.what());
    return error.ranks();
  }
}

TEST(ShrinkProcess, SurvivorsGoOnAfterAKill) {
  constexpr int kSize = 5;
  Ranks ranks(kSize, [](Rank& rank) {
    auto world = rank.join("world");
    expect_sum(*world);
    rank.report("ready");
    const Excluded dead = run_until_failure(*world);
    auto smaller = shrink(*world, dead);
    expect_sum(*smaller);
    rank.report("goes on");
    check(smaller->size() == kSize - 1, "the size");
    check(smaller->rank() == rank.rank - (rank.rank > 2 ? 1 : 0), "the order");
    world->close();
    for (int i = 0; i < 100; ++i) expect_sum(*smaller);
  });
  ASSERT_TRUE(ranks.all_reported("ready")) << ranks.transcript();
  const double killed = ranks.kill_rank(2);
  ranks.finish();
  for (const std::size_t survivor : {0U, 1U, 3U, 4U}) {
    EXPECT_TRUE(ranks.outcomes[survivor].exited_cleanly()) << ranks.transcript();
    const auto line = ranks.outcomes[survivor].find("goes on");
    ASSERT_TRUE(line) << ranks.transcript();
    EXPECT_LT(line->time_ms - killed, 5000);
    std::printf("rank %zu went on after %.1f ms\n", survivor, line->time_ms - killed);
  }
}

TEST(ShrinkProcess, RankZeroAndTheStoreMayBeGone) {
  Ranks ranks(3, [](Rank& rank) {
    auto world = rank.join("world");
    rank.report("ready");
    auto smaller = shrink(*world, run_until_failure(*world));
    check(smaller->rank() == rank.rank - 1, "the order");
    expect_sum(*smaller);
  });
  ASSERT_TRUE(ranks.all_reported("ready")) << ranks.transcript();
  ranks.kill_rank(0);
  ranks.finish();
  for (const std::size_t survivor : {1U, 2U})
    EXPECT_TRUE(ranks.outcomes[survivor].exited_cleanly()) << ranks.transcript();
}

TEST(ShrinkProcess, ShrinksAgainAndAgainToOneRank) {
  constexpr int kSize = 4;
  Ranks ranks(kSize, [](Rank& rank) {
    auto comm = rank.join("world");
    for (int size = kSize; size > 1; --size) {
      expect_sum(*comm);
      rank.report("size " + std::to_string(size));
      const Excluded dead = run_until_failure(*comm);
      check(dead == Excluded{size - 1}, "the last rank died");
      comm = shrink(*comm, dead);
    }
    expect_sum(*comm);
    check(comm->size() == 1, "one rank is left");
  });
  for (int size = kSize; size > 1; --size) {
    const auto ready = [&] {
      for (int rank = 0; rank < size; ++rank)
        if (!ranks.outcomes[static_cast<std::size_t>(rank)].find("size " + std::to_string(size)))
          return false;
      return true;
    };
    ASSERT_TRUE(ranks.read_until(ready, 30s)) << ranks.transcript();
    ranks.kill_rank(size - 1);
  }
  ranks.finish();
  EXPECT_TRUE(ranks.outcomes[0].exited_cleanly()) << ranks.transcript();
}

/// Rank 3 is killed; later, while ranks 0 and 1 already wait in shrink(), rank 2.
TEST(ShrinkProcess, AFurtherDeathIsNamedAtOnceAndShrinkCanBeCalledAgain) {
  Ranks ranks(4, [](Rank& rank) {
    auto world = rank.join("world");
    rank.report("ready");
    const Excluded dead = run_until_failure(*world);
    if (rank.rank == 2) std::this_thread::sleep_for(60s);  // until it is killed
    rank.report("shrinks");
    const std::string error = error_of_shrink(*world, dead);
    rank.report("fails");
    check_contains(error, "peer_lost rank 2 (host ");
    check_contains(error, "died during shrink of group world (Connection closed by peer)");
    auto smaller = shrink(*world, {2, 3});
    expect_sum(*smaller);
    check(smaller->size() == 2, "the size");
  });
  ASSERT_TRUE(ranks.all_reported("ready")) << ranks.transcript();
  ranks.kill_rank(3);
  const auto wait_in_shrink = [&] {
    return ranks.outcomes[0].find("shrinks") && ranks.outcomes[1].find("shrinks");
  };
  ASSERT_TRUE(ranks.read_until(wait_in_shrink, 30s)) << ranks.transcript();
  const double killed = ranks.kill_rank(2);
  ranks.finish();
  for (const std::size_t survivor : {0U, 1U}) {
    EXPECT_TRUE(ranks.outcomes[survivor].exited_cleanly()) << ranks.transcript();
    const auto line = ranks.outcomes[survivor].find("fails");
    ASSERT_TRUE(line) << ranks.transcript();
    EXPECT_LT(line->time_ms - killed, 5000);
  }
}

void spin_for(std::chrono::microseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) continue;
}

/// A death at any moment of shrink(): all survivors have the same outcome.
TEST(ShrinkProcess, AllRanksHaveTheSameOutcomeWheneverARankIsKilled) {
  int formed = 0;
  int failed = 0;
  for (int trial = 0; trial < 60; ++trial) {
    Ranks ranks(3, [trial](Rank& rank) {
      auto world = rank.join("world");
      world->run(tccl::barrier());
      std::thread killer;
      if (rank.rank == 2) {
        killer = std::thread([trial] {
          spin_for(std::chrono::microseconds(15 * trial));
          ::kill(::getpid(), SIGKILL);
        });
        spin_for(300us);  // it dies before, during and after its call
      }
      try {
        auto same = shrink(*world, {});
        rank.report("outcome formed");
        run_until_failure(*same);
      } catch (const tccl::Error& error) {
        rank.report(std::string("outcome failed ") + error.what());
      }
      if (killer.joinable()) killer.join();
    });
    ranks.finish();
    std::string outcomes[2];  // of the survivors
    for (const std::size_t rank : {0U, 1U}) {
      const auto outcome = ranks.outcomes[rank].find("outcome");
      ASSERT_TRUE(outcome) << ranks.transcript();
      outcomes[rank] = outcome->text;
    }
    EXPECT_EQ(outcomes[0], outcomes[1]);
    ++(outcomes[0] == "outcome formed" ? formed : failed);
  }
  std::printf("formed %d times, failed %d times\n", formed, failed);
}

TEST(Shrink, WorksOnAHealthyGroupAndLeavesItAlone) {
  run_threads(3, [](int rank, const Comm& comm) {
    if (rank != 1) {
      auto smaller = shrink(*comm, {1});
      EXPECT_EQ(smaller->size(), 2);
      EXPECT_EQ(smaller->rank(), rank / 2);
      EXPECT_EQ(smaller->name(), "smaller");
      expect_sum(*smaller);
      smaller->close();
    }
    expect_sum(*comm);
  });
}

TEST(Shrink, OperationsInFlightContinueUnlessTheGroupIsAborted) {
  run_threads(3, [](int rank, const Comm& comm) {
    float x = 1;
    const auto message = rank == 0   ? comm->start(tccl::recv(&x, sizeof x, 2))
                         : rank == 2 ? nullptr
                                     : comm->start(tccl::recv(&x, sizeof x, 2));
    if (rank != 2) {
      expect_sum(*shrink(*comm, {2}));
      EXPECT_FALSE(message->done());
    }
    comm->run(tccl::barrier());
    if (rank == 2) {
      comm->run(tccl::send(&x, sizeof x, 0));
      comm->run(tccl::send(&x, sizeof x, 1));
    } else {
      message->wait();
    }
  });
}

TEST(Shrink, DifferentExcludedRanksAreNamedOnAllRanks) {
  run_threads(4, [](int rank, const Comm& comm) {
    if (rank == 3) return;
    const Excluded excluded = rank == 0 ? Excluded{2, 3} : Excluded{3};
    check_contains(error_of_shrink(*comm, excluded),
                   "mismatch shrink of group threads: the ranks exclude different ranks: rank 0 "
                   "excludes ranks 2,3; ranks 1,2 exclude rank 3");
    expect_sum(*shrink(*comm, {3}));  // and can be repeated
  });
}

TEST(Shrink, ARankThatDoesNotCallIsNamedAtTheTimeout) {
  run_threads(3, [](int rank, const Comm& comm) {
    if (rank != 2) {
      const std::string error = error_of_shrink(*comm, {}, 300ms);
      check_contains(error, "timeout shrink of group threads timed out after 0.3 s: rank 2 (host ");
      check_contains(error, "has not called it");
    }
    comm->run(tccl::barrier());
    // It comes late, so it has the outcome of the attempt that it has missed.
    if (rank == 2) check_contains(error_of_shrink(*comm, {}), "timed out after 0.3 s: rank 2");
    expect_sum(*shrink(*comm, {}));
  });
}

TEST(Shrink, ARankThatTheOthersHaveExcludedIsTold) {
  run_threads(3, [](int rank, const Comm& comm) {
    if (rank != 1) expect_sum(*shrink(*comm, {1}));
    comm->run(tccl::barrier());
    if (rank == 1)
      check_contains(error_of_shrink(*comm, {0}),
                     "mismatch shrink of group threads: rank 1 excludes rank 0, but the others "
                     "have formed the group without rank 1");
    comm->run(tccl::barrier());
  });
}

TEST(Shrink, ARankThatHasMissedSeveralAttemptsIsTold) {
  run_threads(3, [](int rank, const Comm& comm) {
    if (rank != 2) {
      check_contains(error_of_shrink(*comm, {}, 300ms), "rank 2 (host ");
      expect_sum(*shrink(*comm, {2}));
    }
    comm->run(tccl::barrier());
    if (rank == 2) {
      check_contains(error_of_shrink(*comm, {}), "rank 2 is late: this is its call number 1");
      check_contains(error_of_shrink(*comm, {}), "the others have formed the group without rank 2");
    }
    expect_sum(*shrink(*comm, {}));
  });
}

TEST(Shrink, ARankThatHasLeftTheGroupIsNamed) {
  run_threads(3, [](int rank, const Comm& comm) {
    if (rank == 2) return comm->close();
    check_contains(error_of_shrink(*comm, {}), "peer_lost rank 2 (host ");
    expect_sum(*shrink(*comm, {2}));
  });
}

TEST(Shrink, InvalidArgumentsAreRefusedHereAlone) {
  run_threads(2, [](int rank, const Comm& comm) {
    const int other = 1 - rank;
    check_contains(error_of_shrink(*comm, {2}), "rank 2 to exclude is not in a group of 2 ranks");
    check_contains(error_of_shrink(*comm, {rank}), "cannot exclude itself");
    check_contains(error_of_shrink(*comm, {other, other}), "is excluded twice");
    expect_sum(*shrink(*comm, {}));
    comm->close();
    check_contains(error_of_shrink(*comm, {}), "aborted group threads is closed");
  });
}

TEST(Shrink, CloseByAnotherThreadEndsIt) {
  run_threads(2, [](int rank, const Comm& comm) {
    if (rank == 1) return comm->run(tccl::barrier());
    std::string error;
    std::thread caller([&] { error = error_of_shrink(*comm, {}); });
    std::this_thread::sleep_for(50ms);
    comm->run(tccl::barrier());
    comm->close();
    caller.join();
    check_contains(error, "aborted");
  });
}

TEST(ShrinkProcess, NothingLeaks) {
  Ranks ranks(2, [](Rank& rank) {
    auto world = rank.join("world");
    const auto once = [&] {
      auto comm = shrink(*world, {});
      expect_sum(*comm);
      comm->close();
    };
    for (int i = 0; i < 5; ++i) once();
    const int descriptors = count_entries("/proc/self/fd");
    const int threads = count_entries("/proc/self/task");
    for (int i = 0; i < 200; ++i) once();
    check(count_entries("/proc/self/fd") == descriptors, "descriptors");
    check(count_entries("/proc/self/task") == threads, "threads");
  });
  ranks.expect_all_exit_cleanly();
}

}  // namespace
}  // namespace faults
