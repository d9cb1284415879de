// Arguments of one reduce(), without standard-library types: files compiled per instruction set
// must not instantiate templates, because the linker could use that copy on a CPU without the
// instructions.
// Thread safety: a plain value.
#pragma once

#include <cstddef>

#include "tccl/types.h"

namespace tccl::kernels {

struct ReduceArgs {
  void* destination;
  void* second_destination;  ///< or null
  const void* const* sources;
  std::size_t source_count;
  std::size_t count;
  const double* factors;
  std::size_t divisor;  ///< for ReduceOp::avg
  DType dtype;
  ReduceOp op;
};

}  // namespace tccl::kernels
