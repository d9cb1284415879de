// How much CPU time the cgroups of this process allow: `docker run --cpus=2`, a CPU limit of
// Kubernetes, CPUQuota= of systemd.
// Thread safety: a function without shared state.
#pragma once

#include <cstdint>
#include <string>

namespace tccl {

/// The tightest limit among the cgroup of this process and those above it.
struct CpuQuota {
  double cpus = 0;           // seconds of CPU time per second; 0: no limit
  std::uint64_t cgroup = 0;  // identifies the cgroup with the limit, the same in all its processes

  [[nodiscard]] bool is_limited() const noexcept { return cpus > 0; }
};

/// Of cgroup v2 (cpu.max) and v1 (cpu.cfs_quota_us). What cannot be read counts as no limit. `root`
/// precedes all paths; tests pass a directory.
CpuQuota cpu_quota(const std::string& root = "");

}  // namespace tccl
