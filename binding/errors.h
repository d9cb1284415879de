// Translates tccl::Error to the exceptions that torch maps to Python's: ValueError for invalid
// arguments, torch.distributed.DistBackendError for every other failure.
// Thread safety: every function may be called from any thread.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "tccl/error.h"

namespace torch_ccl {

/// Keeps the error code, for work_result_of().
class BackendError final : public c10::DistBackendError {
 public:
  BackendError(const c10::SourceLocation& where, const tccl::Error& error)
      : DistBackendError(where, std::string("ccl: ") + error.what()), code(error.code()) {}
  const tccl::Errc code;
};

[[noreturn]] inline void throw_torch_error(const tccl::Error& error) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  if (error.code() == tccl::Errc::invalid_argument)
    throw c10::ValueError(here, std::string("ccl: ") + error.what());
  throw BackendError(here, error);
}

/// The same for a stored error. An exception that is not a tccl::Error is returned unchanged: a
/// pending KeyboardInterrupt must reach Python as one.
inline std::exception_ptr to_torch_error(const std::exception_ptr& error) noexcept {
  if (!error) return nullptr;
  try {
    try {
      std::rethrow_exception(error);
    } catch (const tccl::Error& e) {
      throw_torch_error(e);
    }
  } catch (...) {
    return std::current_exception();
  }
}

/// The value of Work::getFutureResult() for an error, or for none.
inline c10d::WorkResult work_result_of(const std::exception_ptr& error) noexcept {
  if (!error) return c10d::WorkResult::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const BackendError& e) {
    return e.code == tccl::Errc::timeout ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
  } catch (...) {
    return c10d::WorkResult::COMM_ERROR;
  }
}

}  // namespace torch_ccl
