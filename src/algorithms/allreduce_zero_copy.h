// Zero-copy allreduce on one host, for buffers that every rank maps (Context::allocate). The
// allreduce algorithms of one host try it first.
// Thread safety: one operation, on one thread.
#pragma once

#include "algorithms/task.h"
#include "transport/board.h"

namespace tccl {

/// Returns false, with the output not written, if the message is too small or if some rank's input
/// or output is not in mapped memory. All ranks return the same.
bool allreduce_zero_copy(Board& board, const CollectiveTask& task);

}  // namespace tccl
