#include "memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "context.h"
#include "errors.h"
#include "tccl/error.h"

namespace torch_ccl {

at::Tensor empty_shared(at::IntArrayRef size, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) return at::empty(size, options);
  std::size_t bytes = options.dtype().itemsize();
  for (const int64_t extent : size) {
    TORCH_CHECK(extent >= 0, "ccl: a dimension cannot have ", extent, " elements");
    TORCH_CHECK(!__builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes),
                "ccl: a tensor of size ", size, " is too large");
  }
  std::shared_ptr<void> memory;
  try {
    memory = context()->allocate(bytes);
  } catch (const tccl::Error& error) {
    if (error.code() != tccl::Errc::system) throw_torch_error(error);
    TORCH_WARN_ONCE("ccl: allocated an ordinary tensor, because shared memory failed: ",
                    error.what());
    return at::empty(size, options);
  }
  void* data = memory.get();
  return at::from_blob(
      data, size, [memory = std::move(memory)](void* /*data*/) mutable { memory.reset(); },
      options);
}

}  // namespace torch_ccl
