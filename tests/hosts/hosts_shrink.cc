// shrink() between hosts. How to run it: ranks_on_hosts.h.
#include "ranks_on_hosts.h"

namespace faults {
namespace {

/// Kills `victims` in the middle of collectives; the survivors shrink the group and go on. Ranks of
/// a host that loses all of its ranks are excluded, too.
void shrink_after_kills(const std::vector<int>& hosts, const std::vector<int>& victims) {
  Ranks ranks = start_on_hosts(hosts, [=](Rank& rank) {
    auto world = rank.join("world");
    expect_sum(*world);
    rank.report("ready");
    std::vector<float> x(1000);
    error_text_of([&] {
      for (;;)
        world->run(tccl::allreduce(x.data(), x.data(), x.size(), DType::float32, ReduceOp::sum));
    });
    auto smaller = world->shrink(victims, {.name = "smaller", .timeout = 20s});
    expect_sum(*smaller);
    rank.report("goes on");
    check(smaller->size() == rank.size - static_cast<int>(victims.size()), "the size");
    const auto before =
        std::ranges::count_if(victims, [&](int victim) { return victim < rank.rank; });
    check(smaller->rank() == rank.rank - before, "the order");
    world->close();
    for (int i = 0; i < 20; ++i) expect_sum(*smaller);
    smaller->run(tccl::barrier());
  });
  ASSERT_TRUE(ranks.all_reported("ready")) << ranks.transcript();
  double killed = 0;
  for (const int victim : victims) killed = ranks.kill_rank(victim);
  ranks.finish();
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (std::ranges::find(victims, static_cast<int>(rank)) != victims.end()) continue;
    EXPECT_TRUE(ranks.outcomes[rank].exited_cleanly()) << ranks.transcript();
    const auto line = ranks.outcomes[rank].find("goes on");
    ASSERT_TRUE(line) << ranks.transcript();
    EXPECT_LT(line->time_ms - killed, 10'000);  // the goal is 1000
    std::printf("rank %zu went on after %.0f ms\n", rank, line->time_ms - killed);
  }
}

TEST(Hosts, ShrinkWithoutAKilledRank) { shrink_after_kills({0, 0, 1, 1}, {3}); }
TEST(Hosts, ShrinkWithoutRankZero) { shrink_after_kills({0, 0, 1, 1}, {0}); }
TEST(Hosts, ShrinkWithoutTheFirstRankOfEachHost) { shrink_after_kills({0, 0, 1, 1}, {0, 2}); }
TEST(Hosts, ShrinkToOneHost) { shrink_after_kills({0, 0, 1}, {2}); }
TEST(Hosts, ShrinkToTheOtherHost) { shrink_after_kills({0, 1, 1}, {0}); }
TEST(Hosts, ShrinkOnInterleavedHosts) { shrink_after_kills({0, 1, 0, 1, 0}, {1, 4}); }

/// Rank 3 dies when ranks 0 and 1 of the other host already wait in shrink().
TEST(Hosts, AFurtherDeathDuringShrinkIsNamedOnEveryHost) {
  Ranks ranks = start_on_hosts({0, 0, 1, 1}, [](Rank& rank) {
    auto world = rank.join("world");
    expect_sum(*world);
    if (rank.rank == 3) {
      rank.report("shrinks");
      std::this_thread::sleep_for(60s);
    }
    rank.report("shrinks");
    const std::string error =
        error_text_of([&] { world->shrink({}, {.name = "same", .timeout = 20s}); });
    rank.report("fails");
    check(error.find("rank 3 (host ") != std::string::npos, error.c_str());
    check(error.find("died during shrink of group world") != std::string::npos, error.c_str());
    expect_sum(*world->shrink({3}, {.name = "smaller", .timeout = 20s}));
  });
  ASSERT_TRUE(ranks.all_reported("shrinks")) << ranks.transcript();
  const double killed = ranks.kill_rank(3);
  ranks.finish();
  for (const std::size_t rank : {0U, 1U, 2U}) {
    EXPECT_TRUE(ranks.outcomes[rank].exited_cleanly()) << ranks.transcript();
    EXPECT_LT(ranks.outcomes[rank].find("fails")->time_ms - killed, 10'000);
  }
}

TEST(Hosts, ACoordinatorThatDiesDuringShrinkIsNamedOnEveryHost) {
  Ranks ranks = start_on_hosts({0, 0, 1, 1}, [](Rank& rank) {
    auto world = rank.join("world");
    expect_sum(*world);
    rank.report("shrinks");
    if (rank.rank == 2) std::this_thread::sleep_for(60s);
    const std::string error =
        error_text_of([&] { world->shrink({}, {.name = "same", .timeout = 20s}); });
    check(error.find("rank 2 (host ") != std::string::npos, error.c_str());
    expect_sum(*world->shrink({2}, {.name = "smaller", .timeout = 20s}));
  });
  ASSERT_TRUE(ranks.all_reported("shrinks")) << ranks.transcript();
  ranks.kill_rank(2);
  ranks.finish();
  for (const std::size_t rank : {0U, 1U, 3U})
    EXPECT_TRUE(ranks.outcomes[rank].exited_cleanly()) << ranks.transcript();
}

TEST(Hosts, DifferentExcludedRanksAreNamedOnEveryHost) {
  Ranks ranks = start_on_hosts({0, 0, 1, 1}, [](Rank& rank) {
    auto world = rank.join("world");
    expect_sum(*world);
    if (rank.rank < 3) {
      const std::vector<int> excluded = rank.rank == 2 ? std::vector{3} : std::vector<int>{};
      const std::string error =
          error_text_of([&] { world->shrink(excluded, {.name = "x", .timeout = 5s}); });
      check(error.find("rank 2 excludes rank 3") != std::string::npos, error.c_str());
      check(error.find("ranks 0,1 exclude none") != std::string::npos, error.c_str());
      expect_sum(*world->shrink({3}, {.name = "smaller", .timeout = 20s}));
    }
    expect_sum(*world);
  });
  ranks.expect_all_exit_cleanly();
}

TEST(Hosts, ARankThatDoesNotCallShrinkIsNamedOnEveryHost) {
  Ranks ranks = start_on_hosts({0, 0, 1, 1}, [](Rank& rank) {
    auto world = rank.join("world");
    expect_sum(*world);
    if (rank.rank != 3) {
      const std::string error =
          error_text_of([&] { world->shrink({}, {.name = "same", .timeout = 1s}); });
      check(error.find("timed out after 1.0 s: rank 3 (host ") != std::string::npos, error.c_str());
      check(error.find("has not called it") != std::string::npos, error.c_str());
    }
    expect_sum(*world);
  });
  ranks.expect_all_exit_cleanly();
}

}  // namespace
}  // namespace faults
