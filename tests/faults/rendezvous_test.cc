// Who may join a group, how a rendezvous fails, and what it leaves behind.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <fstream>

#include "base/unix_socket.h"
#include "free_port.h"
#include "harness.h"
#include "joined_ranks.h"
#include "rendezvous/join_record.h"
#include "rendezvous/packets.h"
#include "rendezvous/secret.h"

namespace faults {
namespace {

TEST(RendezvousProcess, UnauthenticatedConnectionsAreDroppedAndTheGroupForms) {
  const std::string directory = "/tmp/tccl-unauthenticated-" + std::to_string(::getpid());
  Ranks ranks(2, [&](Rank& rank) {
    auto store = tccl::file_store(directory);
    if (rank.rank == 1) {
      // The first 64 digits are the secret; the rest of the value is its check.
      const std::string secret = store->get("secret", 5s).substr(0, 64);
      const std::string name = tccl::rendezvous_socket_name(secret);
      tccl::Fd silent;
      tccl::Fd impostor;
      while (!silent) silent = tccl::connect_to(name);
      while (!impostor) impostor = tccl::connect_to(name);
      tccl::send_packet(impostor.get(), tccl::JoinRequest{.rank = 1, .size = 2, .pid = ::getpid()},
                        tccl::deadline_after(1s));  // without a valid proof
      std::this_thread::sleep_for(100ms);
      char byte = 0;
      check(tccl::wait_readable(impostor.get(), tccl::deadline_after(1s)), "a challenge arrived");
      check(::recv(impostor.get(), &byte, 1, 0) > 0, "the challenge");
      check(::recv(impostor.get(), &byte, 1, 0) == 0, "the connection was dropped");
    }
    auto comm = tccl::Communicator::create(rank.context(), *store, rank.rank, 2, {.timeout = 10s});
    comm->run(tccl::barrier());
  });
  ranks.expect_all_exit_cleanly();
  std::filesystem::remove_all(directory);
}

struct UnusableStore final : tccl::Store {
  void set(const std::string&, std::string_view) override { throw std::logic_error("set"); }
  std::string get(const std::string&, std::chrono::milliseconds) override {
    throw std::logic_error("get");
  }
  void remove(const std::string&) override { throw std::logic_error("remove"); }
};

// torch's new_subgroups() creates groups of one rank that share their keys: if one removed what
// another has just written, that one would wait until the timeout.
TEST(RendezvousProcess, AGroupOfOneRankDoesNotUseTheStore) {
  Ranks ranks(1, [](Rank& rank) {
    UnusableStore store;
    auto comm = tccl::Communicator::create(rank.context(), store, 0, 1, {.timeout = 10s});
    comm->run(tccl::barrier());
  });
  ranks.expect_all_exit_cleanly();
}

struct FailingStore final : tccl::Store {
  static constexpr const char* kText = "store a:1: connection refused";
  void set(const std::string&, std::string_view) override { fail(); }
  std::string get(const std::string&, std::chrono::milliseconds) override { fail(); }
  void remove(const std::string&) override { fail(); }
  [[noreturn]] static void fail() { throw tccl::Error(tccl::Errc::system, kText); }
};

std::string blame_text(const tccl::Error& error) {
  std::string text = "blamed:";
  for (const int rank : error.ranks()) text += " " + std::to_string(rank);
  return text;
}

/// The rank that fails is the only one that exists. `text`: of its error, given its process.
/// `blamed`: its Error::ranks().
void expect_failure_before_the_secret(
    int rank, const char* secret_file, const std::string& blamed,
    const std::function<std::string(const std::string& process)>& text) {
  Ranks ranks(1, [&](Rank& process) {
    ::setenv("CCL_SECRET_FILE", secret_file, 1);
    FailingStore store;
    try {
      tccl::Communicator::create(process.context(), store, rank, 2, {.name = "tp", .timeout = 10s});
    } catch (const tccl::Error& error) {
      process.report(blame_text(error));
      throw;
    }
  });
  ranks.finish();
  const auto error = ranks.outcomes[0].find("error");
  ASSERT_TRUE(error) << ranks.transcript();
  const std::string expected = "init of group tp: " + text("host " + tccl::host_name() + ", pid " +
                                                           std::to_string(ranks.outcomes[0].pid));
  EXPECT_NE(error->text.find(expected), std::string::npos) << error->text;
  const auto blame = ranks.outcomes[0].find("blamed:");
  ASSERT_TRUE(blame) << ranks.transcript();
  EXPECT_EQ(blame->text, blamed);
}

TEST(RendezvousProcess, AFailureBeforeTheSecretIsKnownNamesGroupAndRank) {
  const auto failed = [](int rank, const std::string& reason) {
    return [=](const std::string& process) {
      return "rank " + std::to_string(rank) + " (" + process +
             ") failed before the group was formed: " + reason;
    };
  };
  expect_failure_before_the_secret(0, "", "blamed: 0", failed(0, FailingStore::kText));
  for (const int rank : {0, 1})
    expect_failure_before_the_secret(
        rank, "/no/such/file", "blamed: " + std::to_string(rank),
        failed(rank, "CCL_SECRET_FILE=/no/such/file: the file cannot be read"));
}

/// The store was most likely served by a rank that has ended.
TEST(RendezvousProcess, ARankThatLosesTheStoreBeforeTheSecretIsKnownIsNotBlamed) {
  expect_failure_before_the_secret(1, "", "blamed:", [](const std::string& process) {
    return std::string("the store, which rank 0 or the launcher serves, may have ended: ") +
           FailingStore::kText + "; noticed by rank 1 on " + process;
  });
}

TEST(RendezvousProcess, ARankThatNeverJoinsIsNamed) {
  Ranks ranks(3, [](Rank& rank) {
    if (rank.rank == 1) return;
    rank.join("world", 1s);
  });
  ranks.finish();
  for (const int r : {0, 2}) {
    const auto error = ranks.outcomes[static_cast<std::size_t>(r)].find("error timeout");
    ASSERT_TRUE(error) << ranks.transcript();
    EXPECT_NE(error->text.find("init of group world timed out after 1.0 s: rank 1 never joined; "
                               "ranks 0,2 waited for it"),
              std::string::npos)
        << error->text;
  }
}

/// It has left its host and pid in the store, but does not go on from there.
TEST(RendezvousProcess, ARankThatJoinsButNeverCompletesIsNamed) {
  Ranks ranks(3, [&](Rank& rank) {
    if (rank.rank != 2) return void(rank.join("world", 1500ms));
    auto store = rank.store("world");
    tccl::publish_joined(client_of(*store), 2);
    std::this_thread::sleep_for(3s);
  });
  ranks.finish();
  const std::string expected =
      "init of group world timed out after 1.5 s: rank 2 (host " + tccl::host_name() + ", pid " +
      std::to_string(ranks.outcomes[2].pid) +
      ") joined but never completed the rendezvous; ranks 0,1 waited for it";
  for (const std::size_t waiter : {std::size_t{0}, std::size_t{1}}) {
    const auto error = ranks.outcomes[waiter].find("error timeout");
    ASSERT_TRUE(error) << ranks.transcript();
    EXPECT_NE(error->text.find(expected), std::string::npos) << error->text;
  }
}

/// A rank that was stopped, say. Its own timeout is too short to exclude that the failure in the
/// store is that of an earlier job.
TEST(RendezvousProcess, ARankThatComesTooLateGetsTheReasonOfTheOthers) {
  Ranks ranks(2, [](Rank& rank) {
    auto store = rank.store("world");
    while (rank.rank == 1 && !store->get("secret", 5s).starts_with("failed"))
      std::this_thread::sleep_for(10ms);
    rank.join("world", 1s);
  });
  ranks.finish();
  const auto error = ranks.outcomes[1].find("error timeout");
  ASSERT_TRUE(error) << ranks.transcript();
  EXPECT_NE(error->text.find("rank 1 never joined; rank 0 waited for it; rank 0 has published no "
                             "secret since"),
            std::string::npos)
      << error->text;
}

TEST(RendezvousProcess, NoKeyIsLeftInTheStore) {
  const std::string directory = "/tmp/tccl-keys-" + std::to_string(::getpid());
  Ranks ranks(3, [&](Rank& rank) {
    auto store = tccl::file_store(directory);
    auto comm = tccl::Communicator::create(rank.context(), *store, rank.rank, 3, {.timeout = 10s});
    comm->run(tccl::barrier());
    check(count_entries(directory.c_str()) == 0, "the store is empty");
  });
  ranks.expect_all_exit_cleanly();
  std::filesystem::remove_all(directory);
}

/// Rank 2 is killed while rank 0 and rank 2 wait for rank 1, which never joins.
void kill_rank_2_during_rendezvous(bool rank_2_coordinates) {
  const double start = now_ms();
  Ranks ranks(3, [&](Rank& rank) {
    auto store = rank.store("world");
    if (rank.rank == 1) {
      const tccl::StoreClient client = client_of(*store);
      for (const int other : {0, 2}) await_waiting(client, other);
      return kill_joined_rank(client, 2);
    }
    // The first call is before this rank tries to become the coordinator: the other one is then.
    const auto await_coordinator = [&, late = rank_2_coordinates == (rank.rank == 0)]() mutable {
      if (std::exchange(late, false)) await_waiting(client_of(*store), 2 - rank.rank);
    };
    auto context = tccl::Context::create({.check_interrupt = await_coordinator});
    auto comm = tccl::Communicator::create(context, *store, rank.rank, 3, {.timeout = 20s});
  });
  ranks.finish();
  const auto error = ranks.outcomes[0].find("error peer_lost");
  ASSERT_TRUE(error) << ranks.transcript();
  EXPECT_NE(error->text.find("rank 2 (host"), std::string::npos) << error->text;
  EXPECT_EQ(error->text.find("coordinator") != std::string::npos, rank_2_coordinates)
      << error->text;
  EXPECT_LT(error->time_ms - start, 10'000) << "only at the timeout: " << error->text;
}

TEST(RendezvousProcess, ARankThatDiesBeforeTheGroupIsFormedIsNamed) {
  kill_rank_2_during_rendezvous(/*rank_2_coordinates=*/false);
}

TEST(RendezvousProcess, ACoordinatorThatDiesBeforeTheGroupIsFormedIsNamed) {
  kill_rank_2_during_rendezvous(/*rank_2_coordinates=*/true);
}

/// Every rank but `except` fails with an error that contains all `parts`, long before the timeout.
void expect_others_fail_with(Ranks& ranks, std::size_t except, const std::string& code,
                             const std::vector<std::string>& parts) {
  for (std::size_t r = 0; r < ranks.outcomes.size(); ++r) {
    if (r == except) continue;
    const auto start = ranks.outcomes[r].find("start");
    const auto error = ranks.outcomes[r].find("error " + code);
    ASSERT_TRUE(start && error) << ranks.transcript();
    for (const std::string& part : parts)
      EXPECT_NE(error->text.find(part), std::string::npos) << part << "\n" << error->text;
    EXPECT_LT(error->time_ms - start->time_ms, 5000) << "the goal is 100 ms: " << error->text;
  }
}

/// It has left its process in the store, but has no connection to another rank yet.
TEST(RendezvousProcess, ARankThatDiesBeforeItsHandshakeIsNamed) {
  Ranks ranks(4, [](Rank& rank) {
    rank.report("start");
    if (rank.rank == 2) {
      auto store = rank.store("world");
      tccl::publish_joined(client_of(*store), 2);
      ::raise(SIGKILL);
    }
    rank.join("world", 20s);
  });
  ranks.finish();
  expect_others_fail_with(
      ranks, 2, "peer_lost",
      {"init of group world: rank 2 (host ", "pid " + std::to_string(ranks.outcomes[2].pid),
       "ended before the group was formed (Connection closed by peer)"});
}

/// Rank 2 stops itself. The others name it when they time out.
void expect_stopped_rank_2_named(const std::function<void(Rank&)>& stop) {
  Ranks ranks(3, [=](Rank& rank) {
    if (rank.rank == 2) return stop(rank);
    auto store = rank.store("world");
    // The first call is before this rank tries to become the coordinator: rank 2 is then.
    const auto await_stopped = [&, waited = false]() mutable {
      if (std::exchange(waited, true)) return;
      const tccl::StoreClient client = client_of(*store);
      while (!tccl::read_join_record(client, 2).identity.is_stopped())
        std::this_thread::sleep_for(1ms);
    };
    auto context = tccl::Context::create({.check_interrupt = await_stopped});
    tccl::Communicator::create(context, *store, rank.rank, 3, {.name = "world", .timeout = 2s});
  });
  ranks.finish(40s, /*except=*/2);
  const std::string expected =
      "rank 2 (host " + tccl::host_name() + ", pid " + std::to_string(ranks.outcomes[2].pid) + ")";
  for (const std::size_t waiter : {0U, 1U}) {
    const auto error = ranks.outcomes[waiter].find("error timeout");
    ASSERT_TRUE(error) << ranks.transcript();
    for (const std::string& part : {expected, std::string(" is stalled"),
                                    std::string("init of group world timed out after 2.0 s: ")})
      EXPECT_NE(error->text.find(part), std::string::npos) << error->text;
    EXPECT_EQ(error->text.find("rank " + std::to_string(waiter) + " (host"), std::string::npos)
        << error->text;
  }
}

/// The first check of interrupts is before this rank becomes the coordinator, the second when it is.
void stop_as_coordinator(Rank& rank) {
  auto store = rank.store("world");
  static_cast<void>(store->get("secret", 20s));  // a wait for it would check, too
  auto stop_in_second_call = [calls = 0]() mutable {
    if (++calls == 2) ::raise(SIGSTOP);
  };
  auto context = tccl::Context::create({.check_interrupt = stop_in_second_call});
  tccl::Communicator::create(context, *store, rank.rank, 3, {.timeout = 20s});
}

TEST(RendezvousProcess, ARankThatIsStoppedAfterItsBindIsNamed) {
  expect_stopped_rank_2_named([](Rank& rank) {
    auto store = rank.store("world");
    const std::string name = tccl::rendezvous_socket_name(store->get("secret", 20s).substr(0, 64));
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const tccl::Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    check(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0, "bind");
    tccl::publish_joined(client_of(*store), 2);
    ::raise(SIGSTOP);
  });
}

TEST(RendezvousProcess, ACoordinatorThatIsStoppedBeforeTheHandshakesIsNamed) {
  expect_stopped_rank_2_named(stop_as_coordinator);
}

TEST(RendezvousProcess, ARankThatCannotStartTellsTheOthersWhy) {
  for (const int failing : {0, 2}) {
    Ranks ranks(3, [&](Rank& rank) {
      rank.report("start");
      if (rank.rank == failing)
        return tccl::Communicator::report_failed_start(*rank.store("world"), failing, 3,
                                                       {.timeout = 20s}, "no memory is left");
      if (rank.rank == 1) std::this_thread::sleep_for(500ms);
      rank.join("world", 20s);
    });
    ranks.finish();
    expect_others_fail_with(ranks, static_cast<std::size_t>(failing), "system",
                            {"init of group world: rank " + std::to_string(failing) + " (host ",
                             "could not start: no memory is left"});
  }
}

TEST(RendezvousProcess, AfterAFailureLateRanksFailTooAndTheStoreCanBeUsedAgain) {
  Ranks ranks(3, [](Rank& rank) {
    if (rank.rank == 2) std::this_thread::sleep_for(700ms);
    rank.report("start");
    try {
      if (rank.rank == 1) {
        tccl::Communicator::report_failed_start(*rank.store("world"), 1, 3, {}, "a test");
        rank.report("error system (not asked for)");
      } else {
        rank.join("world", 20s);
      }
    } catch (const tccl::Error& error) {
      rank.report("error system " + std::string(error.what()));
    }
    if (rank.rank != 2) std::this_thread::sleep_for(6s);  // rank 2 is late, and waits a little
    for (int attempt = 0;; ++attempt) try {
        return rank.join("world", 20s)->run(tccl::barrier());
      } catch (const tccl::Error&) {
        if (attempt == 20) throw;
        std::this_thread::sleep_for(100ms);
      }
  });
  ranks.expect_all_exit_cleanly();
  expect_others_fail_with(ranks, 1, "system", {"rank 1 (host ", "could not start: a test"});
}

/// Rank 1 calls `be_lost` instead of joining a group of ranks 0, 1 and 2.
void expect_lost_rank_is_named(const std::function<void(Rank&, tccl::Communicator&)>& be_lost) {
  Ranks ranks(4, [&](Rank& rank) {
    auto world = rank.join("world", 20s);
    world->run(tccl::barrier());
    if (rank.rank == 1) return be_lost(rank, *world);
    if (rank.rank == 3) return;  // not in the new group
    std::this_thread::sleep_for(300ms);
    rank.report("start");
    const int members[] = {1, 0, 2};  // the lost rank would be rank 0
    const auto own = static_cast<int>(std::ranges::find(members, rank.rank) - members);
    try {
      tccl::Communicator::create(rank.context(), *rank.store("tp"), own, 3,
                                 {.name = "tp",
                                  .timeout = 20s,
                                  .parent = world,
                                  .ranks_in_parent = {members, members + 3}});
    } catch (...) {
      rank.store("noticed")->set(std::to_string(rank.rank), "");
      throw;
    }
  });
  ranks.finish();
  for (const std::size_t survivor : {std::size_t{0}, std::size_t{2}}) {
    const auto start = ranks.outcomes[survivor].find("start");
    const auto error = ranks.outcomes[survivor].find("error peer_lost");
    ASSERT_TRUE(start && error) << ranks.transcript();
    EXPECT_NE(error->text.find("init of group tp: rank 0, which is rank 1 (host "),
              std::string::npos)
        << error->text;
    EXPECT_LT(error->time_ms - start->time_ms, 5000);
  }
}

TEST(RendezvousProcess, ARankThatDiedBeforeItJoinsANewGroupIsNamed) {
  expect_lost_rank_is_named([](Rank&, tccl::Communicator&) { ::raise(SIGKILL); });
}

/// The end of a process, of an interpreter that has loaded torch, say, may take seconds.
TEST(RendezvousProcess, ARankThatLeftBeforeItJoinsANewGroupIsNamed) {
  expect_lost_rank_is_named([](Rank& rank, tccl::Communicator& world) {
    world.close();
    for (const char* other : {"0", "2"}) rank.store("noticed")->get(other, 15s);
  });
}

/// Rank 1 is stopped, and rank 2 waits for it in the group of all ranks: rank 0, alone in the new
/// group, names rank 1 only. `members`: the ranks of the new group, in its order.
void expect_stalled_member_named(const std::vector<int>& members) {
  Ranks ranks(3, [&](Rank& rank) {
    auto world = rank.join("world", 6s);
    world->run(tccl::barrier());
    if (rank.rank == 1) ::raise(SIGSTOP);
    if (rank.rank == 2) world->run(tccl::barrier());
    const auto own = static_cast<int>(std::ranges::find(members, rank.rank) - members.begin());
    tccl::Communicator::create(
        rank.context(), *rank.store("tp"), own, 3,
        {.name = "tp", .timeout = 1s, .parent = world, .ranks_in_parent = members});
  });
  ranks.finish(40s, /*except=*/1);
  const auto error = ranks.outcomes[0].find("error timeout");
  ASSERT_TRUE(error) << ranks.transcript();
  const std::string& text = error->text;
  const auto stalled = std::ranges::find(members, 1) - members.begin();
  for (const std::string& part :
       {"init of group tp timed out after 1.0 s: rank " + std::to_string(stalled) +
            ", which is rank 1 (host ",
        std::string(" of group world, is stalled and never joined; other ranks may be waiting for "
                    "it")})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(text.find("rank 2"), std::string::npos) << text;
}

TEST(RendezvousProcess, AStalledMemberOfANewGroupIsNamedAndNotTheRankThatWaitsForIt) {
  expect_stalled_member_named({0, 1, 2});
}

TEST(RendezvousProcess, AStalledRankZeroOfANewGroupIsNamed) {
  expect_stalled_member_named({1, 0, 2});
}

void refuse_rank_of_another_user(bool it_coordinates) {
  const std::uint16_t port = free_port();
  Ranks ranks(2, [&](Rank& rank) {
    auto store = tccl::tcp_store("127.0.0.1", port, rank.rank == 0, 10s);
    if (rank.rank == 1) check(::setuid(65534) == 0, "setuid");
    // The first call is before this rank tries to become the coordinator.
    const auto be_late = [late = it_coordinates == (rank.rank == 0)]() mutable {
      if (std::exchange(late, false)) std::this_thread::sleep_for(500ms);
    };
    auto context = tccl::Context::create({.check_interrupt = be_late});
    try {
      tccl::Communicator::create(context, *store, rank.rank, 2, {.name = "world", .timeout = 10s});
    } catch (...) {
      if (rank.rank == 0) std::this_thread::sleep_for(500ms);  // serve the store
      throw;
    }
  });
  ranks.finish();
  for (const Outcome& outcome : ranks.outcomes) {
    const auto error = outcome.find("error invalid_argument");
    ASSERT_TRUE(error) << ranks.transcript();
    EXPECT_NE(error->text.find("init of group world: rank "), std::string::npos) << error->text;
    EXPECT_NE(error->text.find("all ranks of a host must belong to one user"), std::string::npos)
        << error->text;
  }
}

/// Any user of the host can read the secret in a store such as torch's TCPStore.
TEST(RendezvousProcess, ARankOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  refuse_rank_of_another_user(/*it_coordinates=*/false);
  refuse_rank_of_another_user(/*it_coordinates=*/true);
}

long resident_kib() {
  std::string word;
  long kib = 0;
  for (std::ifstream status("/proc/self/status"); status >> word;)
    if (word == "VmRSS:") status >> kib;
  return kib;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr long kAllowedGrowthKib = 256 << 10;  // ASan keeps freed memory in quarantine
#else
constexpr long kAllowedGrowthKib = 2 << 10;
#endif

TEST(RendezvousProcess, ManyGroupsLeakNothing) {
  Ranks ranks(3, [](Rank& rank) {
    auto world = rank.join("world");
    const auto use = [&](int i) {
      auto joined = rank.join("joined" + std::to_string(i));
      auto split = world->split(i % 2, rank.rank, {.name = "split"});
      float x[1000] = {1};
      for (const auto& group : {joined, split}) {
        group->run(tccl::allreduce(x, x, 1000, DType::float32, ReduceOp::max));
        const auto work = group->start(tccl::send(x, sizeof x, group->rank()));
        group->run(tccl::recv(x, sizeof x, group->rank()));
        work->wait();
      }
      joined->close();
      split->close();
    };
    for (int i = 0; i < 20; ++i) use(i);
    std::this_thread::sleep_for(600ms);  // memory is returned within a few heartbeats
    world->run(tccl::barrier());
    const int descriptors = count_entries("/proc/self/fd");
    const int threads = count_entries("/proc/self/task");
    const long before = resident_kib();
    for (int i = 20; i < 120; ++i) use(i);
    std::this_thread::sleep_for(600ms);
    check(count_entries("/proc/self/fd") < descriptors + 5,
          "descriptors");  // a leak of one per group would be 100
    check(count_entries("/proc/self/task") <= threads, "threads");
    rank.report("grew by " + std::to_string(resident_kib() - before) + " KiB");
    check(resident_kib() - before < kAllowedGrowthKib, "memory");
    world->run(tccl::barrier());
  });
  ranks.expect_all_exit_cleanly(60s);
}

/// If a peer closes with unread packets, Linux reports ECONNRESET before the packets that it sent.
TEST(PacketSocket, PacketsSentBeforeTheCloseAreReceived) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const tccl::Fd here(ends[0]);
  tccl::Fd there(ends[1]);
  tccl::send_packet(here.get(), 1, tccl::Clock::now());  // never read
  tccl::send_packet(there.get(), std::uint64_t{2}, tccl::Clock::now());
  there.reset();
  EXPECT_EQ(tccl::next_packet_bytes(here.get()), sizeof(std::uint64_t));
  EXPECT_EQ(tccl::receive_packet<std::uint64_t>(here.get(), tccl::Clock::now()), 2U);
  EXPECT_EQ(tccl::next_packet_bytes(here.get()), 0U);
}

}  // namespace
}  // namespace faults
