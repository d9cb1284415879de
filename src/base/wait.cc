#include "base/wait.h"

#include <algorithm>
#include <thread>

namespace tccl {

int usable_cores() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return CPU_COUNT(&mask);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));  // over 1024 cores
}

}  // namespace tccl
