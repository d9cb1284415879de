// A barrier that names the ranks that did not arrive.
// Thread safety: may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "tccl/communicator.h"

namespace torch_ccl {

/// Every rank sends a message to rank 0, which replies when all have arrived. Throws if a rank does
/// not arrive within `timeout`; rank 0's error names the first missing rank, or all of them with
/// `wait_all_ranks`. `sequence` counts the group's monitored barriers: it separates a late message
/// of one barrier from those of the next.
void monitored_barrier(tccl::Communicator& communicator, std::uint32_t sequence,
                       std::chrono::milliseconds timeout, bool wait_all_ranks);

}  // namespace torch_ccl
