// Which address a host advertises to the others.
#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/tcp_socket.h"
#include "config/settings.h"
#include "rendezvous/interface_preference.h"
#include "rendezvous/interfaces.h"
#include "tccl/error.h"

namespace tccl {
namespace {

Interface good(const char* name, const char* address) {
  return {.name = name, .address = address, .up = true, .running = true, .loopback = false};
}
Interface down(Interface interface) {
  interface.up = interface.running = false;
  return interface;
}
Interface unplugged(Interface interface) {
  interface.running = false;
  return interface;
}
Interface loopback(const char* address) {
  Interface interface = good("lo", address);
  interface.loopback = true;
  return interface;
}

/// A machine with interfaces of every kind, in the order of getifaddrs().
const std::vector<Interface> kMachine{loopback("127.0.0.1"),
                                      down(good("eth0", "10.0.0.1")),
                                      unplugged(good("eth1", "10.0.1.1")),
                                      good("docker0", "172.17.0.1"),
                                      good("eth2", "10.0.2.1"),
                                      good("eth3", "10.0.3.1"),
                                      good("ib0", "192.168.0.1"),
                                      loopback("::1"),
                                      good("eth2", "fe80::2%eth2"),
                                      good("eth2", "fd00::2"),
                                      good("wg0", "fd00::9"),
                                      down(good("spare", ""))};

struct Case {
  const char* what;
  std::vector<Interface> interfaces;
  const char* filter;
  std::vector<std::string> preferred;
  const char* chosen;  // nullptr: an error
};

const std::vector<Case> kCases{
    {"the first usable one", kMachine, "", {}, "172.17.0.1"},
    {"the one with the default route", kMachine, "", {"10.0.2.1"}, "10.0.2.1"},
    {"the more preferred of two", kMachine, "", {"10.0.3.1", "10.0.2.1"}, "10.0.3.1"},
    {"a preferred address that is down is ignored",
     kMachine,
     "",
     {"10.0.0.1", "10.0.3.1"},
     "10.0.3.1"},
    {"a preferred loopback address is ignored", kMachine, "", {"127.0.0.1"}, "172.17.0.1"},
    {"a prefix", kMachine, "eth", {}, "10.0.2.1"},
    {"a prefix takes precedence over the default route",
     kMachine,
     "ib",
     {"10.0.2.1"},
     "192.168.0.1"},
    {"prefixes in the order given", kMachine, "ib,eth", {}, "192.168.0.1"},
    {"the next prefix if the first matches nothing", kMachine, "mlx,eth", {}, "10.0.2.1"},
    {"a whole name", kMachine, "eth3", {}, "10.0.3.1"},
    {"spaces around names are ignored", kMachine, " mlx , eth3 ", {}, "10.0.3.1"},
    {"exclusion", kMachine, "^lo,docker", {}, "10.0.2.1"},
    {"exclusion, with the default route", kMachine, "^lo,docker", {"10.0.3.1"}, "10.0.3.1"},
    {"exclusion of the default route", kMachine, "^eth,docker", {"10.0.2.1"}, "192.168.0.1"},
    {"exclusion does not select loopback", kMachine, "^docker,eth,ib,wg", {}, nullptr},
    {"inclusion and exclusion", kMachine, "eth,^eth2,docker", {}, "10.0.3.1"},
    {"a ^ applies to all names after it", kMachine, "^docker,eth", {}, "192.168.0.1"},
    {"only IPv6", kMachine, "wg", {}, "fd00::9"},
    {"loopback if it is included by name", kMachine, "lo", {}, "127.0.0.1"},
    {"named but down", kMachine, "eth0", {}, nullptr},
    {"named but unplugged", kMachine, "eth1", {}, nullptr},
    {"named but without address", kMachine, "spare", {}, nullptr},
    {"no such name", kMachine, "mlx", {}, nullptr},
    {"everything is excluded", kMachine, "^lo,docker,eth,ib,wg", {}, nullptr},
    {"only loopback", {loopback("127.0.0.1"), down(good("eth0", "10.0.0.1"))}, "", {}, nullptr},
    {"IPv6 if there is no IPv4", {loopback("127.0.0.1"), good("a", "fd00::1")}, "", {}, "fd00::1"},
    {"link-local IPv6 is unusable", {loopback("::1"), good("a", "fe80::1%a")}, "", {}, nullptr},
    {"link-local IPv4 is usable", {good("a", "169.254.3.4")}, "", {}, "169.254.3.4"},
    {"link-local IPv4 comes last",
     {good("a", "169.254.3.4"), good("b", "fd00::1")},
     "",
     {},
     "fd00::1"},
    {"no interface at all", {}, "", {}, nullptr},
};

TEST(Interfaces, BestAddress) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.what);
    if (c.chosen != nullptr) {
      EXPECT_EQ(
          usable_addresses(c.interfaces, InterfaceFilter::parse(c.filter), c.preferred).front(),
          c.chosen);
    } else {
      EXPECT_THROW(usable_addresses(c.interfaces, InterfaceFilter::parse(c.filter), c.preferred),
                   Error);
    }
  }
}

TEST(Interfaces, TheErrorListsTheInterfaces) {
  try {
    usable_addresses(kMachine, InterfaceFilter::parse("mlx"), {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::invalid_argument);
    const std::string text = error.what();
    for (const char* part :
         {"CCL_SOCKET_IFNAME=\"mlx\"", "eth0 10.0.0.1 (down)", "eth1 10.0.1.1 (no carrier)",
          "ib0 192.168.0.1,", "fd00::9", "spare without address"})
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
  }
}

TEST(Interfaces, AllUsableAddressesBestFirst) {
  const std::vector<std::string> expected{"10.0.3.1",    "172.17.0.1", "10.0.2.1",
                                          "192.168.0.1", "fd00::2",    "fd00::9"};
  EXPECT_EQ(usable_addresses(kMachine, InterfaceFilter(), std::vector<std::string>{"10.0.3.1"}),
            expected);
}

TEST(Interfaces, AStoreOnLoopbackGivesNoRoute) {
  for (const char* store_host : {"localhost", "127.0.0.1", "::1"}) {
    const AddressOffer offer = own_addresses(store_host, InterfaceFilter::parse("lo"));
    EXPECT_EQ(offer.usable.front(), "127.0.0.1");
    EXPECT_FALSE(offer.routes_to_store);
  }
}

TEST(InterfaceFilter, Parses) {
  const InterfaceFilter filter = InterfaceFilter::parse(" eth, ^eth2 ,docker");
  EXPECT_EQ(filter.included, std::vector<std::string>{"eth"});
  EXPECT_EQ(filter.excluded, (std::vector<std::string>{"eth2", "docker"}));
  EXPECT_TRUE(filter.excludes("docker0"));
  EXPECT_FALSE(filter.excludes("eth0"));
  for (const char* nothing : {"", "  "}) {
    EXPECT_TRUE(InterfaceFilter::parse(nothing).included.empty());
    EXPECT_TRUE(InterfaceFilter::parse(nothing).excluded.empty());
  }
}

TEST(InterfaceFilter, RefusesBadSyntax) {
  for (const char* invalid : {",", "eth,", ",eth", "eth,,ib", "^", "eth,^", "^,lo", "^^lo", "eth 0",
                              "eth0:1", "/dev/eth", "eth^0", "averylongifname0"}) {
    try {
      InterfaceFilter::parse(invalid);
      ADD_FAILURE() << "no error for " << invalid;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::invalid_argument) << invalid;
    }
  }
}

/// Ranks of one host never look at interfaces; a typo must be reported all the same.
TEST(InterfaceFilter, ASettingWithBadSyntaxIsAnError) {
  ::setenv("CCL_SOCKET_IFNAME", "eth,,ib", /*overwrite=*/1);
  try {
    parse_environment();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("CCL_SOCKET_IFNAME=eth,,ib: "), std::string::npos)
        << error.what();
  }
  ::unsetenv("CCL_SOCKET_IFNAME");
}

// ---- oneCCL's preference

TEST(InterfacePreference, CountsOnlyIfAnInterfaceMatchesAndOursIsNotSet) {
  Settings settings;
  settings.interface_preference = InterfaceFilter::parse("no-such-card");
  EXPECT_EQ(effective_filter(settings).text, "");
  settings.interface_preference = InterfaceFilter::parse("no-such-card,lo");
  EXPECT_EQ(effective_filter(settings).text, "no-such-card,lo");
  settings.interface_filter = InterfaceFilter::parse("eth");
  EXPECT_EQ(effective_filter(settings).text, "eth");
}

// ---- the address that each host chooses

/// A route from one address to all addresses with a prefix, as within one network.
struct Route {
  const char* from;
  const char* to;  // a prefix
};

struct Agreement {
  const char* what;
  std::vector<AddressOffer> hosts;
  std::vector<Route> routes;  // of the first host
  const char* chosen;         // by the first host; nullptr: an error
};

const std::vector<Agreement> kAgreements{
    {"one address each",
     {{"a", {"10.0.0.1"}}, {"b", {"10.0.0.2"}}},
     {{"10.0.0.1", "10.0.0."}},
     "10.0.0.1"},
    {"the first if there is no route",
     {{"a", {"10.0.0.1", "10.1.0.1"}}, {"b", {"10.2.0.2"}}},
     {},
     "10.0.0.1"},
    {"a bridge with the same address on each host is ignored",
     {{"a", {"172.17.0.1", "10.0.0.1"}}, {"b", {"172.17.0.1", "10.0.0.2"}}},
     {{"172.17.0.1", "172.17."}, {"10.0.0.1", "10.0.0."}},
     "10.0.0.1"},
    {"a network that only one host has is ignored",
     {{"a", {"192.168.0.1", "10.0.0.1"}}, {"b", {"10.0.0.2"}}},
     {{"10.0.0.1", "10.0.0."}},
     "10.0.0.1"},
    {"the first of two with a route",
     {{"a", {"192.168.0.1", "10.0.0.1"}}, {"b", {"10.0.0.2", "192.168.0.2"}}},
     {{"10.0.0.1", "10.0.0."}, {"192.168.0.1", "192.168."}},
     "192.168.0.1"},
    {"the one with a route to most hosts",
     {{"a", {"192.168.0.1", "10.0.0.1"}}, {"b", {"10.0.0.2", "192.168.0.2"}}, {"c", {"10.0.0.3"}}},
     {{"10.0.0.1", "10.0.0."}, {"192.168.0.1", "192.168."}},
     "10.0.0.1"},
    {"IPv6 because one host has nothing else",
     {{"a", {"10.0.0.1", "fd00::1"}}, {"b", {"10.0.0.2", "fd00::2"}}, {"c", {"fd00::3"}}},
     {{"10.0.0.1", "10.0.0."}, {"fd00::1", "fd00::"}},
     "fd00::1"},
    {"IPv6 because the route to the store uses it",
     {{"a", {"10.0.0.1", "fd00::1"}}, {"b", {"fd00::2", "10.0.0.2"}, true}},
     {{"10.0.0.1", "10.0.0."}, {"fd00::1", "fd00::"}},
     "fd00::1"},
    {"IPv4 because one host has nothing else",
     {{"a", {"fd00::1", "10.0.0.1"}, true}, {"b", {"10.0.0.2"}}},
     {{"10.0.0.1", "10.0.0."}, {"fd00::1", "fd00::"}},
     "10.0.0.1"},
    {"no family in common", {{"a", {"10.0.0.1"}}, {"b", {"fd00::2"}}}, {}, nullptr},
};

TEST(AddressSelection, ChosenAddress) {
  for (const Agreement& c : kAgreements) {
    SCOPED_TRACE(c.what);
    const auto source = [&](const std::string& to) -> std::optional<std::string> {
      for (const Route& route : c.routes)
        if (to.starts_with(route.to)) return route.from;
      return std::nullopt;
    };
    if (c.chosen != nullptr) {
      EXPECT_EQ(choose_address(c.hosts, 0, source), c.chosen);
    } else {
      EXPECT_THROW(choose_address(c.hosts, 0, source), Error);
    }
  }
}

TEST(AddressSelection, TheErrorNamesHostsAndAddresses) {
  const std::vector<AddressOffer> hosts{{"a", {"10.0.0.1"}}, {"b", {"fd00::2"}}};
  try {
    choose_address(hosts, 0, [](const std::string&) { return std::nullopt; });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "the hosts have no address family in common: b fd00::2 (no IPv4) and a 10.0.0.1 (no IPv6); "
        "CCL_SOCKET_IFNAME selects interfaces");
  }
}

TEST(AddressSelection, OffersAreEncodedAndDecoded) {
  const AddressOffer offer{"", {"10.0.0.1", "fd00::1"}, true};
  const AddressOffer decoded = decode_offer(encoded(offer));
  EXPECT_EQ(decoded.host, "");
  EXPECT_EQ(decoded.usable, offer.usable);
  EXPECT_TRUE(decoded.routes_to_store);
  for (const char* invalid : {"", "a", "a\nany", "a\nany 10.0.0.1 nowhere"})
    EXPECT_THROW(decode_offer(invalid), Error) << invalid;
}

TEST(SocketAddress, ParsesNumericAddressesOnly) {
  EXPECT_EQ(SocketAddress::parse("10.0.0.1", 80).text(), "10.0.0.1:80");
  EXPECT_EQ(SocketAddress::parse("fd00::2", 4711).text(), "[fd00::2]:4711");
  EXPECT_THROW(SocketAddress::parse("localhost", 1), Error);
}

}  // namespace
}  // namespace tccl
