// Which ranks share a host: every rank publishes in the store which rank coordinates its host, and
// the coordinators read that table.
//
//   HostDiscovery discovery(options);                       // on the coordinator of a host
//   while (!discovery.is_done()) server.poll(discovery.fd());
//   HostMap host_map(discovery.result());
//
// Thread safety: as stated below.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "rendezvous/packets.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/store_collectives.h"

namespace tccl {

/// By rank: the rank that coordinates its host.
using HostCoordinators = std::vector<int>;

/// The keys of one rendezvous: their prefix comes from the secret, so a later one on the same store
/// has other keys.
StoreClient store_client_for(const RendezvousOptions& options,
                             std::function<void(int participant)> while_waiting);

/// Called by every rank: rank 0 gathers the rank that coordinates each rank's host and publishes
/// the table. Waits for the ranks below this one in the tree of the gather.
void gather_host_coordinators(const StoreClient& client, const RendezvousOptions& options,
                              int coordinator_rank);
/// Called once, when the coordinators of all hosts have read the table.
void remove_host_coordinators(const StoreClient& client) noexcept;

/// Throws if the process of this rank, which has not done its part yet, has ended: the error names
/// it. For polling loops that wait for the rank.
void throw_if_ended(const RendezvousOptions& options, int rank);
/// The same without a look at the rank's JoinRecord. Also throws if the process of rank 0 has ended.
void throw_if_known_to_have_ended(const RendezvousOptions& options, int rank);

/// Fails the rendezvous for ranks that join later and for hosts that wait for this one. If the store
/// fails, the other ranks fail at the timeout.
void try_publish_failure(const RendezvousOptions& options, const Status& status) noexcept;
void throw_if_failure_published(const StoreClient& client);

/// Publishes this coordinator and reads the table on a thread of its own, while the caller serves
/// the connections of its host: their ranks can publish only after their handshake. Its methods are
/// for one thread.
class HostDiscovery {
 public:
  explicit HostDiscovery(const RendezvousOptions& options);
  ~HostDiscovery();
  HostDiscovery(const HostDiscovery&) = delete;
  HostDiscovery& operator=(const HostDiscovery&) = delete;

  /// Readable when it is done.
  [[nodiscard]] int fd() const { return done_event_.get(); }
  [[nodiscard]] bool is_done() const {
    return done_.load(std::memory_order_acquire);  // pairs with the release in run()
  }
  /// Throws what the thread threw. Call once, when done.
  HostCoordinators result();

 private:
  void run(const RendezvousOptions& options);

  Fd done_event_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> done_{false};
  HostCoordinators coordinators_;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace tccl
