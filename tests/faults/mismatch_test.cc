// Ranks that call different operations: every rank gets an error that names both calls, at the
// latest at the next operation that synchronises.
#include "harness.h"

namespace faults {
namespace {

using tccl::Operation;

constexpr std::size_t kSmall = 2;
constexpr std::size_t kLarge = std::size_t{16} << 20;  // elements: 64 MiB of float32

/// Large enough for every case; only the start is written, so most pages never exist.
struct Buffers {
  std::unique_ptr<float[]> in = std::make_unique_for_overwrite<float[]>(kLarge);
  std::unique_ptr<float[]> out = std::make_unique_for_overwrite<float[]>(kLarge);
  Buffers() { std::fill_n(in.get(), 100'000, 1.0F); }
};

struct Mismatch {
  const char* name;
  Operation (*first)(Buffers&);
  Operation (*second)(Buffers&);
  std::vector<std::string> mentions;  // parts of the error message, of both calls

  friend void PrintTo(const Mismatch& d, std::ostream* os) { *os << d.name; }
};

Operation sum(Buffers& b, std::size_t count, DType dtype = DType::float32,
              ReduceOp op = ReduceOp::sum) {
  return tccl::allreduce(b.in.get(), b.out.get(), count, dtype, op);
}

Operation chunk_of(std::uint64_t total_count, Operation operation) {
  operation.total_count = total_count;
  return operation;
}

const Mismatch kMismatches[] = {
    {"sizes",
     [](Buffers& b) { return sum(b, kSmall); },
     [](Buffers& b) { return sum(b, kLarge); },
     {"count 2,", "count 16777216,"}},
    {"chunks_of_different_collectives",
     [](Buffers& b) { return chunk_of(128, sum(b, 64)); },
     [](Buffers& b) { return chunk_of(256, sum(b, 64)); },
     {"count 64, chunk 1 of a staged collective (in all: 128 elements)",
      "count 64, chunk 1 of a staged collective (in all: 256 elements)"}},
    {"chunk_and_whole_collective",
     [](Buffers& b) { return sum(b, 64); },
     [](Buffers& b) { return chunk_of(128, sum(b, 64)); },
     {"count 64, float32", "chunk 1 of a staged collective (in all: 128 elements)"}},
    {"dtypes",
     [](Buffers& b) { return sum(b, 64); },
     [](Buffers& b) { return sum(b, 64, DType::int32); },
     {"float32", "int32"}},
    {"reductions",
     [](Buffers& b) { return sum(b, 64); },
     [](Buffers& b) { return sum(b, 64, DType::float32, ReduceOp::max); },
     {"sum", "max"}},
    {"operations",
     [](Buffers& b) { return sum(b, 64); },
     [](Buffers& b) { return tccl::allgather(b.in.get(), b.out.get(), 64, DType::float32); },
     {"allreduce(", "allgather("}},
    {"operation_and_barrier",
     [](Buffers& b) { return sum(b, kLarge); },
     [](Buffers&) { return tccl::barrier(); },
     {"allreduce(", "barrier("}},
    {"broadcast_roots",
     [](Buffers& b) { return tccl::broadcast(b.in.get(), 64, DType::float32, 0); },
     [](Buffers& b) { return tccl::broadcast(b.in.get(), 64, DType::float32, 1); },
     {"root 0", "root 1"}},
    {"large_broadcast_roots",
     [](Buffers& b) { return tccl::broadcast(b.in.get(), kLarge, DType::float32, 0); },
     [](Buffers& b) { return tccl::broadcast(b.in.get(), kLarge, DType::float32, 1); },
     {"root 0", "root 1"}},
    {"broadcast_sizes",
     [](Buffers& b) { return tccl::broadcast(b.in.get(), kLarge, DType::float32, 0); },
     [](Buffers& b) { return tccl::broadcast(b.in.get(), 3, DType::float32, 0); },
     {"count 16777216,", "count 3,"}},
    {"gather_roots",
     [](Buffers& b) { return tccl::gather(b.in.get(), b.out.get(), 64, DType::float32, 0); },
     [](Buffers& b) { return tccl::gather(b.in.get(), b.out.get(), 64, DType::float32, 1); },
     {"root 0", "root 1"}},
    {"reduce_roots",
     [](Buffers& b) {
       return tccl::reduce(b.in.get(), b.out.get(), 64, DType::float32, ReduceOp::sum, 0);
     },
     [](Buffers& b) {
       return tccl::reduce(b.in.get(), b.out.get(), 64, DType::float32, ReduceOp::sum, 1);
     },
     {"root 0", "root 1"}},
};

class MismatchProcess : public ::testing::TestWithParam<Mismatch> {};

void expect_errors_that_mention(const Ranks& ranks, const std::vector<std::string>& mentions) {
  for (const Outcome& outcome : ranks.outcomes) {
    const auto error = outcome.find("error mismatch");
    ASSERT_TRUE(error) << ranks.transcript();
    for (const std::string& mention : mentions)
      EXPECT_NE(error->text.find(mention), std::string::npos) << mention << "\n" << error->text;
    // Rank 1 called something else; the message may name any of the other ranks.
    EXPECT_NE(error->text.find("rank 1"), std::string::npos) << error->text;
    EXPECT_TRUE(error->text.find("rank 0") != std::string::npos ||
                error->text.find("rank 2") != std::string::npos)
        << error->text;
  }
}

TEST_P(MismatchProcess, ErrorNamesBothCalls) {
  const Mismatch& d = GetParam();
  for (const int size : {2, 3}) {
    Ranks ranks(size, [&](Rank& rank) {
      auto world = rank.join("world", 10s);
      Buffers buffers;
      world->run(sum(buffers, 10));
      world->run(rank.rank == 1 ? d.second(buffers) : d.first(buffers));
      world->run(tccl::barrier());  // the next operation that synchronises
    });
    ranks.finish();
    expect_errors_that_mention(ranks, d.mentions);
    EXPECT_NE(ranks.outcomes[0].find("error mismatch")->text.find("operation #2"),
              std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(All, MismatchProcess, ::testing::ValuesIn(kMismatches),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(MismatchSettingProcess, AlgorithmForcedOnOneRankOnly) {
  Ranks ranks(2, [](Rank& rank) {
    if (rank.rank == 1) ::setenv("CCL_ALLREDUCE", "two_shot", 1);
    auto world = rank.join("world", 10s);
    Buffers buffers;
    world->run(sum(buffers, 10));
  });
  ranks.finish();
  expect_errors_that_mention(ranks, {"algorithm one_shot", "algorithm two_shot"});
}

TEST(MismatchSettingProcess, ChunkBytesDiffer) {
  Ranks ranks(2, [](Rank& rank) {
    if (rank.rank == 1) ::setenv("CCL_CHUNK_BYTES", "4096", 1);
    rank.join("world", 10s);
  });
  ranks.finish();
  expect_errors_that_mention(ranks, {"CCL_CHUNK_BYTES", "4096", "262144"});
}

TEST(MismatchSettingProcess, AlltoallvCountsDiffer) {
  Ranks ranks(2, [](Rank& rank) {
    auto world = rank.join("world", 10s);
    std::vector<float> in(100), out(100);
    const std::size_t wrong = rank.rank == 1 ? 9 : 8;  // rank 0 sends 8 elements
    const tccl::ConstBlock send[] = {{in.data(), 8}, {in.data(), 8}};
    const tccl::Block receive[] = {{out.data(), wrong}, {out.data() + 50, 8}};
    world->run(tccl::alltoallv(send, receive, DType::float32));
  });
  ranks.finish();
  expect_errors_that_mention(ranks, {"rank 0 sends 32 bytes to rank 1, which expects 36"});
}

TEST(MismatchSettingProcess, MessageSizesDiffer) {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{1} << 20}) {
    Ranks ranks(2, [&](Rank& rank) {
      auto world = rank.join("world", 5s);
      std::vector<char> data(bytes + 1);
      rank.rank == 0 ? world->run(tccl::send(data.data(), bytes + 1, 1))
                     : world->run(tccl::recv(data.data(), bytes, 0));
      world->run(tccl::barrier());
    });
    ranks.finish();
    expect_errors_that_mention(ranks, {"bytes"});
  }
}

TEST(MismatchSettingProcess, TwoProcessesWithOneRank) {
  Ranks ranks(3, [](Rank& rank) {
    const auto context = tccl::Context::create();
    auto store = tccl::file_store("/tmp/tccl-same-rank-" + std::to_string(::getppid()));
    tccl::Communicator::create(context, *store, std::min(rank.rank, 1), 3, {.timeout = 10s});
  });
  ranks.finish();
  std::filesystem::remove_all("/tmp/tccl-same-rank-" + std::to_string(::getpid()));
  for (const Outcome& outcome : ranks.outcomes) {
    const auto error = outcome.find("error invalid_argument");
    ASSERT_TRUE(error) << ranks.transcript();
    EXPECT_NE(error->text.find("two processes have rank 1"), std::string::npos) << error->text;
  }
}

TEST(MismatchSettingProcess, RejectedCallLeavesTheGroupUsable) {
  Ranks ranks(2, [](Rank& rank) {
    auto world = rank.join("world", 5s);
    Buffers buffers;
    const std::uint32_t before = world->next_sequence();
    for (const Operation& bad :
         {tccl::broadcast(buffers.in.get(), 4, DType::float32, 7),
          tccl::allreduce(buffers.in.get(), buffers.out.get(), 4, DType::complex64, ReduceOp::min),
          tccl::allreduce(nullptr, buffers.out.get(), 4, DType::float32, ReduceOp::sum),
          tccl::send(buffers.in.get(), 4, -2)}) {
      try {
        if (rank.rank == 0) world->run(bad);
      } catch (const tccl::Error& error) {
        check(error.code() == tccl::Errc::invalid_argument, error.what());
        rank.report("rejected");
      }
    }
    check(world->next_sequence() == before, "sequence number used");
    world->run(sum(buffers, 10));
    check(buffers.out[9] == 2.0F, "sum");
  });
  ranks.expect_all_exit_cleanly();
  EXPECT_EQ(ranks.outcomes[0].lines.size(), 4U) << ranks.transcript();
}

TEST(SequenceProcess, NumbersWrap) {
  Ranks ranks(3, [](Rank& rank) {
    auto world = rank.join("world", 10s, 0xfffffffd);
    Buffers b;
    for (int i = 0; i < 12; ++i) {
      std::fill_n(b.in.get(), 100'000, 1.0F);
      world->run(sum(b, i % 2 == 0 ? 5 : 100'000));
      check(b.out[4] == 3.0F, "sum");
      world->run(tccl::broadcast(b.in.get(), 100'000, DType::float32, i % 3));
    }
    check(world->next_sequence() == 21, "24 operations after 2^32 - 3");
    world->run(rank.rank == 1 ? sum(b, 4) : sum(b, 5));
  });
  ranks.finish();
  expect_errors_that_mention(ranks, {"operation #21", "count 4,", "count 5,"});
}

}  // namespace
}  // namespace faults
