// The table of settings: parsing, oneCCL's variables, notes about the environment, docs/settings.md.
#include "config/settings.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "config/setting_parsers.h"
#include "planner/oneccl_algorithms.h"
#include "tccl/error.h"

namespace tccl {
namespace {

/// Sets a variable for the length of a test.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
};

/// The error of parse_environment(); empty if there is none.
std::string rejection() {
  try {
    parse_environment();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(Settings, DefaultsParse) {
  const Settings settings = parse_environment();
  EXPECT_EQ(settings.chunk_bytes, 256U << 10);
  EXPECT_EQ(settings.eager_bytes, 8U << 10);
  EXPECT_EQ(settings.log_level, LogLevel::warn);
  EXPECT_TRUE(settings.algorithms.empty());
}

TEST(Settings, EveryRowHasADocAndAUniqueName) {
  std::set<std::string> names;
  for (const SettingRow& row : setting_rows()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(std::string(row.name).starts_with("CCL_"));
    EXPECT_GT(std::string(row.doc).size(), 15U) << row.name;
    EXPECT_EQ(row.parse != nullptr, row.use == SettingUse::library) << row.name;
  }
}

TEST(Settings, BytesTakeUnits) {
  const Variable variable("CCL_CHUNK_BYTES", "1M");
  EXPECT_EQ(parse_environment().chunk_bytes, 1U << 20);
}

struct Value {
  const char* name;
  const char* value;
};

TEST(Settings, BadValuesAreNamed) {
  const Value cases[] = {
      {"CCL_CHUNK_BYTES", ""},
      {"CCL_CHUNK_BYTES", "x"},
      {"CCL_CHUNK_BYTES", "12Q"},
      {"CCL_CHUNK_BYTES", "15"},
      {"CCL_CHUNK_BYTES", "17M"},
      {"CCL_CHUNK_BYTES", "-1"},
      {"CCL_CHUNK_BYTES", "64 K"},
      {"CCL_LOG_LEVEL", "verbose"},
      {"CCL_LOG_LEVEL", ""},
      {"CCL_WORKER_OFFLOAD", "yes"},
      {"CCL_ATL_TRANSPORT", "ucx"},
      {"CCL_WORKER_COUNT", "four"},
      {"CCL_WORKER_AFFINITY", "0,a"},
      {"CCL_WORKER_AFFINITY", "0 1"},
      {"CCL_SOCKET_IFNAME", "eth,,ib"},
  };
  for (const auto& [name, value] : cases) {
    const Variable variable(name, value);
    const std::string text = rejection();
    EXPECT_NE(text.find(std::string(name) + "=" + value), std::string::npos) << text;
  }
}

// ---- oneCCL's variables

TEST(OnecclSettings, EveryVariableHasARow) {
  std::ifstream list(TCCL_SOURCE_DIR "/tests/unit/oneccl_variables.txt");
  int names = 0;
  for (std::string name; std::getline(list, name); ++names)
    EXPECT_NE(find_row(name), nullptr) << name;
  EXPECT_GT(names, 300);
}

TEST(OnecclSettings, ValuesOfOnecclParse) {
  const Value cases[] = {
      {"CCL_LOG_LEVEL", "error"},
      {"CCL_LOG_LEVEL", "WARN"},
      {"CCL_LOG_LEVEL", "Info"},
      {"CCL_LOG_LEVEL", "debug"},
      {"CCL_LOG_LEVEL", " trace "},
      {"CCL_LOG_LEVEL", "0"},
      {"CCL_WORKER_COUNT", " 4"},
      {"CCL_WORKER_OFFLOAD", "0"},
      {"CCL_WORKER_OFFLOAD", "1"},
      {"CCL_WORKER_AFFINITY", "auto"},
      {"CCL_WORKER_AFFINITY", "0, 1, 2-3"},
      {"CCL_ATL_TRANSPORT", "mpi"},
      {"CCL_ATL_TRANSPORT", "OFI"},
      {"CCL_MNIC_NAME", "mlx5_0,irdma1"},
      {"CCL_MNIC_NAME", "eth,^docker"},
      {"CCL_MNIC_NAME", "a_name_that_no_interface_may_have"},
      {"CCL_KVS_IFACE", "hsn0"},
      {"CCL_OFI_LIBRARY_PATH", "/opt/libfabric.so"},
      {"CCL_ALLREDUCE", "recursive_doubling:0-8192;rabenseifner:8193-1048576;ring:1048577-max"},
      {"CCL_REDUCE_SCATTER", "direct:0-8192;double_tree:1048577-max"},
      {"CCL_BCAST", "double_tree"},
      {"CCL_ALLREDUCE_SCALEOUT", "direct:0-1048576;rabenseifner:1048577-max"},
      {"CCL_SCATTER_SCALEOUT", "naive"},
      {"CCL_ALLTOALL", "scatter_barrier"},
      {"CCL_ALLREDUCE", "starlike"},
  };
  for (const auto& [name, value] : cases) {
    const Variable variable(name, value);
    EXPECT_EQ(rejection(), "") << name << "=" << value;
  }
}

TEST(OnecclSettings, LogLevelIsReadInAnyCase) {
  const Variable variable("CCL_LOG_LEVEL", "Debug");
  EXPECT_EQ(parse_environment().log_level, LogLevel::debug);
  const Variable number("CCL_LOG_LEVEL", "1");
  EXPECT_EQ(parse_environment().log_level, LogLevel::info);
}

TEST(OnecclSettings, NoOffloadMeansNoWorkers) {
  {
    const Variable count("CCL_WORKER_COUNT", "4");
    EXPECT_EQ(parse_environment().worker_count, 4);
    const Variable offload("CCL_WORKER_OFFLOAD", "0");
    EXPECT_EQ(parse_environment().worker_count, 0);
  }
  EXPECT_EQ(parse_environment().worker_count, std::nullopt);
  const Variable offload("CCL_WORKER_OFFLOAD", "0");
  EXPECT_EQ(parse_environment().worker_count, 0);
}

TEST(OnecclSettings, CpusMayFollowBlanks) {
  const Variable variable("CCL_WORKER_AFFINITY", "0, 1, 2-3");
  EXPECT_EQ(parse_environment().worker_cpus, (std::vector{0, 1, 2, 3}));
}

TEST(OnecclSettings, TheFirstInterfacePreferenceWins) {
  const Variable kvs("CCL_KVS_IFACE", "hsn0");
  EXPECT_EQ(parse_environment().interface_preference.text, "hsn0");
  const Variable mnic("CCL_MNIC_NAME", "eth,^eth2");
  EXPECT_EQ(parse_environment().interface_preference.text, "eth,^eth2");
  EXPECT_EQ(parse_environment().interface_filter.text, "");
}

TEST(OnecclSettings, AlgorithmsKeepTheirVariable) {
  const Variable bcast("CCL_BCAST", "tree");
  const Variable broadcast("CCL_BROADCAST", "one_shot");
  const Variable scaleout("CCL_ALLREDUCE_SCALEOUT", "rails");
  const std::vector<AlgorithmSetting> found = parse_environment().algorithms;
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].variable, "CCL_BCAST");
  EXPECT_EQ(found[1].variable, "CCL_BROADCAST");
  EXPECT_EQ(found[1].op, Op::broadcast);
  EXPECT_EQ(found[2].variable, "CCL_ALLREDUCE_SCALEOUT");
  EXPECT_TRUE(found[2].over_hosts && !found[1].over_hosts);
}

TEST(OnecclSettings, ProvidersOfLibfabricsVariable) {
  using Names = std::vector<std::string>;
  const std::pair<const char*, Names> cases[] = {{"tcp", {"tcp"}},
                                                 {"psm3,shm", {"psm3"}},
                                                 {"tcp,shm,verbs", {"tcp", "verbs"}},
                                                 {"^efa", {}},
                                                 {"", {}}};
  for (const auto& [list, names] : cases) {
    const Variable variable("FI_PROVIDER", list);
    EXPECT_EQ(parse_environment().preferred_providers, names) << list;
    const Variable ours("CCL_ATL_PROVIDER", "verbs");
    EXPECT_EQ(parse_environment().preferred_providers, Names()) << list;
    EXPECT_EQ(parse_environment().provider, "verbs");
  }
}

// ---- notes about the environment

TEST(EnvironmentNotes, IgnoredNamesAreSortedAndDefaultsAreNotNamed) {
  const Variable mnic("CCL_MNIC", "local");
  const Variable bf16("CCL_BF16", "avx512bf");
  const Variable handles("CCL_ZE_CACHE_OPEN_IPC_HANDLES_THRESHOLD", "1024");
  const Variable fusion("CCL_FUSION", "0");          // oneCCL's default
  const Variable empty("CCL_KVS_MODE", "");          // asks for nothing
  const Variable quiet("CCL_CONFIGURATION", "cpu");  // set by its scripts
  const Variable honoured("CCL_ATL_TRANSPORT", "mpi");
  const EnvironmentNotes notes = notes_of_environment();
  EXPECT_EQ(notes.ignored, (std::vector<std::string>{"CCL_BF16", "CCL_MNIC",
                                                     "CCL_ZE_CACHE_OPEN_IPC_HANDLES_THRESHOLD"}));
  EXPECT_TRUE(notes.unknown.empty());
}

TEST(EnvironmentNotes, UnknownNamesComeWithTheNearest) {
  const Variable misspelt("CCL_ALLREDUEC", "one_shot");
  const Variable modules("CCL_ALLREDUEC_modshare", "1");
  {
    const EnvironmentNotes notes = notes_of_environment();
    ASSERT_EQ(notes.unknown.size(), 1U);
    EXPECT_EQ(notes.unknown[0].name, "CCL_ALLREDUEC");
    EXPECT_EQ(notes.unknown[0].nearest, "CCL_ALLREDUCE");
    EXPECT_TRUE(notes.ignored.empty());
  }
  const Variable invented("CCL_NOTHING_LIKE_IT", "1");
  for (const auto& [name, nearest] : notes_of_environment().unknown)
    EXPECT_EQ(nearest.empty(), name == "CCL_NOTHING_LIKE_IT");
}

/// A prefix that begins the name of a setting would hide typing errors in that name.
TEST(EnvironmentNotes, PrefixesDoNotCoverSettings) {
  for (const SettingRow& prefix : setting_rows()) {
    const std::string_view name(prefix.name);
    if (!name.ends_with('*')) continue;
    for (const SettingRow& row : setting_rows())
      if (row.use == SettingUse::library && !std::string_view(row.name).ends_with("_SCALEOUT")) {
        EXPECT_FALSE(std::string_view(row.name).starts_with(name.substr(0, name.size() - 1)))
            << name << " covers " << row.name;
      }
  }
}

TEST(EnvironmentNotes, TheLongestNameWins) {
  EXPECT_EQ(find_row("CCL_ALLREDUCE_SCALEOUT")->use, SettingUse::library);
  EXPECT_STREQ(find_row("CCL_ALLREDUCE_2D_CHUNK_COUNT")->name, "CCL_ALLREDUCE_*");
  EXPECT_STREQ(find_row("CCL_ATL_OFI_TIMEOUT_SEC")->name, "CCL_ATL_OFI_TIMEOUT_SEC");
  EXPECT_EQ(find_row("CCL_ZE"), nullptr);
}

// ---- docs/settings.md

std::string oneccl_names() {
  std::string list;
  for (const std::string_view name : kOnecclAlgorithms)
    list += (list.empty() ? "`" : ", `") + std::string(name) + "`";
  return list;
}

std::string rows_with(SettingUse use) {
  std::string rows;
  for (const SettingRow& row : setting_rows()) {
    if (row.use != use) continue;
    rows += std::string("| `") + row.name + "` | ";
    if (use == SettingUse::library) rows += std::string(row.default_value) + " | ";
    rows += std::string(row.doc) + " |\n";
  }
  return rows;
}

std::string settings_page() {
  return "# Settings\n\nThe library reads these variables when a context is created. This page is "
         "generated from the table in `src/config/settings.cc`; `torch-ccl info` shows the values "
         "in effect. What is marked as oneCCL's is there for scripts that were written for oneCCL "
         "([coming from oneCCL](guides/from-torch-ccl.md)).\n\n"
         "| name | default | meaning |\n|---|---|---|\n" +
         rows_with(SettingUse::library) +
         "\n## oneCCL's algorithm names\n\nThe variables above accept the names of oneCCL's "
         "algorithms: " +
         oneccl_names() +
         ". Each of them, with or without a range, means the default of this library for the "
         "operation and the size, unless it is also a name of ours (`CCL_BROADCAST=tree`). "
         "[Operations](operations.md) lists our algorithms.\n\n"
         "## Variables that are read elsewhere\n\n| name | meaning |\n|---|---|\n" +
         rows_with(SettingUse::elsewhere) +
         "\n## oneCCL's variables without effect\n\nRank 0 names those that are set, in one line "
         "per job, unless they have oneCCL's default value. A name that ends with `*` is a "
         "prefix.\n\n| name | why |\n|---|---|\n" +
         rows_with(SettingUse::ignored);
}

/// UPDATE_DOCS=1 writes the page instead of comparing it.
TEST(Settings, DocumentationIsUpToDate) {
  const std::string path = TCCL_SOURCE_DIR "/docs/settings.md";
  if (::getenv("UPDATE_DOCS") != nullptr) std::ofstream(path) << settings_page();
  std::stringstream found;
  found << std::ifstream(path).rdbuf();
  EXPECT_EQ(found.str(), settings_page()) << "run: UPDATE_DOCS=1 build/release/tests/settings_test";
}

}  // namespace
}  // namespace tccl
