// All-reduce in memory that every rank can reach.
#pragma once

#include "algorithms/task.h"
#include "transport/board.h"

namespace tccl {

/// True if it was done: if every rank's input and output can be reached and there is enough of it.
/// All ranks return the same.
bool allreduce_zero_copy(Board& board, const CollectiveTask& task);

}  // namespace tccl
