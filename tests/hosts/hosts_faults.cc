// Failures between hosts. How to run it: ranks_on_hosts.h.

#include "faults/joined_ranks.h"
#include "ranks_on_hosts.h"

namespace faults {
namespace {

constexpr std::size_t kLarge = std::size_t{64} << 20;

TEST(Hosts, AnAbortedLargeReceiveDoesNotWriteToFreedMemory) {
  Ranks ranks = start_on_hosts({0, 1}, [](Rank& rank) {
    auto comm = rank.join("first");
    auto memory = std::make_unique<std::vector<std::byte>>(kLarge, std::byte{7});
    const bool sends = rank.rank == 0;
    const std::string reason = error_text_of([&] {
      // A slow rank may find the group aborted before it starts.
      auto work = comm->start(sends ? tccl::send(memory->data(), kLarge, 1)
                                    : tccl::recv(memory->data(), kLarge, 0));
      std::this_thread::sleep_for(20ms);
      if (!sends) comm->abort("requested by the test");
      work->wait();
    });
    check(reason.find("requested by the test") != std::string::npos, "the reason");
    memory.reset();
    auto second = rank.join("second");
    expect_sum(*second);
    std::this_thread::sleep_for(200ms);
    expect_sum(*second);
  });
  ranks.expect_all_exit_cleanly();
}

TEST(Hosts, AnAbortedLargeCollectiveDoesNotWriteToFreedMemory) {
  Ranks ranks = start_on_hosts({0, 0, 1, 1}, [](Rank& rank) {
    auto comm = rank.join("first");
    auto memory = std::make_unique<std::vector<float>>(kLarge / 4, 1.0F);
    const std::string reason = error_text_of([&] {
      auto work = comm->start(tccl::allreduce(memory->data(), memory->data(), memory->size(),
                                              DType::float32, ReduceOp::sum));
      std::this_thread::sleep_for(10ms);
      if (rank.rank == 3) comm->abort("requested by the test");
      work->wait();
    });
    check(reason.find("requested by the test") != std::string::npos, "the reason");
    memory.reset();
    auto second = rank.join("second");
    expect_sum(*second);
  });
  ranks.expect_all_exit_cleanly();
}

TEST(Hosts, AKilledRankIsNamedOnEveryHost) {
  Ranks ranks = start_on_hosts({0, 0, 1, 1}, [](Rank& rank) {
    auto comm = rank.join("world");
    expect_sum(*comm);
    rank.report("ready");
    std::vector<float> x(1000);
    const std::string reason = error_text_of([&] {
      for (;;)
        comm->run(tccl::allreduce(x.data(), x.data(), x.size(), DType::float32, ReduceOp::sum));
    });
    rank.report("reason " + reason);
  });
  ASSERT_TRUE(ranks.all_reported("ready")) << ranks.transcript();
  std::this_thread::sleep_for(100ms);
  const double killed = ranks.kill_rank(3);
  ranks.finish();
  const std::string who = "pid " + std::to_string(ranks.outcomes[3].pid);
  for (const int survivor : {0, 1, 2}) {
    const auto line = ranks.outcomes[static_cast<std::size_t>(survivor)].find("reason");
    ASSERT_TRUE(line) << ranks.transcript();
    EXPECT_NE(line->text.find("rank 3 (host "), std::string::npos) << line->text;
    EXPECT_NE(line->text.find(who), std::string::npos) << line->text;
    EXPECT_NE(line->text.find("allreduce #"), std::string::npos) << line->text;
    EXPECT_LT(line->time_ms - killed, 10'000);  // the goal is 1000
    std::printf("rank %d failed after %.0f ms\n", survivor, line->time_ms - killed);
  }
}

/// `victim` is the only rank of its host. It is killed while it and `survivor` wait for the last rank, which never joins.
void kill_during_rendezvous(const std::vector<int>& hosts, int victim, int survivor) {
  const double start = now_ms();
  const int last = static_cast<int>(hosts.size()) - 1;
  Ranks ranks = start_on_hosts(hosts, [=](Rank& rank) {
    if (rank.rank != last) return void(rank.join("world", 20s));
    auto store = rank.store("world");
    const tccl::StoreClient client = client_of(*store);
    for (int other = 0; other < last; ++other) await_waiting(client, other);
    kill_joined_rank(client, victim);
  });
  ranks.finish();
  const auto error = ranks.outcomes[static_cast<std::size_t>(survivor)].find("error peer_lost");
  ASSERT_TRUE(error) << ranks.transcript();
  const std::string expected =
      "init of group world: rank " + std::to_string(victim) + " (host " + tccl::host_name() +
      ", pid " + std::to_string(ranks.outcomes[static_cast<std::size_t>(victim)].pid) +
      ") ended before the group was formed (Connection closed by peer)";
  EXPECT_NE(error->text.find(expected), std::string::npos) << error->text;
  EXPECT_LT(error->time_ms - start, 10'000) << "the goal is 1 s: " << error->text;
}

TEST(Hosts, TheOnlyRankOfAHostThatDiesDuringTheRendezvousIsNamed) {
  kill_during_rendezvous({0, 1, 0}, /*victim=*/1, /*survivor=*/0);
}

TEST(Hosts, RankZeroThatDiesDuringTheRendezvousIsNamedOnAnotherHost) {
  kill_during_rendezvous({0, 1, 1}, /*victim=*/0, /*survivor=*/1);
}

TEST(Hosts, AStoppedRankOfAnotherHostIsNamedByEveryRank) {
  Ranks ranks = start_on_hosts({0, 0, 1, 1}, [](Rank& rank) {
    auto comm = rank.join("world", 3s);
    expect_sum(*comm);
    rank.report("ready");
    float x = 1;
    for (;;) comm->run(tccl::allreduce(&x, &x, 1, DType::float32, ReduceOp::max));
  });
  ASSERT_TRUE(ranks.all_reported("ready")) << ranks.transcript();
  ranks.kill_rank(2, SIGSTOP);
  ranks.finish(20s, /*except=*/2);
  for (const std::size_t other : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
    const auto error = ranks.outcomes[other].find("error timeout");
    ASSERT_TRUE(error) << ranks.transcript();
    EXPECT_NE(error->text.find("rank 2 (host "), std::string::npos) << error->text;
    EXPECT_NE(error->text.find("stalled"), std::string::npos) << error->text;
  }
}

/// Rank 3 is stopped. Rank 0 waits for rank 2 of the same host, which waits for rank 3.
TEST(Hosts, AStoppedRankIsNamedAlsoByARankThatWaitsForItsNeighbour) {
  Ranks ranks = start_on_hosts({0, 0, 1, 1}, [](Rank& rank) {
    auto comm = rank.join("world", 3s);
    expect_sum(*comm);
    rank.report("ready");
    const std::vector<float> in(10'000);
    std::vector<float> out(4 * in.size());
    for (;;) comm->run(tccl::allgather(in.data(), out.data(), in.size(), DType::float32));
  });
  ASSERT_TRUE(ranks.all_reported("ready")) << ranks.transcript();
  ranks.kill_rank(3, SIGSTOP);
  ranks.finish(20s, /*except=*/3);
  for (const std::size_t other : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    const auto error = ranks.outcomes[other].find("error timeout");
    ASSERT_TRUE(error) << ranks.transcript();
    EXPECT_NE(error->text.find("rank 3 (host "), std::string::npos) << error->text;
    EXPECT_EQ(error->text.find("rank 2 (host "), std::string::npos) << error->text;
    EXPECT_NE(error->text.find("stalled"), std::string::npos) << error->text;
  }
}

TEST(Hosts, NoKeyIsLeftInTheStore) {
  const std::string directory = "/tmp/tccl-keys-of-hosts-" + std::to_string(::getpid());
  Ranks ranks = start_on_hosts({0, 0, 1}, [=](Rank& rank) {
    auto store = tccl::file_store(directory);
    auto comm = tccl::Communicator::create(rank.context(), *store, rank.rank, 3, {.timeout = 20s});
    comm->run(tccl::barrier());
    check(count_entries(directory.c_str()) == 0, "the store is empty");
  });
  ranks.expect_all_exit_cleanly();
  std::filesystem::remove_all(directory);
}

/// libfabric would refuse the connections between them and retry for ever.
TEST(Hosts, DifferentLibfabricLimitsAreReported) {
  Ranks ranks = start_on_hosts({0, 1}, [](Rank& rank) {
    if (rank.rank == 1) ::setenv("FI_OFI_RXM_EAGER_LIMIT", "16384", /*overwrite=*/1);
    const std::string reason = error_text_of([&] { rank.join("world"); });
    check(reason.find("FI_OFI_RXM_EAGER_LIMIT is ") != std::string::npos, reason.c_str());
  });
  ranks.expect_all_exit_cleanly();
}

TEST(Hosts, DifferentCountsAreReportedOnEveryHost) {
  Ranks ranks = start_on_hosts({0, 1, 1}, [](Rank& rank) {
    auto comm = rank.join("world");
    std::vector<float> x(rank.rank == 2 ? 99 : 100);
    const std::string reason = error_text_of([&] {
      comm->run(tccl::allreduce(x.data(), x.data(), x.size(), DType::float32, ReduceOp::sum));
      comm->run(tccl::barrier());
    });
    check(reason.find("count 99") != std::string::npos, reason.c_str());
    check(reason.find("count 100") != std::string::npos, reason.c_str());
  });
  ranks.expect_all_exit_cleanly();
}

TEST(Hosts, DifferentOperationsAreReported) {
  Ranks ranks = start_on_hosts({0, 1}, [](Rank& rank) {
    auto comm = rank.join("world");
    std::vector<float> x(100);
    const std::string reason = error_text_of([&] {
      if (rank.rank == 0)
        comm->run(tccl::broadcast(x.data(), x.size(), DType::float32, 0));
      else
        comm->run(tccl::allreduce(x.data(), x.data(), x.size(), DType::float32, ReduceOp::sum));
      comm->run(tccl::barrier());
    });
    check(reason.find("called broadcast") != std::string::npos, reason.c_str());
    check(reason.find("called allreduce") != std::string::npos, reason.c_str());
  });
  ranks.expect_all_exit_cleanly();
}

TEST(Hosts, APairWithDifferentSizesIsNamed) {
  Ranks ranks = start_on_hosts({0, 1, 1}, [](Rank& rank) {
    auto comm = rank.join("world");
    std::vector<float> x(30);
    std::vector<tccl::ConstBlock> in;
    std::vector<tccl::Block> out;
    for (int other = 0; other < 3; ++other) {
      in.push_back({x.data(), 5});
      out.push_back({x.data() + 10, rank.rank == 0 && other == 2 ? std::size_t{6} : 5});
    }
    const std::string reason = error_text_of([&] {
      comm->run(tccl::alltoallv(in, out, DType::float32));
      comm->run(tccl::barrier());
    });
    check(reason.find("rank 2 sends 20 bytes to rank 0, which expects 24") != std::string::npos,
          reason.c_str());
  });
  ranks.expect_all_exit_cleanly();
}

TEST(Hosts, AnySourceReceivesEagerAndRendezvousMessagesInOrderOfEachSender) {
  constexpr int kMessages = 200;
  Ranks ranks = start_on_hosts({0, 0, 1, 1}, [](Rank& rank) {
    auto comm = rank.join("world");
    if (rank.rank != 0) {
      for (int i = 0; i < kMessages; ++i) {
        std::vector<int> data(i % 20 == 0 ? 30'000 : 10, i);  // some use the rendezvous protocol
        comm->run(tccl::send(data.data(), data.size() * sizeof(int), 0, i % 20 == 0 ? 1 : 0));
      }
    } else {
      std::vector<int> next[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
      std::vector<int> data(30'000);
      const auto take = [&](std::size_t count, std::uint64_t tag) {
        auto work =
            comm->start(tccl::recv(data.data(), count * sizeof(int), tccl::kAnySource, tag));
        work->wait();
        int& expected = next[tag][static_cast<std::size_t>(work->source())];
        while ((expected % 20 == 0) != (tag == 1)) ++expected;
        check(data[0] == expected && data[count - 1] == expected, "order");
        ++expected;
      };
      for (int i = 0; i < 3 * kMessages / 20; ++i) take(30'000, 1);
      for (int i = 0; i < 3 * (kMessages - kMessages / 20); ++i) take(10, 0);
    }
    comm->run(tccl::barrier());
  });
  ranks.expect_all_exit_cleanly();
}

TEST(Hosts, ARootThatSendsAndClosesFailsNoOtherRank) {
  Ranks ranks = start_on_hosts({0, 1}, [](Rank& rank) {
    std::vector<int> x(300'000, rank.rank == 0 ? 5 : 0);
    int small = rank.rank == 0 ? 6 : 0;
    auto comm = rank.join("world");
    if (rank.rank == 1) std::this_thread::sleep_for(500ms);
    comm->run(tccl::broadcast(x.data(), x.size(), DType::int32, 0));
    comm->run(tccl::broadcast(&small, 1, DType::int32, 0));
    check(x.front() == 5 && x.back() == 5 && small == 6, "the data");
    if (rank.rank == 0)
      comm->run(tccl::send(&small, sizeof small, 1));
    else
      comm->run(tccl::recv(&small, sizeof small, 0));
    comm->close();
    rank.context()->close();
  });
  ranks.expect_all_exit_cleanly();
}

/// Rank 0 stops rank 1, which waits in an operation, completes that operation and fails in the next
/// one. When rank 1 goes on, the notice of the failure may come before the last message.
TEST(Hosts, AnOperationThatAllRanksHaveJoinedCompletesAlthoughTheNextOneHasFailed) {
  for (int round = 0; round < 3; ++round) {
    Ranks ranks = start_on_hosts({0, 1}, [](Rank& rank) {
      auto store = rank.store("meanwhile");
      auto comm = rank.join("world");
      expect_sum(*comm);
      pid_t waiter = 0;
      if (rank.rank == 1) {
        store->set("waiter", std::to_string(::getpid()));
      } else {
        waiter = std::stoi(store->get("waiter", 20s));
        std::this_thread::sleep_for(100ms);  // it sleeps in the operation
        ::kill(waiter, SIGSTOP);
      }
      float x = 1;  // one message each way
      comm->run(tccl::allreduce(&x, &x, 1, DType::float32, ReduceOp::sum));
      check(x == 2, "the sum");
      if (rank.rank == 1) return;
      error_text_of([&] { comm->run(tccl::barrier(), {.timeout = 200ms}); });
      ::kill(waiter, SIGCONT);
    });
    ranks.expect_all_exit_cleanly();
  }
}

TEST(Hosts, ARankThatHasLeftIsNamed) {
  Ranks ranks = start_on_hosts({0, 1}, [](Rank& rank) {
    auto comm = rank.join("world");
    expect_sum(*comm);
    if (rank.rank == 1) return comm->close();
    const std::string reason = error_text_of([&] { expect_sum(*comm); });
    check(reason.find("rank 1 (host ") != std::string::npos, reason.c_str());
    check(reason.find("left group world") != std::string::npos, reason.c_str());
  });
  ranks.expect_all_exit_cleanly();
}

TEST(Hosts, ASendToARankThatHasLeftFails) {
  Ranks ranks = start_on_hosts({0, 1}, [](Rank& rank) {
    auto comm = rank.join("world");
    expect_sum(*comm);
    if (rank.rank == 1) return comm->close();
    std::vector<std::byte> data(kLarge);
    const std::string reason = error_text_of(
        [&] { comm->run(tccl::broadcast(data.data(), data.size(), DType::uint8, 0)); });
    check(reason.find("rank 1 (host ") != std::string::npos, reason.c_str());
    check(reason.find("left group world, but broadcast #") != std::string::npos, reason.c_str());
  });
  ranks.expect_all_exit_cleanly();
}

/// The root waits for rank 1, which computes, while rank 2 has left.
TEST(Hosts, TheRootOfAReduceOrGatherNoticesARankThatLeftWhileItWaitsForAnother) {
  for (const bool gathers : {false, true}) {
    Ranks ranks = start_on_hosts({0, 1, 1}, [=](Rank& rank) {
      auto comm = rank.join("world", 60s);
      expect_sum(*comm);
      if (rank.rank == 2) return comm->close();
      if (rank.rank == 1) {
        while (comm->error() == nullptr) std::this_thread::sleep_for(1ms);
        return;
      }
      std::vector<float> in(1000, 1.0F);
      std::vector<float> out(3000);
      const tccl::Operation operation =
          gathers
              ? tccl::gather(in.data(), out.data(), in.size(), DType::float32, 0)
              : tccl::reduce(in.data(), out.data(), in.size(), DType::float32, ReduceOp::sum, 0);
      const std::string reason = error_text_of([&] { comm->run(operation); });
      check(reason.find("rank 2 (host ") != std::string::npos, reason.c_str());
      check(reason.find(gathers ? "left group world, but gather #"
                                : "left group world, but reduce #") != std::string::npos,
            reason.c_str());
    });
    ranks.expect_all_exit_cleanly(20s);
  }
}

TEST(Hosts, ManyGroupsUseOneEndpoint) {
  Ranks ranks = start_on_hosts({0, 0, 1, 1}, [](Rank& rank) {
    auto world = rank.join("world");
    std::vector<std::shared_ptr<tccl::Communicator>> groups;
    for (int i = 0; i < 150; ++i) groups.push_back(world->split(0, i % 2 ? -rank.rank : 0, {}));
    for (int i = 0; i < 10; ++i) groups.push_back(rank.join("joined" + std::to_string(i)));
    for (const auto& group : groups) expect_sum(*group);
    const int before = count_entries("/proc/self/fd");
    for (const auto& group : groups) {
      int x = group->rank();
      const int next = (group->rank() + 1) % group->size();
      const int previous = (group->rank() + group->size() - 1) % group->size();
      const auto work = group->start(tccl::send(&x, sizeof x, next));
      int y = -1;
      group->run(tccl::recv(&y, sizeof y, previous));
      work->wait();
      check(y == previous, "the neighbour");
    }
    check(count_entries("/proc/self/fd") < before + 20, "descriptors");
    world->run(tccl::barrier());
  });
  ranks.expect_all_exit_cleanly(90s);
}

/// A rank that leaves cleanly is not taken for dead when its process dies later.
TEST(Hosts, ARankThatLeavesAndThenDiesHasLeft) {
  Ranks ranks = start_on_hosts({0, 1}, [](Rank& rank) {
    auto store = rank.store("meanwhile");
    auto comm = rank.join("world");
    expect_sum(*comm);
    if (rank.rank == 1) {
      comm->close();
      store->set("left", "");
      ::raise(SIGKILL);
    }
    static_cast<void>(store->get("left", 20s));
    std::this_thread::sleep_for(500ms);  // its process has ended, and its connections are broken
    const std::string reason = error_text_of([&] { expect_sum(*comm); });
    check(reason.find("left group world") != std::string::npos, reason.c_str());
    check(reason.find("died") == std::string::npos, reason.c_str());
  });
  ranks.finish();
  EXPECT_TRUE(ranks.outcomes[0].exited_cleanly()) << ranks.transcript();
}

/// Without a connection to it nobody can know how it ended.
TEST(Hosts, ARankThatExitsBeforeItIsContactedIsNotCalledDead) {
  Ranks ranks = start_on_hosts({0, 1}, [](Rank& rank) {
    auto store = rank.store("meanwhile");
    auto comm = rank.join("world");
    if (rank.rank == 1) {
      comm->close();
      rank.context()->close();
      store->set("left", "");
      return;
    }
    static_cast<void>(store->get("left", 20s));
    const std::string reason = error_text_of([&] { expect_sum(*comm); });
    check(reason.find("rank 1 (host ") != std::string::npos, reason.c_str());
    check(reason.find("left or died before the host of rank 0 first contacted it") !=
              std::string::npos,
          reason.c_str());
  });
  ranks.expect_all_exit_cleanly();
}

TEST(SlowHosts, MessagesOfMoreThan2GiB) {
  Ranks ranks = start_on_hosts({0, 1}, [](Rank& rank) {
    constexpr std::size_t kBytes = (std::size_t{2} << 30) + 12'345;
    auto comm = rank.join("world", 120s);
    std::vector<std::byte> data(kBytes, std::byte(rank.rank == 0 ? 9 : 0));
    if (rank.rank == 0) {
      comm->run(tccl::send(data.data(), kBytes, 1));
    } else {
      comm->run(tccl::recv(data.data(), kBytes, 0));
      for (std::size_t i = 0; i < kBytes; i += 4093) check(data[i] == std::byte{9}, "the data");
      check(data.back() == std::byte{9}, "the end");
    }
    comm->run(tccl::broadcast(data.data(), kBytes, DType::uint8, 1));
    check(data.back() == std::byte{9}, "the end after the broadcast");
  });
  ranks.expect_all_exit_cleanly(180s);
}

}  // namespace
}  // namespace faults
