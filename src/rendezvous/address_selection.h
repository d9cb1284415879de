// Chooses the address that each host of a group advertises to the others.
//
//   std::vector<AddressOffer> offers = ...;    // one per host, in the same order on all hosts
//   std::string own = choose_address(offers, own_index, source_address_to);
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"

namespace tccl {

/// The addresses of one host, exchanged before one is chosen.
struct AddressOffer {
  std::string host;                 // host name, for error messages
  std::vector<std::string> usable;  // numeric, IPv4 or IPv6, best first
  bool routes_to_store = false;     // the best one is the source address of packets to the store
};

std::string encoded(const AddressOffer& offer);
/// Throws Error{system} if the text is invalid: other processes may write to the store.
AddressOffer decode_offer(std::string_view text);

/// The source address of packets to an address; none if there is no route.
using SourceAddressTo = FunctionRef<std::optional<std::string>(const std::string&)>;

/// The address of host `own`. All hosts choose the same family, since all see the same offers: the
/// family of the route to the store if a host has one, else IPv4; the other family if some host
/// lacks it. Within the family each host chooses the address with a route to most other hosts.
/// Throws Error{invalid_argument} if no family is common to all.
std::string choose_address(std::span<const AddressOffer> hosts, std::size_t own,
                           SourceAddressTo source);

bool is_ipv6(const std::string& address);

}  // namespace tccl
