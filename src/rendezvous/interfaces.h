// The network interfaces of this host, and the addresses at which other hosts can reach it.
//
//   AddressOffer offer = own_addresses(store.host(), settings.interface_filter);
//
// Thread safety: functions without shared state.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/interface_filter.h"
#include "rendezvous/address_selection.h"

namespace tccl {

/// One address of an interface. An interface has one entry per address; one without any address has
/// a single entry with an empty `address`.
struct Interface {
  std::string name;
  std::string address;  // numeric, IPv4 or IPv6
  bool up = false;
  bool running = false;  // there is a carrier
  bool loopback = false;
};

/// In the order of getifaddrs().
std::vector<Interface> interfaces_of_this_host();

/// The addresses that this host offers to the others. `store_host` is the name or address of the
/// store's host, empty if unknown. Throws Error{invalid_argument}, which lists the interfaces, if
/// the filter leaves none. The caller sets AddressOffer::host.
AddressOffer own_addresses(const std::string& store_host, const InterfaceFilter& filter);

/// Usable addresses, best first. If the filter names no interface to include, the addresses in
/// `preferred` come first. IPv4 comes before IPv6. Loopback is used only if the filter includes it
/// by name.
std::vector<std::string> usable_addresses(std::span<const Interface> interfaces,
                                          const InterfaceFilter& filter,
                                          std::span<const std::string> preferred);

/// The source address of packets to a numeric address, by the routing table; none if there is no
/// route. Sends nothing.
std::optional<std::string> source_address_to(const std::string& address);

}  // namespace tccl
