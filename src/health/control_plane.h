// Control connections between processes of different hosts: heartbeats, notices and departures.
// Data uses other connections. TCP, served by the monitor thread, so it works while no call is
// active.
//
//   acceptor                                connector
//     challenge                       ->
//                                     <-      response (with the connector's identity)
//     confirmation                    ->
//   both: heartbeat every 500 ms, notices, departure
//
// The handshake is base/challenge_response.h with a secret that both processes were given. An
// accepted connection that is not authenticated after 2 s, or sends anything else, is dropped with
// a warning, one per kind and process. Both sides may connect at the same time: then there are two connections,
// and the peer is taken for departed or dead when both are closed. If only one of them breaks, this
// side closes the other a second later: a notice may have been lost.
//
// The parts: PeerTable (known processes and secrets), ConnectionTable (open connections),
// ConnectionDriver (handshake and frames of a connection), Handshake (authentication); ControlPlane
// has the listener, the timer and close().
//
// Thread safety: all methods may be called concurrently; only close() waits. close() makes later
// callbacks return at once and then unregisters them, which waits for a running callback
// (Monitor::unwatch_fd). So the caller of close(), or of the destructor, must hold no lock that
// `on_notice` takes. `on_notice` may call every method but the destructor.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "base/fork_hook.h"
#include "base/tcp_socket.h"
#include "health/connection_driver.h"
#include "health/connection_table.h"
#include "health/deferred_actions.h"
#include "health/monitor.h"
#include "health/peer_table.h"
#include "health/remote_process.h"

namespace tccl {

class ControlPlane {
 public:
  struct Options {
    std::string address;  // of this host, numeric; see choose_address()
    PortRange ports;
    std::chrono::milliseconds liveness_timeout;
    RemoteProcess::Identity self;  // id, host and pid; address and port are filled in
    /// Runs on the monitor thread, without a lock; must neither block nor throw.
    control::OnNotice on_notice;
  };

  /// Listens at once. The monitor must outlive it, but may be stopped before close().
  ControlPlane(Monitor& monitor, Options options);
  ~ControlPlane();

  /// With address and port: what others pass to add_peer().
  [[nodiscard]] const RemoteProcess::Identity& self() const noexcept { return options_.self; }
  [[nodiscard]] std::uint16_t port() const noexcept { return options_.self.port; }

  /// From now on, a process that knows the secret is accepted.
  void add_secret(const std::string& secret);
  /// The groups with this secret are closed: see PeerTable.
  void retire_secret(const std::string& secret);

  /// Returns the same object for the same id as long as the process is alive and the object is in
  /// use. Later connections to it use the secret. Throws Error{invalid_argument} if the address
  /// is not numeric.
  std::shared_ptr<RemoteProcess> add_peer(const RemoteProcess::Identity& identity,
                                          const std::string& secret);
  /// Connects if needed. Notices to one process arrive in order; none is sent to one that has
  /// departed or died. False if there is no memory for the notice: it will not be sent.
  bool send_notice(const std::shared_ptr<RemoteProcess>& process, const Notice& notice) noexcept;

  /// Sends a departure on all connections, and closes them when the other hosts have acknowledged
  /// it, or after a second (on the monitor thread: at once). Idempotent; returns when it is done.
  void close() noexcept;

 private:
  enum class Phase : std::uint8_t { open, closing, closed, forked };
  using Actions = control::DeferredActions;

  void open();
  /// For callbacks of the monitor: runs `work` with the mutex held, then the actions without it.
  void run_locked(const std::function<void(Actions&)>& work);
  // --- with the mutex held ---
  void on_timer(Actions& actions);
  void send_heartbeats();
  void connect_to(const std::shared_ptr<control::RemotePeer>& peer,
                  Actions* actions = nullptr) noexcept;
  void accept_pending(Actions& actions);
  void accept_connection(Fd socket, Actions& actions);
  // --- close(), without the mutex held ---
  bool begin_to_close();
  void send_departure(control::Handshake::Stage stage);
  void flush(Deadline deadline);
  void close_in_child() noexcept;

  Monitor& monitor_;
  Options options_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable closed_;
  Phase phase_ = Phase::open;
  Fd listener_;
  Fd timer_;
  std::uint64_t listener_handler_ = 0;
  std::uint64_t timer_handler_ = 0;
  control::PeerTable peers_;
  control::ConnectionTable connections_;
  control::ConnectionDriver driver_;
  ForkHook fork_hook_{mutex_, [this] { close_in_child(); }};
};

}  // namespace tccl
