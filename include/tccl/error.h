// The exception type of the library. Implemented by src/base/error.cc.
// Thread safety: an Error is immutable.
//
//   try {
//     comm->run(...);
//   } catch (const tccl::Error& error) {
//     if (error.code() == tccl::Errc::peer_lost) rebuild_without(error.ranks());
//   }
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tccl/export.h"

namespace tccl {

enum class Errc : unsigned char {
  invalid_argument,  // rejected before anything was sent; the group stays usable. During group
                     // creation, and in an OperationList, the group fails
  mismatch,          // ranks called different operations
  timeout,           // a deadline passed
  peer_lost,         // a rank died or left during an operation that needs it
  aborted,           // abort(), close(), a cancelled message, an interrupt, an exception in the
                     // body of an OperationList, use in a forked child
  system,            // the system, the network or the store failed, or memory is exhausted
  internal,          // a bug of this library
};

TCCL_API std::string_view name_of(Errc code);

/// Copies do not throw: copies share the text and the ranks.
class TCCL_API Error : public std::runtime_error {
 public:
  Error(Errc code, const std::string& what, std::vector<int> ranks = {})
      : std::runtime_error(what),
        code_(code),
        ranks_(std::make_shared<const std::vector<int>>(std::move(ranks))) {}
  ~Error() override;

  [[nodiscard]] Errc code() const noexcept { return code_; }
  /// The ranks concerned, such as the dead rank or the ranks that mismatch. May be empty.
  [[nodiscard]] const std::vector<int>& ranks() const noexcept { return *ranks_; }

 private:
  Errc code_;
  std::shared_ptr<const std::vector<int>> ranks_;
};

}  // namespace tccl
