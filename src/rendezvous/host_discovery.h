// Which rank is on which host, as all ranks of a group tell each other through the store.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "rendezvous/packets.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/store_collectives.h"

namespace tccl {

/// By rank: the rank that hosts the meeting on its host.
using HostLeaders = std::vector<int>;

/// Keys of one meeting: another one on the same store has another secret.
StoreClient store_client_for(const RendezvousOptions& options, std::function<void()> on_poll);

/// Every rank says who hosts its meeting; the hosts then read where all are.
void publish_host_leader(const StoreClient& store_client, const RendezvousOptions& options,
                         int host_rank);
/// Once all hosts have read it.
void remove_host_leaders(const StoreClient& store_client) noexcept;

/// For ranks that come when the meeting of those before them has failed already, and for hosts that
/// wait for another one.
void publish_failure(const StoreClient& store_client, const Status& status);
void throw_if_failure_published(const StoreClient& store_client);

/// Learns where all ranks are, on a thread of its own: meanwhile the host looks after its
/// connections, who cannot say where they are before they have met it.
class HostDiscovery {
 public:
  explicit HostDiscovery(const RendezvousOptions& options);
  ~HostDiscovery();
  HostDiscovery(const HostDiscovery&) = delete;
  HostDiscovery& operator=(const HostDiscovery&) = delete;

  /// Readable when it is over.
  [[nodiscard]] int fd() const { return done_.get(); }
  [[nodiscard]] bool is_over() const { return over_.load(std::memory_order_acquire); }
  HostLeaders result();

 private:
  void run(const RendezvousOptions& options);

  Fd done_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> over_{false};
  HostLeaders leaders_;
  std::exception_ptr problem_;
  std::thread thread_;
};

}  // namespace tccl
