// The one owner of everything that a process has once: see include/tccl/communicator.h.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fork_hook.h"
#include "base/thread_pool.h"
#include "base/worker_pool.h"
#include "communicator/progress.h"
#include "config/settings.h"
#include "health/monitor.h"
#include "planner/algorithm_selector.h"
#include "rendezvous/rendezvous.h"
#include "tccl/communicator.h"
#include "transport/members.h"
#include "transport/ofi/network.h"
#include "transport/shm/arena.h"
#include "transport/shm/group.h"
#include "transport/shm/heap.h"

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
  void close() noexcept override;

  [[nodiscard]] const Settings& settings() const noexcept { return settings_; }
  [[nodiscard]] const AlgorithmSelector& algorithms() const noexcept { return algorithms_; }
  [[nodiscard]] const std::function<void()>& poll_interrupt() const noexcept {
    return options_.poll_interrupt;
  }
  [[nodiscard]] shm::Arena& arena() noexcept { return *arena_; }
  [[nodiscard]] shm::Heap& heap() noexcept { return *heap_; }
  [[nodiscard]] ThreadPool& thread_pool() noexcept { return *thread_pool_; }
  [[nodiscard]] Progress& progress() noexcept { return *progress_; }
  /// Made by the first group, which knows how many ranks there are on this host.
  void make_workers(int local_rank, int local_ranks, int sharing);
  /// For waits of this process.
  [[nodiscard]] BackoffPolicy backoff() const noexcept;
  [[nodiscard]] WorkerPool& workers() const noexcept { return *workers_; }
  [[nodiscard]] bool forked() const noexcept { return forked_.load(std::memory_order_relaxed); }
  /// Throws if this is a forked child or the context is closed.
  void require_usable() const;

  /// This context's peer_info to a group, but for the rank and the region.
  [[nodiscard]] PeerInfo peer_info() const;
  [[nodiscard]] int process_fd() const noexcept { return pidfd_.get(); }
  /// The process behind an peer_info, mapped now if it was not known yet.
  std::shared_ptr<LocalProcess> add_peer(const LocalPeer& local_peer);

  /// By which other hosts may reach this one: the one in use, once there is one. `store_host` is
  /// where the group's store is, if that is known.
  AddressOffer offer_addresses(const std::string& store_host);
  /// Adds to an peer_info what other hosts need to know, and opens this process's end of the
  /// network, at that address, if it is the first.
  void add_network_info(PeerInfo& own, const std::string& address);
  /// Once it was received_peer_infos.
  [[nodiscard]] ofi::Network& network() noexcept { return *network_; }
  /// A process of another host and how to send to it.
  struct Acquaintance {
    std::shared_ptr<RemoteProcess> peer;
    ofi::Endpoint::Peer address;
  };
  Acquaintance add_peer(const PeerInfo& who, const std::string& secret);

  void remember(const std::shared_ptr<CommunicatorImpl>& communicator);
  /// Passes on what other hosts tell of this group, also what they have told already.
  void listen_for(const std::shared_ptr<Members>& members);
  /// This process has left a group; who asks for it later gets this answer.
  void record_departure(const Notice& departure_notice);
  /// Keeps a closed group's memory until no peer can touch it any more.
  void retire(std::shared_ptr<shm::Group> group) noexcept;

 private:
  void drop_in_child() noexcept;
  void open_network(const std::string& address);
  void tick() noexcept;
  void reclaim_retired() noexcept;
  void take_notice(const std::shared_ptr<RemoteProcess>& from, const Notice& notice) noexcept;
  std::vector<std::shared_ptr<Members>> groups_over_hosts() noexcept;
  std::shared_ptr<Members> group_or_keep(const std::shared_ptr<RemoteProcess>& from,
                                         const Notice& notice) noexcept;
  std::optional<Notice> departure_of(std::uint64_t group) noexcept;
  [[nodiscard]] Heartbeat& heartbeat() const;

  std::mutex mutex_;  // guards the making of workers_, and peers_ and what follows it
  Options options_;
  Settings settings_;
  AlgorithmSelector algorithms_;
  std::vector<int> cores_;  // that this process may use
  std::shared_ptr<shm::Arena> arena_;
  std::shared_ptr<shm::Heap> heap_;  // in the arena
  std::shared_ptr<LocalProcess> self_;
  Fd pidfd_;  // of this process
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<ThreadPool> thread_pool_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Monitor> monitor_;
  std::mutex network_mutex_;  // guards the making of network_, and addresses_
  std::unique_ptr<ofi::Network> network_;
  std::map<Digest, ofi::Endpoint::Peer> addresses_;
  std::atomic<int> most_sharing_{1};  // ranks of one group that may use the same cores as this one
  std::atomic<bool> forked_{false};
  std::atomic<bool> closed_{false};
  std::map<Digest, std::weak_ptr<LocalProcess>> peers_;
  std::vector<std::weak_ptr<CommunicatorImpl>> communicators_;
  std::list<std::shared_ptr<shm::Group>> retired_;
  struct EarlyNotice {
    std::shared_ptr<RemoteProcess> from;
    Notice notice;
  };
  std::vector<std::weak_ptr<Members>> groups_over_hosts_;
  std::map<std::uint64_t, Notice> departed_;  // by group
  std::deque<std::uint64_t> departed_order_;  // the oldest first
  std::deque<EarlyNotice> early_notices_;     // of groups that are not known here, perhaps not yet
  std::unique_ptr<ForkHook> fork_hook_;       // the last to come and the first to go
};

}  // namespace tccl
