// CCL_SOCKET_IFNAME, parsed: which network interfaces may be used between hosts.
//
//   InterfaceFilter::parse("eth,ib")      an interface whose name begins with eth, else one with ib
//   InterfaceFilter::parse("^lo,docker")  any interface but lo* and docker*
//   InterfaceFilter::parse("eth,^eth2")   eth*, but not eth2*; a ^ applies to all names after it
//
// Thread safety: an immutable value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tccl {

struct InterfaceFilter {
  std::string text;                   // as the user wrote it
  std::vector<std::string> included;  // prefixes, most preferred first; empty: any interface
  std::vector<std::string> excluded;  // prefixes

  /// Throws Error{invalid_argument} on an empty name, a ^ without a name, and names that no Linux
  /// interface can have.
  static InterfaceFilter parse(std::string_view text);

  [[nodiscard]] bool excludes(std::string_view interface_name) const;
};

}  // namespace tccl
