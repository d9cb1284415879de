// What the other ranks get when the coordinator of their host fails, with threads as the ranks.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <future>
#include <stdexcept>
#include <thread>

#include "base/unix_socket.h"
#include "memory_store.h"
#include "rendezvous/join_record.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/secret.h"

namespace tccl {
namespace {

using namespace std::chrono_literals;

/// Like another store until it breaks.
class BreakableStore final : public Store {
 public:
  explicit BreakableStore(Store& store) : store_(store) {}
  void set(const std::string& key, std::string_view value) override { store_.set(key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    if (broken) throw std::runtime_error("the store is gone");
    return store_.get(key, timeout);
  }
  void remove(const std::string& key) override { store_.remove(key); }

  std::atomic<bool> broken{false};

 private:
  Store& store_;
};

/// Rank 0 coordinates. Rank 1 has joined it; rank 2 never does, so both wait.
class CoordinatorFailure : public ::testing::Test {
 protected:
  RendezvousOptions options_of(int rank, Store& store) const {
    return {.store = &store,
            .group = "world",
            .secret = "secret of process " + std::to_string(::getpid()),
            .rank = rank,
            .size = 3,
            .timeout = 20s,
            .deadline = deadline_after(20s),
            .make_peer_info = [](const std::string&) { return PeerInfo(); },
            .apply_roster = [](const Roster&) {}};
  }

  std::string error_of(const RendezvousOptions& options) const {
    try {
      rendezvous(options, memory_.get(), -1);
      return "none";
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  /// Returns the error of rank 1. `fail` is called when both ranks wait.
  std::string error_of_member(const RendezvousOptions& coordinator,
                              const std::function<void()>& fail) {
    auto rank_0 = std::async(std::launch::async, [&] { return error_of(coordinator); });
    while (!connect_to(rendezvous_socket_name(coordinator.secret)))
      std::this_thread::sleep_for(1ms);
    auto rank_1 =
        std::async(std::launch::async, [&] { return error_of(options_of(1, shared_store_)); });
    while (!read_join_record(shared_store_, 1).waiting) std::this_thread::sleep_for(1ms);
    fail();
    coordinator_error_ = rank_0.get();
    return rank_1.get();
  }

  MemoryStore shared_store_;
  Fd memory_{::memfd_create("coordinator_failure_test", MFD_CLOEXEC)};
  std::string coordinator_error_;
  const std::string rank_0_ = "init of group world: rank 0 (host " + host_name() + ", pid " +
                              std::to_string(::getpid()) + ") ";
};

TEST_F(CoordinatorFailure, OfItsStoreIsReportedWithTheReason) {
  BreakableStore store(shared_store_);
  EXPECT_EQ(error_of_member(options_of(0, store), [&] { store.broken = true; }),
            rank_0_ + "failed before the group was formed: the store is gone");
}

TEST_F(CoordinatorFailure, ByAnInterruptIsReportedAsAnInterrupt) {
  std::atomic<bool> signalled{false};
  RendezvousOptions options = options_of(0, shared_store_);
  options.check_interrupt = [&] {
    if (signalled) throw std::runtime_error("KeyboardInterrupt");
  };
  EXPECT_EQ(error_of_member(options, [&] { signalled = true; }),
            rank_0_ + "was interrupted before the group was formed");
  EXPECT_EQ(coordinator_error_, "KeyboardInterrupt");
}

}  // namespace
}  // namespace tccl
