// Signals in Python during a wait.
//
// A signal handler that raises (Ctrl-C raises KeyboardInterrupt) ends the wait on the main thread,
// and fails the operation if that thread was running it. Such an exception can be raised in Python
// only once. So a Work never stores it: its stored error is a DistBackendError that names the
// exception, and the exception itself is raised by the call that was interrupted.
// Thread safety: every function may be called from any thread.
#pragma once

#include <chrono>
#include <exception>

namespace torch_ccl {

/// Lets Ctrl-C end a wait: if a signal is pending, throws what its Python handler raised.
void check_interrupt();
/// How often the binding's own waits call check_interrupt(), which takes the GIL: as often as those
/// of the library, whose constant (src/base/wait.h) is not exported.
inline constexpr std::chrono::milliseconds kInterruptInterval{100};

/// `error`, as a Work may store it. If it is an exception of Python, that is kept for
/// throw_kept_interrupt().
std::exception_ptr storable_error(const std::exception_ptr& error) noexcept;
/// Throws the exception of Python that storable_error() has kept, if there is one and this is the
/// main thread.
void throw_kept_interrupt();
/// In a handler, where no exception can be thrown: reports the current one if it is of Python, as Python
/// reports those of a destructor.
void report_unraisable(const char* where) noexcept;

}  // namespace torch_ccl
