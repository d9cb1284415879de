// All-reduce (sum) of sparse tensors.
// Thread safety: that of the request.
#pragma once

#include "collective_request.h"

namespace torch_ccl {

/// Adds to `request` the operations that replace `tensor`, in COO layout, by the sum of all ranks'
/// tensors. Shapes and dtypes must agree; the numbers of nonzero entries may differ. The sums
/// are those of a dense all-reduce: each rank's tensor is coalesced, then added in rank order, in
/// float32 if the dtype is a shorter float.
void add_sparse_allreduce(CollectiveRequest& request, const at::Tensor& tensor,
                          const c10d::ReduceOp& op);

}  // namespace torch_ccl
