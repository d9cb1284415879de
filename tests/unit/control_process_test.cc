// Control connections between processes that are killed, stopped or forked.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <filesystem>

#include "base/fd.h"
#include "unit/control_node.h"

namespace tccl {
namespace {

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
    node.connect(peer);
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
  EXPECT_TRUE(becomes(peer, State::died, 1s));
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
    node.receives("fork now");
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(60);
      for (;;) ::pause();
    }
    static_cast<void>(!::write(pipe, &pid, sizeof pid));
  });
  Node node("parent");
  const auto peer = child.connect(node);
  node.control.send_notice(peer, notice_of("fork now"));
  child.read_into(grandchild);
  ASSERT_GT(grandchild, 0);
  child.kill(SIGKILL);
  EXPECT_TRUE(becomes(peer, State::died, 1s));
  EXPECT_EQ(::kill(grandchild, 0), 0);  // it is still there
  ::kill(grandchild, SIGKILL);
}

TEST(ControlProcess, AForkedChildHasNoSocketsAndItsCallsDoNothing) {
  Node a("a");
  Node b("b");
  const auto b_at_a = a.add(b);
  a.control.send_notice(b_at_a, notice_of("before"));
  ASSERT_TRUE(b.receives("before"));
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(20);
    a.control.send_notice(b_at_a, notice_of("from the child"));
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
  a.control.send_notice(b_at_a, notice_of("after"));
  EXPECT_TRUE(b.receives("after"));
  EXPECT_EQ(b.texts(), (std::vector<std::string>{"before", "after"}));
  EXPECT_EQ(b_at_a->state(), State::alive);
}

}  // namespace
}  // namespace tccl
