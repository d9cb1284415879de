// How many worker threads a rank has, and on which CPUs: from CCL_WORKER_COUNT,
// CCL_WORKER_AFFINITY and the CPUs that the rank may use.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "base/cpu_quota.h"
#include "base/worker_pool.h"
#include "config/settings.h"

namespace tccl {

/// How many ranks of this host share the CPU time of this one, which is included.
struct CpuSharing {
  int on_same_cpus = 1;    // ranks with the same affinity mask
  int in_same_cgroup = 1;  // ranks that the same cgroup limits
};

/// A rank among the ranks of its host.
struct LocalPlacement {
  int local_rank = 0;
  int ranks = 1;
  CpuSharing sharing;
  std::vector<int> cpus;  // that this rank may use
  CpuQuota quota;         // of CPU time
};

/// How many CPUs each of the ranks that share them can keep busy.
double cpus_per_rank(const std::vector<int>& cpus, const CpuQuota& quota,
                     const CpuSharing& sharing);

WorkerPoolOptions plan_workers(const Settings& settings, const LocalPlacement& placement);

/// Why the two settings contradict each other or the CPUs of the rank, in one line; empty if they
/// do not. Worker CPUs outside the CPUs of the rank are not a contradiction: scripts reserve such
/// CPUs for workers on purpose.
std::string worker_settings_conflict(const Settings& settings, const LocalPlacement& placement);

}  // namespace tccl
