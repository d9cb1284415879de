#include "tccl/error.h"
#include "base/format.h"

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

void throw_system_error(const std::string& what) {
  throw Error(Errc::system, formatted("{}: {}", what, std::strerror(errno)));
}

}  // namespace tccl
