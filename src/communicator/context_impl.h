// ContextImpl: the implementation of tccl::Context. It owns what a process has once: the shared
// memory arena, the worker, pool, progress and monitor threads, the network, and the peers known so
// far.
// Thread safety: every method may be called from any thread.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/cpu_quota.h"
#include "base/fork_hook.h"
#include "base/thread_pool.h"
#include "base/worker_pool.h"
#include "communicator/notice_inbox.h"
#include "communicator/progress_thread.h"
#include "config/settings.h"
#include "health/monitor.h"
#include "planner/algorithm_selector.h"
#include "planner/plan_workers.h"
#include "rendezvous/rendezvous.h"
#include "tccl/context.h"
#include "transport/membership.h"
#include "transport/ofi/network.h"
#include "transport/shm/arena.h"
#include "transport/shm/local_group.h"
#include "transport/shm/tensor_heap.h"

namespace tccl {

class CommunicatorImpl;

class ContextImpl final : public Context {
 public:
  explicit ContextImpl(Options options);
  ~ContextImpl() override;

  std::shared_ptr<void> allocate(std::size_t bytes) override;
  [[nodiscard]] std::size_t staging_bytes() const noexcept override {
    return settings_.staging_bytes;
  }
  using Context::close;
  void close(std::chrono::milliseconds wait_for_operations) noexcept override;

  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }
  [[nodiscard]] const AlgorithmSelector& algorithms() const noexcept { return algorithms_; }
  [[nodiscard]] const std::function<void()>& check_interrupt() const noexcept {
    return options_.check_interrupt;
  }
  [[nodiscard]] shm::Arena& arena() noexcept { return *arena_; }
  [[nodiscard]] shm::TensorHeap& heap() noexcept { return *heap_; }
  [[nodiscard]] ThreadPool& thread_pool() noexcept { return *thread_pool_; }
  [[nodiscard]] ProgressThread& progress_thread() noexcept { return *progress_thread_; }
  /// Called with every group that a rendezvous built. The first one reports on the environment and
  /// makes the workers: it knows the rank of this process and how many ranks this host has. Every
  /// one updates is_oversubscribed_, for backoff().
  void on_group_built(const Membership& membership, const CpuSharing& sharing);
  [[nodiscard]] BackoffPolicy backoff() const noexcept;
  [[nodiscard]] WorkerPool& workers() const noexcept { return *workers_; }
  [[nodiscard]] bool forked() const noexcept { return forked_.load(std::memory_order_relaxed); }
  /// Throws if this is a forked child or the context is closed.
  void check_usable() const;

  // --- rendezvous ---
  /// The PeerInfo of this process, without rank, region and network.
  [[nodiscard]] PeerInfo peer_info() const;
  [[nodiscard]] int process_fd() const noexcept { return pidfd_.get(); }
  /// See RendezvousOptions::last_failed_attempt.
  [[nodiscard]] std::string last_failed_attempt() {
    const std::lock_guard lock(mutex_);
    return last_failed_attempt_;
  }
  void set_last_failed_attempt(std::string attempt) {
    const std::lock_guard lock(mutex_);
    last_failed_attempt_ = std::move(attempt);
  }
  /// Maps the memory of a process of this host and watches it, unless that was done before.
  std::shared_ptr<LocalProcess> add_local_process(const LocalPeer& local_peer);
  /// Addresses by which other hosts may reach this one; the one in use, once the network is open.
  /// `store_host` is the host of the group's store, if known.
  AddressOffer offer_addresses(const std::string& store_host);
  /// Adds the network addresses to a PeerInfo. Opens the network at `address` on the first call.
  void add_network_info(PeerInfo& own, const std::string& address, std::uint64_t group_uid);
  /// Only after add_network_info().
  [[nodiscard]] ofi::Network& network() noexcept { return *network_; }
  struct RemoteAddress {
    std::shared_ptr<RemoteProcess> process;
    fi_addr_t fi_addr;
  };
  RemoteAddress add_remote_process(const PeerInfo& info, const std::string& secret);
  /// Accepts processes of other hosts that know the secret, until the last copy is gone: a group's
  /// and those of the groups that were split from it. Only after add_network_info(); the context
  /// must outlive it.
  std::shared_ptr<const void> accept_secret(const std::string& secret);

  // --- groups ---
  void add_communicator(const std::shared_ptr<CommunicatorImpl>& communicator);
  /// Delivers notices of other hosts to this group, also those that came before.
  void listen_for_notices(const std::shared_ptr<Membership>& membership) {
    inbox_->add_group(membership);
  }
  /// The answer to ranks of other hosts that subscribe to a group from which this process has
  /// departed.
  void record_departure(const Notice& departure) { inbox_->record_departure(departure); }
  /// Frees the memory of a closed group once no peer can access it any more.
  void defer_free(std::shared_ptr<shm::LocalGroup> group) noexcept;

 private:
  [[nodiscard]] std::vector<std::shared_ptr<CommunicatorImpl>> open_communicators();
  void close_in_child() noexcept;
  void open_network(const std::string& address);
  void on_heartbeat() noexcept;
  void run_deferred_frees() noexcept;
  void handle_notice(const std::shared_ptr<RemoteProcess>& from, const Notice& notice) noexcept;
  [[nodiscard]] ProcessPage& process_page() const;

  /// Guards the making of workers_, and peers_, communicators_, deferred_frees_ and
  /// last_failed_attempt_.
  std::mutex mutex_;
  Options options_;
  Settings settings_;
  AlgorithmSelector algorithms_;
  std::vector<int> cpus_;  // that this process may use
  CpuQuota cpu_quota_;     // of this process
  std::shared_ptr<shm::Arena> arena_;
  std::shared_ptr<shm::TensorHeap> heap_;  // in the arena
  std::shared_ptr<LocalProcess> self_;
  Fd pidfd_;  // of this process
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<ThreadPool> thread_pool_;
  std::unique_ptr<ProgressThread> progress_thread_;
  /// Before monitor_ and network_: the monitor thread delivers notices to it.
  std::unique_ptr<NoticeInbox> inbox_;
  std::unique_ptr<Monitor> monitor_;
  std::mutex network_mutex_;  // guards the making of network_, and fi_addrs_
  std::unique_ptr<ofi::Network> network_;
  std::map<Bytes32, fi_addr_t> fi_addrs_;       // by memory_id
  std::atomic<bool> is_oversubscribed_{false};  // in any group; relaxed: a hint
  std::atomic<bool> forked_{false};             // relaxed: set before the child runs anything else
  std::atomic<bool> closed_{false};  // relaxed: each part that close() stops has its own lock
  std::map<Bytes32, std::weak_ptr<LocalProcess>> peers_;
  std::vector<std::weak_ptr<CommunicatorImpl>> communicators_;
  std::list<std::shared_ptr<shm::LocalGroup>> deferred_frees_;
  std::string last_failed_attempt_;
  std::unique_ptr<ForkHook> fork_hook_;  // last: it uses all of the above
};

}  // namespace tccl
