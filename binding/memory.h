// Tensors in memory that all ranks of this host can reach, on which collectives copy less.
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_ccl {

/// As at::empty(). If it is not for the CPU or there is no room, it is at::empty(), in the latter
/// case with a warning, once.
at::Tensor empty_shared(at::IntArrayRef size, const at::TensorOptions& options);

}  // namespace torch_ccl
