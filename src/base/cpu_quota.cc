#include "base/cpu_quota.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/fd.h"
#include "base/format.h"

namespace tccl {
namespace {

/// Where the hierarchy that limits CPU time is mounted, and the cgroup of this process in it.
struct Hierarchy {
  std::string mount_point;
  std::string path;  // below the mount point: empty, or "/a/b"
};

bool is_listed(const std::string& name, const std::string& comma_separated) {
  return ("," + comma_separated + ",").find("," + name + ",") != std::string::npos;
}

/// The cgroup of this process, from /proc/self/cgroup: lines `number:controllers:path`. With cgroup
/// v2 the number is 0 and there are no controllers.
std::optional<std::string> path_of_process(const std::string& root, bool v2) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string number;
    std::string controllers;
    std::string path;
    std::getline(fields, number, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    if (v2 ? number == "0" && controllers.empty() : is_listed("cpu", controllers)) return path;
  }
  return std::nullopt;
}

/// The path relative to the mounted part of the hierarchy. A container may see a cgroup path of the
/// host that is not below its mount: then its own cgroup is what is mounted.
std::string below_mount(std::string_view path, std::string_view mounted) {
  if (mounted == "/") mounted = "";
  if (!path.starts_with(mounted)) return {};
  path.remove_prefix(mounted.size());
  const bool is_below = path.starts_with('/') && !path.starts_with("/..");
  return is_below && path != "/" ? std::string(path) : std::string();
}

/// From /proc/self/mountinfo: `id parent device mounted-path mount-point options [tags] - type
/// source super-options`.
std::optional<Hierarchy> find_hierarchy(const std::string& root, bool v2) {
  const std::optional<std::string> path = path_of_process(root, v2);
  if (!path) return std::nullopt;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t separator = line.find(" - ");
    if (separator == std::string::npos) continue;
    std::istringstream mount(line.substr(0, separator));
    std::istringstream filesystem(line.substr(separator + 3));
    std::string skipped;
    std::string mounted;
    std::string mount_point;
    std::string type;
    std::string options;
    mount >> skipped >> skipped >> skipped >> mounted >> mount_point;
    filesystem >> type >> skipped >> options;
    if (v2 ? type == "cgroup2" : type == "cgroup" && is_listed("cpu", options))
      return Hierarchy{mount_point, below_mount(*path, mounted)};
  }
  return std::nullopt;
}

/// 0 if there is none.
double limit_in(const std::string& directory, bool v2) {
  double quota = 0;  // stays 0 at "max" and without a file
  double period = 0;
  if (v2) {
    std::ifstream(directory + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(directory + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(directory + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

/// The inode: the same whatever name the directory has in a container.
std::uint64_t id_of(const std::string& directory) {
  const Fd opened(::open(directory.c_str(), O_PATH | O_CLOEXEC));  // not stat(): not in old glibc
  struct stat status {};
  if (!opened || ::fstat(opened.get(), &status) != 0) return 0;
  return status.st_ino;
}

CpuQuota tightest_in(const std::string& root, bool v2) {
  CpuQuota tightest;
  const std::optional<Hierarchy> hierarchy = find_hierarchy(root, v2);
  if (!hierarchy) return tightest;
  for (std::string path = hierarchy->path;; path.resize(path.rfind('/'))) {
    const std::string directory = formatted("{}{}{}", root, hierarchy->mount_point, path);
    const double cpus = limit_in(directory, v2);
    // Of equal limits the outermost: more processes share it.
    if (cpus > 0 && (!tightest.is_limited() || cpus <= tightest.cpus))
      tightest = {cpus, id_of(directory)};
    if (path.empty()) return tightest;
  }
}

}  // namespace

CpuQuota cpu_quota(const std::string& root) {
  // A machine has one hierarchy with the controller `cpu`, of either version.
  const CpuQuota v2 = tightest_in(root, /*v2=*/true);
  return v2.is_limited() ? v2 : tightest_in(root, /*v2=*/false);
}

}  // namespace tccl
