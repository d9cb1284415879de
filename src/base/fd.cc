#include "base/fd.h"

#include <sys/resource.h>

#include <algorithm>
#include <new>

#include "base/format.h"
#include "base/log.h"

namespace tccl {
namespace {

/// Programs exist that close every descriptor up to the limit before they start others.
constexpr rlim_t kMaxDescriptors = 65'536;

}  // namespace

void raise_descriptor_limit() noexcept {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  const rlim_t before = files.rlim_cur;
  files.rlim_cur = std::max(before, std::min(files.rlim_max, kMaxDescriptors));
  if (files.rlim_cur == before || ::setrlimit(RLIMIT_NOFILE, &files) != 0) return;
  if (!is_logged(LogLevel::info)) return;
  try {
    log(LogLevel::info, {},
        formatted("raised the limit of open files of this process from {} to {} (RLIMIT_NOFILE): a "
                  "group over several hosts has two connections per process of another host",
                  before, files.rlim_cur));
  } catch (const std::bad_alloc&) {
    // The limit is raised all the same.
  }
}

}  // namespace tccl
