// What the other ranks get when the coordinator of their host fails, and what the coordinator gets
// when another rank does, with threads as the ranks.
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
#include "rendezvous/host_discovery.h"
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
  void set(const std::string& key, std::string_view value) override {
    if (broken) throw std::runtime_error("the store is gone");
    store_.set(key, value);
  }
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

  static RendezvousOptions interruptible(RendezvousOptions options,
                                         const std::atomic<bool>& signalled) {
    options.check_interrupt = [&signalled] {
      if (signalled) throw std::runtime_error("KeyboardInterrupt");
    };
    return options;
  }

  std::string error_of(const RendezvousOptions& options) const {
    try {
      rendezvous(options, memory_.get(), -1);
      return "none";
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  /// Sets both errors. `fail` is called when both ranks wait.
  void run(const RendezvousOptions& coordinator, const RendezvousOptions& member,
           const std::function<void()>& fail) {
    auto rank_0 = std::async(std::launch::async, [&] { return error_of(coordinator); });
    while (!connect_to(rendezvous_socket_name(coordinator.secret)))
      std::this_thread::sleep_for(1ms);
    auto rank_1 = std::async(std::launch::async, [&] { return error_of(member); });
    const StoreClient client = store_client_for(coordinator, {});
    while (!read_join_record(client, 1).waiting) std::this_thread::sleep_for(1ms);
    fail();
    coordinator_error_ = rank_0.get();
    member_error_ = rank_1.get();
  }

  MemoryStore shared_store_;
  Fd memory_{::memfd_create("coordinator_failure_test", MFD_CLOEXEC)};
  std::string coordinator_error_, member_error_;
  const std::string process_ =
      " (host " + host_name() + ", pid " + std::to_string(::getpid()) + ") ";
  const std::string rank_0_ = "init of group world: rank 0" + process_;
  const std::string rank_1_ = "init of group world: rank 1" + process_;
};

TEST_F(CoordinatorFailure, OfItsStoreIsReportedWithTheReason) {
  BreakableStore store(shared_store_);
  run(options_of(0, store), options_of(1, shared_store_), [&] { store.broken = true; });
  EXPECT_EQ(member_error_, rank_0_ + "failed before the group was formed: the store is gone");
}

TEST_F(CoordinatorFailure, ByAnInterruptIsReportedAsAnInterrupt) {
  std::atomic<bool> signalled{false};
  run(interruptible(options_of(0, shared_store_), signalled), options_of(1, shared_store_),
      [&] { signalled = true; });
  EXPECT_EQ(member_error_, rank_0_ + "was interrupted before the group was formed");
  EXPECT_EQ(coordinator_error_, "KeyboardInterrupt");
}

using MemberFailure = CoordinatorFailure;

TEST_F(MemberFailure, OfItsStoreIsReportedWithTheReason) {
  const RendezvousOptions coordinator = options_of(0, shared_store_);
  auto rank_0 = std::async(std::launch::async, [&] { return error_of(coordinator); });
  while (!connect_to(rendezvous_socket_name(coordinator.secret))) std::this_thread::sleep_for(1ms);
  BreakableStore store(shared_store_);
  store.broken = true;
  const std::string reason = rank_1_ + "failed before the group was formed: the store is gone";
  EXPECT_EQ(error_of(options_of(1, store)), "the store is gone");
  EXPECT_EQ(rank_0.get(), reason);
}

TEST_F(MemberFailure, ByAnInterruptIsReportedAsAnInterrupt) {
  std::atomic<bool> signalled{false};
  run(options_of(0, shared_store_), interruptible(options_of(1, shared_store_), signalled),
      [&] { signalled = true; });
  EXPECT_EQ(coordinator_error_, rank_1_ + "was interrupted before the group was formed");
  EXPECT_EQ(member_error_, "KeyboardInterrupt");
}

}  // namespace
}  // namespace tccl
