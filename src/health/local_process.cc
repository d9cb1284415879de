#include "health/local_process.h"

#include "base/format.h"

namespace tccl {

std::string LocalProcess::where() const { return formatted("host {}, pid {}", host_, pid_); }

}  // namespace tccl
