// Small operations that start() only posts (docs/threads.md, "Posted operations"): results, order,
// completion by whoever comes first, and failures. Ranks are threads.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tccl/tccl.h"
#include "thread_ranks.h"

namespace tccl {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr auto kLimit = 20s;

using Floats = std::vector<float>;

bool becomes_true(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

Operation sum(Floats& x) {
  return allreduce(x.data(), x.data(), x.size(), DType::float32, {ReduceOp::sum});
}

/// Rank r's value of element i in operation `round`.
float value(int rank, std::size_t i, int round) {
  return static_cast<float>(100 * round + 10 * rank) + static_cast<float>(i % 7);
}
Floats values(int rank, std::size_t count, int round) {
  Floats all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = value(rank, i, round);
  return all;
}
Floats sum_of_all(std::size_t count, int round) {
  Floats all(count, 0);
  for (int rank = 0; rank < kRanks; ++rank)
    for (std::size_t i = 0; i < count; ++i) all[i] += value(rank, i, round);
  return all;
}
Floats concatenation(std::size_t count, int round) {
  Floats all;
  for (int rank = 0; rank < kRanks; ++rank)
    for (std::size_t i = 0; i < count; ++i) all.push_back(value(rank, i, round));
  return all;
}

/// One call of each operation that can be posted, with its buffers and its result.
struct Call {
  Floats in, out, expected;
  Operation operation;
};
Call make_call(int kind, int rank, std::size_t count, int round) {
  Call call{values(rank, count, round), {}, {}, {}};
  const auto ranks = static_cast<std::size_t>(kRanks);
  const int root = round % kRanks;
  switch (kind) {
    case 0:
      call.operation = barrier();
      break;
    case 1:
      call.out = Floats(count);
      call.expected = sum_of_all(count, round);
      call.operation =
          allreduce(call.in.data(), call.out.data(), count, DType::float32, {ReduceOp::sum});
      break;
    case 2:
      call.out = Floats(count * ranks);
      call.expected = concatenation(count, round);
      call.operation = allgather(call.in.data(), call.out.data(), count, DType::float32);
      break;
    case 3: {
      call.in = values(rank, count * ranks, round);
      call.out = Floats(count);
      const Floats all = sum_of_all(count * ranks, round);
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(count) * rank;
      call.expected = Floats(begin, begin + static_cast<std::ptrdiff_t>(count));
      call.operation =
          reduce_scatter(call.in.data(), call.out.data(), count, DType::float32, {ReduceOp::sum});
      break;
    }
    case 4:
      call.out = call.in;
      call.expected = values(root, count, round);
      call.operation = broadcast(call.out.data(), count, DType::float32, root);
      break;
    default:
      call.out = Floats(count);
      call.expected = rank == root ? sum_of_all(count, round) : call.out;
      call.operation =
          reduce(call.in.data(), call.out.data(), count, DType::float32, {ReduceOp::sum}, root);
  }
  return call;
}
constexpr int kKinds = 6;

class PostedSizes : public testing::TestWithParam<std::size_t> {};

/// Every pair of operations, waited for in both orders.
TEST_P(PostedSizes, PairsOfOperationsGiveTheResultsOfSynchronousCalls) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    int round = 0;
    for (int first = 0; first < kKinds; ++first)
      for (int second = 0; second < kKinds; ++second) {
        Call a = make_call(first, rank, GetParam(), ++round);
        Call b = make_call(second, rank, GetParam(), ++round);
        const auto work_a = comm->start(a.operation);
        const auto work_b = comm->start(b.operation);
        const bool reversed = (round / 2 + rank) % 2 == 0;
        (reversed ? work_b : work_a)->wait();
        (reversed ? work_a : work_b)->wait();
        ASSERT_EQ(a.out, a.expected) << first << ", " << second;
        ASSERT_EQ(b.out, b.expected) << first << ", " << second;
      }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, PostedSizes, testing::Values(1, 12, 1000, 4096, 20000),
                         [](const auto& info) { return std::to_string(info.param) + "_floats"; });

TEST(Posted, AnyNumberOfOperationsMayBeOutstanding) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    std::vector<Call> calls;
    for (int round = 0; round < 20; ++round) calls.push_back(make_call(1, rank, 5, round));
    std::vector<std::shared_ptr<Work>> works;
    for (Call& call : calls) works.push_back(comm->start(call.operation));
    EXPECT_TRUE(works.front()->is_posted());
    for (const auto& work : works) work->wait();
    for (const Call& call : calls) EXPECT_EQ(call.out, call.expected);
  });
}

TEST(Posted, SomeRanksCallSynchronously) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    for (int round = 0; round < 60; ++round) {
      Call call = make_call(round % kKinds, rank, 9, round);
      if ((round + rank) % kRanks == 0)
        comm->run(call.operation);
      else
        comm->start(call.operation)->wait();
      ASSERT_EQ(call.out, call.expected) << round;
    }
  });
}

TEST(Posted, OperationsOnTheSameMemoryAreNotPostedTogether) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    Floats x(3, static_cast<float>(rank + 1));
    const auto first = comm->start(sum(x));
    const auto second = comm->start(sum(x));
    second->wait();
    first->wait();
    EXPECT_EQ(x, Floats(3, (1 + 2 + 3) * kRanks));
  });
}

TEST(Posted, ASynchronousCallCompletesWhatWasPostedBefore) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    Call call = make_call(1, rank, 4, 1);
    const auto work = comm->start(call.operation);
    comm->run(barrier());
    EXPECT_TRUE(work->done());
    EXPECT_EQ(call.out, call.expected);
  });
}

TEST(Posted, CompletesWithoutAWaiter) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    Call call = make_call(1, rank, 4, 1);
    const auto work = comm->start(call.operation);
    EXPECT_TRUE(becomes_true([&] { return work->done(); }));
    EXPECT_EQ(call.out, call.expected);
  });
}

TEST(Posted, ADroppedWorkCompletes) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    Call call = make_call(1, rank, 4, 1);
    std::atomic<bool> released{false};
    comm->start(call.operation, {.keepalive = std::shared_ptr<const void>(
                                     &released, [&](const void*) { released = true; })});
    EXPECT_TRUE(becomes_true([&] { return released.load(); }));
    EXPECT_EQ(call.out, call.expected);
  });
}

TEST(Posted, ACallbackRunsWithoutAWaiter) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    Call call = make_call(1, rank, 4, 1);
    std::atomic<bool> called{false};
    const auto work = comm->start(call.operation);
    work->on_done([&] {
      EXPECT_EQ(call.out, call.expected);
      called = true;
    });
    EXPECT_TRUE(becomes_true([&] { return called.load(); }));
  });
}

TEST(Posted, CallbacksThatIssueOperationsKeepTheOrder) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    Call first = make_call(1, rank, 4, 1);
    Call inside = make_call(1, rank, 4, 2);
    Call after = make_call(1, rank, 4, 3);
    const auto work = comm->start(first.operation);
    work->on_done_in_order([&] { comm->run(inside.operation); });
    if (rank == 0) std::this_thread::sleep_for(20ms);  // its callback runs later than the others'
    comm->start(after.operation)->wait();
    for (const Call& call : {first, inside, after}) EXPECT_EQ(call.out, call.expected);
  });
}

TEST(Posted, TestCompletesWhenAllRanksHaveJoined) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    Call call = make_call(1, rank, 4, 1);
    const auto work = comm->start(call.operation);
    EXPECT_TRUE(becomes_true([&] { return work->test(); }));
    EXPECT_EQ(call.out, call.expected);
  });
}

TEST(Posted, OnlySmallCollectivesArePosted) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    for (int kind = 0; kind < kKinds; ++kind)
      for (const std::size_t bytes : {std::size_t{8}, std::size_t{16} << 10}) {
        Call call = make_call(kind, rank, bytes / sizeof(float), 1);
        comm->run(barrier());
        const auto work = comm->start(call.operation);
        EXPECT_EQ(work->is_posted(), bytes == 8 || kind == 0) << kind << ", " << bytes;
        work->wait();
      }
  });
}

TEST(Posted, ARankThatNeedsNoOtherCompletesAtOnce) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    Call send = make_call(4, rank, 4, 0);        // broadcast from rank 0
    Call contribute = make_call(5, rank, 4, 3);  // reduce to rank 0
    if (rank != 0) std::this_thread::sleep_for(20ms);
    const auto first = comm->start(send.operation);
    EXPECT_TRUE(rank != 0 || first->done());
    first->wait();
    const auto second = comm->start(contribute.operation);
    EXPECT_TRUE(rank == 0 || second->done());
    second->wait();
    EXPECT_EQ(send.out, send.expected);
    EXPECT_EQ(contribute.out, contribute.expected);
  });
}

TEST(Posted, AWaitThatTimesOutLeavesTheOperation) {
  std::atomic<bool> timed_out{false};
  run_threads(kRanks, [&](int rank, const Comm& comm) {
    Call call = make_call(1, rank, 4, 1);
    if (rank != 0) {
      EXPECT_TRUE(becomes_true([&] { return timed_out.load(); }));
    }
    const auto work = comm->start(call.operation);
    if (rank == 0) {
      EXPECT_THROW(work->wait(50ms), Error);
    }
    timed_out = true;
    work->wait(25s);  // less than the operation's own timeout: another thread completes it
    EXPECT_EQ(call.out, call.expected);
  });
}

/// start() and test() run no callback: it may wait, or take a lock that their caller holds.
TEST(Posted, CallbacksDoNotRunInsideStart) {
  std::atomic<bool> registered{false};
  run_threads(kRanks, [&](int rank, const Comm& comm) {
    Call first = make_call(1, rank, 4, 1);
    Call second = make_call(1, rank, 4, 2);
    std::atomic<bool> called{false};
    if (rank != 0) {
      EXPECT_TRUE(becomes_true([&] { return registered.load(); }));
    }
    const auto work = comm->start(first.operation);
    work->on_done([&, caller = std::this_thread::get_id()] {
      EXPECT_TRUE(rank != 0 || std::this_thread::get_id() != caller);
      called = true;
    });
    registered = true;
    const auto work_of_second = comm->start(second.operation);
    EXPECT_TRUE(becomes_true([&] { return work->test() && called; }));
    work_of_second->wait();
  });
}

/// The root waits for nobody, so it finds the mismatch when it reuses a slot.
TEST(Posted, ARootThatFindsAMismatchFailsTheGroup) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    Floats x(rank == 0 ? 4 : 5);
    try {
      for (int i = 0; i < 1000; ++i)
        comm->start(broadcast(x.data(), x.size(), DType::float32, 0))->wait();
      ADD_FAILURE() << "rank " << rank << " did not fail";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::mismatch) << error.what();
    }
    EXPECT_NE(comm->error(), nullptr);
  });
}

TEST(Posted, StartDoesNotWaitForOtherRanks) {
  std::atomic<bool> started{false};
  run_threads(kRanks, [&](int rank, const Comm& comm) {
    Call call = make_call(1, rank, 4, 1);
    Call second = make_call(1, rank, 4, 2);
    if (rank != 0) {
      EXPECT_TRUE(becomes_true([&] { return started.load(); }));
    }
    const auto work = comm->start(call.operation);
    const auto work_of_second = comm->start(second.operation);
    if (rank == 0) {
      EXPECT_FALSE(work->test());
      started = true;
    }
    work_of_second->wait();
    EXPECT_TRUE(work->done());
    EXPECT_EQ(call.out, call.expected);
    EXPECT_EQ(second.out, second.expected);
  });
}

/// The root of a broadcast runs ahead until its slots are used up.
TEST(Posted, StartDoesNotWaitForAFreeSlot) {
  std::atomic<bool> started{false};
  run_threads(kRanks, [&](int rank, const Comm& comm) {
    for (int i = 0; i < 6; ++i) comm->run(barrier());
    if (rank != 0) {
      EXPECT_TRUE(becomes_true([&] { return started.load(); }));
    }
    std::vector<Floats> data(6, Floats(3));
    std::vector<std::shared_ptr<Work>> works;
    for (std::size_t i = 0; i < data.size(); ++i) {
      if (rank == 0) data[i] = Floats(3, static_cast<float>(i));
      works.push_back(comm->start(broadcast(data[i].data(), 3, DType::float32, 0)));
      if (rank == 0 && i < 2) works.back()->wait();
    }
    started = true;
    for (const auto& work : works) work->wait();
    for (std::size_t i = 0; i < data.size(); ++i)
      EXPECT_EQ(data[i], Floats(3, static_cast<float>(i)));
  });
}

TEST(Posted, ADifferentOperationOnAnotherRankIsAMismatch) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    Floats x(rank == 1 ? 5 : 4);
    try {
      comm->start(sum(x))->wait();  // start() fails if another rank has found the mismatch
      ADD_FAILURE() << "rank " << rank << " did not fail";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::mismatch) << error.what();
      EXPECT_NE(std::string(error.what()).find("called allreduce(count 5"), std::string::npos)
          << error.what();
    }
  });
}

TEST(Posted, ARankThatDoesNotJoinIsNamedAtTheTimeout) {
  std::atomic<bool> failed{false};
  run_threads(kRanks, [&](int rank, const Comm& comm) {
    if (rank == 2) {
      EXPECT_TRUE(becomes_true([&] { return failed.load(); }));
      return;
    }
    Floats x(4);
    const auto work = comm->start(sum(x), {.timeout = 300ms});
    try {
      work->wait();
      ADD_FAILURE() << "rank " << rank << " did not fail";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::timeout);
      EXPECT_EQ(error.ranks(), std::vector{2}) << error.what();
    }
    failed = true;
  });
}

/// Nobody waits, so a pool thread finds the timeout.
TEST(Posted, AnOperationThatNobodyWaitsForEndsAtItsTimeout) {
  std::atomic<bool> failed{false};
  run_threads(kRanks, [&](int rank, const Comm& comm) {
    if (rank == 2) {
      EXPECT_TRUE(becomes_true([&] { return failed.load(); }));
      return;
    }
    Floats x(4);
    const auto work = comm->start(sum(x), {.timeout = 300ms});
    EXPECT_TRUE(becomes_true([&] { return work->done(); }));
    EXPECT_NE(work->error(), nullptr);
    failed = true;
  });
}

TEST(Posted, AbortEndsPostedOperations) {
  std::atomic<int> started{0};
  run_threads(kRanks, [&](int rank, const Comm& comm) {
    if (rank == 2) {
      EXPECT_TRUE(becomes_true([&] { return started == 2; }));
      return comm->abort("test");
    }
    Floats x(4);
    const auto work = comm->start(sum(x));
    ++started;
    try {
      work->wait();
      ADD_FAILURE() << "rank " << rank << " did not fail";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::aborted) << error.what();
    }
  });
}

TEST(Posted, CloseCompletesPostedOperations) {
  run_threads(kRanks, [](int rank, const Comm& comm) {
    Call call = make_call(1, rank, 4, 1);
    const auto work = comm->start(call.operation);
    comm->close();
    EXPECT_TRUE(work->done());
    EXPECT_EQ(work->error(), nullptr);
    EXPECT_EQ(call.out, call.expected);
  });
}

/// Waits, polls, callbacks and synchronous calls of several threads at once.
TEST(Posted, ThreadsOfOneRank) {
  run_threads(2, [](int /*rank*/, const Comm& comm) {
    // Only one thread issues, so the order is the same on both ranks; another one waits.
    std::vector<std::shared_ptr<Work>> works(2000);
    std::vector<float> data(works.size(), 1);
    std::atomic<std::size_t> issued{0};
    std::thread waiter([&] {
      for (std::size_t i = 0; i < works.size(); ++i) {
        while (issued.load(std::memory_order_acquire) <= i) std::this_thread::yield();
        i % 3 == 0 ? static_cast<void>(works[i]->test()) : works[i]->wait();
      }
    });
    for (std::size_t i = 0; i < works.size(); ++i) {
      works[i] = comm->start(allreduce(&data[i], &data[i], 1, DType::float32, {ReduceOp::sum}));
      issued.store(i + 1, std::memory_order_release);
      if (i % 7 == 0) works[i]->wait();
      if (i % 50 == 0) comm->run(barrier());
    }
    waiter.join();
    for (const auto& work : works) work->wait();
    EXPECT_EQ(data, std::vector<float>(works.size(), 2));
  });
}

}  // namespace
}  // namespace tccl
