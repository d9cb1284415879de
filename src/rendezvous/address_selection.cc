#include "rendezvous/address_selection.h"

#include <algorithm>
#include <sstream>

#include "base/format.h"
#include "base/tcp_socket.h"
#include "tccl/error.h"

namespace tccl {
namespace {

enum class Family : unsigned char { ipv4, ipv6 };

Family family_of(const std::string& address) {
  return is_ipv6(address) ? Family::ipv6 : Family::ipv4;
}

bool has(const AddressOffer& offer, Family family) {
  return std::ranges::any_of(offer.usable,
                             [&](const auto& each) { return family_of(each) == family; });
}

std::vector<Family> preferred_families(std::span<const AddressOffer> hosts) {
  const auto guide = std::ranges::find_if(hosts, &AddressOffer::routes_to_store);
  const bool by_ipv6 = guide != hosts.end() && is_ipv6(guide->usable.front());
  return by_ipv6 ? std::vector{Family::ipv6, Family::ipv4}
                 : std::vector{Family::ipv4, Family::ipv6};
}

/// Behind something else: each with a space before it.
std::string list_of(const std::vector<std::string>& addresses) {
  std::string text;
  for (const std::string& each : addresses) text += " " + each;
  return text;
}

Family common_family(std::span<const AddressOffer> hosts) {
  for (const Family family : preferred_families(hosts))
    if (std::ranges::all_of(hosts, [&](const auto& offer) { return has(offer, family); }))
      return family;
  const auto lacks = [&](Family family) {
    const auto offer =
        std::ranges::find_if(hosts, [&](const auto& each) { return !has(each, family); });
    return offer->host + list_of(offer->usable);
  };
  throw Error(Errc::invalid_argument,
              formatted("hosts without a family of addresses in common: {} (no IPv4) and {} (no "
                        "IPv6); CCL_SOCKET_IFNAME chooses interfaces",
                        lacks(Family::ipv4), lacks(Family::ipv6)));
}

/// Which of the own addresses leads to that host, by one of the addresses that it offers. One that
/// both have, such as that of a bridge for containers, leads to this host itself.
bool leads_to(const std::string& address, const AddressOffer& own, const AddressOffer& other,
              SourceTowards source) {
  return std::ranges::any_of(other.usable, [&](const std::string& there) {
    return family_of(there) == family_of(address) &&
           std::ranges::find(own.usable, there) == own.usable.end() && source(there) == address;
  });
}

}  // namespace

bool is_ipv6(const std::string& address) { return address.find(':') != std::string::npos; }

std::string encoded(const AddressOffer& offer) {
  return offer.host + "\n" + (offer.routes_to_store ? "way" : "any") + list_of(offer.usable);
}

AddressOffer decode_offer(std::string_view text) {
  std::istringstream words{std::string(text)};
  AddressOffer offer;
  std::string first;
  std::getline(words, offer.host);
  words >> first;
  offer.routes_to_store = first == "way";
  for (std::string address; words >> address;) {
    static_cast<void>(SocketAddress::parse(address, 0));  // throws if it is none
    offer.usable.push_back(address);
  }
  if (offer.usable.empty()) throw Error(Errc::system, "an offer of addresses makes no sense");
  return offer;
}

std::string choose_address(std::span<const AddressOffer> hosts, std::size_t own,
                           SourceTowards source) {
  const AddressOffer& offer = hosts[own];
  const Family family = common_family(hosts);
  const std::string* best = nullptr;
  std::ptrdiff_t most = -1;
  for (const std::string& address : offer.usable) {
    if (family_of(address) != family) continue;
    const std::ptrdiff_t reached = std::ranges::count_if(hosts, [&](const AddressOffer& other) {
      return &other != &offer && leads_to(address, offer, other, source);
    });
    if (reached > most) {
      most = reached;
      best = &address;
    }
  }
  return *best;
}

}  // namespace tccl
