// How a rendezvous over several hosts notices that a process has ended: rank 0 accepts one TCP
// connection from the coordinator of every other host. While the group is formed, nothing is sent
// over it but a farewell at the end; a connection that closes without one belongs to a process that
// has ended. A host that cannot connect (a firewall) forms the group all the same.
//
//   Fd listener = listen_for_exit_watch(offer);                    // rank 0, before it publishes
//   ExitWatchServer server(options, std::move(listener));          // rank 0: publishes the failure
//   ExitWatchClient client(options);                               // the coordinator of another host
//   if (client.rank_zero_has_ended()) ...
//
// Thread safety: the constructors and destructors are for one thread; each object has a thread of
// its own.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/challenge_response.h"
#include "base/clock.h"
#include "base/fd.h"
#include "rendezvous/rendezvous.h"

namespace tccl {

/// Invalid if this host has no address that others can reach, or no descriptor is left.
Fd listen_for_exit_watch(const AddressOffer& offer) noexcept;

class ExitWatchServer {
 public:
  /// `options` must outlive the server.
  ExitWatchServer(const RendezvousOptions& options, Fd listener);
  ~ExitWatchServer();
  ExitWatchServer(const ExitWatchServer&) = delete;
  ExitWatchServer& operator=(const ExitWatchServer&) = delete;

 private:
  struct Connection {
    Fd socket;
    Challenge challenge;
    Deadline prove_until;
    int rank = -1;        // known once it has proved that it knows the secret
    std::string process;  // "host b, pid 4711"
  };
  void main();
  void accept_one();
  void serve(Connection& connection);
  void authenticate(Connection& connection);
  void publish_end_of(const Connection& connection) const;
  [[nodiscard]] Deadline next_deadline() const;

  const RendezvousOptions& options_;
  Fd listener_;
  Fd stop_;
  std::vector<Connection> connections_;  // used by the thread only, until it has been joined
  std::thread thread_;
};

class ExitWatchClient {
 public:
  /// Connects to options.rank_zero.watch_address on a thread of its own.
  explicit ExitWatchClient(const RendezvousOptions& options);
  ~ExitWatchClient();
  ExitWatchClient(const ExitWatchClient&) = delete;
  ExitWatchClient& operator=(const ExitWatchClient&) = delete;

  [[nodiscard]] bool rank_zero_has_ended() const {
    return rank_zero_has_ended_.load(std::memory_order_relaxed);  // a hint for polling loops
  }

 private:
  void main();
  [[nodiscard]] Fd connect() const;
  [[nodiscard]] bool wait_for(int socket, short event) const;
  [[nodiscard]] bool is_over_within(std::chrono::milliseconds time) const;
  [[nodiscard]] std::optional<Challenge> receive_challenge(int socket) const;
  [[nodiscard]] bool authenticate(int socket, const Challenge& challenge) const;
  void watch(int socket);

  const WatchAddress address_;
  const std::string secret_;
  const int rank_;
  Fd stop_;
  std::atomic<bool> rank_zero_has_ended_{false};
  std::thread thread_;
};

}  // namespace tccl
