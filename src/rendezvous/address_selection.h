// Which of its addresses each host gives to the other hosts of a group, so that all can reach it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"

namespace tccl {

/// What a host says about itself before anything is chosen.
struct AddressOffer {
  std::string host;                 // its name
  std::vector<std::string> usable;  // in numbers, IPv4 or IPv6, the best first
  bool routes_to_store = false;     // the best one is where packets to the store come from
};

std::string encoded(const AddressOffer& offer);
/// Throws Error{system} if it makes no sense: it comes out of a store, to which others may write.
AddressOffer decode_offer(std::string_view text);

/// Where packets to an address come from; none if there is no way.
using SourceTowards = FunctionRef<std::optional<std::string>(const std::string&)>;

/// The address of host `own`. All hosts get one of the same family, which they conclude from the
/// same offers: that of the way to the store if a host has one, else IPv4, unless a host has none
/// of it. In that family each takes the address from which it reaches most of the others. Throws
/// Error{invalid_argument} if no family is common to all.
std::string choose_address(std::span<const AddressOffer> hosts, std::size_t own,
                           SourceTowards source);

bool is_ipv6(const std::string& address);

}  // namespace tccl
