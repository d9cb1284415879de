// Turns errno into the library's exception.
// Thread safety: functions without shared state.
#pragma once

#include <cstdint>
#include <string>

namespace tccl {

/// strerror(); for a limit that is reached also which one it is, and how to raise it.
std::string reason_of(int error);

/// What follows the reason when a process may open no more files; empty without a limit.
std::string descriptor_limit_text(std::uint64_t soft, std::uint64_t hard);

/// Throws Error{system} saying what was tried and why the operating system refused.
[[noreturn]] void throw_system_error(const std::string& what);

}  // namespace tccl
