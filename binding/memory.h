// Tensors in memory that all ranks of this host can map, on which collectives copy less.
// Thread safety: every function may be called from any thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_ccl {

/// Like at::empty(), in shared memory. Falls back to at::empty() for a device other than the CPU,
/// and, with one warning per process, if shared memory is exhausted.
at::Tensor empty_shared(at::IntArrayRef size, const at::TensorOptions& options);

}  // namespace torch_ccl
