// The library's errors as the exceptions that torch turns into Python's: ValueError for a call that
// was refused, torch.distributed.DistBackendError for everything that went wrong on the way.
// All functions are safe from any thread.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "tccl/error.h"

namespace torch_ccl {

/// Still knows what happened, for getError() and getFutureResult().
class BackendError final : public c10::DistBackendError {
 public:
  BackendError(const c10::SourceLocation& where, const tccl::Error& error)
      : DistBackendError(where, std::string("ccl: ") + error.what()), code(error.code()) {}
  const tccl::Errc code;
};

[[noreturn]] inline void throw_as_torch(const tccl::Error& error) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  if (error.code() == tccl::Errc::invalid_argument)
    throw c10::ValueError(here, std::string("ccl: ") + error.what());
  throw BackendError(here, error);
}

/// The same for a stored error. Anything that is not a tccl::Error stays what it is: a pending
/// KeyboardInterrupt must arrive in Python as one.
inline std::exception_ptr as_torch(const std::exception_ptr& error) noexcept {
  if (!error) return nullptr;
  try {
    try {
      std::rethrow_exception(error);
    } catch (const tccl::Error& e) {
      throw_as_torch(e);
    }
  } catch (...) {
    return std::current_exception();
  }
}

inline bool is_timeout(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const BackendError& e) {
    return e.code == tccl::Errc::timeout;
  } catch (...) {
    return false;
  }
}

}  // namespace torch_ccl
