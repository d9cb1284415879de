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
  const auto found = std::ranges::find_if(hosts, &AddressOffer::routes_to_store);
  const bool prefer_ipv6 = found != hosts.end() && is_ipv6(found->usable.front());
  return prefer_ipv6 ? std::vector{Family::ipv6, Family::ipv4}
                     : std::vector{Family::ipv4, Family::ipv6};
}

/// Each address with a space before it.
std::string space_separated(const std::vector<std::string>& addresses) {
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
    return offer->host + space_separated(offer->usable);
  };
  throw Error(
      Errc::invalid_argument,
      formatted("the hosts have no address family in common: {} (no IPv4) and {} (no IPv6); "
                "CCL_SOCKET_IFNAME selects interfaces",
                lacks(Family::ipv4), lacks(Family::ipv6)));
}

/// Whether packets from `address` reach one of the other host's addresses. An address that both
/// hosts have, such as that of a container bridge, is ignored: it routes to this host itself.
bool has_route(const std::string& address, const AddressOffer& own, const AddressOffer& other,
               SourceAddressTo source) {
  return std::ranges::any_of(other.usable, [&](const std::string& to) {
    return family_of(to) == family_of(address) &&
           std::ranges::find(own.usable, to) == own.usable.end() && source(to) == address;
  });
}

}  // namespace

bool is_ipv6(const std::string& address) { return address.find(':') != std::string::npos; }

std::string encoded(const AddressOffer& offer) {
  return offer.host + "\n" + (offer.routes_to_store ? "routed" : "any") +
         space_separated(offer.usable);
}

AddressOffer decode_offer(std::string_view text) {
  std::istringstream words{std::string(text)};
  AddressOffer offer;
  std::string flag;
  std::getline(words, offer.host);
  words >> flag;
  offer.routes_to_store = flag == "routed";
  for (std::string address; words >> address;) {
    static_cast<void>(SocketAddress::parse(address, 0));  // throws if it is invalid
    offer.usable.push_back(address);
  }
  if (offer.usable.empty()) throw Error(Errc::system, "an address offer in the store is invalid");
  return offer;
}

std::string choose_address(std::span<const AddressOffer> hosts, std::size_t own,
                           SourceAddressTo source) {
  const AddressOffer& offer = hosts[own];
  const Family family = common_family(hosts);
  const std::string* best = nullptr;
  std::ptrdiff_t best_reached = -1;
  for (const std::string& address : offer.usable) {
    if (family_of(address) != family) continue;
    const std::ptrdiff_t reached = std::ranges::count_if(hosts, [&](const AddressOffer& other) {
      return &other != &offer && has_route(address, offer, other, source);
    });
    if (reached > best_reached) {
      best_reached = reached;
      best = &address;
    }
  }
  return *best;
}

}  // namespace tccl
