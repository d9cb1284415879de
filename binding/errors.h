// The library's errors as the exceptions that torch turns into Python's: ValueError for a call that
// was refused, torch.distributed.DistBackendError for everything that went wrong on the way.
#pragma once

#include <c10/util/Exception.h>

#include <exception>

#include "tccl/error.h"

namespace torch_ccl {

[[noreturn]] inline void throw_as_torch(const tccl::Error& error) {
  if (error.code() == tccl::Errc::invalid_argument) {
    C10_THROW_ERROR(ValueError, std::string("ccl: ") + error.what());
  }
  C10_THROW_ERROR(DistBackendError, std::string("ccl: ") + error.what());
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

}  // namespace torch_ccl
