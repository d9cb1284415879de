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

/// CCL_SOCKET_IFNAME, parsed.
struct Wanted {
  std::vector<std::string> taken;  // prefixes, the most wanted first; empty: any
  std::vector<std::string> left_out;

  explicit Wanted(std::string_view text) {
    bool leave_out = false;
    while (!text.empty()) {
      const std::size_t comma = std::min(text.find(','), text.size());
      std::string_view name = text.substr(0, comma);
      text.remove_prefix(std::min(comma + 1, text.size()));
      while (name.starts_with(' ')) name.remove_prefix(1);
      while (name.ends_with(' ')) name.remove_suffix(1);
      if (name.starts_with('^')) {
        leave_out = true;
        name.remove_prefix(1);
      }
      if (!name.empty()) (leave_out ? left_out : taken).emplace_back(name);
    }
  }

  [[nodiscard]] bool allows(const Interface& interface) const {
    return std::ranges::none_of(
        left_out, [&](const std::string& prefix) { return interface.name.starts_with(prefix); });
  }
};

enum class Reach : unsigned char { global, this_link, this_host, nowhere };

/// How far an address is of use.
Reach reach_of(const std::string& address) {
  in_addr v4{};
  if (::inet_pton(AF_INET, address.c_str(), &v4) == 1) {
    const std::uint32_t number = ntohl(v4.s_addr);
    if (number >> 24 == 127) return Reach::this_host;
    return number >> 16 == 0xA9FE ? Reach::this_link : Reach::global;  // 169.254.0.0/16
  }
  in6_addr v6{};
  const std::string without_scope = address.substr(0, address.find('%'));
  if (::inet_pton(AF_INET6, without_scope.c_str(), &v6) != 1) return Reach::nowhere;
  if (IN6_IS_ADDR_LOOPBACK(&v6)) return Reach::this_host;
  // It says nothing without the number of an interface, which differs from host to host.
  return IN6_IS_ADDR_LINKLOCAL(&v6) ? Reach::nowhere : Reach::global;
}

bool usable(const Interface& interface) {
  return interface.up && interface.running && reach_of(interface.address) != Reach::nowhere;
}

bool is_local(const Interface& interface) {
  return interface.loopback || reach_of(interface.address) == Reach::this_host;
}

/// Smaller is better.
int drawback(const Interface& interface) {
  const bool link = reach_of(interface.address) == Reach::this_link;
  return 4 * int{is_local(interface)} + 2 * int{link} + int{is_ipv6(interface.address)};
}

void append_once(std::vector<std::string>& list, const std::string& address) {
  if (std::ranges::find(list, address) == list.end()) list.push_back(address);
}

std::string list_of(std::span<const Interface> interfaces) {
  std::string text;
  for (const Interface& one : interfaces) {
    const char* state = !one.up ? " (down)" : !one.running ? " (no carrier)" : "";
    text += formatted("{}{} {}{}", text.empty() ? "" : ", ", one.name,
                      one.address.empty() ? "without address" : one.address, state);
  }
  return text.empty() ? "none" : text;
}

/// A UDP socket sends nothing when it is connected.
std::optional<std::string> source_of_packets_to(const SocketAddress& there) {
  const Fd fd(::socket(there.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), there.get(), there.length()) != 0) return std::nullopt;
  return SocketAddress::local_end_of(fd.get()).host();
}

constexpr std::uint16_t kAnyPort = 9;  // a UDP socket can be connected to any but 0

/// To a name that stands for several addresses there may be several ways; loopback is none.
std::optional<std::string> source_towards_host(const std::string& host) {
  if (host.empty()) return std::nullopt;
  for (const SocketAddress& there : SocketAddress::resolve(host, kAnyPort)) {
    auto source = source_of_packets_to(there);
    if (source && reach_of(*source) < Reach::this_host) return source;
  }
  return std::nullopt;
}

/// Best first.
std::vector<std::string> preferred_sources(const std::optional<std::string>& towards_store) {
  std::vector<std::string> sources;
  if (towards_store) sources.push_back(*towards_store);
  // Addresses reserved for documentation: no route but the default one leads there.
  for (const char* elsewhere : {"198.51.100.1", "2001:db8::1"})
    if (auto source = source_of_packets_to(SocketAddress::parse(elsewhere, kAnyPort)))
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
  std::vector<Interface> bare;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    Interface one = without_address(*entry);
    if (!has_address(*entry)) {
      bare.push_back(std::move(one));
      continue;
    }
    one.address = address_of(*entry);
    found.push_back(std::move(one));
  }
  for (Interface& one : bare)
    if (std::ranges::find(found, one.name, &Interface::name) == found.end())
      found.push_back(std::move(one));
  return found;
}

std::optional<std::string> source_towards(const std::string& address) {
  return source_of_packets_to(SocketAddress::parse(address, kAnyPort));
}

std::vector<std::string> usable_addresses(std::span<const Interface> interfaces,
                                          const std::string& wanted,
                                          std::span<const std::string> preferred) {
  const Wanted names(wanted);
  std::vector<Interface> allowed;
  std::ranges::copy_if(interfaces, std::back_inserter(allowed), [&](const Interface& one) {
    return usable(one) && names.allows(one) && !(names.taken.empty() && is_local(one));
  });
  std::ranges::stable_sort(allowed, {}, drawback);
  std::vector<std::string> addresses;
  if (names.taken.empty()) {
    for (const std::string& address : preferred)
      if (std::ranges::find(allowed, address, &Interface::address) != allowed.end())
        append_once(addresses, address);
    for (const Interface& one : allowed) append_once(addresses, one.address);
  }
  for (const std::string& prefix : names.taken)
    for (const Interface& one : allowed)
      if (one.name.starts_with(prefix)) append_once(addresses, one.address);
  if (!addresses.empty()) return addresses;
  throw Error(Errc::invalid_argument,
              formatted("CCL_SOCKET_IFNAME=\"{}\": no interface fits that is up and has an "
                        "address for other hosts; there are: {}",
                        wanted, list_of(interfaces)));
}

AddressOffer own_addresses(const std::string& towards, const std::string& wanted) {
  const auto towards_store = source_towards_host(towards);
  AddressOffer offer;
  offer.usable =
      usable_addresses(interfaces_of_this_host(), wanted, preferred_sources(towards_store));
  offer.routes_to_store = towards_store && offer.usable.front() == *towards_store;
  return offer;
}

}  // namespace tccl
