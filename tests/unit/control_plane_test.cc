// ControlPlane connections between contexts, over loopback. Each has a monitor thread of its own,
// as processes of different hosts have.
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

/// True as soon as it holds; false at the limit.
bool soon(const std::function<bool()>& holds, std::chrono::milliseconds limit = 10s) {
  for (const Deadline deadline = deadline_after(limit); !holds(); std::this_thread::sleep_for(1ms))
    if (Clock::now() >= deadline) return false;
  return true;
}

/// What a process of another host has.
class Node {
 public:
  explicit Node(const std::string& host, const std::string& address = "127.0.0.1",
                PortRange ports = {}, std::chrono::milliseconds liveness_timeout = 5s)
      : control(monitor, {.address = address,
                          .ports = ports,
                          .liveness_timeout = liveness_timeout,
                          .self = {.id = random_digest(), .host = host, .pid = ::getpid()},
                          .on_notice = [this](const auto& from, const Notice& notice) {
                            take(from, notice);
                          }}) {
    control.add_secret(kSecret);
  }

  std::shared_ptr<RemoteProcess> know(const Node& other, const std::string& secret = kSecret) {
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
  bool note_heard(const std::string& text) {
    return soon([&] {
      const auto all = texts();
      return std::ranges::find(all, text) != all.end();
    });
  }

 private:
  void take(const std::shared_ptr<RemoteProcess>& from, const Notice& notice) {
    const std::lock_guard lock(mutex_);
    texts_.push_back(notice.text);
    last_sender_ = from;
  }
  std::mutex mutex_;
  std::vector<std::string> texts_;
  std::shared_ptr<RemoteProcess> last_sender_;
  std::unique_ptr<Heartbeat> life_ = std::make_unique<Heartbeat>();

 public:
  Monitor monitor{*life_, [] {}};
  ControlPlane control;
};

Notice say(const std::string& text) { return {.group = 1, .kind = 2, .text = text}; }

bool ends(const std::shared_ptr<RemoteProcess>& peer, State how,
          std::chrono::milliseconds limit = 10s) {
  soon([&] { return peer->state() != State::alive; }, limit);
  return peer->state() == how;
}

/// A connection without any manners.
class Stranger {
 public:
  explicit Stranger(const Node& node) {
    const auto there = SocketAddress::parse(node.control.self().address, node.control.self().port);
    fd_ = Fd(::socket(there.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd_.get(), there.get(), there.length()), 0);
    const timeval patience{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  void send(const std::string& bytes) const {
    EXPECT_EQ(::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  /// Reads to the end; false if that does not come.
  [[nodiscard]] bool is_dropped() const {
    char buffer[256];
    ssize_t count = 0;
    while ((count = ::recv(fd_.get(), buffer, sizeof buffer, 0)) > 0) {
    }
    return count == 0 || errno == ECONNRESET;
  }
  [[nodiscard]] control::Challenge challenge() const {
    char buffer[40];
    EXPECT_EQ(::recv(fd_.get(), buffer, sizeof buffer, MSG_WAITALL), 40);
    return control::decode_challenge({buffer + 8, 32});
  }

 private:
  Fd fd_;
};

class ControlTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ControlTest, NoticesBothWaysInOrder) {
  Node a("a", GetParam());
  Node b("b", GetParam());
  const auto b_at_a = a.know(b);
  const auto a_at_b = b.know(a);
  EXPECT_EQ(b_at_a->silence(), Clock::duration::zero());
  constexpr int kCount = 1000;
  std::vector<std::string> expected;
  for (int i = 0; i < kCount; ++i) {
    expected.push_back(std::to_string(i) + std::string(i % 100, 'x'));
    a.control.tell(b_at_a, say(expected.back()));  // the first before there is a connection
    b.control.tell(a_at_b, say(expected.back()));  // both ends connect
  }
  EXPECT_TRUE(soon([&] { return a.texts().size() == kCount && b.texts().size() == kCount; }));
  EXPECT_EQ(a.texts(), expected);
  EXPECT_EQ(b.texts(), expected);
  EXPECT_EQ(b_at_a->state(), State::alive);
  EXPECT_LT(b_at_a->silence(), 10s);
  EXPECT_EQ(a.last_sender(), b_at_a);
}

TEST_P(ControlTest, AGoodbyeIsNoDeath) {
  auto a = std::make_unique<Node>("a", GetParam());
  Node b("b", GetParam());
  const auto b_at_a = a->know(b);
  const auto a_at_b = b.know(*a);
  a->control.connect(b_at_a);
  a->control.tell(b_at_a, say("last words"));
  a.reset();
  EXPECT_TRUE(ends(a_at_b, State::departed));
  EXPECT_TRUE(b.note_heard("last words"));
}

INSTANTIATE_TEST_SUITE_P(Both, ControlTest, ::testing::Values("127.0.0.1", "::1"),
                         [](const auto& info) {
                           return std::string(info.param) == "::1" ? "IPv6" : "IPv4";
                         });

TEST(ControlPlane, OneObjectPerPeer) {
  Node a("a");
  Node b("b");
  a.control.tell(a.know(b), say("hello"));  // nobody holds the peer but its connection
  ASSERT_TRUE(b.note_heard("hello"));
  const auto a_at_b = b.last_sender();
  EXPECT_EQ(a_at_b->where(), "host a, pid " + std::to_string(::getpid()));
  EXPECT_EQ(a_at_b->identity().port, a.control.port());
  EXPECT_EQ(b.know(a), a_at_b);
  EXPECT_EQ(b.know(a), a_at_b);
}

TEST(ControlPlane, OnlyOneSideConnectsAndBothTalk) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.know(b);
  a.control.connect(b_at_a);
  a.control.tell(b_at_a, say("ping"));
  ASSERT_TRUE(b.note_heard("ping"));
  b.control.tell(b.last_sender(), say("pong"));
  EXPECT_TRUE(a.note_heard("pong"));
}

TEST(ControlPlane, ThreeOfThem) {
  Node a("a");
  Node b("b");
  Node c("c");
  for (Node* from : {&a, &b, &c})
    for (Node* to : {&a, &b, &c})
      if (from != to) from->control.tell(from->know(*to), say("to all"));
  for (Node* node : {&a, &b, &c}) EXPECT_TRUE(soon([&] { return node->texts().size() == 2; }));
}

TEST(ControlPlane, HeartbeatsGoBothWays) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.know(b);
  const auto a_at_b = b.know(a);
  a.control.connect(b_at_a);
  ASSERT_TRUE(soon([&] { return a_at_b->silence() > 0s; }));
  std::this_thread::sleep_for(1500ms);
  EXPECT_LT(b_at_a->silence(), 1200ms);
  EXPECT_LT(a_at_b->silence(), 1200ms);
}

/// A waiter that sees the end must know what was said before it.
TEST(ControlPlane, TheEndIsSeenAfterTheLastNotice) {
  for (int i = 0; i < 20; ++i) {
    auto a = std::make_unique<Node>("a");
    Node b("b");
    const auto a_at_b = b.know(*a);
    b.control.connect(a_at_b);
    a->control.tell(a->know(b), say("the reason"));
    std::thread closer([&] { a.reset(); });
    EXPECT_TRUE(ends(a_at_b, State::departed));
    EXPECT_EQ(b.texts().size(), 1U);
    closer.join();
  }
}

TEST(ControlPlane, NothingIsSentAfterTheEnd) {
  auto a = std::make_unique<Node>("a");
  Node b("b");
  const auto a_at_b = b.know(*a);
  b.control.tell(a_at_b, say("x"));
  ASSERT_TRUE(a->note_heard("x"));
  a.reset();
  ASSERT_TRUE(ends(a_at_b, State::departed));
  b.control.tell(a_at_b, say("y"));
  b.control.connect(a_at_b);
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(a_at_b->state(), State::departed);  // the refused connection would mean death
}

TEST(ControlPlane, RefusedMeansDead) {
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

TEST(ControlPlane, NoAnswerMeansUnreachable) {
  Node a("a", "127.0.0.1", {}, 300ms);
  // A listener whose queue is full does not answer.
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

TEST(ControlPlane, AnotherProcessOnThePortOfADeadOneIsNotTakenForIt) {
  Node a("a");
  Node b("b");
  RemoteProcess::Identity dead = b.control.self();
  dead.id = random_digest();
  const auto a_at_b = b.know(a);
  const auto peer = a.control.add_peer(dead, kSecret);
  a.control.connect(peer);
  EXPECT_TRUE(ends(peer, State::died));
  EXPECT_EQ(a_at_b->state(), State::alive);  // it never had a connection
  EXPECT_EQ(a_at_b->silence(), 0s);
}

TEST(ControlPlane, WhoDoesNotKnowTheSecretIsDropped) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.know(b, "a guess");
  a.control.tell(b_at_a, say("let me in"));
  EXPECT_TRUE(ends(b_at_a, State::died));
  EXPECT_TRUE(b.texts().empty());
}

TEST(ControlPlane, ADismissedSecretCountsNoMore) {
  Node a("a");
  Node b("b");
  b.control.add_secret(kSecret);     // for a second group
  b.control.remove_secret(kSecret);  // of which one has ended
  const auto b_at_a = a.know(b);
  a.control.tell(b_at_a, say("one"));
  ASSERT_TRUE(b.note_heard("one"));
  b.control.remove_secret(kSecret);
  a.control.tell(b_at_a, say("two"));
  EXPECT_TRUE(b.note_heard("two"));  // what is authenticated stays
  Node c("c");
  const auto b_at_c = c.know(b);
  c.control.connect(b_at_c);
  EXPECT_TRUE(ends(b_at_c, State::died));
}

/// The ranks of a job do not start at the same moment.
TEST(ControlPlane, ASecretMayBeAdmittedALittleLate) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.know(b, "second group");
  a.control.tell(b_at_a, say("early"));
  std::this_thread::sleep_for(100ms);
  b.control.add_secret("second group");
  EXPECT_TRUE(b.note_heard("early"));
}

TEST(ControlPlane, GarbageDoesNotDisturb) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.know(b);
  a.control.tell(b_at_a, say("before"));
  ASSERT_TRUE(b.note_heard("before"));
  const std::string header = control::encode(control::Kind::heartbeat).substr(0, 4);
  const std::string all_kinds[] = {
      "GET / HTTP/1.1\r\n\r\n",
      std::string(10000, '\xff'),
      header + std::string("\x04\x00\xff\xff", 4) + std::string(70000, 'x'),  // too long
      header + std::string("\x63\x00\x00\x00", 4),                            // of no kind
      control::encode(control::Kind::heartbeat),
      control::encode(control::Kind::goodbye),
      control::encode(control::Kind::answer, "short"),
      control::encode(control::Challenge{random_digest()}),
      control::encode(say("I am nobody")),
  };
  for (const std::string& garbage : all_kinds) {
    const Stranger stranger(b);
    stranger.send(garbage);
    EXPECT_TRUE(stranger.is_dropped());
  }
  for (int i = 0; i < 50; ++i) const Stranger scan(b);
  a.control.tell(b_at_a, say("after"));
  EXPECT_TRUE(b.note_heard("after"));
  EXPECT_EQ(b.texts().size(), 2U);
  EXPECT_EQ(b_at_a->state(), State::alive);
}

/// An answer proves nothing to anybody but the one who asked for it.
TEST(ControlPlane, ARepeatedAnswerIsWorthless) {
  Node b("b");
  const auto answer_to = [&](const control::Challenge& challenge) {
    control::Answer answer{control::key_id(kSecret), random_digest(), {}, {.id = random_digest()}};
    answer.proof = connector_proof(kSecret, challenge, answer, b.control.self().id);
    return encode(answer);
  };
  const Stranger first(b);
  const std::string answer = answer_to(first.challenge());
  const Stranger second(b);
  static_cast<void>(second.challenge());
  second.send(answer);
  EXPECT_TRUE(second.is_dropped());
  first.send(answer + control::encode(say("good")));
  EXPECT_TRUE(b.note_heard("good"));
}

TEST(ControlPlane, FramesComeInAnyPieces) {
  Node b("b");
  const Stranger stranger(b);
  const control::Challenge challenge = stranger.challenge();
  control::Answer answer{control::key_id(kSecret), random_digest(), {}, {.id = random_digest()}};
  answer.proof = connector_proof(kSecret, challenge, answer, b.control.self().id);
  for (const char byte :
       encode(answer) + control::encode(say("one")) + control::encode(say("two"))) {
    stranger.send(std::string(1, byte));
    std::this_thread::sleep_for(100us);
  }
  EXPECT_TRUE(b.note_heard("two"));
  EXPECT_EQ(b.texts(), (std::vector<std::string>{"one", "two"}));
}

TEST(ControlPlane, TheSilentAreDroppedAndTheOldestFirst) {
  Node b("b");
  const auto start = Clock::now();
  std::vector<std::unique_ptr<Stranger>> crowd;
  for (int i = 0; i < 257; ++i) crowd.push_back(std::make_unique<Stranger>(b));
  EXPECT_TRUE(crowd.front()->is_dropped());
  EXPECT_LT(Clock::now() - start, 1500ms);
  Node a("a");
  a.control.tell(a.know(b), say("in spite of them"));
  EXPECT_TRUE(b.note_heard("in spite of them"));
  EXPECT_TRUE(crowd.back()->is_dropped());
  EXPECT_GE(Clock::now() - start, 1900ms);
}

TEST(ControlPlane, LongTextsAreCut) {
  Node a("a");
  Node b("b");
  a.control.tell(a.know(b), say(std::string(100'000, 'x')));
  ASSERT_TRUE(soon([&] { return !b.texts().empty(); }));
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

/// Closing is safe whatever the monitor thread does meanwhile, and from several threads.
TEST(ControlPlane, CloseWhileNoticesCome) {
  for (int i = 0; i < 20; ++i) {
    Node a("a");
    Node b("b");
    const auto b_at_a = a.know(b);
    std::atomic<bool> enough{false};
    std::thread teller([&] {
      while (!enough.load()) a.control.tell(b_at_a, say("again"));
    });
    ASSERT_TRUE(b.note_heard("again"));
    std::thread other([&] { b.control.close(); });
    b.control.close();
    const std::size_t count = b.texts().size();
    EXPECT_TRUE(ends(b_at_a, State::departed));
    EXPECT_EQ(b.texts().size(), count);
    other.join();
    enough = true;
    teller.join();
  }
}

TEST(ControlPlane, CloseFromItsOwnCallback) {
  const auto life = std::make_unique<Heartbeat>();
  Monitor monitor(*life, [] {});
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
  a.control.tell(peer, say("close"));
  EXPECT_TRUE(soon([&] { return calls.load() == 1; }));
  EXPECT_TRUE(ends(peer, State::departed));
}

TEST(ControlPlane, CloseAfterTheMonitorHasStopped) {
  Node a("a");
  Node b("b");
  const auto a_at_b = b.know(a);
  b.control.connect(a_at_b);
  ASSERT_TRUE(soon([&] { return a_at_b->silence() > 0s; }));
  a.control.tell(a.know(b), say("x"));
  ASSERT_TRUE(b.note_heard("x"));
  a.monitor.stop();
  a.control.close();
  EXPECT_TRUE(ends(a_at_b, State::departed));
}

TEST(ControlPlane, ClosingIsQuick) {
  Node a("a");
  Node b("b");
  a.control.tell(a.know(b), say("x"));
  ASSERT_TRUE(b.note_heard("x"));
  const auto start = Clock::now();
  a.control.close();
  EXPECT_LT(Clock::now() - start, 500ms);
}

TEST(ControlPlane, DescriptorsDoNotPileUp) {
  const auto count = [] {
    int number = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      ++number;
    return number;
  };
  const auto once = [] {
    Node a("a");
    Node b("b");
    a.control.tell(a.know(b), say("x"));
    EXPECT_TRUE(b.note_heard("x"));
  };
  once();
  const int before = count();
  for (int i = 0; i < 5; ++i) once();
  EXPECT_EQ(count(), before);
}

// ---- with other processes ----

/// Another process with a Node that knows the secret and waits; it ends with this one.
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
  /// Connected and note_heard of.
  std::shared_ptr<RemoteProcess> meet(Node& node) const {
    auto peer = node.control.add_peer(identity_, kSecret);
    node.control.connect(peer);
    EXPECT_TRUE(soon([&] { return peer->silence() > 0s; }));
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

TEST(ControlProcess, AKilledProcessIsSeenToDie) {
  const Child child;
  Node node("parent");
  const auto peer = child.meet(node);
  EXPECT_EQ(peer->state(), State::alive);
  child.kill(SIGKILL);
  EXPECT_TRUE(ends(peer, State::died, 1s));
}

TEST(ControlProcess, AStoppedProcessIsSilentNotDead) {
  const Child child;
  Node node("parent", "127.0.0.1", {}, 1s);  // its host answers all the time
  const auto peer = child.meet(node);
  child.kill(SIGSTOP);
  EXPECT_TRUE(soon([&] { return peer->silence() > 2500ms; }));
  EXPECT_EQ(peer->state(), State::alive);
  child.kill(SIGCONT);
  EXPECT_TRUE(soon([&] { return peer->silence() < 500ms; }));
  EXPECT_EQ(peer->state(), State::alive);
}

TEST(ControlProcess, AProcessThatIsStoppedAtFirstIsMetLater) {
  const Child child;
  child.kill(SIGSTOP);
  Node node("parent");
  const auto peer = child.meet(node);  // its host accepts the connection
  EXPECT_TRUE(soon([&] { return peer->silence() > 2500ms; }));
  EXPECT_EQ(peer->state(), State::alive);
  child.kill(SIGCONT);
  EXPECT_TRUE(soon([&] { return peer->silence() < 500ms; }));
  EXPECT_EQ(peer->state(), State::alive);
}

/// A data-loader worker must not hide the death of its rank.
TEST(ControlProcess, AForkedChildDoesNotKeepConnectionsAlive) {
  pid_t grandchild = -1;
  const Child child([](Node& node, int pipe) {
    soon([&] { return !node.texts().empty(); });
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(60);
      for (;;) ::pause();
    }
    static_cast<void>(!::write(pipe, &pid, sizeof pid));
  });
  Node node("parent");
  const auto peer = child.meet(node);
  node.control.tell(peer, say("fork now"));
  child.read_into(grandchild);
  ASSERT_GT(grandchild, 0);
  child.kill(SIGKILL);
  EXPECT_TRUE(ends(peer, State::died, 1s));
  EXPECT_EQ(::kill(grandchild, 0), 0);  // it is still there
  ::kill(grandchild, SIGKILL);
}

TEST(ControlProcess, InAForkedChildEverythingIsClosedAndHarmless) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.know(b);
  a.control.tell(b_at_a, say("before"));
  ASSERT_TRUE(b.note_heard("before"));
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(20);
    a.control.tell(b_at_a, say("from the child"));
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
  a.control.tell(b_at_a, say("after"));
  EXPECT_TRUE(b.note_heard("after"));
  EXPECT_EQ(b.texts(), (std::vector<std::string>{"before", "after"}));
  EXPECT_EQ(b_at_a->state(), State::alive);
}

}  // namespace
}  // namespace tccl
