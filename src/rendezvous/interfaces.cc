#include "rendezvous/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>

#include "base/fd.h"
#include "base/format.h"
#include "base/system_error.h"
#include "base/tcp_socket.h"
#include "config/settings.h"
#include "tccl/error.h"

namespace tccl {
namespace {

/// From where an address can be reached, best first.
enum class Scope : unsigned char { global, link, host, none };

Scope scope_of(const std::string& address) {
  in_addr v4{};
  if (::inet_pton(AF_INET, address.c_str(), &v4) == 1) {
    const std::uint32_t number = ntohl(v4.s_addr);
    if (number >> 24 == 127) return Scope::host;
    return number >> 16 == 0xA9FE ? Scope::link : Scope::global;  // 169.254.0.0/16
  }
  in6_addr v6{};
  const std::string without_scope = address.substr(0, address.find('%'));
  if (::inet_pton(AF_INET6, without_scope.c_str(), &v6) != 1) return Scope::none;
  if (IN6_IS_ADDR_LOOPBACK(&v6)) return Scope::host;
  // A link-local IPv6 address needs the interface index, which differs from host to host.
  return IN6_IS_ADDR_LINKLOCAL(&v6) ? Scope::none : Scope::global;
}

bool is_usable(const Interface& interface) {
  return interface.up && interface.running && scope_of(interface.address) != Scope::none;
}

bool is_loopback(const Interface& interface) {
  return interface.loopback || scope_of(interface.address) == Scope::host;
}

/// For sorting: the smallest value is the best address.
int cost(const Interface& interface) {
  const bool link_local = scope_of(interface.address) == Scope::link;
  return 4 * int{is_loopback(interface)} + 2 * int{link_local} + int{is_ipv6(interface.address)};
}

void append_unique(std::vector<std::string>& list, const std::string& address) {
  if (std::ranges::find(list, address) == list.end()) list.push_back(address);
}

std::string describe(std::span<const Interface> interfaces) {
  std::string text;
  for (const Interface& each : interfaces) {
    const char* state = !each.up ? " (down)" : !each.running ? " (no carrier)" : "";
    text += formatted("{}{} {}{}", text.empty() ? "" : ", ", each.name,
                      each.address.empty() ? "without address" : each.address, state);
  }
  return text.empty() ? "none" : text;
}

/// The source address that the kernel's routing table gives. connect() on a UDP socket sends
/// nothing.
std::optional<std::string> source_address_to(const SocketAddress& destination) {
  const Fd fd(::socket(destination.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), destination.get(), destination.length()) != 0) return std::nullopt;
  return SocketAddress::of_local_end(fd.get()).host();
}

constexpr std::uint16_t kAnyPort = 9;  // connect() on a UDP socket takes any port but 0

/// For the first address of the host that is not reached over loopback.
std::optional<std::string> source_address_to_host(const std::string& host) {
  if (host.empty()) return std::nullopt;
  for (const SocketAddress& destination : SocketAddress::resolve(host, kAnyPort)) {
    auto source = source_address_to(destination);
    if (source && scope_of(*source) < Scope::host) return source;
  }
  return std::nullopt;
}

/// Source addresses of the routes to the store and of the default routes, best first.
std::vector<std::string> preferred_sources(const std::optional<std::string>& to_store) {
  std::vector<std::string> sources;
  if (to_store) sources.push_back(*to_store);
  // Reserved for documentation, so only a default route matches them.
  for (const char* destination : {"198.51.100.1", "2001:db8::1"})
    if (auto source = source_address_to(SocketAddress::parse(destination, kAnyPort)))
      sources.push_back(std::move(*source));
  return sources;
}

Interface without_address(const ifaddrs& entry) {
  return {.name = entry.ifa_name,
          .address = {},
          .up = (entry.ifa_flags & IFF_UP) != 0,
          .running = (entry.ifa_flags & IFF_RUNNING) != 0,
          .loopback = (entry.ifa_flags & IFF_LOOPBACK) != 0};
}

bool has_address(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr) return false;
  return entry.ifa_addr->sa_family == AF_INET || entry.ifa_addr->sa_family == AF_INET6;
}

std::string address_of(const ifaddrs& entry) {
  const bool v4 = entry.ifa_addr->sa_family == AF_INET;
  return SocketAddress(entry.ifa_addr, v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6)).host();
}

}  // namespace

std::vector<Interface> interfaces_of_this_host() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw_system_error("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, &::freeifaddrs);
  std::vector<Interface> found;
  std::vector<Interface> without_addresses;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    Interface interface = without_address(*entry);
    if (!has_address(*entry)) {
      without_addresses.push_back(std::move(interface));
      continue;
    }
    interface.address = address_of(*entry);
    found.push_back(std::move(interface));
  }
  for (Interface& interface : without_addresses)
    if (std::ranges::find(found, interface.name, &Interface::name) == found.end())
      found.push_back(std::move(interface));
  return found;
}

std::optional<std::string> source_address_to(const std::string& address) {
  return source_address_to(SocketAddress::parse(address, kAnyPort));
}

std::vector<std::string> usable_addresses(std::span<const Interface> interfaces,
                                          const InterfaceFilter& filter,
                                          std::span<const std::string> preferred) {
  const bool any_name = filter.included.empty();
  std::vector<Interface> allowed;
  std::ranges::copy_if(interfaces, std::back_inserter(allowed), [&](const Interface& each) {
    return is_usable(each) && !filter.excludes(each.name) && !(any_name && is_loopback(each));
  });
  std::ranges::stable_sort(allowed, {}, cost);
  std::vector<std::string> addresses;
  if (any_name) {
    for (const std::string& address : preferred)
      if (std::ranges::find(allowed, address, &Interface::address) != allowed.end())
        append_unique(addresses, address);
    for (const Interface& each : allowed) append_unique(addresses, each.address);
  }
  for (const std::string& prefix : filter.included)
    for (const Interface& each : allowed)
      if (each.name.starts_with(prefix)) append_unique(addresses, each.address);
  if (!addresses.empty()) return addresses;
  throw Error(Errc::invalid_argument,
              formatted("{} interface is up and has an address that other hosts can reach; "
                        "interfaces of this host: {}",
                        filter.text.empty()
                            ? "no"
                            : formatted("CCL_SOCKET_IFNAME=\"{}\": no matching", filter.text),
                        describe(interfaces)));
}

AddressOffer own_addresses(const std::string& store_host, const InterfaceFilter& filter) {
  const auto to_store = source_address_to_host(store_host);
  AddressOffer offer;
  offer.usable = usable_addresses(interfaces_of_this_host(), filter, preferred_sources(to_store));
  offer.routes_to_store = to_store && offer.usable.front() == *to_store;
  return offer;
}

}  // namespace tccl
