// How many worker threads a rank has and on which cores: CCL_WORKER_COUNT, CCL_WORKER_AFFINITY and
// the cores that the rank may use, brought together.
#pragma once

#include <string>
#include <vector>

#include "base/worker_pool.h"
#include "config/settings.h"

namespace tccl {

/// A rank among those of its host.
struct LocalPlace {
  int rank = 0;
  int ranks = 1;
  int sharing = 1;         // how many of them, this one included, may use the same cores
  std::vector<int> cores;  // that this rank may use
};

WorkerPoolOptions plan_workers(const Settings& settings, const LocalPlace& place);

/// What does not fit together in these settings, in one line; empty if all is well.
///
/// Where the workers' cores lie does not matter: a script that keeps cores free for them names
/// cores outside those of the rank on purpose.
std::string disagreement(const Settings& settings, const LocalPlace& place);

}  // namespace tccl
