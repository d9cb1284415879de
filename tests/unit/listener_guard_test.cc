// A listener that only admitted hosts reach. Hosts are addresses of the loopback interface.
#include "base/listener_guard.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/poll.h"

namespace tccl {
namespace {

using namespace std::chrono_literals;

Fd connect_from(const std::string& source, const SocketAddress& to) {
  Fd fd(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const SocketAddress from = SocketAddress::parse(source, 0);
  EXPECT_EQ(::bind(fd.get(), from.get(), from.length()), 0);
  static_cast<void>(::connect(fd.get(), to.get(), to.length()));
  return fd;
}

bool is_connected(const Fd& fd, std::chrono::milliseconds within) {
  pollfd entry{fd.get(), POLLOUT, 0};
  return ::poll(&entry, 1, static_cast<int>(within.count())) == 1 && entry.revents == POLLOUT;
}

struct Guarded {
  explicit Guarded(const std::string& host) : listener(try_listen(SocketAddress::parse(host, 0))) {}
  Fd listener;
  SocketAddress address = SocketAddress::of_local_end(listener.get());
  ListenerGuard guard{address};

  bool accepts_within(std::chrono::milliseconds time) const {
    return wait_for_event(listener.get(), POLLIN, deadline_after(time));
  }
};

TEST(ListenerGuard, OnlyAdmittedHostsConnect) {
  Guarded it("127.0.0.1");
  ASSERT_TRUE(it.guard.is_filtering());
  it.guard.admit(SocketAddress::parse("127.0.0.2", 0));
  EXPECT_TRUE(is_connected(connect_from("127.0.0.2", it.address), 10s));
  EXPECT_FALSE(is_connected(connect_from("127.0.0.3", it.address), 300ms));
  it.guard.admit(SocketAddress::parse("127.0.0.3", 1));
  EXPECT_TRUE(is_connected(connect_from("127.0.0.3", it.address), 10s));
  EXPECT_TRUE(is_connected(connect_from("127.0.0.2", it.address), 10s));
}

/// A host with addresses of both families may list either one.
TEST(ListenerGuard, AnAddressOfAnotherFamilyHasNoEffect) {
  Guarded it("127.0.0.1");
  it.guard.admit(SocketAddress::parse("fd77::2", 0));
  it.guard.admit(SocketAddress::parse("127.0.0.2", 0));
  it.guard.admit(SocketAddress::parse("fd77::3", 0));
  EXPECT_TRUE(it.guard.is_filtering());
  EXPECT_TRUE(is_connected(connect_from("127.0.0.2", it.address), 10s));
  EXPECT_FALSE(is_connected(connect_from("127.0.0.3", it.address), 300ms));
}

TEST(ListenerGuard, IPv6) {
  if (!try_listen(SocketAddress::parse("::1", 0))) return;  // a container without IPv6
  Guarded it("::1");
  ASSERT_TRUE(it.guard.is_filtering());
  it.guard.admit(SocketAddress::parse("fd77::2", 0));
  EXPECT_FALSE(is_connected(connect_from("::1", it.address), 300ms));
  it.guard.admit(SocketAddress::parse("fd77::3", 0));
  it.guard.admit(SocketAddress::parse("::1", 0));
  EXPECT_TRUE(is_connected(connect_from("::1", it.address), 10s));
}

TEST(ListenerGuard, ASilentConnectionIsNotHandedOver) {
  Guarded it("127.0.0.1");
  it.guard.admit(SocketAddress::parse("127.0.0.1", 0));
  const Fd client = connect_from("127.0.0.1", it.address);
  ASSERT_TRUE(is_connected(client, 10s));
  EXPECT_FALSE(it.accepts_within(300ms));
  ASSERT_EQ(::send(client.get(), "x", 1, 0), 1);
  EXPECT_TRUE(it.accepts_within(10s));
}

/// Data passes whoever was admitted since.
TEST(ListenerGuard, ConnectionsStayOpen) {
  Guarded it("127.0.0.1");
  it.guard.admit(SocketAddress::parse("127.0.0.1", 0));
  const Fd client = connect_from("127.0.0.1", it.address);
  ASSERT_TRUE(is_connected(client, 10s));
  ASSERT_EQ(::send(client.get(), "x", 1, 0), 1);
  ASSERT_TRUE(it.accepts_within(10s));
  const Fd accepted(::accept(it.listener.get(), nullptr, nullptr));
  it.guard.admit(SocketAddress::parse("127.0.0.9", 0));
  char received[4] = {};
  ASSERT_EQ(::send(client.get(), "yz", 2, 0), 2);
  EXPECT_EQ(::recv(accepted.get(), received, 3, MSG_WAITALL), 3);
}

/// As many as fit into a filter; then all.
TEST(ListenerGuard, ManyHosts) {
  Guarded it("127.0.0.1");
  ::testing::internal::CaptureStderr();
  int hosts = 0;
  for (; hosts < 3000 && it.guard.is_filtering(); ++hosts)
    it.guard.admit(SocketAddress::parse(
        "10.0." + std::to_string(hosts / 250) + "." + std::to_string(hosts % 250), 0));
  EXPECT_GE(hosts, 100);
  RecordProperty("hosts", hosts);
  if (!it.guard.is_filtering()) {
    EXPECT_TRUE(is_connected(connect_from("127.0.0.3", it.address), 10s));
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string warning = " warn: hosts outside the job can connect to the data port " +
                              it.address.text() + ": the kernel takes no filter for " +
                              std::to_string(hosts) + " hosts: ";
  EXPECT_EQ(it.guard.is_filtering(), log.find(warning) == std::string::npos) << log;
}

TEST(ListenerGuard, AnAddressOnWhichNobodyListens) {
  ::testing::internal::CaptureStderr();
  ListenerGuard guard(SocketAddress::parse("127.0.0.1", 1));
  EXPECT_NE(::testing::internal::GetCapturedStderr().find(
                " warn: hosts outside the job can connect to the data port 127.0.0.1:1: this "
                "process has no listener with that address"),
            std::string::npos);
  guard.admit(SocketAddress::parse("127.0.0.2", 0));
  EXPECT_FALSE(guard.is_filtering());
}

}  // namespace
}  // namespace tccl
