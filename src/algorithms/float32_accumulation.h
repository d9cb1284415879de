// Reductions of 8-bit floats over hosts accumulate in float32: rounding each host's sum to 8 bits
// would leave two or three significant bits.
// Thread safety: one operation, on one thread.
#pragma once

#include "algorithms/task.h"
#include "base/function_ref.h"

namespace tccl {

/// Calls `run` with the task converted to float32 if its dtype is an 8-bit float, and converts the
/// result back; otherwise calls `run` with the task itself. `has_output`: this rank gets the
/// result.
void accumulate_in_float32(const CollectiveTask& task, bool has_output,
                           FunctionRef<void(const CollectiveTask&)> run);

/// The same for reduce_scatter(v), whose input has one block per rank of the group.
void accumulate_blocks_in_float32(const CollectiveTask& task, int rank, int ranks,
                                  FunctionRef<void(const CollectiveTask&)> run);

}  // namespace tccl
