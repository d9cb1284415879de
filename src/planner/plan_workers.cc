#include "planner/plan_workers.h"

#include <algorithm>

#include "base/cores.h"
#include "base/format.h"

namespace tccl {
namespace {

/// A few threads saturate the memory bandwidth.
constexpr int kMaxByDefault = 3;

int count_for(const Settings& settings, const LocalPlacement& place) {
  if (settings.worker_count) return *settings.worker_count;
  if (!settings.worker_cores.empty())
    return static_cast<int>(settings.worker_cores.size()) / place.ranks;
  // The thread that runs the operation also copies and reduces.
  const int share = static_cast<int>(place.cores.size()) / std::max(place.sharing, 1);
  return std::clamp(share - 1, 0, kMaxByDefault);
}

/// The rank's part of the list, which may be too short.
std::vector<int> cores_for(const std::vector<int>& all, std::size_t rank, std::size_t count) {
  const std::size_t begin = std::min(rank * count, all.size());
  const std::size_t end = std::min(begin + count, all.size());
  return {all.begin() + static_cast<std::ptrdiff_t>(begin),
          all.begin() + static_cast<std::ptrdiff_t>(end)};
}

}  // namespace

WorkerPoolOptions plan_workers(const Settings& settings, const LocalPlacement& place) {
  WorkerPoolOptions plan;
  plan.count = count_for(settings, place);
  plan.cores = cores_for(settings.worker_cores, static_cast<std::size_t>(place.rank),
                         static_cast<std::size_t>(plan.count));
  plan.domain = place.cores;
  plan.start_eagerly = settings.worker_count.has_value() || !settings.worker_cores.empty();
  plan.rank = place.rank;
  return plan;
}

std::string worker_settings_conflict(const Settings& settings, const LocalPlacement& place) {
  const auto count = static_cast<std::size_t>(count_for(settings, place));
  const std::size_t listed = settings.worker_cores.size();
  const std::size_t needed = count * static_cast<std::size_t>(place.ranks);
  std::string why;
  if (listed != 0 && listed != needed) {
    why = formatted("{} workers on each of {} ranks need a list of {} cores, not of {}", count,
                    place.ranks, needed, listed);
    if (!settings.worker_count)
      why = formatted("{} cores cannot be divided among {} ranks", listed, place.ranks);
  } else if (listed == 0 && settings.worker_count && count > place.cores.size()) {
    why = formatted("{} workers share {} cores", count, place.cores.size());
  }
  if (why.empty()) return why;
  return formatted(
      "CCL_WORKER_COUNT={}, CCL_WORKER_AFFINITY={} and the cores of this rank ({}) conflict: {}",
      settings.worker_count ? std::to_string(*settings.worker_count) : "auto",
      settings.worker_affinity, cores_text(place.cores), why);
}

}  // namespace tccl
