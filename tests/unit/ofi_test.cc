// Two endpoints in one process, over loopback, with each software provider.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "tccl/error.h"
#include "transport/ofi/endpoint.h"
#include "transport/ofi/library.h"

namespace tccl::ofi {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

Bytes pattern(std::size_t bytes, unsigned seed) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<std::byte>((i * 31 + seed) >> (i % 3));
  return data;
}

class EndpointTest : public ::testing::TestWithParam<const char*> {
 protected:
  Endpoint a{{.provider = GetParam(), .address = "127.0.0.1"}};
  Endpoint b{{.provider = GetParam(), .address = "127.0.0.1"}};
  fi_addr_t to_b = a.add_peer(b.address());
  fi_addr_t to_a = b.add_peer(a.address());

  template <class Condition>
  bool progress_until(const Condition& condition, std::chrono::milliseconds within = 20s) {
    const auto end = Clock::now() + within;
    while (!condition()) {
      if (Clock::now() > end) return false;
      a.progress();
      b.progress();
    }
    return true;
  }
  /// Keeps the data until the end of the test.
  void send(std::uint64_t tag, Bytes data, Request& request) {
    sent_.push_back(std::move(data));
    ASSERT_TRUE(progress_until([&] { return a.send(to_b, tag, sent_.back(), request); }));
  }
  void receive(std::uint64_t tag, Bytes& data, Request& request) {
    ASSERT_TRUE(progress_until([&] { return b.receive(to_a, tag, data, request); }));
  }

 private:
  std::deque<Bytes> sent_;
};

TEST_P(EndpointTest, CarriesMessagesOfAnySize) {
  for (const std::size_t bytes : {0, 1, 8, 4096, 65'536, 1'000'003, 20'000'000}) {
    const Bytes data = pattern(bytes, 3);
    Bytes got(bytes, std::byte{0xee});
    Request sending;
    Request receiving;
    receive(7, got, receiving);
    send(7, data, sending);
    ASSERT_TRUE(progress_until([&] { return sending.done() && receiving.done(); })) << bytes;
    EXPECT_EQ(sending.error(), 0);
    EXPECT_EQ(receiving.error(), 0);
    EXPECT_EQ(receiving.bytes(), bytes);
    EXPECT_EQ(got, data);
  }
}

TEST_P(EndpointTest, MatchesByTagAndKeepsTheOrderOfEqualTags) {
  std::deque<Request> requests(8);
  std::vector<Bytes> got(4, Bytes(100));
  const std::array<std::uint64_t, 4> tags{5, 9, 5, 6};
  for (unsigned i = 0; i < 4; ++i) send(tags[i], pattern(100, i), requests[i]);
  receive(6, got[3], requests[4]);
  receive(5, got[0], requests[5]);
  receive(9, got[1], requests[6]);
  receive(5, got[2], requests[7]);
  ASSERT_TRUE(progress_until(
      [&] { return std::ranges::all_of(requests, [](const Request& r) { return r.done(); }); }));
  for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(got[i], pattern(100, i)) << i;
}

TEST_P(EndpointTest, AcceptsMoreMessagesThanItsQueueHolds) {
  constexpr std::size_t kCount = 1000;
  std::deque<Request> sending(kCount);
  std::deque<Request> receiving(kCount);
  std::vector<Bytes> got(kCount, Bytes(sizeof(std::size_t)));
  for (std::size_t i = 0; i < kCount; ++i)
    send(i, pattern(sizeof i, static_cast<unsigned>(i)), sending[i]);
  for (std::size_t i = kCount; i-- > 0;) receive(i, got[i], receiving[i]);
  const auto all_done = [](const std::deque<Request>& requests) {
    return std::ranges::all_of(requests, [](const Request& r) { return r.done(); });
  };
  ASSERT_TRUE(progress_until([&] { return all_done(sending) && all_done(receiving); }));
  for (std::size_t i = 0; i < kCount; ++i)
    ASSERT_EQ(got[i], pattern(sizeof i, static_cast<unsigned>(i))) << i;
}

TEST_P(EndpointTest, CancelsAnUnmatchedReceive) {
  Bytes got(100, std::byte{1});
  Request receiving;
  receive(1, got, receiving);
  b.cancel(receiving);
  ASSERT_TRUE(progress_until([&] { return receiving.done(); }));
  EXPECT_EQ(receiving.error(), ECANCELED);
  Request sending;
  Request again;
  receive(1, got, again);  // this one matches the message
  send(1, pattern(100, 8), sending);
  ASSERT_TRUE(progress_until([&] { return again.done(); }));
  EXPECT_EQ(got, pattern(100, 8));
}

TEST_P(EndpointTest, ReportsAMessageLongerThanItsReceive) {
  Bytes got(10);
  Request receiving;
  Request sending;
  receive(1, got, receiving);
  send(1, pattern(100, 1), sending);
  ASSERT_TRUE(progress_until([&] { return receiving.done(); }));
  EXPECT_NE(receiving.error(), 0);
}

TEST_P(EndpointTest, SleepsUntilAMessageArrivesOrTheTimeout) {
  Bytes got(8);
  Request receiving;
  Request sending;
  receive(1, got, receiving);
  progress_until([] { return false; }, 50ms);  // no traffic left
  const auto begin = Clock::now();
  while (Clock::now() - begin < 100ms) {
    b.sleep(100ms);
    b.progress();
  }
  EXPECT_FALSE(receiving.done());
  const Bytes data = pattern(8, 2);
  std::thread sender([&] {
    std::this_thread::sleep_for(50ms);
    const auto end = Clock::now() + 20s;
    while (!a.send(to_b, 1, data, sending) && Clock::now() < end) a.progress();
    while (!(sending.done() && receiving.done()) && Clock::now() < end) a.progress();
  });
  const auto end = Clock::now() + 20s;
  while (!receiving.done() && Clock::now() < end) {
    b.sleep(5s);
    b.progress();
  }
  sender.join();
  EXPECT_EQ(got, data);
}

INSTANTIATE_TEST_SUITE_P(Provider, EndpointTest, ::testing::Values("tcp", "sockets"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Fabric, ErrorNamesAMissingProvider) {
  try {
    const Endpoint endpoint({.provider = "no-such-provider", .address = "127.0.0.1"});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::system);
    EXPECT_NE(std::string(error.what()).find("no-such-provider"), std::string::npos)
        << error.what();
  }
}

TEST(Fabric, APreferredProviderIsUsedIfItServes) {
  const Endpoint sockets({.provider = "",
                          .address = "127.0.0.1",
                          .preferred_providers = {"no-such-provider", "sockets"}});
  EXPECT_EQ(sockets.provider(), "sockets");
  const Endpoint fallback(
      {.provider = "", .address = "127.0.0.1", .preferred_providers = {"no-such-provider"}});
  EXPECT_TRUE(fallback.provider().starts_with("tcp")) << fallback.provider();
}

/// libfabric reads FI_PROVIDER once per process, so the test needs a new one.
TEST(FabricDeathTest, TcpIsUsableWhateverLibfabricsListSays) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        ::setenv("FI_PROVIDER", "psm3", /*overwrite=*/1);
        const Endpoint endpoint(
            {.provider = "", .address = "127.0.0.1", .preferred_providers = {"psm3"}});
        ::_exit(endpoint.provider().starts_with("tcp") ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(FabricDeathTest, ErrorNamesALibraryThatCannotBeLoaded) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        try {
          const Endpoint endpoint(
              {.provider = "", .address = "127.0.0.1", .libfabric_path = "/no/such/libfabric.so"});
        } catch (const Error& error) {
          std::fputs(error.what(), stderr);
        }
        ::_exit(0);
      },
      ::testing::ExitedWithCode(0), "/no/such/libfabric.so");
}

TEST(Fabric, IsAtLeastTheRequiredVersion) { EXPECT_GE(library().version(), FI_VERSION(1, 17)); }

}  // namespace
}  // namespace tccl::ofi
