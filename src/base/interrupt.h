// Tells interrupts (Context::Options::check_interrupt) from other exceptions.
// Thread safety: a function without shared state.
#pragma once

#include <functional>
#include <utility>

namespace tccl {

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
