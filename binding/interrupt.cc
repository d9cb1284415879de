#include "interrupt.h"

#include <sys/syscall.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "errors.h"

namespace torch_ccl {
namespace {

// Python runs signal handlers on its main thread only.
bool is_main_thread() { return syscall(SYS_gettid) == getpid(); }

struct KeptInterrupt {
  std::atomic<bool> exists{false};  // relaxed: the mutex orders the rest
  std::mutex mutex;                 // guards `exception`
  std::exception_ptr exception;
};
// Never destroyed: a Python exception needs the interpreter for that.
KeptInterrupt& kept() {
  static auto* const instance = new KeptInterrupt;
  return *instance;
}

void keep(std::exception_ptr exception) {
  {
    const std::lock_guard lock(kept().mutex);
    std::swap(kept().exception, exception);  // an earlier one is dropped, without the lock
  }
  kept().exists.store(true, std::memory_order_relaxed);
}

std::string type_name(const pybind11::error_already_set& error) {
  const pybind11::gil_scoped_acquire gil;
  return pybind11::str(error.type().attr("__name__"));
}

}  // namespace

// Other threads do not take the GIL.
void check_interrupt() {
  if (!is_main_thread() || !Py_IsInitialized()) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

std::exception_ptr storable_error(const std::exception_ptr& error) noexcept {
  if (!error) return nullptr;
  try {
    try {
      std::rethrow_exception(error);
    } catch (const pybind11::error_already_set& interrupt) {
      const std::string name = type_name(interrupt);
      keep(error);
      throw_torch_error(
          {tccl::Errc::aborted, "the operation was interrupted on this rank by " + name});
    }
  } catch (...) {
    return std::current_exception();
  }
}

void throw_kept_interrupt() {
  if (!kept().exists.load(std::memory_order_relaxed) || !is_main_thread()) return;
  std::exception_ptr exception;
  {
    const std::lock_guard lock(kept().mutex);
    exception = std::exchange(kept().exception, nullptr);
    kept().exists.store(false, std::memory_order_relaxed);
  }
  if (exception) std::rethrow_exception(exception);
}

void report_unraisable(const char* where) noexcept {
  try {
    throw;
  } catch (pybind11::error_already_set& error) {
    const pybind11::gil_scoped_acquire gil;
    error.discard_as_unraisable(where);
  } catch (...) {
    // Not of Python.
  }
}

}  // namespace torch_ccl
