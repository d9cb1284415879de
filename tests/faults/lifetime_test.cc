// Creation and close at difficult moments: during operations, in callbacks, after fork(), at exit;
// one store for several groups; peers that join and leave.
#include <atomic>

#include "harness.h"

namespace faults {
namespace {

using Work = std::shared_ptr<tccl::Work>;
using Comm = std::shared_ptr<tccl::Communicator>;

TEST(CloseProcess, BesideRunningThreads) {
  Ranks ranks(2, [](Rank& rank) {
    for (int round = 0; round < 30; ++round) {
      const Comm comm = rank.join("g" + std::to_string(round), 3s);
      std::atomic<int> unexpected{0};
      std::vector<std::thread> threads;
      for (int t = 0; t < 3; ++t)
        threads.emplace_back([&, t] {
          try {
            float x = 1;
            for (;;) {
              if (t == 0) comm->run(tccl::allreduce(&x, &x, 1, DType::float32, ReduceOp::max));
              if (t == 1) comm->run(tccl::send(&x, 4, rank.rank));
              if (t == 2) comm->run(tccl::recv(&x, 4, rank.rank));
            }
          } catch (const tccl::Error& error) {
            if (error.code() == tccl::Errc::aborted || error.code() == tccl::Errc::peer_lost)
              return;
            ++unexpected;
            rank.report(std::string("unexpected: ") + error.what());
          }
        });
      std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
      comm->abort("closing");
      comm->close();
      for (auto& thread : threads) thread.join();
      check(unexpected == 0, "only aborted or lost");
    }
  });
  ranks.expect_all_exit_cleanly();
}

TEST(CloseProcess, InTheCallbackOfAMessage) {
  Ranks ranks(2, [](Rank& rank) {
    Comm comm = rank.join("world", 5s);
    int value = rank.rank;
    std::atomic<bool> closed{false};
    if (rank.rank == 1) {
      std::this_thread::sleep_for(100ms);
      comm->run(tccl::send(&value, sizeof value, 0));
      return;
    }
    const Work work = comm->start(tccl::recv(&value, sizeof value, 1));
    work->on_done([&] {
      comm->close();
      closed = true;
    });
    work->wait();
    const double limit = now_ms() + 5000;
    while (!closed && now_ms() < limit) std::this_thread::sleep_for(1ms);
    check(closed, "closed");
  });
  ranks.expect_all_exit_cleanly();
}

TEST(CloseProcess, LastReferencesAreReleasedInACallback) {
  Ranks ranks(2, [](Rank& rank) {
    for (const bool message : {false, true}) {
      auto context = tccl::Context::create();
      const std::string where = "/tmp/tccl-last-" + std::to_string(::getppid());
      auto store = tccl::file_store(where);
      auto comm = tccl::Communicator::create(context, *store, rank.rank, 2, {.timeout = 5s});
      auto value = std::make_shared<int>(1);
      const auto operation =
          !message ? tccl::allreduce(value.get(), value.get(), 1, DType::int32, ReduceOp::sum)
          : rank.rank == 0 ? tccl::recv(value.get(), 4, 1)
                           : tccl::send(value.get(), 4, 0);
      auto gone = std::make_shared<std::atomic<bool>>(false);
      auto held = std::make_shared<std::pair<Comm, std::shared_ptr<tccl::Context>>>(
          std::move(comm), std::move(context));
      auto* communicator = held->first.get();
      std::this_thread::sleep_for(std::chrono::milliseconds(30 * rank.rank));
      communicator->start(operation, {.keepalive = value})
          ->on_done([held = std::move(held), gone]() mutable {
            held->first.reset();
            held->second.reset();
            *gone = true;
          });
      const double limit = now_ms() + 5000;
      while (!*gone && now_ms() < limit) std::this_thread::sleep_for(1ms);
      check(*gone, "gone");
    }
  });
  ranks.expect_all_exit_cleanly();
  std::filesystem::remove_all("/tmp/tccl-last-" + std::to_string(::getpid()));
}

TEST(CallbackProcess, ThatBlocksDoesNotDelayOtherTraffic) {
  Ranks ranks(2, [](Rank& rank) {
    const Comm a = rank.join("a", 10s);
    const Comm b = rank.join("b", 10s);
    std::vector<char> large(std::size_t{32} << 20, 'x');
    int token = 0;
    std::atomic<bool> synchronised{false};
    if (rank.rank == 0) {
      const Work second = b->start(tccl::send(large.data(), large.size(), 1));
      const Work first = a->start(tccl::recv(&token, sizeof token, 1));
      first->on_done([&] {
        a->run(tccl::barrier());  // rank 1 joins only after it has received the large message
        synchronised = true;
      });
      const double limit = now_ms() + 9000;
      while (!synchronised && now_ms() < limit) std::this_thread::sleep_for(1ms);
      check(synchronised, "synchronised");
      second->wait();
    } else {
      std::this_thread::sleep_for(100ms);  // so that the callback runs when the token comes
      a->run(tccl::send(&token, sizeof token, 0));
      std::this_thread::sleep_for(50ms);
      b->run(tccl::recv(large.data(), large.size(), 0));
      a->run(tccl::barrier());
    }
  });
  ranks.expect_all_exit_cleanly();
}

TEST(ForkProcess, ChildrenFormAGroupOfTheirOwn) {
  const std::string store_path = "/tmp/tccl-children-" + std::to_string(::getpid());
  Ranks ranks(2, [&](Rank& rank) {
    const Comm world = rank.join("world");
    world->run(tccl::barrier());
    int never = 0;
    const Work pending = world->start(tccl::recv(&never, sizeof never, 1 - rank.rank, 99));
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 0;
      try {
        check(world->error() != nullptr, "the parent's group is unusable");
        bool refused = false;
        try {
          pending->wait();
        } catch (const tccl::Error& error) {
          refused = error.code() == tccl::Errc::aborted;
        }
        check(refused, "the parent's work cannot be waited for");
        auto context = tccl::Context::create();
        auto store = tccl::file_store(store_path);
        const Comm own =
            tccl::Communicator::create(context, *store, rank.rank, 2, {.timeout = 10s});
        float x = 1;
        own->run(tccl::allreduce(&x, &x, 1, DType::float32, ReduceOp::sum));
        check(x == 2.0F, "sum");
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        code = 1;
      }
      ::_exit(code);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    check(status == 0, "child");
    world->run(tccl::barrier());
  });
  ranks.expect_all_exit_cleanly();
  std::filesystem::remove_all(store_path);
}

TEST(StoreReuseProcess, OneStoreServesManyGroups) {
  Ranks ranks(3, [](Rank& rank) {
    for (int round = 0; round < 20; ++round) {
      const Comm comm = rank.join("same", 5s);
      float x = 1;
      comm->run(tccl::allreduce(&x, &x, 1, DType::float32, ReduceOp::sum));
      check(x == 3.0F, "sum");
      comm->close();
    }
  });
  ranks.expect_all_exit_cleanly();
}

TEST(ExitProcess, ContextMayCloseWithAnIdleGroup) {
  Ranks ranks(2, [](Rank& rank) {
    const Comm comm = rank.join("world", 5s);
    int value = 7 - 7 * rank.rank;
    if (rank.rank == 1) std::this_thread::sleep_for(300ms);
    comm->run(tccl::broadcast(&value, 1, DType::int32, 0));
    check(value == 7, "value");
    rank.context()->close();  // as at the end of an interpreter that destroyed nothing
  });
  ranks.expect_all_exit_cleanly();
}

TEST(ThreadsProcess, ManyStartsOnOneGroupNeedFewThreads) {
  Ranks ranks(2, [](Rank& rank) {
    const Comm comm = rank.join("world");
    const int before = count_entries("/proc/self/task");
    std::vector<float> x(1000, 1.0F);
    std::vector<Work> works;
    for (float& value : x)
      works.push_back(
          comm->start(tccl::allreduce(&value, &value, 1, DType::float32, ReduceOp::sum)));
    check(comm->next_sequence() == 1001, "numbered when issued");
    for (const Work& work : works) work->wait();
    check(std::ranges::all_of(x, [](float value) { return value == 2.0F; }), "sums");
    // One thread is enough, but a pool thread that is preempted between the end of a job and its
    // next wait does not count as free: on a busy machine there are a few.
    check(count_entries("/proc/self/task") <= before + 16, "threads");
  });
  ranks.expect_all_exit_cleanly();
}

TEST(SequenceProcess, NoOtherOperationRunsInBetween) {
  Ranks ranks(3, [](Rank& rank) {
    const Comm comm = rank.join("world");
    for (const bool inline_too : {false, true}) {
      const std::uint32_t before = comm->next_sequence();
      std::int64_t count = rank.rank + 1;
      std::vector<std::int64_t> counts(3);
      std::vector<std::int64_t> own(static_cast<std::size_t>(count), rank.rank);
      std::vector<std::vector<std::int64_t>> all;
      // The second operation needs the result of the first.
      const tccl::OperationList sequence{
          "ragged gather", 2, [&](const tccl::OperationList::Run& run) {
            run(tccl::allgather(&count, counts.data(), 1, DType::int64));
            std::vector<tccl::Block> blocks;
            for (const std::int64_t n : counts) {
              auto& room = all.emplace_back(static_cast<std::size_t>(n), -1);
              blocks.push_back({room.data(), room.size()});
            }
            run(tccl::allgatherv(own.data(), blocks, DType::int64));
          }};
      float x = 1;
      if (inline_too) {
        comm->run(sequence, {});
        comm->run(tccl::allreduce(&x, &x, 1, DType::float32, ReduceOp::sum));
      } else {
        const Work first = comm->start(sequence, {});
        const Work second = comm->start(tccl::allreduce(&x, &x, 1, DType::float32, ReduceOp::sum));
        check(comm->next_sequence() == before + 3, "every operation has its number");
        second->wait();
        first->wait();
      }
      check(x == 3, "the operation after it");
      for (std::size_t r = 0; r < 3; ++r)
        check(all[r] == std::vector<std::int64_t>(r + 1, static_cast<std::int64_t>(r)), "gathered");
    }
  });
  ranks.expect_all_exit_cleanly();
}

TEST(SequenceProcess, AnExceptionFailsTheGroupOnAllRanks) {
  Ranks ranks(2, [](Rank& rank) {
    const Comm comm = rank.join("world");
    const auto body = [&](const tccl::OperationList::Run& run) {
      run(tccl::barrier());
      if (rank.rank == 0) throw std::runtime_error("out of luck");
      run(tccl::barrier());
    };
    try {
      comm->run(tccl::OperationList{"doomed", 2, body}, {});
      check(false, "must fail");
    } catch (const tccl::Error& error) {
      check(rank.rank == 1 && error.code() == tccl::Errc::aborted, error.what());
      check(std::string(error.what()).find("doomed") != std::string::npos, error.what());
    } catch (const std::runtime_error& error) {
      check(rank.rank == 0 && error.what() == std::string("out of luck"), error.what());
    }
    check(comm->error() != nullptr, "failed");
  });
  ranks.expect_all_exit_cleanly();
}

TEST(WaitProcess, TimesOutAlsoBehindSlowerOperations) {
  Ranks ranks(2, [](Rank& rank) {
    const Comm comm = rank.join("world", 20s);
    if (rank.rank == 1) std::this_thread::sleep_for(1500ms);
    const Work slow = comm->start(tccl::barrier(), {.timeout = 20s});
    const Work quick = comm->start(tccl::barrier(), {.timeout = 200ms});
    if (rank.rank == 0) {
      const double start = now_ms();
      try {
        quick->wait(300ms);
        check(false, "must time out");
      } catch (const tccl::Error& error) {
        check(error.code() == tccl::Errc::timeout, error.what());
        check(std::string(error.what()).find("barrier of group world") != std::string::npos,
              error.what());
      }
      check(now_ms() - start < 1200, "in time");
    }
    slow->wait();
  });
  ranks.finish();
  EXPECT_FALSE(ranks.outcomes[0].find("exception")) << ranks.transcript();
}

TEST(WaitProcess, VeryLongTimeouts) {
  Ranks ranks(2, [](Rank& rank) {
    const Comm comm = rank.join("world", tccl::Milliseconds::max());
    comm->run(tccl::barrier());
    const Work work = comm->start(tccl::barrier());
    work->wait(tccl::Milliseconds::max());
  });
  ranks.expect_all_exit_cleanly();
}

TEST(PeersProcess, ThatJoinAndLeaveLeakNothing) {
  constexpr int kPeers = 12;
  Ranks ranks(kPeers + 1, [](Rank& rank) {
    const int first = rank.rank == 0 ? 1 : rank.rank;
    const int last = rank.rank == 0 ? kPeers : rank.rank;
    int early = 0;
    for (int peer = first; peer <= last; ++peer) {
      auto store = tccl::file_store("/tmp/tccl-peer-" + std::to_string(::getppid()) + "-" +
                                    std::to_string(peer));
      auto pair = tccl::Communicator::create(rank.context(), *store, rank.rank == 0 ? 0 : 1, 2,
                                             {.name = "pair", .timeout = 20s});
      pair->run(tccl::barrier());
      pair.reset();
      if (rank.rank == 0 && peer == 3) {
        std::this_thread::sleep_for(600ms);
        early = count_entries("/proc/self/fd");
      }
    }
    if (rank.rank != 0) return;
    std::this_thread::sleep_for(600ms);  // a few heartbeats
    check(count_entries("/proc/self/fd") <= early + 1, "descriptors");
  });
  ranks.expect_all_exit_cleanly();
  for (int peer = 1; peer <= kPeers; ++peer)
    std::filesystem::remove_all("/tmp/tccl-peer-" + std::to_string(::getpid()) + "-" +
                                std::to_string(peer));
}

TEST(RendezvousProcess, DifferentSizesAreReportedImmediately) {
  Ranks ranks(2, [](Rank& rank) {
    auto store = tccl::file_store("/tmp/tccl-sizes-" + std::to_string(::getppid()));
    const double start = now_ms();
    try {
      tccl::Communicator::create(rank.context(), *store, rank.rank, 2 + rank.rank,
                                 {.timeout = 20s});
    } catch (const tccl::Error&) {
      check(now_ms() - start < 5000, "at once");
      throw;
    }
  });
  ranks.finish();
  std::filesystem::remove_all("/tmp/tccl-sizes-" + std::to_string(::getpid()));
  for (const Outcome& outcome : ranks.outcomes) {
    const auto error = outcome.find("error mismatch");
    ASSERT_TRUE(error) << ranks.transcript();
    EXPECT_NE(error->text.find("the size of the group is"), std::string::npos) << error->text;
  }
}

}  // namespace
}  // namespace faults
