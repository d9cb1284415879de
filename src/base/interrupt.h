// Tells interrupts (Context::Options::check_interrupt) from other exceptions.
// Thread safety: values, and functions without shared state.
#pragma once

#include <exception>
#include <functional>
#include <utility>

#include "tccl/error.h"

namespace tccl {

/// An interrupt has ended an operation. The Error is for the operation's Work; the interrupt itself
/// is thrown, once, by the call in which it came, which may have waited for a later operation.
class InterruptedOperation : public Error {
 public:
  InterruptedOperation(const Error& reason, std::exception_ptr interrupt)
      : Error(reason), interrupt_(std::move(interrupt)) {}
  [[noreturn]] void throw_interrupt() const { std::rethrow_exception(interrupt_); }
  [[nodiscard]] const std::exception_ptr& interrupt() const noexcept { return interrupt_; }

 private:
  std::exception_ptr interrupt_;
};

/// `check`, which also sets `interrupted` if it throws. Empty if `check` is.
inline std::function<void()> marking_interrupts(std::function<void()> check, bool& interrupted) {
  if (!check) return {};
  return [check = std::move(check), &interrupted] {
    try {
      check();
    } catch (...) {
      interrupted = true;
      throw;
    }
  };
}

}  // namespace tccl
