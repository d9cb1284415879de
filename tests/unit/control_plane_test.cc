// Control connections: notices, heartbeats, the state of peers, close(). Each ControlPlane has its
// own monitor thread, as processes of different hosts have.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>

#include "base/tcp_socket.h"
#include "tccl/error.h"
#include "unit/control_node.h"

namespace tccl {
namespace {

class ControlPlaneAddresses : public ::testing::TestWithParam<const char*> {};

TEST_P(ControlPlaneAddresses, NoticesArriveInOrderBothWays) {
  Node a("a", GetParam());
  Node b("b", GetParam());
  const auto b_at_a = a.add(b);
  const auto a_at_b = b.add(a);
  EXPECT_EQ(b_at_a->silence(), Clock::duration::zero());
  constexpr int kCount = 1000;
  std::vector<std::string> expected;
  for (int i = 0; i < kCount; ++i) {
    expected.push_back(std::to_string(i) + std::string(i % 100, 'x'));
    a.control.send_notice(
        b_at_a,
        notice_of(expected.back()));  // the first ones before there is a connection
    b.control.send_notice(a_at_b, notice_of(expected.back()));  // both sides connect
  }
  EXPECT_TRUE(eventually([&] { return a.texts().size() == kCount && b.texts().size() == kCount; }));
  EXPECT_EQ(a.texts(), expected);
  EXPECT_EQ(b.texts(), expected);
  EXPECT_EQ(b_at_a->state(), State::alive);
  EXPECT_LT(b_at_a->silence(), 10s);
  EXPECT_EQ(a.last_sender(), b_at_a);
}

TEST_P(ControlPlaneAddresses, ADepartureIsNotADeath) {
  auto a = std::make_unique<Node>("a", GetParam());
  Node b("b", GetParam());
  const auto b_at_a = a->add(b);
  const auto a_at_b = b.add(*a);
  a->control.send_notice(b_at_a, notice_of("last notice"));
  a.reset();
  EXPECT_TRUE(becomes(a_at_b, State::departed));
  EXPECT_TRUE(b.receives("last notice"));
}

INSTANTIATE_TEST_SUITE_P(Both, ControlPlaneAddresses, ::testing::Values("127.0.0.1", "::1"),
                         [](const auto& info) {
                           return std::string(info.param) == "::1" ? "IPv6" : "IPv4";
                         });

TEST(ControlPlane, OneObjectPerPeer) {
  Node a("a");
  Node b("b");
  a.control.send_notice(a.add(b), notice_of("hello"));  // only the connection holds the peer
  ASSERT_TRUE(b.receives("hello"));
  const auto a_at_b = b.last_sender();
  EXPECT_EQ(a_at_b->where(), "host a, pid " + std::to_string(::getpid()));
  EXPECT_EQ(a_at_b->identity().port, a.control.port());
  EXPECT_EQ(b.add(a), a_at_b);
  EXPECT_EQ(b.add(a), a_at_b);
}

TEST(ControlPlane, BothSidesSendOverOneConnection) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.add(b);
  a.control.send_notice(b_at_a, notice_of("ping"));
  ASSERT_TRUE(b.receives("ping"));
  b.control.send_notice(b.last_sender(), notice_of("pong"));
  EXPECT_TRUE(a.receives("pong"));
}

TEST(ControlPlane, ThreeProcesses) {
  Node a("a");
  Node b("b");
  Node c("c");
  for (Node* from : {&a, &b, &c})
    for (Node* to : {&a, &b, &c})
      if (from != to) from->control.send_notice(from->add(*to), notice_of("to all"));
  for (Node* node : {&a, &b, &c})
    EXPECT_TRUE(eventually([&] { return node->texts().size() == 2; }));
}

TEST(ControlPlane, HeartbeatsAreSentBothWays) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.add(b);
  const auto a_at_b = b.add(a);
  a.connect(b_at_a);
  ASSERT_TRUE(eventually([&] { return a_at_b->silence() > 0s; }));
  std::this_thread::sleep_for(1500ms);
  EXPECT_LT(b_at_a->silence(), 1200ms);
  EXPECT_LT(a_at_b->silence(), 1200ms);
}

/// A waiter that sees the new state must have the notice that explains it.
TEST(ControlPlane, TheStateChangesAfterTheLastNotice) {
  for (int i = 0; i < 20; ++i) {
    auto a = std::make_unique<Node>("a");
    Node b("b");
    const auto a_at_b = b.add(*a);
    b.connect(a_at_b);
    a->control.send_notice(a->add(b), notice_of("the reason"));
    std::thread closer([&] { a.reset(); });
    EXPECT_TRUE(becomes(a_at_b, State::departed));
    EXPECT_EQ(b.texts().size(), 1U);
    closer.join();
  }
}

TEST(ControlPlane, NothingIsSentToAPeerThatHasDeparted) {
  auto a = std::make_unique<Node>("a");
  Node b("b");
  const auto a_at_b = b.add(*a);
  b.control.send_notice(a_at_b, notice_of("x"));
  ASSERT_TRUE(a->receives("x"));
  a.reset();
  ASSERT_TRUE(becomes(a_at_b, State::departed));
  b.control.send_notice(a_at_b, notice_of("y"));
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(a_at_b->state(), State::departed);  // a refused connection would mean died
}

/// Whether it left cleanly before is not known.
TEST(ControlPlane, ARefusedConnectionMeansEnded) {
  Node a("a");
  RemoteProcess::Identity dead{
      .id = random_bytes32(), .host = "b", .pid = 1, .address = "127.0.0.1"};
  {
    const Fd port = listen_in_range("127.0.0.1", {});
    dead.port = SocketAddress::of_local_end(port.get()).port();
  }
  const auto peer = a.control.add_peer(dead, kSecret);
  a.connect(peer);
  EXPECT_TRUE(becomes(peer, State::ended, 2s));
}

TEST(ControlPlane, AConnectTimeoutMeansUnreachable) {
  Node a("a", "127.0.0.1", {}, 300ms);
  // A listener with a full backlog does not answer.
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto any_port = SocketAddress::parse("127.0.0.1", 0);
  ASSERT_EQ(::bind(listener.get(), any_port.get(), any_port.length()), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  const auto there = SocketAddress::of_local_end(listener.get());
  std::vector<Fd> fillers;
  for (int i = 0; i < 4; ++i) fillers.push_back(start_connecting(there, 60s));
  std::this_thread::sleep_for(50ms);
  const auto peer = a.control.add_peer(
      {.id = random_bytes32(), .host = "b", .pid = 1, .address = "127.0.0.1", .port = there.port()},
      kSecret);
  a.connect(peer);
  EXPECT_TRUE(becomes(peer, State::unreachable, 5s));
}

/// The socket of a connection that `node` has accepted, or -1.
int accepted_socket(const Node& node) {
  for (int fd = 3; fd < 1000; ++fd)
    if (SocketAddress::of_local_end(fd).port() == node.control.port() &&
        SocketAddress::of_remote_end(fd).port() != 0)
      return fd;
  return -1;
}

/// Both sides have connected, and one of the two connections breaks: a notice on it may be lost, so
/// that the other must not go on as if nothing had happened.
TEST(ControlPlane, APeerIsLostIfOneOfTwoConnectionsBreaks) {
  for (int attempt = 0; attempt < 50; ++attempt) {
    Node a("a");
    Node b("b");
    const auto b_at_a = a.add(b);
    const auto a_at_b = b.add(a);
    std::thread other([&] { b.connect(a_at_b); });
    a.connect(b_at_a);
    other.join();
    ASSERT_TRUE(a.receives("connect") && b.receives("connect"));
    if (accepted_socket(a) < 0 || accepted_socket(b) < 0) continue;  // only one side has connected
    std::this_thread::sleep_for(100ms);                              // both are authenticated
    ASSERT_EQ(::shutdown(accepted_socket(a), SHUT_RDWR), 0);
    EXPECT_TRUE(becomes(b_at_a, State::died));
    EXPECT_TRUE(becomes(a_at_b, State::died));
    return;
  }
  FAIL() << "both sides never connected at the same time";
}

TEST(ControlPlane, LongTextsAreTruncated) {
  Node a("a");
  Node b("b");
  a.control.send_notice(a.add(b), notice_of(std::string(100'000, 'x')));
  ASSERT_TRUE(eventually([&] { return !b.texts().empty(); }));
  EXPECT_GT(b.texts().front().size(), 4000U);
  EXPECT_LE(b.texts().front().size(), 4096U);
}

TEST(ControlPlane, PortsOfARange) {
  const Fd taken = listen_in_range("127.0.0.1", {});
  const std::uint16_t first = SocketAddress::of_local_end(taken.get()).port();
  EXPECT_THROW(Node("a", "127.0.0.1", {first, first}), Error);
  const PortRange ports{first, static_cast<std::uint16_t>(first + 20)};
  const Node b("b", "127.0.0.1", ports);
  EXPECT_GT(b.control.port(), ports.first);
  EXPECT_LE(b.control.port(), ports.last);
}

/// A connection that sends what no process of the job sends. Returns when it has been dropped.
void connect_as_stranger(const Node& node) {
  const Fd socket = start_connecting(SocketAddress::parse("127.0.0.1", node.control.port()), 60s);
  const std::string junk(1000, 'x');
  const bool sent =
      eventually([&] { return ::send(socket.get(), junk.data(), junk.size(), MSG_NOSIGNAL) > 0; });
  const bool dropped = eventually([&] {
    char bytes[256];
    const ssize_t count = ::recv(socket.get(), bytes, sizeof bytes, 0);
    return count == 0 || (count < 0 && errno == ECONNRESET);
  });
  EXPECT_TRUE(sent && dropped);
}

/// What a death test has written to stderr, which is a file then.
std::string captured_log() {
  char text[4096] = {};
  static_cast<void>(!::pread(STDERR_FILENO, text, sizeof text - 1, 0));
  return text;
}

/// Warnings of a kind are written once per process, so the test needs a new one. A warning of another
/// kind does not suppress them.
TEST(ControlPlaneDeathTest, AShortageOfDescriptorsIsLogged) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        Node a("a");
        Node b("b");
        connect_as_stranger(b);
        const Fd last(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        rlimit limits{};
        ::getrlimit(RLIMIT_NOFILE, &limits);
        limits.rlim_cur = static_cast<rlim_t>(last.get()) + 1;
        const bool limited = ::setrlimit(RLIMIT_NOFILE, &limits) == 0;
        const auto b_at_a = a.add(b);
        a.connect(b_at_a);
        const bool logged = eventually(
            [] { return captured_log().find(" yet: Too many open files") != std::string::npos; });
        a.control.close();
        ::_exit(limited && logged && b.texts().empty() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0),
      "no control connection to host b, pid [0-9]+ yet: Too many open files: the limit of this "
      "process is ");
}

TEST(ControlPlane, BadAddressesAreRefused) {
  EXPECT_THROW(Node("a", "somewhere"), Error);
  Node a("a");
  EXPECT_THROW(a.control.add_peer({.address = "elsewhere"}, kSecret), Error);
}

/// close() is safe while the monitor thread runs callbacks, and from several threads.
TEST(ControlPlane, CloseWhileNoticesArrive) {
  for (int i = 0; i < 20; ++i) {
    Node a("a");
    Node b("b");
    const auto b_at_a = a.add(b);
    std::atomic<bool> stop{false};
    std::thread sender([&] {
      while (!stop.load()) a.control.send_notice(b_at_a, notice_of("again"));
    });
    ASSERT_TRUE(b.receives("again"));
    std::thread other([&] { b.control.close(); });
    b.control.close();
    const std::size_t count = b.texts().size();
    EXPECT_TRUE(becomes(b_at_a, State::departed));
    EXPECT_EQ(b.texts().size(), count);
    other.join();
    stop = true;
    sender.join();
  }
}

TEST(ControlPlane, CloseFromItsOwnCallback) {
  const auto page = std::make_unique<ProcessPage>();
  Monitor monitor(*page, [] {});
  std::unique_ptr<ControlPlane> control;
  std::atomic<int> calls{0};
  control = std::make_unique<ControlPlane>(
      monitor, ControlPlane::Options{.address = "127.0.0.1",
                                     .ports = {},
                                     .liveness_timeout = 5s,
                                     .self = {.id = random_bytes32(), .host = "c"},
                                     .on_notice = [&](const auto&, const Notice&) {
                                       control->close();
                                       calls.fetch_add(1);
                                     }});
  control->add_secret(kSecret);
  Node a("a");
  const auto peer = a.control.add_peer(control->self(), kSecret);
  a.control.send_notice(peer, notice_of("close"));
  EXPECT_TRUE(eventually([&] { return calls.load() == 1; }));
  EXPECT_TRUE(becomes(peer, State::departed));
}

TEST(ControlPlane, CloseAfterTheMonitorHasStopped) {
  Node a("a");
  Node b("b");
  const auto a_at_b = b.add(a);
  b.connect(a_at_b);
  ASSERT_TRUE(eventually([&] { return a_at_b->silence() > 0s; }));
  a.control.send_notice(a.add(b), notice_of("x"));
  ASSERT_TRUE(b.receives("x"));
  a.monitor.stop();
  a.control.close();
  EXPECT_TRUE(becomes(a_at_b, State::departed));
}

TEST(ControlPlane, CloseTakesLessThanHalfASecond) {
  Node a("a");
  Node b("b");
  a.control.send_notice(a.add(b), notice_of("x"));
  ASSERT_TRUE(b.receives("x"));
  const auto start = Clock::now();
  a.control.close();
  EXPECT_LT(Clock::now() - start, 500ms);
}

TEST(ControlPlane, NoDescriptorIsLeaked) {
  const auto count = [] {
    int descriptors = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      ++descriptors;
    return descriptors;
  };
  const auto once = [] {
    Node a("a");
    Node b("b");
    a.control.send_notice(a.add(b), notice_of("x"));
    EXPECT_TRUE(b.receives("x"));
  };
  once();
  const int before = count();
  for (int i = 0; i < 5; ++i) once();
  EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace tccl
