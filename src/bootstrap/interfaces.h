// The address of this host to give to other hosts.
#pragma once

#include <span>
#include <string>
#include <vector>

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

/// IPv4 or IPv6 in numbers. `towards` is the name or address of the store's host, empty if unknown;
/// `wanted` is CCL_SOCKET_IFNAME: prefixes of names to take, in order of preference, and behind a ^
/// prefixes to leave out. If no interface fits, throws Error{invalid_argument} that lists them.
std::string own_address(const std::string& towards, const std::string& wanted);

/// The choice among what there is. Without prefixes to take, one of `preferred` (addresses, the
/// best first) is taken if it fits. Otherwise the first that fits; IPv4 before IPv6, loopback only
/// if it is asked for or there is nothing else.
std::string choose_address(std::span<const Interface> interfaces, const std::string& wanted,
                           std::span<const std::string> preferred);

}  // namespace tccl
