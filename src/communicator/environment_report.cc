#include "communicator/environment_report.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "base/cpu_set.h"
#include "base/format.h"
#include "base/log.h"
#include "rendezvous/interface_preference.h"
#include "rendezvous/secret.h"

namespace tccl {
namespace {

std::string joined_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string text_of(const EnvironmentNotes::Unknown& unknown) {
  return formatted("{} is not a setting of this library and is ignored{}", unknown.name,
                   unknown.nearest.empty() ? "" : formatted(": did you mean {}?", unknown.nearest));
}

/// The CPUs of CCL_WORKER_AFFINITY that the workers of this host would use, but cannot.
std::vector<int> missing_worker_cpus(const Settings& settings, const LocalPlacement& placement) {
  const int workers = plan_workers(settings, placement).count * placement.ranks;
  const std::span<const int> listed(settings.worker_cpus);
  return unavailable_cpus(listed.first(std::min(listed.size(), static_cast<std::size_t>(workers))));
}

/// What is wrong with CCL_WORKER_COUNT and CCL_WORKER_AFFINITY; empty if nothing is.
std::string worker_problem(const Settings& settings, const LocalPlacement& placement) {
  std::string text = worker_settings_conflict(settings, placement);
  if (const auto cpus = missing_worker_cpus(settings, placement); !cpus.empty())
    text += formatted(
        "{} CPUs {} are offline or not in the cpuset of this process; their workers are not pinned",
        text.empty() ? "CCL_WORKER_AFFINITY:" : ";", cpus_text(cpus));
  return text;
}

bool is_preferred(const Settings& settings, std::string_view provider) {
  return std::ranges::any_of(settings.preferred_providers,
                             [&](const std::string& name) { return provider.starts_with(name); });
}

std::vector<std::string> findings(const Settings& settings, const LocalPlacement& placement,
                                  const std::string& provider, bool notices_deaths) {
  std::vector<std::string> found;
  const EnvironmentNotes notes = notes_of_environment();
  if (!notes.ignored.empty())
    found.push_back(
        formatted("torch-ccl ignores these variables of oneCCL: {} (`torch-ccl doctor` "
                  "says why)",
                  joined_names(notes.ignored)));
  for (const EnvironmentNotes::Unknown& unknown : notes.unknown) found.push_back(text_of(unknown));
  if (std::string problem = worker_problem(settings, placement); !problem.empty())
    found.push_back(std::move(problem));
  if (std::string problem = secret_file_problem(settings.secret_file); !problem.empty())
    found.push_back(std::move(problem));
  const std::string& preference = settings.interface_preference.text;
  if (!preference.empty() && settings.interface_filter.text.empty() &&
      effective_filter(settings).text != preference)
    found.push_back(formatted(
        "CCL_MNIC_NAME or CCL_KVS_IFACE: no interface that is up has a name like {}", preference));
  if (!provider.empty() && !settings.preferred_providers.empty() &&
      !is_preferred(settings, provider))
    found.push_back(formatted("FI_PROVIDER={}: not usable here; {} is used",
                              joined_names(settings.preferred_providers), provider));
  if (!notices_deaths && placement.ranks > 1)
    found.push_back(
        "this system has neither robust mutexes (set_robust_list) nor pidfds (pidfd_open): the "
        "death of a rank is noticed by the others of its host only when their calls time out");
  return found;
}

bool reports_for_job(int rank_in_first_group) {
  const char* launcher_rank = std::getenv("RANK");  // torch_ccl sets it under every launcher
  return rank_in_first_group == 0 &&
         (launcher_rank == nullptr || std::string_view(launcher_rank) == "0");
}

}  // namespace

void report_environment(const Settings& settings, const LocalPlacement& placement,
                        const Membership& first_group, const std::string& provider,
                        bool notices_deaths) {
  // Once per process, which may have several contexts. Relaxed: orders nothing.
  static std::atomic<bool> reported{false};
  const bool is_reporter =
      reports_for_job(first_group.rank()) && !reported.exchange(true, std::memory_order_relaxed);
  const LogLevel level = is_reporter ? LogLevel::warn : LogLevel::debug;
  if (!is_logged(level)) return;
  for (const std::string& text : findings(settings, placement, provider, notices_deaths))
    log(level, {.rank = first_group.rank(), .group = first_group.name()}, text);
}

}  // namespace tccl
