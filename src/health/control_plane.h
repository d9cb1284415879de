// ControlPlane connections between processes of different hosts: who is alive, notices, goodbye.
// (Data goes elsewhere.) TCP, served by the monitor thread, so they answer while nobody calls.
//
//   acceptor                                    connector
//     challenge {random number}           ->
//                                         <-     answer {which secret, random number, proof,
//                                         identity}
//     proof {id, proof}                   ->
//   both: heartbeat every half second, notices, goodbye
//
// A proof is an HMAC over both numbers, the connector's identity and the id of the acceptor that it
// wants, keyed by a secret that both were told. Whoever cannot prove itself in 2 s, or sends
// anything else, is dropped with one warning per process. Both sides may connect at the same time:
// then there are two connections, and the peer is gone when both are.
//
// Thread-safe, and nothing but close() waits. How it ends while the monitor thread is at work:
// under the lock close() makes every later callback do nothing, then it ends the services, which
// waits for the callback that is under way (Monitor::end_service). So the caller of close(), or of
// the destructor, holds no lock that `on_notice` takes. `on_notice` may itself call everything but
// the destructor.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/fork_hook.h"
#include "config/settings.h"
#include "health/control_connection.h"
#include "health/control_protocol.h"
#include "health/monitor.h"
#include "health/remote_process.h"

namespace tccl {

class ControlPlane {
 public:
  struct Options {
    std::string address;  // of this host, in numbers; see choose_address()
    PortRange ports;
    std::chrono::milliseconds liveness_timeout;
    RemoteProcess::Identity self;  // id, host and pid; address and port are filled in
    /// Runs on the monitor thread, without a lock; must neither block nor throw.
    std::function<void(const std::shared_ptr<RemoteProcess>& from, const Notice&)> on_notice;
  };

  /// Listens from now on. The monitor must outlive it; it may have been stopped before close().
  ControlPlane(Monitor& monitor, Options options);
  ~ControlPlane();

  /// With address and port: what others need for add_peer().
  [[nodiscard]] const RemoteProcess::Identity& self() const noexcept { return options_.self; }
  [[nodiscard]] std::uint16_t port() const noexcept { return options_.self.port; }

  /// Whoever proves to know the secret belongs to the job. As often as it was accepted it must be
  /// dismissed; connections that are authenticated stay.
  void add_secret(const std::string& secret);
  void remove_secret(const std::string& secret);

  /// The same object for the same id as long as it has not ended and somebody holds it or it is
  /// connected. The secret is for later connections to it. Throws Error{invalid_argument} if its
  /// address is none.
  std::shared_ptr<RemoteProcess> add_peer(const RemoteProcess::Identity& who,
                                          const std::string& secret);
  /// Begins to connect, if there is no connection yet.
  void connect(const std::shared_ptr<RemoteProcess>& peer) noexcept;
  /// Connects if needed. Notices to a peer arrive in order; none is sent to one that has ended.
  void tell(const std::shared_ptr<RemoteProcess>& peer, const Notice& notice) noexcept;

  /// Says goodbye on all connections and closes them when that has reached the other hosts, or
  /// after a second (on the monitor thread: at once). Idempotent; returns when it is done.
  void close() noexcept;

 private:
  enum class Phase : std::uint8_t { open, closing, closed, forked };
  struct AcceptedSecret {
    std::string secret;
    int count = 0;
  };
  /// What is left to do once the lock is released.
  struct DeferredActions {
    std::vector<std::pair<std::shared_ptr<RemoteProcess>, Notice>> notices;
    std::vector<std::pair<std::shared_ptr<RemoteProcess>, RemoteProcess::State>> ends;
    std::string warning;
    void end(const std::shared_ptr<RemoteProcess>& peer, RemoteProcess::State how);
  };
  using Connection = control::Connection;

  void open();
  // --- callbacks of the monitor ---
  void under_lock(const std::function<void(DeferredActions&)>& work);
  void deliver(const DeferredActions& after) const;
  void on_timer(DeferredActions& after);
  void accept_some(DeferredActions& after);
  // --- the rest is called with the lock held ---
  void send_heartbeats();
  void drop_overdue(DeferredActions& after);
  void connect_wanted();
  bool drop_oldest_unauthenticated(DeferredActions& after);
  void accept_connection(Fd socket, DeferredActions& after);
  static void set_state_now(RemoteProcess& peer, RemoteProcess::State how) noexcept;
  void ensure_connection(const std::shared_ptr<RemoteProcess>& peer) noexcept;
  std::shared_ptr<RemoteProcess> find_or_make(const RemoteProcess::Identity& who);
  Connection& add(Connection connection);
  void advance(Connection& connection, DeferredActions& after);
  void advance_all(DeferredActions& after);
  void work_on(Connection& connection, DeferredActions& after);
  void take(Connection& connection, const control::Frame& frame, DeferredActions& after);
  void answer_challenge(Connection& connection, const control::Challenge& challenge);
  void check_answer(Connection& connection, const control::Answer& answer);
  void check_proof(Connection& connection, const control::Proof& proof);
  void become_authenticated(Connection& connection);
  void update_events(Connection& connection);
  void finish(Connection& connection, const control::ConnectionClosed& over,
              DeferredActions& after);
  void note_end(const Connection& connection, const control::ConnectionClosed& over,
                DeferredActions& after);
  void note_failed_attempt(const Connection& connection, const control::ConnectionClosed& over,
                           DeferredActions& after);
  // --- closing ---
  bool begin_to_close();
  [[nodiscard]] std::vector<std::uint64_t> services();
  void send_departure(control::Stage stage);
  void flush(Deadline deadline);
  void drop_in_child() noexcept;

  Monitor& monitor_;
  Options options_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable closed_;
  Phase phase_ = Phase::open;
  Fd listener_;
  Fd timer_;
  std::uint64_t listener_service_ = 0;
  std::uint64_t timer_service_ = 0;
  std::map<control::KeyId, AcceptedSecret> accepted_secrets_;
  std::map<Digest, std::weak_ptr<RemoteProcess>> peers_;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_;  // the oldest first
  std::uint64_t next_number_ = 1;
  ForkHook fork_hook_{mutex_, [this] { drop_in_child(); }};
};

}  // namespace tccl
