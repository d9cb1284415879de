#include "base/fd.h"

#include <sys/resource.h>

#include <algorithm>

namespace tccl {
namespace {

/// Programs exist that close every descriptor up to the limit before they start others.
constexpr rlim_t kMaxDescriptors = 65'536;

}  // namespace

void raise_descriptor_limit() noexcept {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = std::max(files.rlim_cur, std::min(files.rlim_max, kMaxDescriptors));
  ::setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace tccl
