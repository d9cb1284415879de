// Runs a list of cases of all collectives and point-to-point patterns over real ranks and compares
// every result with the reference.
//
//   conformance --ranks 4 --cases 5120 --seed 1
//   conformance --ranks 3 --cases 1000 --chunk-bytes 16 --set CCL_ALLREDUCE=two_shot
//   conformance --ranks 4 --cases 5120 --seed 1 --only 17        one case of the list
//   conformance --ranks 4 --cases 5120 --seed 1 --only 0:17      with all cases before it
//   conformance --list-algorithms                                "one_host allreduce two_shot" ...
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "cases.h"
#include "groups.h"
#include "launch.h"
#include "options.h"
#include "rank.h"
#include "run_state.h"

namespace conformance {

namespace {

/// A temporary directory, removed at the end of the run.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    path_ = (std::filesystem::temp_directory_path() / "tccl-conformance-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot create " + path_);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<Case> chosen_cases(const Options& options) {
  std::vector<Case> cases = make_cases(options.request);
  std::erase_if(cases, [&](const Case& one) {
    return one.index < options.first || one.index > options.last;
  });
  if (cases.empty()) throw std::invalid_argument("no such case");
  return cases;
}

/// Results must be equal to the last bit, NaN included, on every rank of a group.
int count_disagreements(const Run& run) {
  int found = 0;
  const CaseRequest& request = run.options.request;
  for (const Case& one : run.cases) {
    if (!same_result_everywhere(one.op)) continue;
    for (const std::vector<int>& group : groups_of(request.seed, one, request.ranks)) {
      const auto differs = std::find_if(group.begin(), group.end(), [&](int rank) {
        return run.state.hash(rank, one.index) != run.state.hash(group[0], one.index);
      });
      if (differs == group.end()) continue;
      if (++found > 3) continue;
      const std::string who =
          "world ranks " + std::to_string(group[0]) + " and " + std::to_string(*differs);
      std::puts(failure_line(run, one, who, "got different bits").c_str());
    }
  }
  return found;
}

/// One line per row of the library's table, for tests that force each algorithm.
void print_algorithms() {
  for (const tccl::Algorithm& row : tccl::algorithms())
    std::printf("%s %s %s\n", row.run_over_hosts != nullptr ? "several_hosts" : "one_host",
                std::string(name_of(row.op)).c_str(), row.name);
}

void print_counts(const std::vector<Case>& cases) {
  std::map<std::string, int> counts;
  for (const Case& one : cases) ++counts[operation_name(one)];
  for (const auto& [name, count] : counts) std::printf("%7d  %s\n", count, name.c_str());
}

std::uint64_t cases_finished(const Run& run) {
  std::uint64_t least = run.cases.size();
  for (int rank = 0; rank < run.options.request.ranks; ++rank) {
    least = std::min(least, run.state.finished(rank));
  }
  return least;
}

std::uint64_t failures(const Run& run) {
  std::uint64_t sum = 0;
  for (int rank = 0; rank < run.options.request.ranks; ++rank) sum += run.state.failures(rank);
  return sum;
}

int run_conformance(const Options& options) {
  if (options.list_algorithms) {
    print_algorithms();
    return 0;
  }
  for (const auto& [name, value] : options.settings) setenv(name.c_str(), value.c_str(), 1);
  const std::vector<Case> cases = chosen_cases(options);
  const TemporaryDirectory directory;
  RunState state(options.request.ranks, options.request.cases);
  const Run run{options, cases, state, directory.path() + "/store"};

  std::printf("conformance: P=%d cases=%zu seed=%llu ranks are %s\n", options.request.ranks,
              cases.size(), static_cast<unsigned long long>(options.request.seed),
              options.threads ? "threads" : "processes");
  const Launch launch{options.request.ranks, options.watchdog_s, state,
                      [&run](int rank) { run_rank(run, rank); }};
  const bool ended_well = options.threads ? run_as_threads(launch) : run_as_processes(launch);

  std::uint64_t failed = failures(run);
  if (ended_well && failed == 0) failed += static_cast<std::uint64_t>(count_disagreements(run));
  if (!ended_well && failed == 0) failed = 1;
  print_counts(cases);
  std::printf("conformance: P=%d cases=%llu failed=%llu seed=%llu\n", options.request.ranks,
              static_cast<unsigned long long>(cases_finished(run)),
              static_cast<unsigned long long>(failed),
              static_cast<unsigned long long>(options.request.seed));
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace conformance

int main(int argc, char** argv) {
  conformance::Options options;
  try {
    options = conformance::parse_options(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "conformance: %s\n%s", error.what(), conformance::usage().c_str());
    return 2;
  }
  try {
    return conformance::run_conformance(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "conformance: %s\n", error.what());
    return 2;
  }
}
