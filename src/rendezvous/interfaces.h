// The network interfaces of this host, and the addresses by which others may reach it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/address_selection.h"

namespace tccl {

/// One address of an interface; an interface may have several, or none (then `address` is empty).
struct Interface {
  std::string name;
  std::string address;  // in numbers, IPv4 or IPv6
  bool up = false;
  bool running = false;  // there is a carrier
  bool loopback = false;
};

/// In the order of getifaddrs().
std::vector<Interface> interfaces_of_this_host();

/// What this host offers to others. `towards` is the name or address of the store's host, empty if
/// unknown; `wanted` is CCL_SOCKET_IFNAME: prefixes of names to take, in order of preference, and
/// behind a ^ prefixes to leave out. If nothing fits, throws Error{invalid_argument} that lists the
/// interfaces. The name of the host is left to the caller.
AddressOffer own_addresses(const std::string& towards, const std::string& wanted);

/// Those that are of use, best first. Without prefixes to take, those of `preferred` that fit come
/// first; IPv4 before IPv6; loopback only if it is asked for.
std::vector<std::string> usable_addresses(std::span<const Interface> interfaces,
                                          const std::string& wanted,
                                          std::span<const std::string> preferred);

/// Where packets to an address come from. Nothing is sent.
std::optional<std::string> source_towards(const std::string& address);

}  // namespace tccl
