// The arguments of reduce(), without library types: the files compiled per instruction set must not
// instantiate templates that the linker could merge into other files.
#pragma once

#include <cstddef>

#include "tccl/types.h"

namespace tccl::kernels {

struct Job {
  void* destination;
  void* second_destination;  ///< or null
  const void* const* sources;
  std::size_t source_count;
  std::size_t count;
  const double* factors;
  std::size_t divisor;  ///< of averages
  DType dtype;
  ReduceOp op;
};

}  // namespace tccl::kernels
