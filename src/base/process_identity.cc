#include "base/process_identity.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/format.h"

namespace tccl {
namespace {

struct ProcessStatus {
  char state = '?';
  std::uint64_t start_time = 0;
};

/// From /proc/<pid>/stat: "4711 (name) S ..."; the name may contain blanks and parentheses.
std::optional<ProcessStatus> status_of(pid_t pid) {
  std::ifstream file(formatted("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  ProcessStatus status;
  fields >> status.state;
  constexpr int kFieldsBeforeStartTime = 18;
  std::string skipped;
  for (int i = 0; i < kFieldsBeforeStartTime; ++i) fields >> skipped;
  if (!(fields >> status.start_time)) return std::nullopt;
  return status;
}

/// "pid:[4026531836]"
std::string namespace_id(const char* name) {
  char target[64] = {};
  const auto length =
      ::readlink(formatted("/proc/self/ns/{}", name).c_str(), target, sizeof target - 1);
  return {target, length < 0 ? 0 : static_cast<std::size_t>(length)};
}

/// Processes of one place see each other's pids. The network namespace is part of it because ranks
/// in different ones are on different hosts for this library.
std::string this_place() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  const std::string pids = namespace_id("pid");
  const std::string network = namespace_id("net");
  if (boot_id.empty() || pids.empty() || network.empty()) return {};
  return formatted("{}/{}/{}", boot_id, pids, network);
}

}  // namespace

ProcessIdentity ProcessIdentity::of_this_process() {
  ProcessIdentity identity;
  identity.pid_ = ::getpid();
  if (const auto status = status_of(identity.pid_)) {
    identity.place_ = this_place();
    identity.start_time_ = status->start_time;
  }
  return identity;
}

ProcessIdentity ProcessIdentity::from_text(const std::string& text) {
  ProcessIdentity identity;
  std::istringstream fields(text);
  if (!(fields >> identity.pid_ >> identity.start_time_ >> identity.place_)) return {};
  return identity;
}

std::string ProcessIdentity::text() const {
  return formatted("{} {} {}", pid_, start_time_, place_);
}

bool ProcessIdentity::is_local() const {
  return pid_ > 0 && !place_.empty() && place_ == this_place();
}

bool ProcessIdentity::has_ended() const {
  if (!is_local()) return false;
  if (::kill(pid_, 0) != 0 && errno == ESRCH) return true;
  const auto status = status_of(pid_);
  if (!status) return false;  // /proc may hide processes of other users
  return status->start_time != start_time_ || status->state == 'Z' || status->state == 'X';
}

bool ProcessIdentity::is_stopped() const {
  if (!is_local()) return false;
  const auto status = status_of(pid_);
  return status && status->start_time == start_time_ && status->state == 'T';
}

}  // namespace tccl
