// Zero-copy collectives that fail: a late rank must not change the tensor of a rank whose operation
// has failed, and no rank may read memory that was changed after the failure as data.
#include <sys/wait.h>

#include <fstream>
#include <random>

#include "base/shared_memory.h"
#include "harness.h"

namespace faults {
namespace {

constexpr std::size_t kCount = std::size_t{12} << 20;  // floats: some milliseconds of work

float* floats(const std::shared_ptr<void>& memory) { return static_cast<float*>(memory.get()); }

/// In KiB, of shared memory in this process.
long resident_shared() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "RssShmem:") {
      long kib = 0;
      status >> kib;
      return kib;
    }
  return -1;
}

/// Whether the page at this address is shared memory, which peers have mapped.
bool is_shared(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::size_t used = 0;
    const std::uintptr_t begin = std::stoull(line, &used, 16);
    const std::uintptr_t end = std::stoull(line.substr(used + 1), nullptr, 16);
    if (begin <= wanted && wanted < end) return line.find("memfd:tccl") != std::string::npos;
  }
  return false;
}

/// Runs all-reduces until one fails, then uses the tensor for something else. It begins and ends
/// `skew` elements from the ends of its memory.
void fail_and_reuse(Rank& rank, std::size_t skew) {
  auto world = rank.join("tp", rank.rank == 0 ? 500ms : 20s);
  const auto memory = rank.context()->allocate((kCount + 2 * skew) * sizeof(float));
  float* x = floats(memory) + skew;
  const auto allreduce = tccl::allreduce(x, x, kCount, DType::float32, ReduceOp::min);
  std::fill_n(x, kCount, 1.0F);
  world->run(tccl::barrier());
  rank.report("ready");
  try {
    for (;;) world->run(allreduce);
  } catch (const tccl::Error&) {
  }
  if (rank.rank != 0) return;
  std::fill_n(x, kCount, 2.0F);
  // All pages but the first and the last one, which only this rank writes, are private now.
  const std::size_t page = tccl::page_bytes() / sizeof(float);
  EXPECT_FALSE(is_shared(x + page));
  EXPECT_FALSE(is_shared(x + kCount / 2));
  EXPECT_FALSE(is_shared(x + kCount - page - 1));
  rank.report("timed out");
  std::this_thread::sleep_for(300ms);
  const auto wrong = static_cast<std::size_t>(std::count(x, x + kCount, 1.0F));
  rank.report(wrong == 0 ? "intact" : "overwritten: " + std::to_string(wrong));
}

/// Stops rank 1 at a random point of its operations.
void stop_rank_1_until_rank_0_reports(const std::string& word, Ranks& ranks, std::mt19937& random) {
  ASSERT_TRUE(ranks.all_reported("ready")) << ranks.transcript();
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 50'000));
  ranks.kill_rank(1, SIGSTOP);
  const auto said = [&] { return ranks.outcomes[0].find(word).has_value(); };
  ASSERT_TRUE(ranks.read_until(said, 20s)) << ranks.transcript();
  ranks.kill_rank(1, SIGCONT);
}

TEST(ZeroCopyProcess, ALateRankCannotWriteIntoATensorWhoseOperationFailed) {
  std::mt19937 random(3);
  for (int round = 0; round < 8; ++round) {
    Ranks ranks(2, [&](Rank& rank) { fail_and_reuse(rank, round % 2 == 0 ? 0 : 129); });
    ASSERT_NO_FATAL_FAILURE(stop_rank_1_until_rank_0_reports("timed out", ranks, random));
    ranks.expect_all_exit_cleanly();
    EXPECT_TRUE(ranks.outcomes[0].find("intact")) << ranks.transcript();
  }
}

/// Rank 0 times out and changes its tensor; rank 1, stopped meanwhile, continues to read.
void publish_and_fail(Rank& rank, tccl::Op op) {
  ::setenv("CCL_CHUNK_BYTES", "16777216", 1);  // few steps: rank 1 is stopped in the last ones too
  auto world = rank.join("tp", rank.rank == 0 ? 500ms : 20s);
  const auto published = rank.context()->allocate(kCount * sizeof(float));
  const auto got = rank.context()->allocate(2 * kCount * sizeof(float));
  std::fill_n(floats(published), kCount, 1.0F);
  world->run(tccl::barrier());
  rank.report("ready");
  const auto operation =
      op == tccl::Op::broadcast
          ? tccl::broadcast(floats(rank.rank == 0 ? published : got), kCount, DType::float32, 0)
      : op == tccl::Op::allgather
          ? tccl::allgather(floats(published), floats(got), kCount, DType::float32)
          : tccl::alltoall(floats(published), floats(got), kCount / 2, DType::float32);
  for (;;) {
    try {
      world->run(operation);
    } catch (const tccl::Error&) {
      std::fill_n(floats(published), kCount, 2.0F);
      return rank.report("failed");
    }
    float* end = floats(got) + (op == tccl::Op::allgather ? 2 * kCount : kCount);
    if ((rank.rank != 0 || op != tccl::Op::broadcast) && std::count(floats(got), end, 2.0F) != 0)
      return rank.report("read changed memory as data");
  }
}

class PublishedMemoryProcess : public ::testing::TestWithParam<tccl::Op> {};

TEST_P(PublishedMemoryProcess, IsNotReadAsDataAfterItsOwnerHasFailed) {
  std::mt19937 random(5);
  for (int round = 0; round < 6; ++round) {
    Ranks ranks(2, [&](Rank& rank) { publish_and_fail(rank, GetParam()); });
    ASSERT_NO_FATAL_FAILURE(stop_rank_1_until_rank_0_reports("failed", ranks, random));
    ranks.finish();
    EXPECT_TRUE(ranks.outcomes[1].find("failed")) << ranks.transcript();
  }
}

INSTANTIATE_TEST_SUITE_P(Reading, PublishedMemoryProcess,
                         ::testing::Values(tccl::Op::broadcast, tccl::Op::allgather,
                                           tccl::Op::alltoall),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(ZeroCopyProcess, ATensorOfAFailedOperationServesTheNextGroup) {
  Ranks ranks(2, [](Rank& rank) {
    ::setenv("CCL_SHARED_BYTES", "256M", 1);
    auto memory = rank.context()->allocate(kCount * sizeof(float));
    float* x = floats(memory);
    {
      auto first = rank.join("first", 300ms);
      std::fill_n(x, kCount, 1.0F);
      if (rank.rank == 0) {
        EXPECT_THROW(first->run(tccl::allreduce(x, x, kCount, DType::float32, ReduceOp::sum)),
                     tccl::Error);
      }
    }
    auto second = rank.join("second");
    for (int round = 0; round < 3; ++round) {
      std::fill_n(x, kCount, static_cast<float>(rank.rank + round));
      second->run(tccl::allreduce(x, x, kCount, DType::float32, ReduceOp::sum));
      EXPECT_EQ(std::count(x, x + kCount, static_cast<float>(1 + 2 * round)),
                static_cast<long>(kCount));
    }
    // Its memory is freed too: three tensors need nearly all shared memory. (The other rank may not
    // have left the groups yet.)
    second->close();
    memory.reset();
    std::vector<std::shared_ptr<void>> all;
    const double give_up_at = now_ms() + 10'000;
    while (all.size() < 3 && now_ms() < give_up_at) {
      try {
        all.push_back(rank.context()->allocate(kCount * sizeof(float)));
        std::fill_n(floats(all.back()), kCount, 1.0F);
      } catch (const tccl::Error&) {
        std::this_thread::sleep_for(10ms);
      }
    }
    EXPECT_EQ(all.size(), 3U);
  });
  ranks.expect_all_exit_cleanly();
}

TEST(ZeroCopyMemory, IsReusedAndDoesNotGrow) {
  Ranks ranks(1, [](Rank& rank) {
    const auto use = [&] {
      const auto a = rank.context()->allocate(kCount);
      const auto b = rank.context()->allocate(kCount / 3);
      std::fill_n(static_cast<char*>(a.get()), kCount, 'a');
      std::fill_n(static_cast<char*>(b.get()), kCount / 3, 'b');
      EXPECT_EQ(static_cast<char*>(a.get())[kCount - 1], 'a');
    };
    use();
    const long before = resident_shared();
    EXPECT_GT(before, static_cast<long>(kCount / 1024));
    for (int round = 0; round < 200; ++round) use();
    EXPECT_LE(resident_shared(), before + 64);
  });
  ranks.expect_all_exit_cleanly();
}

TEST(ZeroCopyMemory, CachedBlocksAreFreedWhenMemoryIsNeeded) {
  Ranks ranks(1, [](Rank& rank) {
    ::setenv("CCL_SHARED_BYTES", "256M", 1);
    constexpr std::size_t kMiB = std::size_t{1} << 20;
    for (const std::size_t bytes : {20 * kMiB, 170 * kMiB, 30 * kMiB, 180 * kMiB})
      EXPECT_NE(rank.context()->allocate(bytes), nullptr);
  });
  ranks.expect_all_exit_cleanly();
}

TEST(ZeroCopyMemory, OutlivesItsContext) {
  Ranks ranks(1, [](Rank& /*rank*/) {
    auto context = tccl::Context::create();
    auto memory = context->allocate(8192);
    context->close();
    context.reset();
    std::fill_n(static_cast<char*>(memory.get()), 8192, 'x');
    EXPECT_EQ(static_cast<char*>(memory.get())[8191], 'x');
  });
  ranks.expect_all_exit_cleanly();
}

TEST(ZeroCopyMemory, IsSharedWithAForkedChildWhichMayReleaseIt) {
  Ranks ranks(1, [](Rank& rank) {
    auto memory = rank.context()->allocate(8192);
    auto* bytes = static_cast<char*>(memory.get());
    bytes[0] = 'p';
    const pid_t child = ::fork();
    if (child == 0) {
      if (bytes[0] != 'p') ::_exit(1);
      bytes[1] = 'c';
      memory.reset();
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(bytes[0], 'p');
    EXPECT_EQ(bytes[1], 'c');
  });
  ranks.expect_all_exit_cleanly();
}

TEST(ZeroCopyMemory, RejectsAllocationsThatDoNotFit) {
  Ranks ranks(1, [](Rank& rank) {
    try {
      rank.context()->allocate(std::size_t{1} << 50);
      rank.report("got it");
    } catch (const tccl::Error& error) {
      EXPECT_EQ(error.code(), tccl::Errc::system);
      EXPECT_NE(std::string(error.what()).find("no room"), std::string::npos) << error.what();
    }
    EXPECT_THROW(rank.context()->allocate(SIZE_MAX), tccl::Error);
    EXPECT_NE(rank.context()->allocate(0), nullptr);
  });
  ranks.expect_all_exit_cleanly();
}

}  // namespace
}  // namespace faults
