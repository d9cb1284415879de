// Control connections of processes that do not know the secret or break the protocol.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/tcp_socket.h"
#include "health/control_protocol.h"
#include "unit/control_node.h"

namespace tccl {
namespace {

/// A TCP connection that does not follow the protocol by itself.
class RawConnection {
 public:
  explicit RawConnection(const Node& node) {
    const auto there = SocketAddress::parse(node.control.self().address, node.control.self().port);
    fd_ = Fd(::socket(there.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd_.get(), there.get(), there.length()), 0);
    const timeval timeout{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  }
  void send(const std::string& bytes) const {
    EXPECT_EQ(::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  /// Reads until the other side closes the connection; false at the timeout.
  [[nodiscard]] bool is_dropped() const {
    char buffer[256];
    ssize_t count = 0;
    while ((count = ::recv(fd_.get(), buffer, sizeof buffer, 0)) > 0) {
    }
    return count == 0 || errno == ECONNRESET;
  }
  [[nodiscard]] Challenge challenge() const {
    char buffer[40];
    EXPECT_EQ(::recv(fd_.get(), buffer, sizeof buffer, MSG_WAITALL), 40);
    return control::decode<Challenge>({buffer + 8, 32});
  }

 private:
  Fd fd_;
};

TEST(ControlAuthentication, AnotherProcessOnThePortOfADeadOneIsRefused) {
  Node a("a");
  Node b("b");
  RemoteProcess::Identity dead = b.control.self();
  dead.id = random_bytes32();
  const auto a_at_b = b.add(a);
  const auto peer = a.control.add_peer(dead, kSecret);
  a.connect(peer);
  EXPECT_TRUE(becomes(peer, State::died));
  EXPECT_EQ(a_at_b->state(), State::alive);  // the connection was never authenticated
  EXPECT_EQ(a_at_b->silence(), 0s);
}

TEST(ControlAuthentication, AConnectorWithoutTheSecretIsDropped) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.add(b, "a guess");
  a.control.send_notice(b_at_a, notice_of("unauthenticated"));
  EXPECT_TRUE(becomes(b_at_a, State::died));
  EXPECT_TRUE(b.texts().empty());
}

/// The ranks of a job do not start at the same moment.
TEST(ControlAuthentication, ASecretMayBeAddedAfterTheFirstAttempt) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.add(b, "second group");
  a.control.send_notice(b_at_a, notice_of("early"));
  std::this_thread::sleep_for(100ms);
  b.control.add_secret("second group");
  EXPECT_TRUE(b.receives("early"));
}

/// Two groups of the same processes: the second one is closed before the first one communicates.
TEST(ControlAuthentication, AConnectionUsesTheSecretOfAGroupThatIsOpen) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.add(b, kSecret);
  ASSERT_EQ(a.add(b, "given back by b"), b_at_a);
  a.control.retire_secret("given back by b");
  a.control.send_notice(b_at_a, notice_of("first group"));
  EXPECT_TRUE(b.receives("first group"));
  EXPECT_EQ(b_at_a->state(), State::alive);
}

/// A rank that does not know yet that the group is closed connects to learn of the departure.
TEST(ControlAuthentication, TheSecretOfAGroupThatWasClosedIsStillAccepted) {
  Node a("a");
  Node b("b");
  b.control.add_secret("closed by b");
  b.control.retire_secret("closed by b");
  const auto b_at_a = a.add(b, "closed by b");
  a.control.send_notice(b_at_a, notice_of("late"));
  EXPECT_TRUE(b.receives("late"));
}

TEST(ControlAuthentication, InvalidFramesCloseOnlyTheirConnection) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.add(b);
  a.control.send_notice(b_at_a, notice_of("before"));
  ASSERT_TRUE(b.receives("before"));
  const std::string header = control::encode(control::FrameKind::heartbeat).substr(0, 4);
  const std::string invalid[] = {
      "GET / HTTP/1.1\r\n\r\n",
      std::string(10000, '\xff'),
      header + std::string("\x04\x00\xff\xff", 4) + std::string(70000, 'x'),  // too long
      header + std::string("\x63\x00\x00\x00", 4),                            // unknown kind
      control::encode(control::FrameKind::heartbeat),
      control::encode(control::FrameKind::departure),
      control::encode(control::FrameKind::response, "short"),
      control::encode(make_challenge()),
      control::encode(notice_of("unauthenticated")),
  };
  for (const std::string& bytes : invalid) {
    const RawConnection connection(b);
    connection.send(bytes);
    EXPECT_TRUE(connection.is_dropped());
  }
  for (int i = 0; i < 50; ++i) const RawConnection port_scan(b);
  a.control.send_notice(b_at_a, notice_of("after"));
  EXPECT_TRUE(b.receives("after"));
  EXPECT_EQ(b.texts().size(), 2U);
  EXPECT_EQ(b_at_a->state(), State::alive);
}

/// A valid response to a challenge of `node`.
std::string response_to(const Challenge& challenge, const Node& node) {
  const RemoteProcess::Identity identity{.id = random_bytes32()};
  const std::string context = control::handshake_binding_data(node.control.self().id, identity);
  return control::encode(control::ConnectorResponse{
      control::key_id(kSecret), respond(kSecret, challenge, context), identity});
}

TEST(ControlAuthentication, AReplayedResponseIsRefused) {
  Node b("b");
  const RawConnection first(b);
  const std::string response = response_to(first.challenge(), b);
  const RawConnection second(b);
  static_cast<void>(second.challenge());
  second.send(response);
  EXPECT_TRUE(second.is_dropped());
  first.send(response + control::encode(notice_of("good")));
  EXPECT_TRUE(b.receives("good"));
}

/// Warnings are written once per process, so the test needs a new one.
TEST(ControlAuthenticationDeathTest, AnInvalidFrameOfAPeerIsLogged) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        Node b("b");
        const RawConnection connection(b);
        connection.send(response_to(connection.challenge(), b) +
                        control::encode(notice_of("good")));
        const bool received = b.receives("good");
        connection.send("not a frame of the protocol");
        const bool dropped = connection.is_dropped();
        static_cast<void>(
            RawConnection(b).challenge());  // sent by the thread that logs, afterwards
        ::_exit(received && dropped ? 0 : 1);
      },
      ::testing::ExitedWithCode(0),
      "closed the control connection to 127.0.0.1:[0-9]+ .host , pid 0.: the peer uses another "
      "protocol");
}

TEST(ControlAuthentication, FramesMayArriveByteByByte) {
  Node b("b");
  const RawConnection connection(b);
  for (const char byte : response_to(connection.challenge(), b) +
                             control::encode(notice_of("one")) +
                             control::encode(notice_of("two"))) {
    connection.send(std::string(1, byte));
    std::this_thread::sleep_for(100us);
  }
  EXPECT_TRUE(b.receives("two"));
  EXPECT_EQ(b.texts(), (std::vector<std::string>{"one", "two"}));
}

/// A flood neither displaces a connection that is authenticating itself, nor is its consequence, a
/// refused connection, taken for a death.
TEST(ControlAuthentication, TheNewestUnauthenticatedConnectionsOfAHostAreRefused) {
  Node b("b");
  const RawConnection slow(b);
  const std::string response = response_to(slow.challenge(), b);
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (int i = 0; i < 400; ++i) silent.push_back(std::make_unique<RawConnection>(b));
  const auto start = Clock::now();
  EXPECT_TRUE(silent.back()->is_dropped());
  EXPECT_LT(Clock::now() - start, 1500ms);
  slow.send(response + control::encode(notice_of("slow")));
  EXPECT_TRUE(b.receives("slow"));
  Node a("a");
  const auto b_at_a = a.add(b);
  a.control.send_notice(b_at_a, notice_of("later"));
  EXPECT_TRUE(b.receives("later"));  // once the silent ones are closed
  EXPECT_EQ(b_at_a->state(), State::alive);
  EXPECT_TRUE(silent.front()->is_dropped());
}

}  // namespace
}  // namespace tccl
