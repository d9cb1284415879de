// The extension standin._C: loading it registers the device; its functions are the switches.
#include <pybind11/pybind11.h>

#include "streams.h"

namespace {

namespace py = pybind11;
using standin::switches;

void drain() {
  if (standin::forked_after_use()) return;
  for (c10::DeviceIndex index = 0; index < standin::device_count(); ++index) {
    standin::synchronize_device(index);
  }
}

bool is_any_in_use() {
  for (c10::DeviceIndex index = 0; index < standin::device_count(); ++index) {
    if (standin::is_in_use(index)) return true;
  }
  return false;
}

PYBIND11_MODULE(_C, module) {
  module.def("set_delay_ms", [](double delay_ms) {
    switches().delay_us.store(static_cast<int64_t>(1000 * delay_ms), std::memory_order_relaxed);
  });
  module.def("ignore_waits",
             [](bool on) { switches().ignore_stream_waits.store(on, std::memory_order_relaxed); });
  module.def("ignore_host_waits",
             [](bool on) { switches().ignore_host_waits.store(on, std::memory_order_relaxed); });
  module.def("refuse_pinned",
             [](bool on) { switches().refuse_pinned.store(on, std::memory_order_relaxed); });
  module.def("simultaneous_copies",
             [] { return switches().simultaneous_copies.load(std::memory_order_relaxed); });
  module.def("torn_copies", [] { return switches().torn_copies.load(std::memory_order_relaxed); });
  module.def("device_count", [] { return int{standin::device_count()}; });
  module.def("is_initialized", &is_any_in_use);
  module.def("forked_after_use", &standin::forked_after_use);
  // The interpreter must outlive the jobs, which may hold tensors that it knows.
  py::module_::import("atexit").attr("register")(py::cpp_function(&drain));
}

}  // namespace
