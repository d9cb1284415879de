#include "tccl/error.h"
#include "base/format.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "base/system_error.h"

namespace tccl {

Error::~Error() = default;

std::string_view name_of(Errc code) {
  switch (code) {
    case Errc::invalid_argument:
      return "invalid_argument";
    case Errc::mismatch:
      return "mismatch";
    case Errc::timeout:
      return "timeout";
    case Errc::peer_lost:
      return "peer_lost";
    case Errc::aborted:
      return "aborted";
    case Errc::system:
      return "system";
    case Errc::internal:
      return "internal";
  }
  return "unknown";
}

std::string reason_of(int error) {
  std::string reason = std::strerror(error);
  if (error == ENFILE) return reason + " (fs.file-max)";
  rlimit files{};
  if (error != EMFILE || ::getrlimit(RLIMIT_NOFILE, &files) != 0) return reason;
  return reason + descriptor_limit_text(files.rlim_cur, files.rlim_max);
}

std::string descriptor_limit_text(std::uint64_t soft, std::uint64_t hard) {
  if (soft == RLIM_INFINITY) return {};
  const std::string text = formatted(": the limit of this process is {} (RLIMIT_NOFILE), ", soft);
  if (soft == hard) return text + "which only an administrator can raise: it is the hard limit";
  if (hard == RLIM_INFINITY) return text + "`ulimit -n` raises it";
  return formatted("{}`ulimit -n` raises it to {}", text, hard);
}

void throw_system_error(const std::string& what) {
  throw Error(Errc::system, formatted("{}: {}", what, reason_of(errno)));
}

}  // namespace tccl
