// Which address of a host is given to other hosts.
#include <gtest/gtest.h>

#include "base/tcp_socket.h"
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

/// A machine with a bit of everything, in the order in which getifaddrs() lists it.
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
  const char* wanted;
  std::vector<std::string> preferred;
  const char* chosen;  // nullptr: refused
};

const std::vector<Case> kCases{
    {"the first that works", kMachine, "", {}, "172.17.0.1"},
    {"the one with the default route", kMachine, "", {"10.0.2.1"}, "10.0.2.1"},
    {"the better of two", kMachine, "", {"10.0.3.1", "10.0.2.1"}, "10.0.3.1"},
    {"a way that is down is none", kMachine, "", {"10.0.0.1", "10.0.3.1"}, "10.0.3.1"},
    {"loopback is no way", kMachine, "", {"127.0.0.1"}, "172.17.0.1"},
    {"a prefix", kMachine, "eth", {}, "10.0.2.1"},
    {"a prefix beats the default route", kMachine, "ib", {"10.0.2.1"}, "192.168.0.1"},
    {"prefixes in the order written", kMachine, "ib,eth", {}, "192.168.0.1"},
    {"the next prefix if the first has none", kMachine, "mlx,eth", {}, "10.0.2.1"},
    {"a whole name", kMachine, "eth3", {}, "10.0.3.1"},
    {"spaces do not matter", kMachine, " mlx , eth3 ", {}, "10.0.3.1"},
    {"all but some", kMachine, "^lo,docker", {}, "10.0.2.1"},
    {"all but some, default route", kMachine, "^lo,docker", {"10.0.3.1"}, "10.0.3.1"},
    {"all but the default route", kMachine, "^eth,docker", {"10.0.2.1"}, "192.168.0.1"},
    {"^ alone does not ask for loopback", kMachine, "^docker,eth,ib,wg", {}, nullptr},
    {"some, but not all of them", kMachine, "eth,^eth2,docker", {}, "10.0.3.1"},
    {"a ^ holds for what comes behind", kMachine, "^docker,eth", {}, "192.168.0.1"},
    {"only IPv6", kMachine, "wg", {}, "fd00::9"},
    {"loopback if asked for", kMachine, "lo", {}, "127.0.0.1"},
    {"named but down", kMachine, "eth0", {}, nullptr},
    {"named but unplugged", kMachine, "eth1", {}, nullptr},
    {"named but without address", kMachine, "spare", {}, nullptr},
    {"no such name", kMachine, "mlx", {}, nullptr},
    {"nothing is left", kMachine, "^lo,docker,eth,ib,wg", {}, nullptr},
    {"only loopback", {loopback("127.0.0.1"), down(good("eth0", "10.0.0.1"))}, "", {}, nullptr},
    {"IPv6 if there is no IPv4", {loopback("127.0.0.1"), good("a", "fd00::1")}, "", {}, "fd00::1"},
    {"no IPv6 of one link", {loopback("::1"), good("a", "fe80::1%a")}, "", {}, nullptr},
    {"IPv4 of one link is better than none", {good("a", "169.254.3.4")}, "", {}, "169.254.3.4"},
    {"but others come before", {good("a", "169.254.3.4"), good("b", "fd00::1")}, "", {}, "fd00::1"},
    {"no interface at all", {}, "", {}, nullptr},
};

TEST(Interfaces, TheChoice) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.what);
    if (c.chosen != nullptr) {
      EXPECT_EQ(usable_addresses(c.interfaces, c.wanted, c.preferred).front(), c.chosen);
    } else {
      EXPECT_THROW(usable_addresses(c.interfaces, c.wanted, c.preferred), Error);
    }
  }
}

TEST(Interfaces, ARefusalListsWhatThereIs) {
  try {
    usable_addresses(kMachine, "mlx", {});
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

TEST(Interfaces, AllThatAreOfUseBestFirst) {
  const std::vector<std::string> expected{"10.0.3.1",    "172.17.0.1", "10.0.2.1",
                                          "192.168.0.1", "fd00::2",    "fd00::9"};
  EXPECT_EQ(usable_addresses(kMachine, "", std::vector<std::string>{"10.0.3.1"}), expected);
}

TEST(Interfaces, LoopbackShowsNoWay) {
  for (const char* towards : {"localhost", "127.0.0.1", "::1"}) {
    const AddressOffer offer = own_addresses(towards, "lo");
    EXPECT_EQ(offer.usable.front(), "127.0.0.1");
    EXPECT_FALSE(offer.routes_to_store);
  }
}

// ---- what the hosts conclude from each other's addresses

/// A way from one address to all that begin alike, as on a network of its own.
struct Link {
  const char* from;
  const char* to;  // a prefix
};

struct Agreement {
  const char* what;
  std::vector<AddressOffer> hosts;
  std::vector<Link> links;  // of the first host
  const char* chosen;       // by the first host; nullptr: refused
};

const std::vector<Agreement> kAgreements{
    {"the only ones",
     {{"a", {"10.0.0.1"}}, {"b", {"10.0.0.2"}}},
     {{"10.0.0.1", "10.0.0."}},
     "10.0.0.1"},
    {"the first if no way is known",
     {{"a", {"10.0.0.1", "10.1.0.1"}}, {"b", {"10.2.0.2"}}},
     {},
     "10.0.0.1"},
    {"a bridge that each host has for itself",
     {{"a", {"172.17.0.1", "10.0.0.1"}}, {"b", {"172.17.0.1", "10.0.0.2"}}},
     {{"172.17.0.1", "172.17."}, {"10.0.0.1", "10.0.0."}},
     "10.0.0.1"},
    {"a second network that only one has",
     {{"a", {"192.168.0.1", "10.0.0.1"}}, {"b", {"10.0.0.2"}}},
     {{"10.0.0.1", "10.0.0."}},
     "10.0.0.1"},
    {"the best of two that lead there",
     {{"a", {"192.168.0.1", "10.0.0.1"}}, {"b", {"10.0.0.2", "192.168.0.2"}}},
     {{"10.0.0.1", "10.0.0."}, {"192.168.0.1", "192.168."}},
     "192.168.0.1"},
    {"the one that leads to most",
     {{"a", {"192.168.0.1", "10.0.0.1"}}, {"b", {"10.0.0.2", "192.168.0.2"}}, {"c", {"10.0.0.3"}}},
     {{"10.0.0.1", "10.0.0."}, {"192.168.0.1", "192.168."}},
     "10.0.0.1"},
    {"IPv6 because one has nothing else",
     {{"a", {"10.0.0.1", "fd00::1"}}, {"b", {"10.0.0.2", "fd00::2"}}, {"c", {"fd00::3"}}},
     {{"10.0.0.1", "10.0.0."}, {"fd00::1", "fd00::"}},
     "fd00::1"},
    {"IPv6 because the store is reached by it",
     {{"a", {"10.0.0.1", "fd00::1"}}, {"b", {"fd00::2", "10.0.0.2"}, true}},
     {{"10.0.0.1", "10.0.0."}, {"fd00::1", "fd00::"}},
     "fd00::1"},
    {"IPv4 although the store is reached by IPv6",
     {{"a", {"fd00::1", "10.0.0.1"}, true}, {"b", {"10.0.0.2"}}},
     {{"10.0.0.1", "10.0.0."}, {"fd00::1", "fd00::"}},
     "10.0.0.1"},
    {"no family in common", {{"a", {"10.0.0.1"}}, {"b", {"fd00::2"}}}, {}, nullptr},
};

TEST(Addresses, EachHostsChoice) {
  for (const Agreement& c : kAgreements) {
    SCOPED_TRACE(c.what);
    const auto source = [&](const std::string& to) -> std::optional<std::string> {
      for (const Link& link : c.links)
        if (to.starts_with(link.to)) return link.from;
      return std::nullopt;
    };
    if (c.chosen != nullptr) {
      EXPECT_EQ(choose_address(c.hosts, 0, source), c.chosen);
    } else {
      EXPECT_THROW(choose_address(c.hosts, 0, source), Error);
    }
  }
}

TEST(Addresses, ARefusalNamesHostsAndAddresses) {
  const std::vector<AddressOffer> hosts{{"a", {"10.0.0.1"}}, {"b", {"fd00::2"}}};
  try {
    choose_address(hosts, 0, [](const std::string&) { return std::nullopt; });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "hosts without a family of addresses in common: b fd00::2 (no IPv4) and a 10.0.0.1 "
        "(no IPv6); CCL_SOCKET_IFNAME chooses interfaces");
  }
}

TEST(Addresses, ThroughTheStoreAndBack) {
  const AddressOffer offer{"", {"10.0.0.1", "fd00::1"}, true};
  const AddressOffer back = decode_offer(encoded(offer));
  EXPECT_EQ(back.host, "");
  EXPECT_EQ(back.usable, offer.usable);
  EXPECT_TRUE(back.routes_to_store);
  for (const char* nonsense : {"", "a", "a\nany", "a\nany 10.0.0.1 nowhere"})
    EXPECT_THROW(decode_offer(nonsense), Error) << nonsense;
}

TEST(SocketAddress, NumbersAndText) {
  EXPECT_EQ(SocketAddress::parse("10.0.0.1", 80).text(), "10.0.0.1:80");
  EXPECT_EQ(SocketAddress::parse("fd00::2", 4711).text(), "[fd00::2]:4711");
  EXPECT_THROW(SocketAddress::parse("localhost", 1), Error);
}

}  // namespace
}  // namespace tccl
