// How many worker threads a rank has, and on which CPUs: from CCL_WORKER_COUNT,
// CCL_WORKER_AFFINITY and the CPUs that the rank may use.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "base/worker_pool.h"
#include "config/settings.h"

namespace tccl {

/// A rank among the ranks of its host.
struct LocalPlacement {
  int local_rank = 0;
  int ranks = 1;
  int ranks_on_same_cpus = 1;  // how many of them, this one included, have the same affinity mask
  std::vector<int> cpus;       // that this rank may use
};

WorkerPoolOptions plan_workers(const Settings& settings, const LocalPlacement& placement);

/// Why the two settings contradict each other or the CPUs of the rank, in one line; empty if they
/// do not. Worker CPUs outside the CPUs of the rank are not a contradiction: scripts reserve such
/// CPUs for workers on purpose.
std::string worker_settings_conflict(const Settings& settings, const LocalPlacement& placement);

}  // namespace tccl
