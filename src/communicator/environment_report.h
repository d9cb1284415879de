// What the user should know about the environment of a job: variables without effect, and settings
// that do not fit the machine. Written to the log when a process makes its first group.
// Thread safety: may be called from any thread.
#pragma once

#include <string>

#include "config/settings.h"
#include "planner/plan_workers.h"
#include "transport/membership.h"

namespace tccl {

/// Warnings are written once per job: by rank 0 of its first group, unless the launcher gave that
/// process another rank (the first group need not be the whole job). The other processes write what
/// they find at the level `debug`. `provider` is libfabric's, empty if the group is on one host.
/// `notices_deaths`: whether this system has a means to notice the death of a process of this host.
void report_environment(const Settings& settings, const LocalPlacement& placement,
                        const Membership& first_group, const std::string& provider,
                        bool notices_deaths);

}  // namespace tccl
