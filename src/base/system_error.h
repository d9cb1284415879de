// Turns errno into the library's exception.
// Thread safety: functions without shared state.
#pragma once

#include <string>

namespace tccl {

/// strerror(); for a limit that is reached also which one it is, and how to raise it.
std::string reason_of(int error);

/// Throws Error{system} saying what was tried and why the operating system refused.
[[noreturn]] void throw_system_error(const std::string& what);

}  // namespace tccl
