#include "base/log.h"

#include "base/format.h"

#include <unistd.h>

#include <cstdio>

namespace tccl {

void log_warning(std::string_view text, int rank) {
  const std::string who = rank < 0 ? formatted("pid {}", ::getpid()) : formatted("rank {}", rank);
  const std::string line = formatted("tccl: {}: warning: {}\n", who, text);
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: lines never interleave
}

}  // namespace tccl
