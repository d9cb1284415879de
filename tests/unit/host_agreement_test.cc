// The agreement between hosts, with threads as the coordinators of hosts and a store in memory.
#include "rendezvous/host_agreement.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <numeric>
#include <system_error>
#include <thread>

#include "memory_store.h"
#include "rendezvous/host_discovery.h"
#include "rendezvous/init_errors.h"
#include "rendezvous/join_record.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using namespace std::chrono_literals;

/// One rank per host.
struct Hosts {
  explicit Hosts(int count) : labels(static_cast<std::size_t>(count)) {
    std::iota(labels.begin(), labels.end(), 0);
  }

  RendezvousOptions options_of(int host, std::chrono::milliseconds timeout) {
    return {
        .store = &store,
        .group = "world",
        .secret = "the group's secret",
        .rank = host,
        .size = static_cast<int>(labels.size()),
        .timeout = timeout,
        .deadline = deadline_after(timeout),
        .offer_addresses = [this, host] {
          if (host == without_addresses)
            throw Error(Errc::system, "host " + std::to_string(host) + " is out of memory", {host});
          return AddressOffer{"h" + std::to_string(host), {"10.0.0." + std::to_string(host + 1)}};
        }};
  }

  /// Runs `body` for every host, each on its thread, and publishes its failure as a coordinator
  /// does; the error text of each, empty for none. `while_waiting` is called with the host.
  template <class Body>
  std::vector<std::string> run(
      const Body& body, std::chrono::milliseconds timeout = 20s,
      const std::function<void(int)>& while_waiting = [](int) {}) {
    std::vector<std::string> errors(labels.size());
    std::vector<std::thread> threads;
    for (std::size_t host = 0; host < labels.size(); ++host)
      threads.emplace_back([&, host] {
        const RendezvousOptions options = options_of(static_cast<int>(host), timeout);
        const HostMap host_map(labels);
        HostAgreement hosts(options, host_map, [&] { while_waiting(static_cast<int>(host)); });
        try {
          body(static_cast<int>(host), hosts);
        } catch (const std::exception& error) {
          errors[host] = error.what();
          try_publish_failure(options, failure_status(attributed_to_this_rank(options)));
        }
      });
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

  MemoryStore store;
  std::vector<int> labels;
  int without_addresses = -1;  // the host whose first step fails
};

std::vector<LocalPeer> one_rank(int rank, int size) {
  std::vector<LocalPeer> local(1);
  local.front().peer_info.rank = rank;
  local.front().peer_info.size = size;
  local.front().peer_info.host_index = rank;
  local.front().peer_info.pid = 100 + rank;
  return local;
}

class HostAgreementTest : public ::testing::TestWithParam<int> {};

TEST_P(HostAgreementTest, AllRoundsSucceedAndNoKeyIsLeft) {
  const int count = GetParam();
  Hosts hosts(count);
  std::atomic<int> applied{0};
  const auto errors = hosts.run([&](int host, HostAgreement& agreement) {
    EXPECT_EQ(agreement.agree_on_address(), "10.0.0." + std::to_string(host + 1));
    const Roster roster = agreement.exchange_peer_infos([&] { return one_rank(host, count); });
    ASSERT_EQ(roster.all.size(), static_cast<std::size_t>(count));
    for (int rank = 0; rank < count; ++rank)
      EXPECT_EQ(roster.all[static_cast<std::size_t>(rank)].pid, 100 + rank);
    agreement.commit([&] { applied.fetch_add(1); });
    EXPECT_EQ(applied.load(), count);  // nobody returns before all have applied
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(hosts.store.keys(), std::vector<std::string>{});
}

TEST_P(HostAgreementTest, AFailureInAnyRoundFailsAllHostsAlike) {
  const int count = GetParam();
  for (const Round round : {Round::addresses, Round::peer_infos, Round::status}) {
    for (int failing = 0; failing < count; ++failing) {
      Hosts hosts(count);
      if (round == Round::addresses) hosts.without_addresses = failing;
      const auto fail_in = [&](Round current, int host) {
        if (current == round && host == failing)
          throw Error(Errc::system, "host " + std::to_string(host) + " is out of memory", {host});
      };
      const auto errors = hosts.run([&](int host, HostAgreement& agreement) {
        static_cast<void>(agreement.agree_on_address());
        static_cast<void>(agreement.exchange_peer_infos([&] {
          fail_in(Round::peer_infos, host);
          return one_rank(host, count);
        }));
        agreement.commit([&] { fail_in(Round::status, host); });
      });
      for (const std::string& error : errors)
        EXPECT_EQ(error, "host " + std::to_string(failing) + " is out of memory");
    }
  }
}

/// What is not an Error, such as Ctrl-C, ends the host's part in the exchange.
TEST_P(HostAgreementTest, AnInterruptedHostFailsTheOthersBeforeTheTimeout) {
  const int count = GetParam();
  for (int interrupted = 0; interrupted < count; ++interrupted) {
    Hosts hosts(count);
    const auto start = Clock::now();
    const auto errors = hosts.run([&](int host, HostAgreement& agreement) {
      static_cast<void>(agreement.agree_on_address());
      static_cast<void>(agreement.exchange_peer_infos([&] { return one_rank(host, count); }));
      agreement.commit([&] {
        if (host == interrupted) throw std::runtime_error("SIGINT");
      });
    });
    EXPECT_LT(Clock::now() - start, 10s);
    for (std::size_t host = 0; host < errors.size(); ++host) {
      if (static_cast<int>(host) == interrupted)
        EXPECT_EQ(errors[host], "SIGINT");
      else
        EXPECT_NE(errors[host].find("init of group world: rank " + std::to_string(interrupted) +
                                    " (host "),
                  std::string::npos)
            << errors[host];
    }
  }
}

/// What the other ranks get of an exception.
TEST(HostAgreement, AFailureNamesTheRankAndTheReason) {
  const auto attributed = [](const auto& thrown) {
    RendezvousOptions options{};
    options.group = "world";
    options.rank = 3;
    try {
      throw thrown;
    } catch (...) {
      return attributed_to_this_rank(options);
    }
  };
  const std::string begin = "init of group world: rank 3 (host " + host_name() + ", pid " +
                            std::to_string(::getpid()) + ") failed before the group was formed: ";
  const auto expect = [&](const Error& error, Errc code, const std::string& reason) {
    EXPECT_EQ(error.what(), begin + reason);
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(error.ranks(), std::vector{3});
  };
  expect(attributed(std::bad_alloc()), Errc::system, std::bad_alloc().what());
  expect(attributed(std::runtime_error("the store is gone")), Errc::system, "the store is gone");
  const std::system_error no_thread(EAGAIN, std::generic_category(), "thread");
  expect(attributed(no_thread), Errc::system, no_thread.what());
  expect(attributed(Error(Errc::mismatch, "no provider")), Errc::mismatch, "no provider");
  EXPECT_STREQ(attributed(Error(Errc::peer_lost, "rank 7 died", {7})).what(), "rank 7 died");
}

void await_published_failure(const RendezvousOptions& options) {
  const StoreClient client = store_client_for(options, {});
  try {
    while (Clock::now() < options.deadline) {
      throw_if_failure_published(client);
      std::this_thread::sleep_for(1ms);
    }
  } catch (const Error&) {
  }
}

/// A local rank dies when its host has contributed to the round and waits for a slower host.
TEST(HostAgreement, AFailureAfterTheContributionFailsTheOthersBeforeTheTimeout) {
  const int count = 3;
  const int failing = 1;
  const int slow = 2;
  Hosts hosts(count);
  const auto start = Clock::now();
  const auto errors = hosts.run(
      [&](int host, HostAgreement& agreement) {
        // What the slow host contributes after the death, but before the failing host has thrown,
        // would complete the round.
        if (host == slow) await_published_failure(hosts.options_of(slow, 20s));
        static_cast<void>(agreement.agree_on_address());
        static_cast<void>(agreement.exchange_peer_infos([&] { return one_rank(host, count); }));
      },
      20s,
      [&](int host) {
        if (host == failing) throw Error(Errc::peer_lost, "rank 7 died", {7});
      });
  EXPECT_LT(Clock::now() - start, 10s);
  for (const std::string& error : errors) EXPECT_EQ(error, "rank 7 died");
}

INSTANTIATE_TEST_SUITE_P(Hosts, HostAgreementTest, ::testing::Values(2, 3, 5),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(HostAgreement, AMissingHostIsATimeoutThatNamesItsRankOnEveryHost) {
  Hosts hosts(3);
  publish_joined(store_client_for(hosts.options_of(2, 300ms), {}), 2);
  const auto errors = hosts.run(
      [&](int host, HostAgreement& agreement) {
        if (host != 2) static_cast<void>(agreement.agree_on_address());
      },
      300ms);
  const std::string expected =
      "init of group world timed out after 0.3 s: rank 2 (" + this_process_text() +
      ") did not complete the exchange of addresses between 3 hosts; host " + host_name() +
      " waited";
  EXPECT_EQ(errors[0], expected);
  EXPECT_EQ(errors[1], expected);
}

// ---- what the error of a timeout says

class MissingRanks : public ::testing::Test {
 protected:
  std::string text(int size, std::vector<int> local_waiters) {
    return missing_ranks_timeout(options(size), local_waiters).what();
  }
  void join(int rank, bool waiting) {
    const StoreClient client = store_client_for(options(2), {});
    publish_joined(client, rank);
    if (waiting) JoinRecordWriter(client, rank).write_waiting();
  }
  RendezvousOptions options(int size) {
    RendezvousOptions options = Hosts(size).options_of(0, 1500ms);
    options.store = &store_;
    return options;
  }

  MemoryStore store_;
  const std::string process_ = "host " + host_name() + ", pid " + std::to_string(::getpid());
};

TEST_F(MissingRanks, NeverJoined) {
  join(0, true);
  join(2, true);
  EXPECT_EQ(text(3, {0}),
            "init of group world timed out after 1.5 s: rank 1 never joined; ranks 0,2 waited "
            "for it");
  EXPECT_EQ(text(4, {0}),
            "init of group world timed out after 1.5 s: ranks 1,3 never joined; ranks 0,2 waited "
            "for them");
}

TEST_F(MissingRanks, JoinedButNeverCompleted) {
  for (const int rank : {0, 1}) join(rank, true);
  join(2, false);
  EXPECT_EQ(text(3, {0}), "init of group world timed out after 1.5 s: rank 2 (" + process_ +
                              ") joined but never completed the rendezvous; ranks 0,1 waited for "
                              "it");
  EXPECT_EQ(text(4, {0}),
            "init of group world timed out after 1.5 s: rank 3 never joined; rank "
            "2 (" +
                process_ +
                ") joined but never completed the rendezvous; ranks 0,1 waited for "
                "them");
}

TEST_F(MissingRanks, AllWaiting) {
  join(1, true);
  EXPECT_EQ(text(2, {0}),
            "init of group world timed out after 1.5 s: all 2 ranks joined, but the rendezvous "
            "did not complete");
}

}  // namespace
}  // namespace tccl
