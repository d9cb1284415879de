#include "config/settings.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cpu_set.h"
#include "base/format.h"
#include "base/log.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr std::string_view kAuto = "auto";

std::size_t parse_number(std::string_view text, std::string_view* rest) {
  std::size_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc()) throw Error(Errc::invalid_argument, "not a number");
  *rest = text.substr(static_cast<std::size_t>(end - text.data()));
  return value;
}

/// "64", "64K", "1M", "2G"
std::size_t parse_bytes(std::string_view text) {
  std::string_view unit;
  const std::size_t value = parse_number(text, &unit);
  if (unit.empty()) return value;
  if (value > std::size_t{1} << 32) throw Error(Errc::invalid_argument, "too large");
  if (unit == "K" || unit == "k") return value << 10;
  if (unit == "M" || unit == "m") return value << 20;
  if (unit == "G" || unit == "g") return value << 30;
  throw Error(Errc::invalid_argument, "the unit must be K, M or G");
}

/// At least 16 bytes: the largest element.
template <auto Field>
void bytes_into(Settings& settings, const std::string& text) {
  const std::size_t value = parse_bytes(text);
  if (value < 16 || value > std::size_t{16} << 20)
    throw Error(Errc::invalid_argument, "must be between 16 and 16M");
  settings.*Field = value;
}

void shared_bytes_into(Settings& settings, const std::string& text) {
  settings.shared_bytes = parse_bytes(text);
  if (settings.shared_bytes < std::size_t{256} << 20 || settings.shared_bytes > std::size_t{1}
                                                                                    << 40)
    throw Error(Errc::invalid_argument, "must be between 256M and 1024G");
}

void worker_count_into(Settings& settings, const std::string& text) {
  if (text == kAuto) return settings.worker_count.reset();
  std::string_view rest;
  const std::size_t value = parse_number(text, &rest);
  if (!rest.empty() || value > 1024)
    throw Error(Errc::invalid_argument, "must be auto or between 0 and 1024");
  settings.worker_count = static_cast<int>(value);
}

void worker_affinity_into(Settings& settings, const std::string& text) {
  settings.worker_affinity = text;
  settings.worker_cpus = text == kAuto ? std::vector<int>() : parse_cpus(text);
}

void transport_into(Settings& /*settings*/, const std::string& text) {
  if (text != "ofi") throw Error(Errc::invalid_argument, "must be ofi (libfabric)");
}

void provider_into(Settings& settings, const std::string& text) {
  const char* libfabric_choice = std::getenv("FI_PROVIDER");
  settings.provider = text.empty() && libfabric_choice != nullptr ? libfabric_choice : text;
}

template <auto Field>
void text_into(Settings& settings, const std::string& text) {
  settings.*Field = text;
}

void interface_filter_into(Settings& settings, const std::string& text) {
  settings.interface_filter = InterfaceFilter::parse(text);
}

std::uint16_t parse_port(std::string_view text) {
  std::string_view rest;
  const std::size_t value = parse_number(text, &rest);
  if (!rest.empty() || value == 0 || value > 65535)
    throw Error(Errc::invalid_argument, "ports must be between 1 and 65535");
  return static_cast<std::uint16_t>(value);
}

void ports_into(Settings& settings, const std::string& text) {
  settings.ports = {};
  if (text.empty()) return;
  const std::size_t dash = text.find_first_of("-:");
  if (dash == std::string::npos) throw Error(Errc::invalid_argument, "must be FIRST-LAST");
  const std::string_view range(text);
  settings.ports = {parse_port(range.substr(0, dash)), parse_port(range.substr(dash + 1))};
  if (settings.ports.first > settings.ports.last)
    throw Error(Errc::invalid_argument, "the first port is greater than the last");
}

void liveness_into(Settings& settings, const std::string& text) {
  std::string_view rest;
  const std::size_t seconds = parse_number(text, &rest);
  if (!rest.empty() || seconds < 1 || seconds > 3600)
    throw Error(Errc::invalid_argument, "must be between 1 and 3600 seconds");
  settings.liveness_timeout = std::chrono::seconds(seconds);
}

void wire_format_into(Settings& settings, const std::string& text) {
  const auto format = wire_format_named(text);
  if (!format) throw Error(Errc::invalid_argument, "must be same, bf16 or int8");
  settings.wire_format = *format;
}

template <Op O>
void algorithm_into(Settings& settings, const std::string& text) {
  settings.algorithm[static_cast<std::size_t>(O)] = text;
}

constexpr const char* kAlgorithmDoc =
    "One name for all sizes, or NAME:FROM-TO for ranges in bytes, separated by semicolons; TO "
    "may be max. `torch-ccl info --algorithms` lists the names. Must be the same on all ranks.";

constexpr SettingRow kRows[] = {
    {"CCL_CHUNK_BYTES", "256K",
     "Largest chunk into which operations are split (the smallest is 16 KiB). A slot in shared "
     "memory holds an input chunk and a result chunk. Must be the same on all ranks.",
     bytes_into<&Settings::chunk_bytes>},
    {"CCL_EAGER_BYTES", "8K",
     "Messages up to this size are sent eagerly, before the receiver has posted a matching recv. "
     "Also the size of the cells in which larger messages travel within a host. Must be the same "
     "on all ranks.",
     bytes_into<&Settings::eager_bytes>},
    {"CCL_SHARED_BYTES", "16G",
     "Address space that a process reserves for memory shared with the other ranks of its host: "
     "slots, and tensors of torch_ccl.empty(). Only pages in use occupy memory.",
     shared_bytes_into},
    {"CCL_STAGING_BYTES", "4M",
     "Accelerator tensors are staged through host memory in chunks of this size, so that copies "
     "and communication overlap. Must be the same on all ranks.",
     bytes_into<&Settings::staging_bytes>},
    {"CCL_WORKER_COUNT", "auto",
     "Worker threads of each rank, which help the thread that runs a large operation; they help "
     "from 2 MiB on, with zero copy from 256 KiB. 0: none. auto: one less than the CPUs of the "
     "rank (or than its share of them, if several ranks have the same affinity mask), at most 3; "
     "with a list in CCL_WORKER_AFFINITY, the number of listed CPUs per rank. A CPU is what "
     "Linux numbers: a core with hyper-threading has two.",
     worker_count_into},
    {"CCL_WORKER_AFFINITY", "auto",
     "CPUs of the worker threads of all ranks on this host, one after the other: with two ranks, "
     "0,1,2,3,28,29,31,32 (or 0-3,28,29,31,32) gives 0-3 to the four workers of the first rank "
     "and the rest to the second rank. CPUs outside the affinity of the process are allowed; a "
     "worker whose CPU does not exist, or is not in the cgroup's cpuset, is not pinned, with a "
     "warning. auto: any CPU of the process. The library warns if a list does not have "
     "CCL_WORKER_COUNT CPUs for each rank, or if it is auto and CCL_WORKER_COUNT exceeds the "
     "CPUs of the rank.",
     worker_affinity_into},
    {"CCL_ATL_TRANSPORT", "ofi",
     "Transport between hosts: ofi (libfabric). Ranks of one host use shared memory. (The name "
     "is oneCCL's: ATL is its Abstract Transport Layer.)",
     transport_into},
    {"CCL_ATL_PROVIDER", "",
     "libfabric provider, as listed by fi_info; default: FI_PROVIDER, else tcp. Must be the same "
     "on all ranks; FI_OFI_RXM_EAGER_LIMIT, too.",
     provider_into},
    {"CCL_SOCKET_IFNAME", "",
     "Prefixes of the names of interfaces to use between hosts, in order of preference, such as "
     "\"eth,ib\". Prefixes after a ^ are excluded: \"^lo,docker\". Default: the interface with a "
     "route to the other hosts; of several, the one to the host of the store.",
     interface_filter_into},
    {"CCL_PORT_RANGE", "",
     "Ports to listen on for connections of other hosts, such as 20000-20100: two for each rank "
     "of a host. Default: any free ports.",
     ports_into},
    {"CCL_LIVENESS_TIMEOUT", "10",
     "Seconds without an answer from another host after which its ranks count as lost.",
     liveness_into},
    {"CCL_SECRET_FILE", "",
     "A file that only the job's user can read, the same on all hosts: ranks authenticate each "
     "other by its contents. Default: by a secret in the store.",
     text_into<&Settings::secret_file>},
    {"CCL_WIRE_DTYPE", "same",
     "Format in which float32 sums (allreduce, reduce_scatter) are sent between hosts: same, "
     "bf16 or int8 (in blocks with a scale). Fewer bytes, less precision: see docs/hosts.md. "
     "Must be the same on all ranks.",
     wire_format_into},
    {"CCL_ALLREDUCE", "", kAlgorithmDoc, algorithm_into<Op::allreduce>},
    {"CCL_REDUCE", "", kAlgorithmDoc, algorithm_into<Op::reduce>},
    {"CCL_BROADCAST", "", kAlgorithmDoc, algorithm_into<Op::broadcast>},
    {"CCL_ALLGATHER", "", kAlgorithmDoc, algorithm_into<Op::allgather>},
    {"CCL_GATHER", "", kAlgorithmDoc, algorithm_into<Op::gather>},
    {"CCL_SCATTER", "", kAlgorithmDoc, algorithm_into<Op::scatter>},
    {"CCL_REDUCE_SCATTER", "", kAlgorithmDoc, algorithm_into<Op::reduce_scatter>},
    {"CCL_ALLTOALL", "", kAlgorithmDoc, algorithm_into<Op::alltoall>},
    {"CCL_ALLGATHERV", "", kAlgorithmDoc, algorithm_into<Op::allgatherv>},
    {"CCL_GATHERV", "", kAlgorithmDoc, algorithm_into<Op::gatherv>},
    {"CCL_SCATTERV", "", kAlgorithmDoc, algorithm_into<Op::scatterv>},
    {"CCL_REDUCE_SCATTERV", "", kAlgorithmDoc, algorithm_into<Op::reduce_scatterv>},
    {"CCL_ALLTOALLV", "", kAlgorithmDoc, algorithm_into<Op::alltoallv>},
    {"CCL_BARRIER", "", kAlgorithmDoc, algorithm_into<Op::barrier>},
};

constexpr std::string_view kPackageVariables[] = {"CCL_DEVICES", "CCL_REPLACE", "CCL_ROOT",
                                                  "CCL_RSH"};

void parse_row(const SettingRow& row, Settings& settings, const std::string& text) {
  try {
    row.parse(settings, text);
  } catch (const Error& problem) {
    throw Error(Errc::invalid_argument, formatted("{}={}: {}", row.name, text, problem.what()));
  }
}

bool is_known(std::string_view name) {
  return std::ranges::any_of(kRows, [&](const SettingRow& row) { return name == row.name; }) ||
         std::ranges::find(kPackageVariables, name) != std::end(kPackageVariables);
}

void parse_from_environment(const SettingRow& row, Settings& settings) {
  const char* text = std::getenv(row.name);
  parse_row(row, settings, text != nullptr ? text : row.default_value);
}

/// Levenshtein distance: how many characters must be changed, added or removed.
std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t changed = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j + 1] + 1, row[j] + 1});
    }
  }
  return row.back();
}

/// The setting with the most similar name; empty if none is similar.
std::string_view nearest_name(std::string_view name) {
  constexpr std::size_t kMaxDistance = 3;
  const auto distance = [&](const SettingRow& row) { return edit_distance(name, row.name); };
  const SettingRow& nearest = *std::ranges::min_element(kRows, {}, distance);
  return distance(nearest) <= kMaxDistance ? nearest.name : std::string_view{};
}

void warn_about_unknown_names() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with("CCL_") || is_known(name)) continue;
    const std::string_view nearest = nearest_name(name);
    const std::string hint = nearest.empty() ? "" : formatted(": did you mean {}?", nearest);
    log_warning(formatted("{} is not a setting of this library and is ignored{}", name, hint));
  }
}

}  // namespace

std::span<const SettingRow> setting_rows() { return kRows; }

std::span<const std::string_view> package_variables() { return kPackageVariables; }

Settings parse_environment() {
  Settings settings;
  for (const SettingRow& row : kRows) parse_from_environment(row, settings);
  return settings;
}

Settings parse_setting(std::string_view name) {
  Settings settings;
  for (const SettingRow& row : kRows)
    if (name == row.name) parse_from_environment(row, settings);
  return settings;
}

Settings settings_from_environment() {
  Settings settings = parse_environment();
  // Once per process, which may have several contexts.
  static const bool warned = (warn_about_unknown_names(), true);
  static_cast<void>(warned);
  return settings;
}

}  // namespace tccl
