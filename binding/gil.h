// Waiting without Python's GIL, wherever it was held. Safe from any thread.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>

namespace torch_ccl {

/// While it exists the calling thread does not hold the GIL: what it waits for may need it.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

}  // namespace torch_ccl
