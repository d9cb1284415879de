// Who may come to the meeting of a group, and what is left of it afterwards.
#include <sys/socket.h>

#include <fstream>

#include "base/crypto.h"
#include "base/unix_socket.h"
#include "harness.h"

namespace faults {
namespace {

std::string meeting_name(const std::string& secret) {
  const tccl::Digest digest = tccl::hmac_sha256(secret, "meeting point");
  return "tccl-" + tccl::to_hex(std::span(digest).first(16));
}

TEST(MeetingProcess, StrangersAreDroppedAndTheGroupForms) {
  Ranks ranks(2, [](Rank& rank) {
    auto store = tccl::file_store("/tmp/tccl-strangers-" + std::to_string(::getppid()));
    if (rank.rank == 1) {
      // What follows in the key serves to compare.
      const std::string name = meeting_name(store->get("secret", 5s).substr(0, 64));
      tccl::Fd silent;
      tccl::Fd liar;
      while (!silent) silent = tccl::connect_to(name);
      while (!liar) liar = tccl::connect_to(name);
      tccl::send_packet(liar.get(), std::array<char, 64>{},
                        tccl::deadline_after(1s));  // the size of an answer, no proof in it
      std::this_thread::sleep_for(100ms);
      char byte = 0;
      check(tccl::wait_readable(liar.get(), tccl::deadline_after(1s)), "a challenge came");
      check(::recv(liar.get(), &byte, 1, 0) > 0, "the challenge");
      check(::recv(liar.get(), &byte, 1, 0) == 0, "the liar was dropped");
    }
    auto comm = tccl::Communicator::create(rank.context(), *store, rank.rank, 2, {.timeout = 10s});
    comm->run(tccl::barrier());
  });
  ranks.expect_all_exit_cleanly();
  std::filesystem::remove_all("/tmp/tccl-strangers-" + std::to_string(::getpid()));
}

struct UntouchableStore final : tccl::Store {
  void set(const std::string&, std::string_view) override { throw std::logic_error("set"); }
  std::string get(const std::string&, std::chrono::milliseconds) override {
    throw std::logic_error("get");
  }
  void remove(const std::string&) override { throw std::logic_error("remove"); }
};

// torch's new_subgroups() makes groups of one rank that share their keys: if one removes what
// another has just written, that one waits until the timeout.
TEST(MeetingProcess, RankAloneLeavesTheStoreAlone) {
  Ranks ranks(1, [](Rank& rank) {
    UntouchableStore store;
    auto comm = tccl::Communicator::create(rank.context(), store, 0, 1, {.timeout = 10s});
    comm->run(tccl::barrier());
  });
  ranks.expect_all_exit_cleanly();
}

TEST(MeetingProcess, RankThatNeverComesIsNamed) {
  Ranks ranks(3, [](Rank& rank) {
    if (rank.rank == 1) return;
    rank.join("world", 1s);
  });
  ranks.finish();
  for (const int r : {0, 2}) {
    const auto error = ranks.outcomes[static_cast<std::size_t>(r)].find("error timeout");
    ASSERT_TRUE(error) << ranks.transcript();
    EXPECT_NE(error->text.find("rank 1 did not arrive in time"), std::string::npos) << error->text;
  }
}

TEST(MeetingProcess, RankThatDiesWhileTheGroupFormsIsNamed) {
  Ranks ranks(3, [](Rank& rank) {
    if (rank.rank == 0) std::this_thread::sleep_for(300ms);  // keeps the others waiting
    if (rank.rank == 2) {
      std::this_thread::sleep_for(100ms);
      std::thread([] {
        std::this_thread::sleep_for(100ms);
        ::kill(::getpid(), SIGKILL);
      }).detach();
    }
    rank.join("world", 5s);
  });
  ranks.finish();
  const auto error = ranks.outcomes[1].find("error peer_lost");
  ASSERT_TRUE(error || ranks.outcomes[1].find("error timeout")) << ranks.transcript();
  if (error) {
    EXPECT_NE(error->text.find("rank 2"), std::string::npos) << error->text;
  }
}

long resident_kib() {
  std::string word;
  long kib = 0;
  for (std::ifstream status("/proc/self/status"); status >> word;)
    if (word == "VmRSS:") status >> kib;
  return kib;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr long kAllowedGrowthKib = 256 << 10;  // freed memory is kept in quarantine
#else
constexpr long kAllowedGrowthKib = 2 << 10;
#endif

TEST(MeetingProcess, ManyGroupsLeaveNothingBehind) {
  Ranks ranks(3, [](Rank& rank) {
    auto world = rank.join("world");
    const auto use = [&](int i) {
      auto met = rank.join("met" + std::to_string(i));
      auto split = world->split(i % 2, rank.rank, {.name = "split"});
      float x[1000] = {1};
      for (const auto& group : {met, split}) {
        group->run(tccl::allreduce(x, x, 1000, DType::float32, ReduceOp::max));
        const auto work = group->start(tccl::send(x, sizeof x, group->rank()));
        group->run(tccl::recv(x, sizeof x, group->rank()));
        work->wait();
      }
      met->close();
      split->close();
    };
    for (int i = 0; i < 20; ++i) use(i);
    std::this_thread::sleep_for(600ms);  // memory is given back within a few heartbeats
    world->run(tccl::barrier());
    const int descriptors = count_entries("/proc/self/fd");
    const int threads = count_entries("/proc/self/task");
    const long before = resident_kib();
    for (int i = 20; i < 120; ++i) use(i);
    std::this_thread::sleep_for(600ms);
    check(count_entries("/proc/self/fd") < descriptors + 5, "descriptors");  // a leak makes 100
    check(count_entries("/proc/self/task") <= threads, "threads");
    rank.say("grew by " + std::to_string(resident_kib() - before) + " KiB");
    check(resident_kib() - before < kAllowedGrowthKib, "memory");
    world->run(tccl::barrier());
  });
  ranks.expect_all_exit_cleanly(60s);
}

/// Linux reports a peer that closed without having read everything before what that peer said.
TEST(PacketSocket, WhatWasSaidBeforeTheEndIsRead) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const tccl::Fd here(ends[0]);
  tccl::Fd there(ends[1]);
  tccl::send_packet(here.get(), 1, tccl::Clock::now());  // never read
  tccl::send_packet(there.get(), std::uint64_t{2}, tccl::Clock::now());
  there.reset();
  EXPECT_EQ(tccl::length_of_next_packet(here.get()), sizeof(std::uint64_t));
  EXPECT_EQ(tccl::receive_packet<std::uint64_t>(here.get(), tccl::Clock::now()), 2U);
  EXPECT_EQ(tccl::length_of_next_packet(here.get()), 0U);
}

}  // namespace
}  // namespace faults
