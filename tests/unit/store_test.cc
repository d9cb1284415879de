// file_store() and tcp_store() behave alike; what is particular to each.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "free_port.h"
#include "rendezvous/tcp_store_server.h"
#include "tccl/error.h"
#include "tccl/store.h"

namespace tccl {
namespace {

using namespace std::chrono_literals;

class StoreTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    char name[] = "/tmp/tccl-store-XXXXXX";
    directory_ = ::mkdtemp(name);
    port_ = free_port();
    first_ = open(true);
    second_ = open(false);
  }
  void TearDown() override {
    second_.reset();
    first_.reset();
    std::filesystem::remove_all(directory_);
  }
  std::shared_ptr<Store> open(bool serve) {
    if (std::string(GetParam()) == "file") return file_store(directory_);
    return tcp_store("127.0.0.1", port_, serve, 5000ms);
  }

  std::string directory_;
  std::uint16_t port_ = 0;
  std::shared_ptr<Store> first_;
  std::shared_ptr<Store> second_;
};

TEST_P(StoreTest, GetReturnsWhatAnotherClientSet) {
  const std::string bytes("a\0b\n/..", 7);
  first_->set("key/with slash", bytes);
  EXPECT_EQ(second_->get("key/with slash", 1000ms), bytes);
  second_->set("key/with slash", "");
  EXPECT_EQ(first_->get("key/with slash", 1000ms), "");
}

TEST_P(StoreTest, GetWaitsForTheKey) {
  std::thread setter([&] {
    std::this_thread::sleep_for(100ms);
    first_->set("late", "value");
  });
  EXPECT_EQ(second_->get("late", 5000ms), "value");
  setter.join();
}

TEST_P(StoreTest, GetTimesOutAndNamesTheKey) {
  try {
    second_->get("missing", 50ms);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::timeout);
    EXPECT_NE(std::string(error.what()).find("\"missing\""), std::string::npos) << error.what();
  }
  first_->set("missing", "now");
  EXPECT_EQ(second_->get("missing", 1000ms), "now");
}

TEST_P(StoreTest, AGetWithTimeoutZeroDoesNotWait) {
  EXPECT_THROW(second_->get("key", 0ms), Error);
  first_->set("key", "value");
  EXPECT_EQ(second_->get("key", 0ms), "value");
}

TEST_P(StoreTest, OneObjectCanSetWhileAGetWaits) {
  std::thread setter([&] {
    std::this_thread::sleep_for(50ms);
    first_->set("own", "value");
  });
  EXPECT_EQ(first_->get("own", 5000ms), "value");
  setter.join();
}

TEST_P(StoreTest, RemovedKeysAreGone) {
  first_->set("key", "value");
  second_->remove("key");
  second_->remove("never there");
  EXPECT_THROW(first_->get("key", 20ms), Error);
}

/// A signal must not restart the timeout.
TEST_P(StoreTest, SignalsDoNotExtendTheTimeout) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(SIGUSR1, &action, nullptr);
  const pthread_t self = ::pthread_self();
  std::thread signaller([self] {
    for (int i = 0; i < 10; ++i) {
      std::this_thread::sleep_for(10ms);
      ::pthread_kill(self, SIGUSR1);
    }
  });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(first_->get("missing", 200ms), Error);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  signaller.join();
}

TEST_P(StoreTest, LargeValues) {
  const std::string value(1 << 20, 'x');
  first_->set("large", value);
  EXPECT_EQ(second_->get("large", 5000ms), value);
}

INSTANTIATE_TEST_SUITE_P(Both, StoreTest, ::testing::Values("file", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

TEST(FileStore, FilesAreReadableByTheirOwnerOnly) {
  const std::string directory = "/tmp/tccl-private-" + std::to_string(::getpid());
  file_store(directory)->set("secret", "x");
  using std::filesystem::perms;
  const auto others = perms::group_all | perms::others_all;
  EXPECT_EQ(std::filesystem::status(directory).permissions() & others, perms::none);
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    EXPECT_EQ(entry.status().permissions() & others, perms::none);
  std::filesystem::remove_all(directory);
}

TEST(FileStore, CreatesMissingParents) {
  char name[] = "/tmp/tccl-parents-XXXXXX";
  const std::filesystem::path top = ::mkdtemp(name);
  using std::filesystem::perms;
  for (const char* path : {"a/b/c", "d//e/", "f/", "a/b/c"}) {
    const std::string directory = top / path;
    file_store(directory)->set("key", path);
    EXPECT_EQ(file_store(directory)->get("key", 0ms), path);
    EXPECT_EQ(std::filesystem::status(directory).permissions(), perms::owner_all) << path;
  }
  EXPECT_NE(std::filesystem::status(top / "a").permissions(), perms::owner_all);
  std::filesystem::remove_all(top);
}

TEST(FileStore, LeavesThePermissionsOfAnExistingDirectory) {
  char name[] = "/tmp/tccl-existing-XXXXXX";
  const std::filesystem::path directory = ::mkdtemp(name);
  const auto shared = std::filesystem::perms{0770};
  std::filesystem::permissions(directory, shared);
  file_store(directory)->set("key", "value");
  EXPECT_EQ(std::filesystem::status(directory).permissions(), shared);
  std::filesystem::remove_all(directory);
}

TEST(FileStore, ADirectoryOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  char name[] = "/tmp/tccl-other-user-XXXXXX";
  const std::string directory = ::mkdtemp(name);
  ASSERT_EQ(::chown(name, 65534, 65534), 0);
  try {
    file_store(directory);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("belongs to user 65534"), std::string::npos)
        << error.what();
  }
  std::filesystem::remove_all(directory);
}

TEST(FileStore, AFileInTheWayIsAnError) {
  char name[] = "/tmp/tccl-file-XXXXXX";
  ::close(::mkstemp(name));
  const std::string file = name;
  for (const std::string& path : {file, file + "/store", std::string()}) {
    try {
      file_store(path);
      ADD_FAILURE() << "no error for \"" << path << '"';
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::system);
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
  std::filesystem::remove(file);
}

TEST(TcpStore, AMissingServerIsAnError) {
  EXPECT_THROW(tcp_store("127.0.0.1", free_port(), false, 50ms), Error);
}

TEST(TcpStore, AListenFailureIsReported) {
  const std::uint16_t port = free_port();
  const auto store = tcp_store("127.0.0.1", port, true, 5000ms);
  const auto reason_at = [&](const std::string& host) -> std::string {
    try {
      tcp_store(host, port, true, 50ms);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(reason_at("127.0.0.1").find("already in use"), std::string::npos);
  EXPECT_NE(reason_at("").find("not known"), std::string::npos);
}

// ---- limits of the server of tcp_store()

using tcp_store_protocol::Kind;
using tcp_store_protocol::kMaxFieldBytes;
using tcp_store_protocol::RequestHeader;

class TcpStoreServerTest : public ::testing::Test {
 protected:
  void serve(TcpStoreServer::Limits limits = {}) {
    server_ = std::make_unique<TcpStoreServer>("127.0.0.1", port_, limits);
    client_ = tcp_store("127.0.0.1", port_, /*serve=*/false, 5000ms);
  }
  void expect_is_served() {
    client_->set("a", "b");
    EXPECT_EQ(client_->get("a", 5000ms), "b");
  }
  [[nodiscard]] Fd connect() const {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval limit{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
  }
  static void send(const Fd& fd, std::string_view bytes) {
    static_cast<void>(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  static std::string request(Kind kind, const std::string& key, std::uint32_t value_bytes) {
    const RequestHeader header{kind, static_cast<std::uint32_t>(key.size()), value_bytes};
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) + key;
  }
  /// True once the server has closed the connection; false after 10 s.
  static bool is_closed(const Fd& fd) {
    char buffer[4096];
    for (;;) {
      const ssize_t got = ::recv(fd.get(), buffer, sizeof buffer, 0);
      if (got <= 0) return got == 0 || errno == ECONNRESET;
    }
  }

  const std::uint16_t port_ = free_port();
  std::unique_ptr<TcpStoreServer> server_;
  std::shared_ptr<Store> client_;
};

TEST_F(TcpStoreServerTest, InvalidRequestsAreRefused) {
  serve();
  for (const std::string& bytes :
       {std::string(100, '\xff'), request(Kind::get, "key", kMaxFieldBytes + 1),
        request(static_cast<Kind>(77), "key", 0), request(Kind::get, "key", 0) + "more"}) {
    const Fd fd = connect();
    send(fd, bytes);
    EXPECT_TRUE(is_closed(fd));
    expect_is_served();
  }
}

/// One request could else make the server hold many copies of a large value.
TEST_F(TcpStoreServerTest, AConnectionCarriesOneRequest) {
  serve();
  client_->set("large", std::string(kMaxFieldBytes, 'x'));
  std::string requests;
  for (int i = 0; i < 270; ++i) requests += request(Kind::get, "large", 0);
  const Fd fd = connect();
  send(fd, requests);
  EXPECT_TRUE(is_closed(fd));
  expect_is_served();
}

TEST_F(TcpStoreServerTest, KeysAndValuesAreLimited) {
  serve({.bytes = 1 << 20});
  const Fd announces = connect();
  send(announces, request(Kind::set, "k", 700'000));
  std::this_thread::sleep_for(100ms);
  EXPECT_THROW(client_->set("too large", std::string(700'000, 'x')), Error);
  expect_is_served();
  client_->set("large", std::string(300'000, 'x'));
  client_->remove("large");
  client_->set("again", std::string(300'000, 'x'));
  EXPECT_THROW(client_->set("too much", std::string(300'000, 'x')), Error);
  EXPECT_EQ(client_->get("again", 5000ms), std::string(300'000, 'x'));
}

TEST_F(TcpStoreServerTest, SilentConnectionsAreClosedAndOthersWaitForTheirPlace) {
  serve({.connections = 8, .request = 500ms});
  std::vector<Fd> silent;
  for (int i = 0; i < 30; ++i) silent.push_back(connect());
  expect_is_served();
  EXPECT_TRUE(is_closed(silent.front()));
}

TEST_F(TcpStoreServerTest, AClientThatWaitsForAKeyIsNotClosed) {
  serve({.request = 100ms});
  std::thread setter([&] {
    std::this_thread::sleep_for(600ms);
    tcp_store("127.0.0.1", port_, false, 5000ms)->set("late", "value");
  });
  EXPECT_EQ(client_->get("late", 10'000ms), "value");
  setter.join();
}

double cpu_ms_of_process() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) * 1e3 + static_cast<double>(used.tv_nsec) / 1e6;
}

TEST_F(TcpStoreServerTest, WithoutDescriptorsTheServerWaits) {
  serve();
  std::vector<Fd> all;
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const Fd pending(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const rlimit none{.rlim_cur = static_cast<rlim_t>(pending.get()) + 1,
                    .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  while (Fd fd{::open("/dev/null", O_RDONLY | O_CLOEXEC)}) all.push_back(std::move(fd));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port_);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(pending.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const double cpu_before = cpu_ms_of_process();
  std::this_thread::sleep_for(1s);
  EXPECT_LT(cpu_ms_of_process() - cpu_before, 300);
  all.clear();
  ::setrlimit(RLIMIT_NOFILE, &before);
  expect_is_served();
}

}  // namespace
}  // namespace tccl
