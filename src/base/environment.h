// Variables for libraries that can be configured only by the environment of the process.
// Thread safety: may be called from any thread, also while others call getenv(). Not while another
// thread calls setenv(), putenv() or unsetenv(), which may free the array that is being copied: no
// lock exists that they take, too.
#pragma once

#include <string>

namespace tccl {

/// Sets a variable of this process. Not by setenv(): that moves the array of variables and may free
/// it while another thread reads it in getenv(), which crashes that thread. This publishes a copy of
/// the array with one store; the old one stays as it is, for ever. For few variables, set once. Does nothing if the variable has
/// that value already.
void set_environment_variable(const std::string& name, const std::string& value);

}  // namespace tccl
