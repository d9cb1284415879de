// Releases Python's GIL for a scope.
// Thread safety: one object per thread.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>

namespace torch_ccl {

/// Releases the GIL if the calling thread holds it, and takes it again at the end of the scope. For
/// waits: what they wait for may need the GIL.
class ScopedGilRelease {
 public:
  ScopedGilRelease() {
    if (Py_IsInitialized() && PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

}  // namespace torch_ccl
