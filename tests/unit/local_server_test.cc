// The coordinator's side of the handshake on a host, with threads as the ranks: what it reports
// about a rank that fails or dies.
#include "rendezvous/local_server.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <future>

#include "base/unix_socket.h"
#include "memory_store.h"
#include "rendezvous/local_client.h"
#include "rendezvous/secret.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using namespace std::chrono_literals;

/// Rank 0 coordinates a host of two ranks; tests play rank 1.
class LocalServerTest : public ::testing::Test {
 protected:
  RendezvousOptions options_of(int rank) {
    return {.store = &store_,
            .group = "world",
            .secret = "secret of process " + std::to_string(::getpid()),
            .rank = rank,
            .size = 2,
            .timeout = 20s,
            .deadline = deadline_after(20s),
            .make_peer_info =
                [rank](const std::string&) {
                  PeerInfo peer_info;
                  peer_info.rank = rank;
                  peer_info.size = 2;
                  return peer_info;
                },
            .apply_roster = [](const Roster&) {}};
  }

  /// Serves connections until both ranks have joined.
  void accept_rank_1() {
    while (server_.joined_ranks().size() < 2) server_.poll(/*other_fd=*/-1);
  }

  std::string socket_name() const { return rendezvous_socket_name(options_.secret); }

  static void expect_names_rank_1(const std::function<void()>& step, const std::string& reason) {
    try {
      step();
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.ranks(), std::vector{1}) << error.what();
      const std::string text = error.what();
      EXPECT_TRUE(text.starts_with("init of group world: rank 1 (host ")) << text;
      EXPECT_TRUE(text.ends_with(reason)) << text;
    }
  }

  MemoryStore store_;
  RendezvousOptions options_ = options_of(0);
  HostMap host_map_{std::vector{0, 0}};
  Fd memory_{::memfd_create("local_server_test", MFD_CLOEXEC)};
  LocalServer server_{options_, listen_on(socket_name())};
};

/// While the other hosts learn of a rank's failure, its coordinator polls its connections: that
/// must not replace the reason by "Connection closed by peer".
TEST_F(LocalServerTest, ARankThatReportsItsFailureIsNotReportedAsLost) {
  RendezvousOptions options = options_of(1);
  options.apply_roster = [](const Roster&) {
    throw Error(Errc::system, "init of group world: rank 1 (host b, pid 7): no room", {1});
  };
  const auto member = std::async(std::launch::async, [&] {
    EXPECT_THROW(LocalClient::connect(options)->join(memory_.get(), -1), Error);
  });
  accept_rank_1();
  Roster roster;
  roster.local = server_.gather_peer_infos(host_map_, "");
  for (const LocalPeer& peer : roster.local) roster.all.push_back(peer.peer_info);
  expect_names_rank_1([&] { server_.distribute(roster, memory_.get(), -1); }, "no room");
  member.wait();  // it has closed its connection
  EXPECT_NO_THROW(server_.check_connections());
}

TEST_F(LocalServerTest, ARankThatDiesBeforeItGetsTheAddressIsNamed) {
  const RendezvousOptions options = options_of(1);
  auto member = std::async(std::launch::async, [&] { return LocalClient::connect(options); });
  accept_rank_1();
  member.get().reset();  // closes its connection
  expect_names_rank_1([&] { server_.gather_peer_infos(host_map_, ""); },
                      "left before the group was formed (Connection closed by peer)");
  EXPECT_NO_THROW(server_.check_connections());
}

TEST_F(LocalServerTest, ARankThatDiesBeforeItsRequestIsAnsweredIsNamed) {
  Fd socket = connect_to(socket_name());
  ASSERT_TRUE(socket);
  server_.poll(/*other_fd=*/-1);  // accepts and sends the challenge
  const auto challenge = receive_packet<Challenge>(socket.get(), deadline_after(5s));
  const Response response = respond(options_.secret, challenge, kLocalHandshake);
  send_packet(socket.get(), JoinRequest{response, 1, 2, ::getpid()}, deadline_after(5s));
  socket.reset();
  expect_names_rank_1([&] { server_.poll(/*other_fd=*/-1); },
                      "left before the group was formed (Connection closed by peer)");
}

struct BadPeerInfo {
  const char* name;
  void (*spoil)(PeerInfo& info);
  const char* reason;
};

/// Values of a PeerInfo index tables, and its texts are printed.
class BadPeerInfoTest : public LocalServerTest,
                        public ::testing::WithParamInterface<BadPeerInfo> {};

TEST_P(BadPeerInfoTest, IsRefused) {
  RendezvousOptions options = options_of(1);
  options.make_peer_info = [make = options.make_peer_info](const std::string& address) {
    PeerInfo info = make(address);
    GetParam().spoil(info);
    return info;
  };
  const auto member = std::async(std::launch::async, [&] {
    EXPECT_THROW(LocalClient::connect(options)->join(memory_.get(), -1), Error);
  });
  accept_rank_1();
  expect_names_rank_1([&] { server_.gather_peer_infos(host_map_, ""); }, GetParam().reason);
}

constexpr const char* kOutOfRange = "a PeerInfo has a value out of range";

INSTANTIATE_TEST_SUITE_P(
    Values, BadPeerInfoTest,
    ::testing::Values(
        BadPeerInfo{"RankTooLarge", [](PeerInfo& info) { info.rank = 7; }, kOutOfRange},
        BadPeerInfo{"RankNegative", [](PeerInfo& info) { info.rank = -1; }, kOutOfRange},
        BadPeerInfo{"AnotherRank", [](PeerInfo& info) { info.rank = 0; },
                    "its PeerInfo has another rank than its request"},
        BadPeerInfo{"WireFormat", [](PeerInfo& info) { info.wire_format = 77; }, kOutOfRange},
        BadPeerInfo{"NameTooLong", [](PeerInfo& info) { info.endpoint_name_bytes = 500; },
                    kOutOfRange},
        BadPeerInfo{"UnterminatedText", [](PeerInfo& info) { std::ranges::fill(info.host, 'x'); },
                    kOutOfRange}),
    [](const auto& info) { return std::string(info.param.name); });

/// The last packet of a coordinator that proves itself; the client then has the address.
TEST(LocalClient, AnAddressWithoutTerminatorIsCutAtItsLength) {
  MemoryStore store;
  std::string address;
  const RendezvousOptions options{.store = &store,
                                  .group = "world",
                                  .secret = "secret of client " + std::to_string(::getpid()),
                                  .rank = 1,
                                  .size = 2,
                                  .timeout = 20s,
                                  .deadline = deadline_after(20s),
                                  .make_peer_info =
                                      [&](const std::string& host_address) {
                                        address = host_address;
                                        return PeerInfo{};
                                      },
                                  .apply_roster = [](const Roster&) {}};
  const Fd listener = listen_on(rendezvous_socket_name(options.secret));
  const auto coordinator = std::async(std::launch::async, [&] {
    const Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const Challenge challenge = make_challenge();
    send_packet(socket.get(), challenge, options.deadline);
    const auto request = receive_packet<JoinRequest>(socket.get(), options.deadline);
    send_packet(socket.get(),
                JoinReply{confirm(options.secret, challenge, request.response, kLocalHandshake), 0},
                options.deadline);
    HostAddress unterminated;
    std::memset(unterminated.address, 'x', sizeof unterminated.address);
    send_packet(socket.get(), unterminated, options.deadline);
    static_cast<void>(receive_packet<PeerInfo>(socket.get(), options.deadline));
  });
  const Fd memory{::memfd_create("local_client_test", MFD_CLOEXEC)};
  EXPECT_THROW(LocalClient::connect(options)->join(memory.get(), -1), Error);
  EXPECT_EQ(address, std::string(sizeof HostAddress::address, 'x'));
}

}  // namespace
}  // namespace tccl
