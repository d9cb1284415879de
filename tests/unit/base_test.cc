// Settings, algorithm selection, validation and the shared memory arena.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "communicator/validate.h"
#include "config/settings.h"
#include "planner/algorithm_selector.h"
#include "tccl/error.h"
#include "transport/shm/arena.h"
#include "transport/shm/region.h"

namespace tccl {
namespace {

/// Sets a variable for the length of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

std::string rejection(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(Settings, DefaultsParse) {
  const Settings settings = settings_from_environment();
  EXPECT_EQ(settings.chunk_bytes, 256U << 10);
  EXPECT_EQ(settings.eager_bytes, 8U << 10);
}

TEST(Settings, EveryRowHasADocAndAUniqueName) {
  std::set<std::string> names;
  for (const SettingRow& row : setting_rows()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(std::string(row.name).starts_with("CCL_"));
    EXPECT_GT(std::string(row.doc).size(), 20U);
  }
}

TEST(Settings, BytesTakeUnits) {
  const Variable variable("CCL_CHUNK_BYTES", "1M");
  EXPECT_EQ(settings_from_environment().chunk_bytes, 1U << 20);
}

TEST(Settings, BadValuesAreNamed) {
  for (const char* value : {"", "x", "12Q", "15", "17M", "-1", "64 K"}) {
    const Variable variable("CCL_CHUNK_BYTES", value);
    const std::string text = rejection([] { settings_from_environment(); });
    EXPECT_NE(text.find(std::string("CCL_CHUNK_BYTES=") + value), std::string::npos) << text;
  }
}

std::string settings_page() {
  std::string page =
      "# Settings\n\nThe library reads these variables when a context is created. The Python "
      "package "
      "reads `CCL_REPLACE` ([backend override](backend-override.md)) and `CCL_DEVICES` "
      "([accelerators](accelerators.md)) at `import torch`. This page is generated from the table "
      "in "
      "`src/config/settings.cc`; `torch-ccl info` shows the values in effect.\n\n"
      "| name | default | meaning |\n|---|---|---|\n";
  for (const SettingRow& row : setting_rows())
    page += std::string("| `") + row.name + "` | " + row.default_value + " | " + row.doc + " |\n";
  return page;
}

/// UPDATE_DOCS=1 writes the page instead of comparing it.
TEST(Settings, DocumentationIsUpToDate) {
  const std::string path = TCCL_SOURCE_DIR "/docs/settings.md";
  if (::getenv("UPDATE_DOCS") != nullptr) std::ofstream(path) << settings_page();
  std::stringstream found;
  found << std::ifstream(path).rdbuf();
  EXPECT_EQ(found.str(), settings_page()) << "run: UPDATE_DOCS=1 build/release/tests/base_test";
}

TEST(SettingsDeathTest, UnknownNamesWarn) {
  // The warning appears once per process, so the test needs a new one.
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const Variable variable("CCL_ALLREDUEC", "one_shot");
  EXPECT_EXIT(
      {
        settings_from_environment();
        settings_from_environment();
        ::exit(0);
      },
      ::testing::ExitedWithCode(0),
      "CCL_ALLREDUEC is not a setting.*did you mean CCL_ALLREDUCE\\?");
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
  Settings settings;
  settings.algorithm[static_cast<std::size_t>(Op::allreduce)] = "two_shot:0-100;one_shot:101-max";
  const AlgorithmSelector table(settings);
  const auto chosen = [&](Op op, std::size_t bytes) {
    return std::string(table.select(op, bytes, 8, DType::float32).name);
  };
  EXPECT_EQ(chosen(Op::allreduce, 100), "two_shot");
  EXPECT_EQ(chosen(Op::allreduce, 101), "one_shot");
  EXPECT_EQ(chosen(Op::allreduce, 1 << 20), "one_shot");
  EXPECT_EQ(chosen(Op::reduce, 1 << 20), "two_shot");
}

TEST(AlgorithmSelector, TheLastRuleThatAppliesWins) {
  Settings settings;
  settings.algorithm[static_cast<std::size_t>(Op::allreduce)] = "two_shot;one_shot:0-4096";
  const AlgorithmSelector table(settings);
  EXPECT_STREQ(table.select(Op::allreduce, 4096, 2, DType::float32).name, "one_shot");
  EXPECT_STREQ(table.select(Op::allreduce, 4097, 2, DType::float32).name, "two_shot");
}

TEST(AlgorithmSelector, BadRulesAreRejected) {
  for (const char* rule : {"ring", "one_shot:7", "one_shot:a-b", "one_shot:1-2x"}) {
    Settings settings;
    settings.algorithm[static_cast<std::size_t>(Op::allreduce)] = rule;
    EXPECT_NE(rejection([&] { AlgorithmSelector table(settings); }), "") << rule;
  }
}

TEST(Registry, EveryCollectiveHasAnAlgorithmForEverySize) {
  const AlgorithmSelector table{Settings()};
  for (int op = 0; op < kOpCount; ++op) {
    if (static_cast<Op>(op) == Op::send || static_cast<Op>(op) == Op::recv) continue;
    for (const std::size_t bytes : {std::size_t{0}, ~std::size_t{0}})
      for (const bool several_hosts : {false, true}) {
        const Algorithm& chosen =
            table.select(static_cast<Op>(op), bytes, 2, DType::float32, several_hosts);
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
