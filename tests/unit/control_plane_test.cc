// Control connections between ControlPlanes over loopback. Each has its own monitor thread, as
// processes of different hosts have.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "base/tcp_socket.h"
#include "health/control_plane.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using namespace std::chrono_literals;
using State = RemoteProcess::State;

constexpr const char* kSecret = "the job's secret";

/// Waits until the condition holds; false at the limit.
bool eventually(const std::function<bool()>& holds, std::chrono::milliseconds limit = 10s) {
  for (const Deadline deadline = deadline_after(limit); !holds(); std::this_thread::sleep_for(1ms))
    if (Clock::now() >= deadline) return false;
  return true;
}

/// The monitor and the control plane of one process.
class Node {
 public:
  explicit Node(const std::string& host, const std::string& address = "127.0.0.1",
                PortRange ports = {}, std::chrono::milliseconds liveness_timeout = 5s)
      : control(monitor, {.address = address,
                          .ports = ports,
                          .liveness_timeout = liveness_timeout,
                          .self = {.id = random_digest(), .host = host, .pid = ::getpid()},
                          .on_notice = [this](const auto& from, const Notice& notice) {
                            record(from, notice);
                          }}) {
    control.add_secret(kSecret);
  }

  std::shared_ptr<RemoteProcess> add(const Node& other, const std::string& secret = kSecret) {
    return control.add_peer(other.control.self(), secret);
  }
  std::vector<std::string> texts() {
    const std::lock_guard lock(mutex_);
    return texts_;
  }
  std::shared_ptr<RemoteProcess> last_sender() {
    const std::lock_guard lock(mutex_);
    return last_sender_;
  }
  bool receives(const std::string& text) {
    return eventually([&] {
      const auto all = texts();
      return std::ranges::find(all, text) != all.end();
    });
  }

 private:
  void record(const std::shared_ptr<RemoteProcess>& from, const Notice& notice) {
    const std::lock_guard lock(mutex_);
    texts_.push_back(notice.text);
    last_sender_ = from;
  }
  std::mutex mutex_;
  std::vector<std::string> texts_;
  std::shared_ptr<RemoteProcess> last_sender_;
  std::unique_ptr<Heartbeat> heartbeat_ = std::make_unique<Heartbeat>();

 public:
  Monitor monitor{*heartbeat_, [] {}};
  ControlPlane control;
};

Notice notice_of(const std::string& text) { return {.group = 1, .kind = 2, .text = text}; }

bool ends(const std::shared_ptr<RemoteProcess>& peer, State state,
          std::chrono::milliseconds limit = 10s) {
  eventually([&] { return peer->state() != State::alive; }, limit);
  return peer->state() == state;
}

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
    return control::decode_challenge({buffer + 8, 32});
  }

 private:
  Fd fd_;
};

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
    a.control.tell(b_at_a,
                   notice_of(expected.back()));  // the first ones before there is a connection
    b.control.tell(a_at_b, notice_of(expected.back()));  // both sides connect
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
  a->control.connect(b_at_a);
  a->control.tell(b_at_a, notice_of("last notice"));
  a.reset();
  EXPECT_TRUE(ends(a_at_b, State::departed));
  EXPECT_TRUE(b.receives("last notice"));
}

INSTANTIATE_TEST_SUITE_P(Both, ControlPlaneAddresses, ::testing::Values("127.0.0.1", "::1"),
                         [](const auto& info) {
                           return std::string(info.param) == "::1" ? "IPv6" : "IPv4";
                         });

TEST(ControlPlane, OneObjectPerPeer) {
  Node a("a");
  Node b("b");
  a.control.tell(a.add(b), notice_of("hello"));  // only the connection holds the peer
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
  a.control.connect(b_at_a);
  a.control.tell(b_at_a, notice_of("ping"));
  ASSERT_TRUE(b.receives("ping"));
  b.control.tell(b.last_sender(), notice_of("pong"));
  EXPECT_TRUE(a.receives("pong"));
}

TEST(ControlPlane, ThreeProcesses) {
  Node a("a");
  Node b("b");
  Node c("c");
  for (Node* from : {&a, &b, &c})
    for (Node* to : {&a, &b, &c})
      if (from != to) from->control.tell(from->add(*to), notice_of("to all"));
  for (Node* node : {&a, &b, &c})
    EXPECT_TRUE(eventually([&] { return node->texts().size() == 2; }));
}

TEST(ControlPlane, HeartbeatsAreSentBothWays) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.add(b);
  const auto a_at_b = b.add(a);
  a.control.connect(b_at_a);
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
    b.control.connect(a_at_b);
    a->control.tell(a->add(b), notice_of("the reason"));
    std::thread closer([&] { a.reset(); });
    EXPECT_TRUE(ends(a_at_b, State::departed));
    EXPECT_EQ(b.texts().size(), 1U);
    closer.join();
  }
}

TEST(ControlPlane, NothingIsSentToAPeerThatHasEnded) {
  auto a = std::make_unique<Node>("a");
  Node b("b");
  const auto a_at_b = b.add(*a);
  b.control.tell(a_at_b, notice_of("x"));
  ASSERT_TRUE(a->receives("x"));
  a.reset();
  ASSERT_TRUE(ends(a_at_b, State::departed));
  b.control.tell(a_at_b, notice_of("y"));
  b.control.connect(a_at_b);
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(a_at_b->state(), State::departed);  // a refused connection would mean died
}

TEST(ControlPlane, ARefusedConnectionMeansDied) {
  Node a("a");
  RemoteProcess::Identity gone{
      .id = random_digest(), .host = "b", .pid = 1, .address = "127.0.0.1"};
  {
    const Fd port = listen_in_range("127.0.0.1", {});
    gone.port = SocketAddress::of_local_end(port.get()).port();
  }
  const auto peer = a.control.add_peer(gone, kSecret);
  a.control.connect(peer);
  EXPECT_TRUE(ends(peer, State::died, 2s));
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
      {.id = random_digest(), .host = "b", .pid = 1, .address = "127.0.0.1", .port = there.port()},
      kSecret);
  a.control.connect(peer);
  EXPECT_TRUE(ends(peer, State::unreachable, 5s));
}

TEST(ControlPlane, AnotherProcessOnThePortOfADeadOneIsRefused) {
  Node a("a");
  Node b("b");
  RemoteProcess::Identity dead = b.control.self();
  dead.id = random_digest();
  const auto a_at_b = b.add(a);
  const auto peer = a.control.add_peer(dead, kSecret);
  a.control.connect(peer);
  EXPECT_TRUE(ends(peer, State::died));
  EXPECT_EQ(a_at_b->state(), State::alive);  // the connection was never authenticated
  EXPECT_EQ(a_at_b->silence(), 0s);
}

TEST(ControlPlane, AConnectorWithoutTheSecretIsDropped) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.add(b, "a guess");
  a.control.tell(b_at_a, notice_of("unauthenticated"));
  EXPECT_TRUE(ends(b_at_a, State::died));
  EXPECT_TRUE(b.texts().empty());
}

TEST(ControlPlane, ARemovedSecretIsNotAcceptedAnyMore) {
  Node a("a");
  Node b("b");
  b.control.add_secret(kSecret);     // for a second group
  b.control.remove_secret(kSecret);  // which has ended
  const auto b_at_a = a.add(b);
  a.control.tell(b_at_a, notice_of("one"));
  ASSERT_TRUE(b.receives("one"));
  b.control.remove_secret(kSecret);
  a.control.tell(b_at_a, notice_of("two"));
  EXPECT_TRUE(b.receives("two"));  // an authenticated connection stays open
  Node c("c");
  const auto b_at_c = c.add(b);
  c.control.connect(b_at_c);
  EXPECT_TRUE(ends(b_at_c, State::died));
}

/// The ranks of a job do not start at the same moment.
TEST(ControlPlane, ASecretMayBeAddedAfterTheFirstAttempt) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.add(b, "second group");
  a.control.tell(b_at_a, notice_of("early"));
  std::this_thread::sleep_for(100ms);
  b.control.add_secret("second group");
  EXPECT_TRUE(b.receives("early"));
}

TEST(ControlPlane, InvalidFramesCloseOnlyTheirConnection) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.add(b);
  a.control.tell(b_at_a, notice_of("before"));
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
  a.control.tell(b_at_a, notice_of("after"));
  EXPECT_TRUE(b.receives("after"));
  EXPECT_EQ(b.texts().size(), 2U);
  EXPECT_EQ(b_at_a->state(), State::alive);
}

/// A valid response to a challenge of `node`.
std::string response_to(const Challenge& challenge, const Node& node) {
  const RemoteProcess::Identity identity{.id = random_digest()};
  const std::string context = control::handshake_context(node.control.self().id, identity);
  return control::encode(control::ConnectorResponse{
      control::key_id(kSecret), respond(kSecret, challenge, context), identity});
}

TEST(ControlPlane, AReplayedResponseIsRefused) {
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

TEST(ControlPlane, FramesMayArriveByteByByte) {
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

TEST(ControlPlane, UnauthenticatedConnectionsAreDroppedOldestFirst) {
  Node b("b");
  const auto start = Clock::now();
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (int i = 0; i < 257; ++i) silent.push_back(std::make_unique<RawConnection>(b));
  EXPECT_TRUE(silent.front()->is_dropped());
  EXPECT_LT(Clock::now() - start, 1500ms);
  Node a("a");
  a.control.tell(a.add(b), notice_of("still served"));
  EXPECT_TRUE(b.receives("still served"));
  EXPECT_TRUE(silent.back()->is_dropped());
  EXPECT_GE(Clock::now() - start, 1900ms);
}

TEST(ControlPlane, LongTextsAreTruncated) {
  Node a("a");
  Node b("b");
  a.control.tell(a.add(b), notice_of(std::string(100'000, 'x')));
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
      while (!stop.load()) a.control.tell(b_at_a, notice_of("again"));
    });
    ASSERT_TRUE(b.receives("again"));
    std::thread other([&] { b.control.close(); });
    b.control.close();
    const std::size_t count = b.texts().size();
    EXPECT_TRUE(ends(b_at_a, State::departed));
    EXPECT_EQ(b.texts().size(), count);
    other.join();
    stop = true;
    sender.join();
  }
}

TEST(ControlPlane, CloseFromItsOwnCallback) {
  const auto heartbeat = std::make_unique<Heartbeat>();
  Monitor monitor(*heartbeat, [] {});
  std::unique_ptr<ControlPlane> control;
  std::atomic<int> calls{0};
  control = std::make_unique<ControlPlane>(
      monitor, ControlPlane::Options{.address = "127.0.0.1",
                                     .ports = {},
                                     .liveness_timeout = 5s,
                                     .self = {.id = random_digest(), .host = "c"},
                                     .on_notice = [&](const auto&, const Notice&) {
                                       control->close();
                                       calls.fetch_add(1);
                                     }});
  control->add_secret(kSecret);
  Node a("a");
  const auto peer = a.control.add_peer(control->self(), kSecret);
  a.control.tell(peer, notice_of("close"));
  EXPECT_TRUE(eventually([&] { return calls.load() == 1; }));
  EXPECT_TRUE(ends(peer, State::departed));
}

TEST(ControlPlane, CloseAfterTheMonitorHasStopped) {
  Node a("a");
  Node b("b");
  const auto a_at_b = b.add(a);
  b.control.connect(a_at_b);
  ASSERT_TRUE(eventually([&] { return a_at_b->silence() > 0s; }));
  a.control.tell(a.add(b), notice_of("x"));
  ASSERT_TRUE(b.receives("x"));
  a.monitor.stop();
  a.control.close();
  EXPECT_TRUE(ends(a_at_b, State::departed));
}

TEST(ControlPlane, CloseTakesLessThanHalfASecond) {
  Node a("a");
  Node b("b");
  a.control.tell(a.add(b), notice_of("x"));
  ASSERT_TRUE(b.receives("x"));
  const auto start = Clock::now();
  a.control.close();
  EXPECT_LT(Clock::now() - start, 500ms);
}

TEST(ControlPlane, NoDescriptorIsLeaked) {
  const auto count = [] {
    int number = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      ++number;
    return number;
  };
  const auto once = [] {
    Node a("a");
    Node b("b");
    a.control.tell(a.add(b), notice_of("x"));
    EXPECT_TRUE(b.receives("x"));
  };
  once();
  const int before = count();
  for (int i = 0; i < 5; ++i) once();
  EXPECT_EQ(count(), before);
}

// ---- several processes ----

/// Another process with a Node that waits; it ends with this one.
class Child {
 public:
  explicit Child(const std::function<void(Node&, int pipe)>& work = [](Node&, int) {}) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      run(ends[1], work);
    }
    ::close(ends[1]);
    pipe_ = Fd(ends[0]);
    identity_.address = "127.0.0.1";
    identity_.host = "child";
    identity_.pid = pid_;
    read_into(identity_.id);
    read_into(identity_.port);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  template <class T>
  void read_into(T& value) const {
    EXPECT_EQ(::read(pipe_.get(), &value, sizeof value), static_cast<ssize_t>(sizeof value));
  }
  /// Connects and waits for the first sign of life.
  std::shared_ptr<RemoteProcess> connect(Node& node) const {
    auto peer = node.control.add_peer(identity_, kSecret);
    node.control.connect(peer);
    EXPECT_TRUE(eventually([&] { return peer->silence() > 0s; }));
    std::this_thread::sleep_for(100ms);
    return peer;
  }
  void kill(int signal) const { ::kill(pid_, signal); }

 private:
  [[noreturn]] static void run(int pipe, const std::function<void(Node&, int)>& work) {
    ::alarm(60);
    {
      Node node("child");
      const auto& self = node.control.self();
      bool good = ::write(pipe, &self.id, sizeof self.id) == sizeof self.id;
      good = good && ::write(pipe, &self.port, sizeof self.port) == sizeof self.port;
      work(node, pipe);
      while (good) ::pause();
    }
    ::_exit(1);
  }

  pid_t pid_ = -1;
  Fd pipe_;
  RemoteProcess::Identity identity_;
};

TEST(ControlProcess, AKilledProcessHasDied) {
  const Child child;
  Node node("parent");
  const auto peer = child.connect(node);
  EXPECT_EQ(peer->state(), State::alive);
  child.kill(SIGKILL);
  EXPECT_TRUE(ends(peer, State::died, 1s));
}

TEST(ControlProcess, AStoppedProcessIsSilentNotDead) {
  const Child child;
  Node node("parent", "127.0.0.1", {}, 1s);  // its host keeps answering
  const auto peer = child.connect(node);
  child.kill(SIGSTOP);
  EXPECT_TRUE(eventually([&] { return peer->silence() > 2500ms; }));
  EXPECT_EQ(peer->state(), State::alive);
  child.kill(SIGCONT);
  EXPECT_TRUE(eventually([&] { return peer->silence() < 500ms; }));
  EXPECT_EQ(peer->state(), State::alive);
}

TEST(ControlProcess, AProcessThatIsStoppedAtFirstConnectsLater) {
  const Child child;
  child.kill(SIGSTOP);
  Node node("parent");
  const auto peer = child.connect(node);  // its host accepts the connection
  EXPECT_TRUE(eventually([&] { return peer->silence() > 2500ms; }));
  EXPECT_EQ(peer->state(), State::alive);
  child.kill(SIGCONT);
  EXPECT_TRUE(eventually([&] { return peer->silence() < 500ms; }));
  EXPECT_EQ(peer->state(), State::alive);
}

/// A DataLoader worker must not hide the death of its rank.
TEST(ControlProcess, AForkedChildDoesNotKeepConnectionsAlive) {
  pid_t grandchild = -1;
  const Child child([](Node& node, int pipe) {
    eventually([&] { return !node.texts().empty(); });
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(60);
      for (;;) ::pause();
    }
    static_cast<void>(!::write(pipe, &pid, sizeof pid));
  });
  Node node("parent");
  const auto peer = child.connect(node);
  node.control.tell(peer, notice_of("fork now"));
  child.read_into(grandchild);
  ASSERT_GT(grandchild, 0);
  child.kill(SIGKILL);
  EXPECT_TRUE(ends(peer, State::died, 1s));
  EXPECT_EQ(::kill(grandchild, 0), 0);  // it is still there
  ::kill(grandchild, SIGKILL);
}

TEST(ControlProcess, AForkedChildHasNoSocketsAndItsCallsDoNothing) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.add(b);
  a.control.tell(b_at_a, notice_of("before"));
  ASSERT_TRUE(b.receives("before"));
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(20);
    a.control.tell(b_at_a, notice_of("from the child"));
    a.control.connect(b_at_a);
    a.control.close();
    int sockets = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code ignored;
      const std::string target = std::filesystem::read_symlink(entry.path(), ignored);
      sockets += target.starts_with("socket:") ? 1 : 0;
    }
    ::_exit(sockets);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  a.control.tell(b_at_a, notice_of("after"));
  EXPECT_TRUE(b.receives("after"));
  EXPECT_EQ(b.texts(), (std::vector<std::string>{"before", "after"}));
  EXPECT_EQ(b_at_a->state(), State::alive);
}

}  // namespace
}  // namespace tccl
