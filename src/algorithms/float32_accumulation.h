// Reductions of 8-bit floats over hosts are made in float32: a sum of each host in 8 bits would
// have two or three digits left to lose.
#pragma once

#include "algorithms/task.h"
#include "base/function_ref.h"

namespace tccl {

/// Runs `run` with the same task on float32 if the task is on 8-bit floats, else as it is.
/// `has_output`: whether this rank gets the result.
void accumulate_in_float32(const CollectiveTask& task, bool has_output,
                           FunctionRef<void(const CollectiveTask&)> run);

/// The same for reduce_scatter(v), whose input has one block per rank of the group.
void accumulate_blocks_in_float32(const CollectiveTask& task, int rank, int ranks,
                                  FunctionRef<void(const CollectiveTask&)> run);

}  // namespace tccl
