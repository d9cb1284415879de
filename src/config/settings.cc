#include "config/settings.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "base/format.h"
#include "config/setting_parsers.h"
#include "tccl/error.h"

namespace tccl {
namespace {

constexpr const char* kAlgorithmDoc =
    "One name for all sizes, or NAME:FROM-TO for ranges in bytes, separated by semicolons; TO "
    "may be max. `torch-ccl info --algorithms` lists the names; oneCCL's names mean the default. "
    "Must be the same "
    "on all ranks.";
constexpr const char* kOverHostsDoc =
    "oneCCL's: as the variable without _SCALEOUT, for groups over several hosts only, where it "
    "takes "
    "precedence.";
constexpr const char* kInterfaceDoc =
    "oneCCL's: as CCL_SOCKET_IFNAME, if that is not set. Without effect, and without an error, if "
    "no "
    "interface has such a name.";

// Why variables of oneCCL have no effect here.
constexpr const char* kGpu = "For GPU kernels, which this library does not have.";
constexpr const char* kMpi = "For MPI, which this library does not use.";
constexpr const char* kStore = "Ranks find each other through the store of torch.distributed.";
constexpr const char* kSteps = "For an algorithm or a scheduler that this library does not have.";
constexpr const char* kProfiler = "torch.profiler shows every operation.";
constexpr const char* kTimeout = "The timeout of the group applies.";
constexpr const char* kOneInterface = "A process uses one interface; CCL_SOCKET_IFNAME selects it.";
constexpr const char* kWorkers = "CCL_WORKER_COUNT sets the number of threads.";
constexpr const char* kChunks = "CCL_CHUNK_BYTES sets the size of chunks.";
constexpr const char* kKernels = "The best kernels of the CPU are used; all give the same bits.";
constexpr const char* kWaiting = "Chosen by whether every rank can have a CPU of its own.";
constexpr const char* kFusion = "DDP's buckets and torch's coalescing combine small operations.";

constexpr SettingRow ignored(const char* name, const char* default_value, const char* doc) {
  return {name, default_value, doc, nullptr, SettingUse::ignored};
}
constexpr SettingRow elsewhere(const char* name, const char* doc) {
  return {name, "", doc, nullptr, SettingUse::elsewhere};
}

constexpr SettingRow kRows[] = {
    {"CCL_LOG_LEVEL", "warn",
     "Which log lines are written to stderr: error, warn, info, debug or trace. info: at the first "
     "operation of a group, which hosts, transport, threads and algorithms serve it. trace: every "
     "operation.",
     log_level_into},
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
     "Worker threads of each rank, which help the thread that runs a large operation: from 256 KiB "
     "on if they are awake (an operation that ended less than 100 us ago had their help); sleeping "
     "ones are woken from 2 MiB on. 0: none. auto: one less than the CPUs of the "
     "rank (or than its share of them, if several ranks have the same affinity mask), at most 3; "
     "with a list in CCL_WORKER_AFFINITY, the number of listed CPUs per rank. A CPU is what "
     "Linux numbers: a core with hyper-threading has two.",
     worker_count_into},
    // After CCL_WORKER_COUNT, which it overrides.
    {"CCL_WORKER_OFFLOAD", "1", "oneCCL's: 0 means no workers, whatever CCL_WORKER_COUNT says.",
     worker_offload_into},
    {"CCL_WORKER_AFFINITY", "auto",
     "CPUs of the worker threads of all ranks on this host, one after the other: with two ranks, "
     "0,1,2,3,28,29,31,32 (or 0-3,28,29,31,32) gives 0-3 to the four workers of the first rank "
     "and the rest to the second rank. CPUs outside the affinity of the process are allowed; a "
     "worker whose CPU does not exist, or is not in the cgroup's cpuset, is not pinned, with a "
     "warning. auto: any CPU of the process. The library warns if a list does not have "
     "CCL_WORKER_COUNT CPUs for each rank, or if it is auto and CCL_WORKER_COUNT exceeds the "
     "CPUs of the rank. Rank 0 writes these warnings, for its host.",
     worker_affinity_into},
    {"CCL_ATL_TRANSPORT", "ofi",
     "oneCCL's: ofi or mpi, which mean the same here: libfabric between hosts, shared memory on a "
     "host. (ATL is oneCCL's Abstract Transport Layer.)",
     transport_into},
    {"CCL_ATL_PROVIDER", "",
     "libfabric provider, as listed by fi_info. Default: the first in the list FI_PROVIDER that "
     "serves, else tcp, with a warning if FI_PROVIDER is set. Must be the same on all ranks; "
     "FI_OFI_RXM_EAGER_LIMIT, too.",
     provider_into},
    {"CCL_OFI_LIBRARY_PATH", "", "oneCCL's: libfabric to load. Default: libfabric.so.1.",
     text_into<&Settings::libfabric_path>},
    {"CCL_SOCKET_IFNAME", "",
     "Prefixes of the names of interfaces to use between hosts, in order of preference, such as "
     "\"eth,ib\". Prefixes after a ^ are excluded: \"^lo,docker\". Default: the interface with a "
     "route to the other hosts; of several, the one to the host of the store.",
     interface_filter_into},
    {"CCL_MNIC_NAME", "", kInterfaceDoc, interface_preference_into},
    {"CCL_KVS_IFACE", "",
     "oneCCL's: as CCL_MNIC_NAME, if that is not set. (oneCCL looks for the text anywhere in a "
     "name.)",
     interface_preference_into},
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
    {"CCL_BCAST", "", "oneCCL's: as CCL_BROADCAST, which takes precedence.", bcast_algorithm_into},
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
    // Read after the rows above: their rules come later and win.
    {"CCL_ALLREDUCE_SCALEOUT", "", kOverHostsDoc, algorithm_over_hosts_into<Op::allreduce>},
    {"CCL_REDUCE_SCALEOUT", "", kOverHostsDoc, algorithm_over_hosts_into<Op::reduce>},
    {"CCL_ALLGATHER_SCALEOUT", "", kOverHostsDoc, algorithm_over_hosts_into<Op::allgather>},
    {"CCL_ALLGATHERV_SCALEOUT", "", kOverHostsDoc, algorithm_over_hosts_into<Op::allgatherv>},
    {"CCL_ALLTOALL_SCALEOUT", "", kOverHostsDoc, algorithm_over_hosts_into<Op::alltoall>},
    {"CCL_ALLTOALLV_SCALEOUT", "", kOverHostsDoc, algorithm_over_hosts_into<Op::alltoallv>},
    {"CCL_REDUCE_SCATTER_SCALEOUT", "", kOverHostsDoc,
     algorithm_over_hosts_into<Op::reduce_scatter>},
    {"CCL_SCATTER_SCALEOUT", "", kOverHostsDoc, algorithm_over_hosts_into<Op::scatter>},

    // --- not read by the library ---
    elsewhere("CCL_CACHE_DIR",
              "Read by the Python package: [the directory of compiled "
              "extensions](installing.md#another-torch)."),
    elsewhere("CCL_DEVICES", "Read by the Python package: [accelerators](accelerators.md)."),
    elsewhere("CCL_FAST_CALLS", "Read by the Python package: [fast calls](fast-calls.md)."),
    elsewhere("CCL_REPLACE",
              "Read by the Python package: [backend override](backend-override.md)."),
    elsewhere("CCL_RSH", "Read by `torch-ccl run`: [commands](commands.md)."),
    elsewhere("CCL_LOCAL_RANK",
              "oneCCL's, read by the Python package: local rank if no launcher gives it."),
    elsewhere("CCL_LOCAL_SIZE",
              "oneCCL's, read by the Python package: ranks of this host, likewise."),
    elsewhere("CCL_PROCESS_LAUNCHER", "oneCCL's: every launcher is detected without it."),
    elsewhere("CCL_ROOT", "Set by setvars.sh, oneCCL's and ours."),
    elsewhere("CCL_CONFIGURATION", "Set by oneCCL's setvars.sh."),
    elsewhere("CCL_CONFIGURATION_PATH", "Set by oneCCL's setvars.sh."),
    elsewhere("CCL_ATL_SHM", "oneCCL's: ranks of one host always use shared memory."),
    elsewhere("CCL_STRICT_ORDER", "oneCCL's: operations of a rank always start in order."),
    elsewhere("CCL_PLATFORM_INFO_HIDE", "Set by oneCCL's benchmark."),
    elsewhere("CCL_SHA_VERSION", "Read by the build of Intel's torch-ccl."),
    elsewhere("CCL_PACKAGE_NAME", "Read by the build of Intel's torch-ccl."),

    // --- oneCCL's, without effect here. A prefix must not begin the name of a setting above, except
    // of the _SCALEOUT rows: it would hide typing errors in that name. ---
    ignored("CCL_WORKER_MEM_AFFINITY", "auto",
            "Memory lies on the NUMA node of the thread that first writes it."),
    ignored("CCL_WORKER_WAIT", "1", "Idle workers sleep."),
    ignored("CCL_SPIN_COUNT", "", kWaiting),
    ignored("CCL_YIELD", "pause", kWaiting),
    ignored("CCL_MAX_SHORT_SIZE", "0", kWorkers),
    ignored("CCL_ENABLE_OMP_*", "1", kWorkers),
    ignored("CCL_OMP_ALLREDUCE_NUM_THREADS", "", kWorkers),
    ignored("CCL_FRAMEWORK", "none", kSteps),
    ignored("CCL_ATL_HMEM", "0", kGpu),
    ignored("CCL_ATL_DEVICE_BUF", "0", kGpu),
    ignored("CCL_ATL_RMA", "0", kSteps),
    ignored("CCL_RMA", "0", kSteps),
    ignored("CCL_ATL_SEND_PROXY", "none", kSteps),
    ignored("CCL_ATL_EXTRA_EP", "0", kSteps),
    ignored("CCL_ATL_CACHE", "1", kSteps),
    ignored("CCL_ATL_SYNC_COLL", "0", kMpi),
    ignored("CCL_ATL_MPI", "", kMpi),
    ignored("CCL_ATL_MPI_*", "1", kMpi),
    ignored("CCL_MPI_LIBRARY_PATH", "", kMpi),
    ignored("CCL_ATL_OFI_MAX_RETRY_COUNT", "", kTimeout),
    ignored("CCL_ATL_OFI_TIMEOUT_SEC", "60", kTimeout),
    ignored("CCL_ATL_OFI_*", "", "libfabric 1.17 or newer is used."),
    ignored("CCL_OFI_DOMAIN_NAMES", "", kOneInterface),
    ignored("CCL_OFI_ENABLE_*", "1", kStore),
    ignored("CCL_OFI_INIT_*", "1", kStore),
    ignored("CCL_MNIC", "none", kOneInterface),
    ignored("CCL_MNIC_COUNT", "", kOneInterface),
    ignored("CCL_MNIC_OFFSET", "none", kOneInterface),
    ignored("CCL_KVS_MODE", "pmi", kStore),
    ignored("CCL_KVS_CONNECTION_TIMEOUT", "120", kTimeout),
    ignored("CCL_KVS_GET_TIMEOUT", "60", kTimeout),
    ignored("CCL_KVS_MPI_ALLGATHER", "1", kStore),
    ignored("CCL_KVS_USE_MPI_RANKS", "0", kStore),
    ignored("CCL_KVS_PREFER_IPV6", "0", "Hosts agree on an address family that all have."),
    ignored("CCL_KVS_IP_PORT", "", "MASTER_ADDR and MASTER_PORT say where the store is."),
    ignored("CCL_KVS_IP_EXCHANGE", "env", kStore),
    ignored("CCL_PMIX_LIBRARY_PATH", "", kStore),
    ignored("CCL_PM_TYPE", "simple", kStore),
    ignored("CCL_PMI_FORCE_FINALIZE", "", kStore),
    ignored("CCL_WORLD_SIZE", "", "WORLD_SIZE, or the launcher, gives the number of ranks."),
    ignored("CCL_DEFAULT_RESIZABLE", "", kStore),
    ignored("CCL_ENABLE_RUN_ID_*", "", kStore),
    ignored("CCL_OCCP_*", "", kStore),
    ignored("CCL_PLUGIN", "", "There is one implementation."),
    ignored("CCL_BACKEND", "native", "There is one implementation."),
    ignored("CCL_STUB_BACKEND_COMM_ID", "", "There is one implementation."),
    ignored("CCL_SEND", "direct", "There is one protocol for messages."),
    ignored("CCL_RECV", "direct", "There is one protocol for messages."),
    ignored("CCL_BCASTEXT", "", "CCL_BROADCAST sets the algorithm."),
    ignored("CCL_SPARSE_ALLREDUCE", "", kSteps),
    ignored("CCL_ALGO_FALLBACK", "1", "A rule applies only where its algorithm can run."),
    ignored("CCL_UNORDERED_COLL", "0",
            "All ranks must issue collectives in the same order. A job that relies on this "
            "variable fails with an error that names both operations."),
    ignored("CCL_OP_SYNC", "0", "torch decides which calls block; results are the same."),
    ignored("CCL_PRIORITY", "none", "Operations run in the order of the calls."),
    ignored("CCL_FUSION", "0", kFusion),
    ignored("CCL_FUSION_*", "", kFusion),
    ignored("CCL_CHUNK_COUNT", "1", kChunks),
    ignored("CCL_MIN_CHUNK_SIZE", "65536", kChunks),
    ignored("CCL_SERIAL_CHUNK_SIZE", "", kChunks),
    ignored("CCL_RS_*", "", kChunks),
    ignored("CCL_BCAST_*", "", kSteps),
    ignored("CCL_AR2D_*", "", kSteps),
    ignored("CCL_DTREE_PARTITION_COUNT", "", kSteps),
    ignored("CCL_ALLTOALL_SCATTER_*", "", kSteps),
    ignored("CCL_BF16", "", kKernels),
    ignored("CCL_FP16", "", kKernels),
    ignored("CCL_CACHE_*", "", kSteps),
    ignored("CCL_BUFFER_CACHE", "1", kSteps),
    ignored("CCL_ENABLE_AUTO_CACHE", "", kSteps),
    ignored("CCL_STAGING_BUFFER", "regular", kGpu),
    ignored("CCL_CHECK_INPLACE_ALIASING", "1", "Overlapping buffers are always handled."),
    ignored("CCL_ABORT_ON_THROW", "0", "Errors reach the caller."),
    ignored("CCL_QUEUE_DUMP", "0", kSteps),
    ignored("CCL_SCHED_DUMP", "0", kSteps),
    ignored("CCL_SCHED_PROFILE", "0", kProfiler),
    ignored("CCL_ENTRY_MAX_UPDATE_TIME_SEC", "", kTimeout),
    ignored("CCL_DEBUG_TIMESTAMPS_LEVEL", "0", kProfiler),
    ignored("CCL_ITT_LEVEL", "0", kProfiler),
    ignored("CCL_PROFILING_ENABLE", "0", kProfiler),
    ignored("CCL_ENABLE_SYCL_KERNELS", "", kGpu),
    ignored("CCL_SKIP_SCHEDULER", "", kGpu),
    ignored("CCL_BLOCKING_WAIT", "0", kGpu),
    ignored("CCL_SAME_STREAM", "0", kGpu),
    ignored("CCL_ALLGATHERV_*", "", kGpu),
    ignored("CCL_ALLREDUCE_*", "", kSteps),
    ignored("CCL_ALLTOALLV_*", "", kGpu),
    ignored("CCL_BARRIER_*", "", kGpu),
    ignored("CCL_REDUCE_MONOLITHIC_KERNEL", "", kGpu),
    ignored("CCL_REDUCE_PIPE_CHUNK_COUNT", "", kGpu),
    ignored("CCL_REDUCE_SCATTER_*", "", kGpu),
    ignored("CCL_USE_*", "", kGpu),
    ignored("CCL_IPC_ALLGATHERV_WA", "", kGpu),
    ignored("CCL_OP_SYCL_SERIALIZE", "0", kGpu),
    ignored("CCL_FINALIZE_EVENT_GC_THRESHOLD", "", kGpu),
    ignored("CCL_GPU_THREAD_COUNT", "", kGpu),
    ignored("CCL_COMM_KERNELS", "", kGpu),
    ignored("CCL_COMM_KERNELS_*", "", kGpu),
    ignored("CCL_COLL_KERNELS_PATH", "", kGpu),
    ignored("CCL_DG2_*", "", kGpu),
    ignored("CCL_DRMFD_*", "", kGpu),
    ignored("CCL_KERNEL_*", "", kGpu),
    ignored("CCL_SYCL_*", "", kGpu),
    ignored("CCL_TOPO_*", "", kGpu),
    ignored("CCL_UMF_*", "", kGpu),
    ignored("CCL_ZE_*", "", kGpu),
    ignored("CCL_TEST_*", "", "For oneCCL's own tests."),
};

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

void parse_row(const SettingRow& row, Settings& settings) {
  const char* set = std::getenv(row.name);
  const std::string text(trimmed(set != nullptr ? set : row.default_value));
  try {
    row.parse(settings, text);
  } catch (const Error& problem) {
    throw Error(Errc::invalid_argument, formatted("{}={}: {}", row.name, text, problem.what()));
  }
}

bool matches(const SettingRow& row, std::string_view variable) {
  const std::string_view name(row.name);
  return name.ends_with('*') ? variable.starts_with(name.substr(0, name.size() - 1))
                             : variable == name;
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
  std::string_view nearest;
  std::size_t nearest_distance = kMaxDistance + 1;
  for (const SettingRow& row : kRows) {
    if (row.use != SettingUse::library) continue;
    const std::size_t distance = edit_distance(name, row.name);
    if (distance >= nearest_distance) continue;
    nearest = row.name;
    nearest_distance = distance;
  }
  return nearest;
}

}  // namespace

std::span<const SettingRow> setting_rows() { return kRows; }

const SettingRow* find_row(std::string_view variable) {
  const SettingRow* found = nullptr;
  for (const SettingRow& row : kRows)
    if (matches(row, variable) && (found == nullptr || std::string_view(row.name).size() >
                                                           std::string_view(found->name).size()))
      found = &row;
  return found;
}

Settings parse_environment() {
  Settings settings;
  for (const SettingRow& row : kRows)
    if (row.use == SettingUse::library) parse_row(row, settings);
  return settings;
}

Settings parse_settings(std::initializer_list<std::string_view> names) {
  Settings settings;
  for (const SettingRow& row : kRows)
    if (std::ranges::find(names, row.name) != names.end()) parse_row(row, settings);
  return settings;
}

EnvironmentNotes notes_of_environment() {
  EnvironmentNotes notes;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = std::min(text.find('='), text.size());
    const std::string_view name = text.substr(0, equals);
    // Environment modules keep counters in <variable>_modshare.
    if (!name.starts_with("CCL_") || name.ends_with("_modshare")) continue;
    const std::string_view value = trimmed(text.substr(std::min(equals + 1, text.size())));
    const SettingRow* row = find_row(name);
    if (row == nullptr)
      notes.unknown.push_back({std::string(name), nearest_name(name)});
    else if (row->use == SettingUse::ignored && !value.empty() && value != row->default_value)
      notes.ignored.emplace_back(name);
  }
  std::ranges::sort(notes.ignored);
  return notes;
}

}  // namespace tccl
