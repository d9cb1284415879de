// Algorithm selection, validation and the shared memory arena.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <functional>

#include "base/system_error.h"
#include "communicator/validate.h"
#include "config/settings.h"
#include "operation/op_traits.h"
#include "planner/algorithm_selector.h"
#include "planner/oneccl_algorithms.h"
#include "tccl/error.h"
#include "transport/shm/arena.h"
#include "transport/shm/region.h"

namespace tccl {
namespace {

std::string rejection(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::invalid_argument);
    return error.what();
  }
  return "";
}

/// The settings that CCL_<OPERATION>=rules, or with _SCALEOUT, gives.
Settings with_rules(Op op, const std::string& rules, bool over_hosts = false) {
  Settings settings;
  settings.algorithms.push_back({op, "CCL_X", rules, over_hosts});
  return settings;
}

TEST(AlgorithmSelector, DefaultsGoBySizeRanksAndDtype) {
  const AlgorithmSelector table{Settings()};
  struct {
    std::size_t bytes;
    int ranks;
    DType dtype;
    const char* name;
  } const cases[] = {
      {8, 2, DType::float32, "one_shot"},
      {std::size_t{64} << 20, 2, DType::float32, "one_shot"},
      {std::size_t{64} << 20, 4, DType::bfloat16, "one_shot"},
      {(1 << 20) - 1, 8, DType::float32, "one_shot"},
      {1 << 20, 8, DType::float32, "two_shot"},
      {1 << 20, 5, DType::float32, "one_shot"},
      {1023, 2, DType::float8_e5m2, "one_shot"},
      {1024, 2, DType::float8_e5m2, "two_shot"},
  };
  for (const auto& c : cases)
    EXPECT_STREQ(table.select(Op::allreduce, c.bytes, c.ranks, c.dtype).name, c.name)
        << c.bytes << " bytes, " << c.ranks << " ranks";
}

TEST(AlgorithmSelector, SettingsOverride) {
  const AlgorithmSelector table(with_rules(Op::allreduce, "two_shot:0-100;one_shot:101-max"));
  const auto chosen = [&](Op op, std::size_t bytes) {
    return std::string(table.select(op, bytes, 8, DType::float32).name);
  };
  EXPECT_EQ(chosen(Op::allreduce, 100), "two_shot");
  EXPECT_EQ(chosen(Op::allreduce, 101), "one_shot");
  EXPECT_EQ(chosen(Op::allreduce, 1 << 20), "one_shot");
  EXPECT_EQ(chosen(Op::reduce, 1 << 20), "two_shot");
}

TEST(AlgorithmSelector, TheLastRuleThatAppliesWins) {
  const AlgorithmSelector table(with_rules(Op::allreduce, "two_shot;one_shot:0-4096"));
  EXPECT_STREQ(table.select(Op::allreduce, 4096, 2, DType::float32).name, "one_shot");
  EXPECT_STREQ(table.select(Op::allreduce, 4097, 2, DType::float32).name, "two_shot");
}

TEST(AlgorithmSelector, BadRulesAreRejected) {
  for (const char* rule : {"magic", "one_shot:7", "one_shot:a-b", "one_shot:1-2x"})
    EXPECT_NE(rejection([&] { AlgorithmSelector table(with_rules(Op::allreduce, rule)); }), "")
        << rule;
}

/// For each operation and a size in each range of the defaults, on one host and over hosts.
void expect_defaults(const AlgorithmSelector& table, const std::string& rules) {
  const AlgorithmSelector defaults{Settings()};
  for (int op = 0; op < kOpCount; ++op) {
    if (is_point_to_point(static_cast<Op>(op))) continue;
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{64} << 10, std::size_t{16} << 20})
      for (const bool over_hosts : {false, true}) {
        const auto select = [&](const AlgorithmSelector& selector) {
          return selector.select(static_cast<Op>(op), bytes, 8, DType::float32, over_hosts).name;
        };
        EXPECT_STREQ(select(table), select(defaults)) << rules << ", " << bytes << " bytes";
      }
  }
}

TEST(AlgorithmSelector, AnAlgorithmWithoutRulesIsListedAndRunsIfASettingNamesIt) {
  constexpr Algorithm::Rule kAlways[] = {{}};
  const Algorithm rows[] = {{Op::allgather, "default", "", allgather_one_shot, nullptr, kAlways},
                            {Op::allgather, "new", "compared first", allgather_one_shot}};
  const auto select = [&](const Settings& settings) {
    return std::string(
        AlgorithmSelector(settings, rows).select(Op::allgather, 1, 2, DType::float32).name);
  };
  const Settings settings;
  EXPECT_EQ(select(settings), "default");
  const std::vector<AlgorithmRule> rules = AlgorithmSelector(settings, rows).rules();
  ASSERT_EQ(rules.size(), 2U);
  EXPECT_TRUE(rules[0].applies);
  EXPECT_EQ(rules[1].algorithm, "new");
  EXPECT_EQ(rules[1].doc, "compared first");
  EXPECT_FALSE(rules[1].applies);
  EXPECT_EQ(select(with_rules(Op::allgather, "new")), "new");
}

TEST(AlgorithmSelector, NamesOfOnecclMeanTheDefault) {
  std::vector<std::string> examples = {
      "recursive_doubling:0-8192;rabenseifner:8193-1048576;ring:1048577-max",
      "naive:0-8192;scatter:8193-max", "direct:0-8192;double_tree:1048577-max"};
  for (const std::string_view name : kOnecclAlgorithms) {
    examples.emplace_back(name);
    examples.push_back(std::string(name) + ":0-64K");
  }
  for (const std::string& rules : examples)
    for (const Op op : {Op::allreduce, Op::reduce, Op::allgather, Op::reduce_scatter, Op::alltoallv,
                        Op::barrier, Op::broadcast})
      for (const bool over_hosts : {false, true})
        if (op != Op::broadcast || !rules.starts_with("tree:"))  // a name of ours, checked range
          expect_defaults(AlgorithmSelector(with_rules(op, rules, over_hosts)), rules);
}

TEST(AlgorithmSelector, RulesOverHostsComeLastAndNameAlgorithmsOverHosts) {
  Settings settings = with_rules(Op::allreduce, "two_shot;leader_allgather");
  settings.algorithms.push_back({Op::allreduce, "CCL_Y", "rails:0-100", /*over_hosts=*/true});
  const AlgorithmSelector table(settings);
  const auto chosen = [&](std::size_t bytes, bool over_hosts) {
    return std::string(table.select(Op::allreduce, bytes, 2, DType::float32, over_hosts).name);
  };
  EXPECT_EQ(chosen(100, true), "rails");
  EXPECT_EQ(chosen(101, true), "leader_allgather");
  EXPECT_EQ(chosen(100, false), "two_shot");
  const std::string text =
      rejection([] { AlgorithmSelector(with_rules(Op::allreduce, "two_shot", true)); });
  EXPECT_NE(text.find("CCL_X=two_shot: there is no algorithm"), std::string::npos) << text;
}

TEST(Registry, EveryCollectiveHasAnAlgorithmForEverySize) {
  const AlgorithmSelector table{Settings()};
  for (int op = 0; op < kOpCount; ++op) {
    if (is_point_to_point(static_cast<Op>(op))) continue;
    for (const std::size_t bytes : {std::size_t{0}, ~std::size_t{0}})
      for (const bool several_hosts : {false, true}) {
        const int fewest_ranks = several_hosts ? 2 : 1;
        const Algorithm& chosen =
            table.select(static_cast<Op>(op), bytes, fewest_ranks, DType::float32, several_hosts);
        EXPECT_EQ(chosen.op, static_cast<Op>(op));
        EXPECT_EQ(chosen.run_over_hosts != nullptr, several_hosts);
      }
  }
}

TEST(Validate, RejectsCountsThatNeedTooManySteps) {
  float x = 0;
  const std::string name = "g";
  const auto sum = [&](std::size_t count) {
    return allreduce(&x, &x, count, DType::float32, ReduceOp::sum);
  };
  EXPECT_EQ(rejection([&] { validate(sum(std::size_t{1} << 36), {0, 4, name, 256 << 10}); }), "");
  EXPECT_NE(rejection([&] { validate(sum(std::size_t{1} << 36), {0, 4, name, 16}); }), "");
}

TEST(Arena, AllocationsDoNotOverlapAndAreReused) {
  shm::Arena arena(std::size_t{1} << 30);
  const shm::Allocation a = arena.allocate(5000);
  const shm::Allocation b = arena.allocate(1);
  EXPECT_EQ(a.bytes, 8192U);
  EXPECT_GE(b.offset, a.offset + a.bytes);
  arena.at(a)[0] = std::byte{7};
  arena.deallocate(a);
  arena.deallocate(b);
  const shm::Allocation again = arena.allocate(5000 + 4096);
  EXPECT_EQ(again.offset, a.offset) << "neighbours must merge";
  EXPECT_EQ(arena.at(again)[0], std::byte{0}) << "freed memory must read as zero";
}

TEST(DescriptorLimitText, SaysWhoCanRaiseTheLimit) {
  EXPECT_EQ(descriptor_limit_text(1024, 4096),
            ": the limit of this process is 1024 (RLIMIT_NOFILE), `ulimit -n` raises it to 4096");
  EXPECT_EQ(descriptor_limit_text(1024, RLIM_INFINITY),
            ": the limit of this process is 1024 (RLIMIT_NOFILE), `ulimit -n` raises it");
  EXPECT_EQ(descriptor_limit_text(4096, 4096),
            ": the limit of this process is 4096 (RLIMIT_NOFILE), which only an administrator can "
            "raise: it is the hard limit");
  EXPECT_EQ(descriptor_limit_text(RLIM_INFINITY, RLIM_INFINITY), "");
}

TEST(Arena, FreedNeighboursAreMergedInAnyOrder) {
  std::array<std::size_t, 4> order{0, 1, 2, 3};
  do {
    shm::Arena arena(std::size_t{1} << 30);
    std::array<shm::Allocation, 4> parts;
    for (shm::Allocation& part : parts) part = arena.allocate(4096);
    const shm::Allocation barrier = arena.allocate(4096);
    for (const std::size_t i : order) arena.deallocate(parts[i]);
    const shm::Allocation all = arena.allocate(4 * 4096);
    EXPECT_EQ(all.offset, parts[0].offset);
    EXPECT_EQ(arena.allocate(4096).offset, barrier.offset + barrier.bytes);
  } while (std::ranges::next_permutation(order).found);
}

TEST(Arena, HeadersAndDataDoNotMix) {
  shm::Arena arena(std::size_t{1} << 30);
  const shm::Allocation header = arena.allocate_header();
  arena.deallocate(header);
  EXPECT_NE(arena.allocate(1).offset, header.offset);
  EXPECT_EQ(arena.allocate_header().offset, header.offset);
}

TEST(Arena, RejectsAllocationsThatDoNotFit) {
  shm::Arena arena(std::size_t{1} << 30);
  EXPECT_THROW(arena.allocate(std::size_t{1} << 40), Error);
}

}  // namespace
}  // namespace tccl
