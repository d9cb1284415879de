// Orders of operations in which a library with one worker thread, or with one lock, deadlocks.
#include <atomic>

#include "harness.h"

namespace faults {
namespace {

using Work = std::shared_ptr<tccl::Work>;

float sum_of_ones(int size) { return static_cast<float>(size); }

TEST(DeadlockProcess, EightGroupsIssuedInOppositeOrders) {
  ::setenv("CCL_WORKER_COUNT", "1", 1);
  Ranks ranks(2, [](Rank& rank) {
    auto world = rank.join("world");
    std::vector<std::shared_ptr<tccl::Communicator>> groups;
    for (int i = 0; i < 8; ++i)
      groups.push_back(
          world->split(0, rank.rank, {.name = "g" + std::to_string(i), .timeout = 10s}));
    for (const std::size_t count : {std::size_t{1}, std::size_t{1} << 20}) {
      std::vector<std::vector<float>> data(8, std::vector<float>(count, 1.0F));
      std::vector<Work> works;
      for (int i = 0; i < 8; ++i) {
        const auto g = static_cast<std::size_t>(rank.rank == 0 ? i : 7 - i);
        works.push_back(groups[g]->start(
            tccl::allreduce(data[g].data(), data[g].data(), count, DType::float32, ReduceOp::sum)));
      }
      for (const Work& work : works) work->wait();
      for (const auto& d : data) check(d.front() == 2.0F && d.back() == 2.0F, "sum");
    }
  });
  ranks.expect_all_exit_cleanly();
  ::unsetenv("CCL_WORKER_COUNT");
}

TEST(DeadlockProcess, AsyncCollectiveThenBlockingReceive) {
  Ranks ranks(2, [](Rank& rank) {
    auto world = rank.join("world", 10s);
    float x = 1;
    int message = 7;
    if (rank.rank == 0) {
      const Work work = world->start(tccl::allreduce(&x, &x, 1, DType::float32, ReduceOp::sum));
      world->run(tccl::recv(&message, sizeof message, 1));
      work->wait();
    } else {
      std::this_thread::sleep_for(100ms);
      world->run(tccl::send(&message, sizeof message, 0));
      world->run(tccl::allreduce(&x, &x, 1, DType::float32, ReduceOp::sum));
    }
    check(message == 7 && x == sum_of_ones(2), "values");
  });
  ranks.expect_all_exit_cleanly();
}

TEST(DeadlockProcess, LargeSendsBothWaysBeforeReceives) {
  Ranks ranks(2, [](Rank& rank) {
    auto world = rank.join("world");
    const std::size_t bytes = std::size_t{64} << 20;
    const std::vector<char> out(bytes, static_cast<char>('a' + rank.rank));
    std::vector<char> in(bytes, '?');
    const Work sending = world->start(tccl::send(out.data(), bytes, 1 - rank.rank, 3));
    std::this_thread::sleep_for(50ms);
    const Work receiving = world->start(tccl::recv(in.data(), bytes, 1 - rank.rank, 3));
    sending->wait();
    receiving->wait();
    const char expected = static_cast<char>('a' + 1 - rank.rank);
    check(std::ranges::all_of(in, [&](char c) { return c == expected; }), "payload");
  });
  ranks.expect_all_exit_cleanly();
}

TEST(DeadlockProcess, BlockingSmallSendsBothWaysBeforeReceives) {
  Ranks ranks(2, [](Rank& rank) {
    auto world = rank.join("world");
    std::vector<int> payload(256, rank.rank);
    for (int i = 0; i < 200; ++i)
      world->run(tccl::send(payload.data(), payload.size() * sizeof(int), 1 - rank.rank));
    for (int i = 0; i < 200; ++i) {
      world->run(tccl::recv(payload.data(), payload.size() * sizeof(int), 1 - rank.rank));
      check(payload.front() == 1 - rank.rank && payload.back() == 1 - rank.rank, "payload");
    }
  });
  ranks.expect_all_exit_cleanly();
}

// All operations have the same arguments, so that only their order distinguishes them.
TEST(CallbackOrderProcess, OperationsOfACallbackTakeThePositionOfItsRegistration) {
  Ranks ranks(2, [](Rank& rank) {
    auto world = rank.join("world", 10s);
    for (int round = 0; round < 200; ++round) {
      float first = 1;
      float inner = 10;
      float nested = 100;
      float later = 1000;
      const auto sum = [](float* x) {
        return tccl::allreduce(x, x, 1, DType::float32, ReduceOp::sum);
      };
      std::atomic<int> callbacks{0};
      // The ranks have issued different operations when the first one completes.
      const auto pause = [&](int who) {
        if (rank.rank == who) std::this_thread::sleep_for(std::chrono::microseconds(150));
      };
      float between = 10000;
      const auto work = world->start(sum(&first));
      world->start(sum(&between));
      if (round % 4 == 0) work->wait();  // then on_done_in_order() runs the callback itself
      work->on_done_in_order([&] {
        pause(0);
        const auto own = world->start(sum(&inner));
        own->on_done_in_order([&] {
          pause(round % 2);
          world->run(sum(&nested));
          ++callbacks;
        });
        if (round % 3 == 0) own->wait();
        ++callbacks;
      });
      if (round % 2 == 0) pause(1);
      const auto behind = world->start(sum(&later));
      behind->wait();
      while (callbacks < 2) std::this_thread::sleep_for(50us);
      check(first == 2 && between == 20000 && inner == 20 && nested == 200 && later == 2000,
            ("round " + std::to_string(round) + ": " + std::to_string(first) + " " +
             std::to_string(inner) + " " + std::to_string(nested) + " " + std::to_string(later))
                .c_str());
    }
    world->close();
  });
  ranks.expect_all_exit_cleanly();
}

TEST(CallbackOrderProcess, ACallbackMayWaitForLaterOperations) {
  Ranks ranks(2, [](Rank& rank) {
    auto world = rank.join("world", 10s);
    for (int round = 0; round < 50; ++round) {
      std::atomic<bool> waited{false};
      const auto first = world->start(tccl::barrier());
      const auto second = world->start(tccl::barrier());
      const auto third = world->start(tccl::barrier());
      first->on_done_in_order([&] {
        third->wait();
        waited = true;
      });
      second->wait();
      while (!waited) std::this_thread::sleep_for(50us);
    }
  });
  ranks.expect_all_exit_cleanly();
}

TEST(CallbackOrderProcess, ACallbackThatDoesNotReturnIsATimeout) {
  Ranks ranks(2, [](Rank& rank) {
    std::atomic<bool> may_return{false};
    std::atomic<bool> entered{false};
    auto world = rank.join("world", 3s);
    const auto first = world->start(tccl::barrier());
    // If the barrier is complete already, the callback runs on the thread that registers it.
    std::thread registering([&] {
      first->on_done_in_order([&] {
        entered = true;
        while (!may_return) std::this_thread::sleep_for(1ms);
      });
    });
    struct LetItReturn {  // before the group is closed, which waits for the callback
      std::atomic<bool>& may_return;
      std::thread& registering;
      ~LetItReturn() {
        may_return = true;
        registering.join();
      }
    } let_it_return{may_return, registering};
    while (!entered) std::this_thread::sleep_for(1ms);
    const auto second = world->start(tccl::barrier());
    try {
      second->wait();
      rank.report("no error");
    } catch (const tccl::Error& error) {
      check(error.code() == tccl::Errc::timeout, error.what());
      check(
          std::string(error.what()).find("a callback of an earlier operation") != std::string::npos,
          error.what());
    }
    may_return = true;
    second->wait();  // it starts when the callback has returned
  });
  ranks.expect_all_exit_cleanly();
}

TEST(DeadlockProcess, CallbackIssuesTheNextCollective) {
  Ranks ranks(3, [](Rank& rank) {
    auto world = rank.join("world", 10s);
    std::vector<float> x(1000, 1.0F);
    std::atomic<int> rounds{0};
    const auto operation =
        tccl::allreduce(x.data(), x.data(), x.size(), DType::float32, ReduceOp::max);
    std::function<void()> next = [&] {
      // One blocking, one started: both must work on the thread that completes an operation.
      world->run(tccl::barrier());
      if (++rounds < 20) world->start(operation)->on_done(next);
    };
    world->start(operation)->on_done(next);
    while (rounds < 20) std::this_thread::sleep_for(1ms);
    world->close();
  });
  ranks.expect_all_exit_cleanly();
}

TEST(DeadlockProcess, SyncOnOneGroupWhilePeerWaitsOnAnother) {
  Ranks ranks(2, [](Rank& rank) {
    auto a = rank.join("a", 10s);
    auto b = rank.join("b", 10s);
    float x = 1;
    float y = 1;
    const auto on_a = tccl::allreduce(&x, &x, 1, DType::float32, ReduceOp::sum);
    const auto on_b = tccl::allreduce(&y, &y, 1, DType::float32, ReduceOp::sum);
    if (rank.rank == 0) {
      const Work pending = b->start(on_b);
      a->run(on_a);
      pending->wait();
    } else {
      const Work pending_a = a->start(on_a);
      const Work pending_b = b->start(on_b);
      pending_b->wait();
      pending_a->wait();
    }
    check(x == 2.0F && y == 2.0F, "sums");
  });
  ranks.expect_all_exit_cleanly();
}

TEST(DeadlockProcess, ThreadsOnDifferentGroups) {
  Ranks ranks(4, [](Rank& rank) {
    std::vector<std::shared_ptr<tccl::Communicator>> groups;
    for (const char* name : {"a", "b", "c"}) groups.push_back(rank.join(name));
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (const auto& group : groups)
      threads.emplace_back([&wrong, group] {
        for (int i = 0; i < 200; ++i) {
          float x = 1;
          group->run(tccl::allreduce(&x, &x, 1, DType::float32, ReduceOp::sum));
          wrong += x != 4.0F;
        }
      });
    for (auto& thread : threads) thread.join();
    check(wrong == 0, "sums");
  });
  ranks.expect_all_exit_cleanly();
}

TEST(DeadlockProcess, SendArrivesWhileTheSenderComputes) {
  Ranks ranks(2, [](Rank& rank) {
    auto world = rank.join("world");
    std::vector<char> data(std::size_t{1} << 20, 'x');
    if (rank.rank == 0) {
      const Work work = world->start(tccl::send(data.data(), data.size(), 1));
      rank.report("sent");
      std::this_thread::sleep_for(1s);  // computes, and does not call the library
      work->wait();
    } else {
      world->run(tccl::recv(data.data(), data.size(), 0));
      rank.report("received");
    }
    world->run(tccl::barrier());
  });
  ranks.expect_all_exit_cleanly();
  const auto sent = ranks.outcomes[0].find("sent");
  const auto received = ranks.outcomes[1].find("received");
  ASSERT_TRUE(sent && received) << ranks.transcript();
  EXPECT_LT(received->time_ms - sent->time_ms, 500) << "the progress thread did not move it";
}

}  // namespace
}  // namespace faults
