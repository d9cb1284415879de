// The one exception type of the library.
//
//   try { comm->run(...); }
//   catch (const tccl::Error& e) { if (e.code() == tccl::Errc::peer_lost)
//   rebuild_without(e.ranks()); }
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tccl/export.h"

namespace tccl {

enum class Errc : unsigned char {
  invalid_argument,  // refused before anything was sent; the group is unharmed
  mismatch,          // ranks disagree about an operation
  timeout,           // a deadline passed
  peer_lost,         // a rank died or left while it was needed
  aborted,           // abort() here or on another rank
  system,            // the operating system refused something
  internal,          // a bug of this library
};

TCCL_API std::string_view name_of(Errc code);

class TCCL_API Error : public std::runtime_error {
 public:
  Error(Errc code, const std::string& what, std::vector<int> ranks = {})
      : std::runtime_error(what), code_(code), ranks_(std::move(ranks)) {}
  ~Error() override;

  [[nodiscard]] Errc code() const noexcept { return code_; }
  /// The ranks concerned: the dead one, the ones that disagree. May be empty.
  [[nodiscard]] const std::vector<int>& ranks() const noexcept { return ranks_; }

 private:
  Errc code_;
  std::vector<int> ranks_;
};

}  // namespace tccl
