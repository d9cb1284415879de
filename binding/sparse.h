// The sum of sparse tensors over all ranks.
#pragma once

#include "call.h"

namespace torch_ccl {

/// Makes `call` replace `tensor`, in COO layout, by the sum of all ranks' tensors. The ranks may
/// have different numbers of entries, but shapes and dtypes must agree. The same numbers as for
/// dense tensors: what coalesce() makes of a rank's own entries is added in the order of ranks, in
/// float32 if they are shorter floats.
void add_sparse_allreduce(Call& call, const GroupFacts& group, const at::Tensor& tensor,
                          const c10d::ReduceOp& op);

}  // namespace torch_ccl
