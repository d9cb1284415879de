// The agreement between the coordinators of all hosts, in three rounds through the store.
//
//   HostAgreement hosts(options, host_map, while_waiting);
//   std::string address = hosts.agree_on_address();                                 // addresses
//   Roster roster = hosts.exchange_peer_infos([&] { return gather(address); });     // peer infos
//   hosts.commit([&] { distribute(roster); });                                      // status
//
// If the step of one host fails, every host throws that host's error. A host that cannot complete a
// round (interrupted, a local rank died) throws; its coordinator then calls try_publish_failure(),
// which ends the waits of the other hosts, whatever their round. No key is left in the store after
// a successful commit().
// Thread safety: one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "rendezvous/packets.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/store_collectives.h"
#include "topology/host_map.h"

namespace tccl {

enum class Round : unsigned char { addresses, peer_infos, status };
std::string_view name_of(Round round);

class HostAgreement {
 public:
  /// `while_waiting` is called while waiting for other hosts; an exception ends the wait.
  HostAgreement(const RendezvousOptions& options, const HostMap& host_map,
                std::function<void()> while_waiting);

  /// Exchanges AddressOffers; returns the address that this host advertises.
  std::string agree_on_address();

  /// `gather` returns the ranks of this host.
  Roster exchange_peer_infos(FunctionRef<std::vector<LocalPeer>()> gather);

  /// `apply` is this host's last step. Returns if it succeeded on all hosts.
  void commit(FunctionRef<void()> apply);

 private:
  [[nodiscard]] StoreClient client() const;
  template <class Exchange>
  auto in_round(Round round, const Exchange& exchange) const;
  [[nodiscard]] Error round_timeout(Round round, int missing_host) const;
  std::vector<std::string> exchange(Round round, FunctionRef<std::string()> step);
  [[nodiscard]] std::vector<PeerInfo> decode_peer_infos(const std::vector<std::string>& texts,
                                                        const PeerInfo& own) const;
  [[nodiscard]] Status agree_on_status(const Status& own) const;

  const RendezvousOptions& options_;
  const HostMap& host_map_;
  int host_;  // index of this host
  std::function<void()> while_waiting_;
};

}  // namespace tccl
