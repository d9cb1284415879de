#include "planner/plan_workers.h"

#include <algorithm>

#include "base/cpu_set.h"
#include "base/format.h"

namespace tccl {
namespace {

/// A few threads saturate the memory bandwidth.
constexpr int kMaxByDefault = 3;

int count_for(const Settings& settings, const LocalPlacement& placement) {
  if (settings.worker_count) return *settings.worker_count;
  if (!settings.worker_cpus.empty())
    return static_cast<int>(settings.worker_cpus.size()) / placement.ranks;
  // The thread that runs the operation also copies and reduces.
  const double share = cpus_per_rank(placement.cpus, placement.quota, placement.sharing);
  return std::clamp(static_cast<int>(share) - 1, 0, kMaxByDefault);
}

/// The rank's part of the list, which may be too short.
std::vector<int> cpus_for(const std::vector<int>& all, std::size_t rank, std::size_t count) {
  const std::size_t begin = std::min(rank * count, all.size());
  const std::size_t end = std::min(begin + count, all.size());
  return {all.begin() + static_cast<std::ptrdiff_t>(begin),
          all.begin() + static_cast<std::ptrdiff_t>(end)};
}

}  // namespace

double cpus_per_rank(const std::vector<int>& cpus, const CpuQuota& quota,
                     const CpuSharing& sharing) {
  const double share = static_cast<double>(cpus.size()) / std::max(sharing.on_same_cpus, 1);
  return quota.is_limited() ? std::min(share, quota.cpus / std::max(sharing.in_same_cgroup, 1))
                            : share;
}

WorkerPoolOptions plan_workers(const Settings& settings, const LocalPlacement& placement) {
  WorkerPoolOptions plan;
  plan.count = count_for(settings, placement);
  plan.cpus = cpus_for(settings.worker_cpus, static_cast<std::size_t>(placement.local_rank),
                       static_cast<std::size_t>(plan.count));
  plan.unpinned_cpus = placement.cpus;
  plan.start_at_once = settings.worker_count.has_value() || !settings.worker_cpus.empty();
  return plan;
}

std::string worker_settings_conflict(const Settings& settings, const LocalPlacement& placement) {
  const auto count = static_cast<std::size_t>(count_for(settings, placement));
  const std::size_t listed = settings.worker_cpus.size();
  const std::size_t needed = count * static_cast<std::size_t>(placement.ranks);
  std::string why;
  if (listed != 0 && listed != needed) {
    why = formatted("{} workers on each of {} ranks need a list of {} CPUs, not of {}", count,
                    placement.ranks, needed, listed);
    if (!settings.worker_count)
      why = formatted("{} CPUs cannot be divided among {} ranks", listed, placement.ranks);
  } else if (listed == 0 && settings.worker_count && count > placement.cpus.size()) {
    why = formatted("{} workers share {} CPUs", count, placement.cpus.size());
  }
  if (why.empty()) return why;
  return formatted(
      "CCL_WORKER_COUNT={}, CCL_WORKER_AFFINITY={} and the CPUs of this rank ({}) conflict: {}",
      settings.worker_count ? std::to_string(*settings.worker_count) : "auto",
      settings.worker_affinity, cpus_text(placement.cpus), why);
}

}  // namespace tccl
