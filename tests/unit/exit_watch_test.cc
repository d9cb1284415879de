// Which ends of a connection the exit watch takes for the end of a process.
#include "rendezvous/exit_watch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "base/tcp_socket.h"
#include "memory_store.h"
#include "rendezvous/host_discovery.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using namespace std::chrono_literals;

/// Rank 0 is the server; clients are rank 1 of another host.
class ExitWatch : public ::testing::Test {
 protected:
  RendezvousOptions options_of(int rank, const std::string& secret = "the secret") {
    return {.store = &store_,
            .group = "world",
            .secret = secret,
            .rank = rank,
            .size = 2,
            .timeout = 20s,
            .deadline = deadline_after(20s),
            .rank_zero = {.watch_address = address_}};
  }

  void start_server() {
    Fd listener = listen_for_exit_watch({.usable = {"127.0.0.1"}});
    ASSERT_TRUE(listener);
    const SocketAddress address = SocketAddress::of_local_end(listener.get());
    address_ = {address.host(), address.port()};
    server_options_ = options_of(0);
    server_.emplace(server_options_, std::move(listener));
  }

  [[nodiscard]] bool failure_is_published() {
    try {
      throw_if_failure_published(store_client_for(server_options_, {}));
      return false;
    } catch (const Error&) {
      return true;
    }
  }

  /// A connection that has received the challenge of the server.
  Fd stranger() const {
    Fd socket = start_connecting(SocketAddress::parse(address_.host, address_.port));
    pollfd entry{socket.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 10'000), 1);
    return socket;
  }

  MemoryStore store_;
  WatchAddress address_;
  RendezvousOptions server_options_{};
  std::optional<ExitWatchServer> server_;
};

constexpr auto kEnoughForLoopback = 300ms;

TEST_F(ExitWatch, AClientThatEndsItsRendezvousHasNotEnded) {
  start_server();
  {
    const ExitWatchClient client(options_of(1));
    std::this_thread::sleep_for(kEnoughForLoopback);
    EXPECT_FALSE(client.rank_zero_has_ended());
  }
  std::this_thread::sleep_for(kEnoughForLoopback);
  EXPECT_FALSE(failure_is_published());
}

TEST_F(ExitWatch, AClientThatEndsItsRendezvousAtAnyTimeHasNotEnded) {
  start_server();
  for (int i = 0; i < 200; ++i) {
    const ExitWatchClient client(options_of(1));
    std::this_thread::sleep_for(10us * i);
  }
  std::this_thread::sleep_for(kEnoughForLoopback);
  EXPECT_FALSE(failure_is_published());
}

TEST_F(ExitWatch, AServerThatEndsItsRendezvousHasNotEnded) {
  start_server();
  const ExitWatchClient client(options_of(1));
  std::this_thread::sleep_for(kEnoughForLoopback);
  server_.reset();
  std::this_thread::sleep_for(kEnoughForLoopback);
  EXPECT_FALSE(client.rank_zero_has_ended());
  EXPECT_FALSE(failure_is_published());
}

TEST_F(ExitWatch, AStrangerThatClosesItsConnectionFailsNothing) {
  start_server();
  stranger().reset();
  const ExitWatchClient client_with_another_secret(options_of(1, "another secret"));
  std::this_thread::sleep_for(kEnoughForLoopback);
  EXPECT_FALSE(client_with_another_secret.rank_zero_has_ended());
  EXPECT_FALSE(failure_is_published());
}

TEST_F(ExitWatch, AServerThatEndsBeforeTheHandshakeIsNotTakenForEnded) {
  Fd listener = listen_for_exit_watch({.usable = {"127.0.0.1"}});
  ASSERT_TRUE(listener);
  const SocketAddress address = SocketAddress::of_local_end(listener.get());
  address_ = {address.host(), address.port()};
  const ExitWatchClient client(options_of(1));
  std::this_thread::sleep_for(kEnoughForLoopback);
  listener.reset();
  std::this_thread::sleep_for(kEnoughForLoopback);
  EXPECT_FALSE(client.rank_zero_has_ended());
}

/// A server that is driven by the test.
class ExitWatchClientTest : public ExitWatch {
 protected:
  void SetUp() override {
    listener_ = listen_for_exit_watch({.usable = {"127.0.0.1"}});
    ASSERT_TRUE(listener_);
    const SocketAddress address = SocketAddress::of_local_end(listener_.get());
    address_ = {address.host(), address.port()};
  }

  [[nodiscard]] Fd accept() const {
    wait_readable(listener_);
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(socket);
    return socket;
  }

  /// Empty at the end of the connection.
  static std::string received(const Fd& socket) {
    char bytes[1024];
    wait_readable(socket);
    const ssize_t count = ::recv(socket.get(), bytes, sizeof bytes, 0);
    return {bytes, count > 0 ? static_cast<std::size_t>(count) : 0};
  }

  static void wait_readable(const Fd& socket) {
    pollfd entry{socket.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 20'000), 1);
  }

  static void send_challenge(const Fd& socket) {
    const Challenge challenge = make_challenge();
    EXPECT_EQ(::send(socket.get(), &challenge, sizeof challenge, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof challenge));
  }

  Fd listener_;
};

TEST_F(ExitWatchClientTest, SendsAFarewellAlsoWithoutAConfirmation) {
  std::optional<ExitWatchClient> client(std::in_place, options_of(1));
  const Fd socket = accept();
  send_challenge(socket);
  EXPECT_FALSE(received(socket).empty()) << "the request";
  client.reset();
  EXPECT_EQ(received(socket), "f");
  EXPECT_EQ(received(socket), "");
}

TEST_F(ExitWatchClientTest, ConnectsAgainIfItIsRefused) {
  const ExitWatchClient client(options_of(1));
  accept().reset();
  const Fd socket = accept();
  send_challenge(socket);
  EXPECT_FALSE(received(socket).empty()) << "the request";
  EXPECT_FALSE(client.rank_zero_has_ended());
}

TEST(ExitWatchAddress, AHostWithoutAddressHasNoListener) {
  EXPECT_FALSE(listen_for_exit_watch({}));
}

}  // namespace
}  // namespace tccl
