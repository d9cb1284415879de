// Variables for libraries that can be configured only by the environment of the process.
// Thread safety: may be called from any thread, also while others call getenv(). Another thread's
// setenv() at the same moment may be lost, or this change.
#pragma once

#include <string>

namespace tccl {

/// Sets a variable of this process. Not by setenv(): that moves the array of variables and may free
/// it while another thread reads it in getenv(), which crashes that thread. This publishes a copy of
/// the array with one store; the old one stays as it is, for ever. For few variables, set once.
void set_environment_variable(const std::string& name, const std::string& value);

}  // namespace tccl
