// file_store() and tcp_store() behave alike; what is particular to each.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "tccl/error.h"
#include "tccl/store.h"

namespace tccl {
namespace {

using namespace std::chrono_literals;

/// A port that is free at the moment.
std::uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(fd);
  return ntohs(address.sin_port);
}

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

TEST(TcpStore, InvalidRequestsAreIgnored) {
  const std::uint16_t port = free_port();
  const auto store = tcp_store("127.0.0.1", port, true, 5000ms);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string garbage(100, '\xff');
  EXPECT_GT(::write(fd, garbage.data(), garbage.size()), 0);
  store->set("a", "b");
  EXPECT_EQ(store->get("a", 1000ms), "b");
  ::close(fd);
}

}  // namespace
}  // namespace tccl
