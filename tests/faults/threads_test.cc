// Ranks as threads of one process, so that ThreadSanitizer sees both sides of shared memory:
// callbacks, sequences and messages while other threads use the same group.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tccl/tccl.h"
#include "thread_ranks.h"

namespace faults {
namespace {

using namespace std::chrono_literals;
using tccl::DType;
using tccl::ReduceOp;
using Work = std::shared_ptr<tccl::Work>;

tccl::Operation sum(float* x) { return tccl::allreduce(x, x, 1, DType::float32, ReduceOp::sum); }

TEST(Callbacks, IssueInTheOrderOfTheirRegistration) {
  run_threads(3, [](int rank, const Comm& comm) {
    for (int round = 0; round < 60; ++round) {
      float first = 1;
      float inner = 10;
      float later = 100;
      std::atomic<bool> called{false};
      const Work work = comm->start(sum(&first));
      if (round % 3 == rank) work->wait();  // on one rank the callback runs here
      work->on_done_in_order([&] {
        if (rank == round % 2) std::this_thread::sleep_for(100us);
        comm->run(sum(&inner));
        called = true;
      });
      comm->start(sum(&later))->wait();
      while (!called) std::this_thread::yield();
      EXPECT_EQ(first, 3);
      EXPECT_EQ(inner, 30);
      EXPECT_EQ(later, 300);
    }
  });
}

// A callback that waits may run other operations meanwhile, but not their callbacks, which are
// later in the order.
TEST(Callbacks, DoNotRunInsideEachOther) {
  run_threads(2, [](int rank, const Comm& comm) {
    for (int round = 0; round < 200; ++round) {
      float a = 1;
      float x = 10;
      float c1 = 100;
      float c2 = 1000;
      float d1 = 10000;
      std::atomic<int> called{0};
      const Work first = comm->start(sum(&a));
      const Work second = comm->start(sum(&x));
      first->on_done_in_order([&] {
        if (rank == round % 2) std::this_thread::sleep_for(50us);
        comm->run(sum(&c1));
        comm->run(sum(&c2));
        ++called;
      });
      second->on_done_in_order([&] {
        comm->run(sum(&d1));
        ++called;
      });
      if (rank == round / 2 % 2) second->wait();
      while (called < 2) std::this_thread::yield();
      EXPECT_EQ(a, 2);
      EXPECT_EQ(x, 20);
      EXPECT_EQ(c1, 200);
      EXPECT_EQ(c2, 2000);
      EXPECT_EQ(d1, 20000);
    }
  });
}

TEST(Sequences, RunBesideOtherOperationsOfTheGroup) {
  run_threads(2, [](int rank, const Comm& comm) {
    for (int round = 0; round < 60; ++round) {
      float a = 1;
      float b = 2;
      float c = 3;
      const Work sequence =
          comm->start(tccl::OperationList{"two sums", 2,
                                          [&](const tccl::OperationList::Run& run) {
                                            run(sum(&a));
                                            b *= a;
                                            run(sum(&b));
                                          }},
                      {});
      const Work plain = comm->start(sum(&c));
      (rank == round % 2 ? plain : sequence)->wait();
      sequence->wait();
      plain->wait();
      EXPECT_EQ(a, 2);
      EXPECT_EQ(b, 8);
      EXPECT_EQ(c, 6);
    }
  });
}

TEST(LargeOperations, AreSharedWithWorkers) {
  ::setenv("CCL_WORKER_COUNT", "2", 1);
  ::setenv("CCL_CHUNK_BYTES", "2M", 1);
  run_threads(2, [](int rank, const Comm& comm) {
    const std::size_t count = (std::size_t{3} << 20) + 17;
    std::vector<float> x(count);
    std::vector<float> y(count, 1);
    for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<float>(i % 1000) * (rank + 1);
    const auto all = [](std::vector<float>& data) {
      return tccl::allreduce(data.data(), data.data(), data.size(), DType::float32, ReduceOp::sum);
    };
    // Two groups at once: the workers serve one of them at a time.
    const Comm other = comm->split(0, rank, {.name = "other", .timeout = 30s});
    const Work first = comm->start(all(x));
    other->run(all(y));
    first->wait();
    bool right = true;
    for (std::size_t i = 0; i < count; ++i)
      right &= x[i] == static_cast<float>(i % 1000) * 3 && y[i] == 2;
    EXPECT_TRUE(right);
    other->close();
  });
  ::unsetenv("CCL_CHUNK_BYTES");
  ::unsetenv("CCL_WORKER_COUNT");
}

/// Rank 0 issues a barrier while its split() waits for rank 1; rank 1 issues it after its split().
TEST(Split, IsOneEntryOfTheIssueOrder) {
  std::atomic<bool> barrier_is_issued{false};
  run_threads(2, [&](int rank, const Comm& comm) {
    const std::uint32_t first = comm->next_sequence();
    Work barrier;
    std::thread other_thread;
    if (rank == 0)
      other_thread = std::thread([&] {
        while (comm->next_sequence() == first) std::this_thread::yield();
        barrier = comm->start(tccl::barrier());
        barrier_is_issued = true;
      });
    else
      while (!barrier_is_issued) std::this_thread::yield();
    const Comm pair = comm->split(0, rank, {.name = "pair", .timeout = 30s});
    if (rank == 0)
      other_thread.join();
    else
      barrier = comm->start(tccl::barrier());
    barrier->wait();
    EXPECT_EQ(comm->next_sequence(), first + 3);
    float x = 1;
    pair->run(sum(&x));
    EXPECT_EQ(x, 2);
    pair->close();
  });
}

TEST(Messages, BeyondTheRingReachARankInAnotherOperation) {
  run_threads(2, [](int rank, const Comm& comm) {
    constexpr int kMessages = 60;
    if (rank == 1)
      for (int i = 0; i < kMessages; ++i) comm->run(tccl::send(&i, sizeof i, 0));
    comm->run(tccl::barrier());
    if (rank == 0)
      for (int i = 0; i < kMessages; ++i) {
        int received = -1;
        comm->run(tccl::recv(&received, sizeof received, 1));
        EXPECT_EQ(received, i);
      }
  });
}

TEST(Messages, ThatWereCancelledReceiveNothing) {
  run_threads(2, [](int rank, const Comm& comm) {
    for (int round = 0; round < 100; ++round) {
      int value = rank * 1000 + round;
      int received = -1;
      int never = -1;
      const Work cancelled = comm->start(tccl::recv(&never, sizeof never, 1 - rank, 7));
      EXPECT_TRUE(cancelled->cancel());
      EXPECT_TRUE(cancelled->cancel());  // it stays cancelled
      EXPECT_THROW(cancelled->wait(), tccl::Error);
      comm->run(tccl::barrier());
      const Work sent = comm->start(tccl::send(&value, sizeof value, 1 - rank, 7));
      comm->run(tccl::recv(&received, sizeof received, 1 - rank, 7));
      sent->wait();
      EXPECT_EQ(received, (1 - rank) * 1000 + round);
      EXPECT_EQ(never, -1);
      EXPECT_FALSE(comm->start(tccl::barrier())->cancel());
    }
    EXPECT_EQ(comm->error(), nullptr);
  });
}

}  // namespace
}  // namespace faults
