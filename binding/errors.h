// Translates tccl::Error to exceptions that become Python's: InvalidArgument for invalid arguments
// (both a ValueError and a RuntimeError), torch.distributed.DistBackendError for every other failure.
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

/// In Python torch_ccl.InvalidArgument, which is a ValueError and a RuntimeError: torch's own backends
/// raise the one or the other, and programs catch what they raise. Without Python a c10::ValueError.
class InvalidArgument final : public c10::ValueError {
 public:
  using ValueError::ValueError;
};

[[noreturn]] inline void throw_invalid_argument(const std::string& problem) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  throw InvalidArgument(here, "ccl: " + problem);
}

[[noreturn]] inline void throw_torch_error(const tccl::Error& error) {
  if (error.code() == tccl::Errc::invalid_argument) throw_invalid_argument(error.what());
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  throw BackendError(here, error);
}

/// The same for a stored error. An exception that is not a tccl::Error is returned unchanged.
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
