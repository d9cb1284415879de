// A barrier that tells who did not come.
#pragma once

#include <chrono>
#include <cstdint>

#include "tccl/communicator.h"

namespace torch_ccl {

/// Rank 0 hears from every rank and answers. Throws if a rank has not come within `timeout`: on
/// rank 0 its name, or with `wait_all_ranks` the names of all such ranks. `number` counts the
/// group's monitored barriers, so that a late message cannot be taken for one of the next barrier.
void monitored_barrier(tccl::Communicator& communicator, std::uint32_t number,
                       std::chrono::milliseconds timeout, bool wait_all_ranks);

}  // namespace torch_ccl
