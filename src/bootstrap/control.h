// Control connections between processes of different hosts: who is alive, notices, goodbye. (Data
// goes elsewhere.) TCP, served by the monitor thread, so they answer while nobody calls.
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
#include "base/fork_guard.h"
#include "base/settings.h"
#include "bootstrap/control_connection.h"
#include "bootstrap/control_frames.h"
#include "bootstrap/monitor.h"
#include "bootstrap/remote_peer.h"

namespace tccl {

class Control {
 public:
  struct Options {
    std::string address;  // of this host, in numbers; see choose_address()
    PortRange ports;
    std::chrono::milliseconds liveness_timeout;
    RemotePeer::Identity self;  // id, host and pid; address and port are filled in
    /// Runs on the monitor thread, without a lock; must neither block nor throw.
    std::function<void(const std::shared_ptr<RemotePeer>& from, const Notice&)> on_notice;
  };

  /// Listens from now on. The monitor must outlive it; it may have been stopped before close().
  Control(Monitor& monitor, Options options);
  ~Control();

  /// With address and port: what others need for acquaint().
  [[nodiscard]] const RemotePeer::Identity& self() const noexcept { return options_.self; }
  [[nodiscard]] std::uint16_t port() const noexcept { return options_.self.port; }

  /// Whoever proves to know the secret belongs to the job. As often as it was admitted it must be
  /// dismissed; connections that are proved stay.
  void admit(const std::string& secret);
  void dismiss(const std::string& secret);

  /// The same object for the same id as long as it has not ended and somebody holds it or it is
  /// connected. The secret is for later connections to it. Throws Error{invalid_argument} if its
  /// address is none.
  std::shared_ptr<RemotePeer> acquaint(const RemotePeer::Identity& who, const std::string& secret);
  /// Begins to connect, if there is no connection yet.
  void connect(const std::shared_ptr<RemotePeer>& peer) noexcept;
  /// Connects if needed. Notices to a peer arrive in order; none is sent to one that has ended.
  void tell(const std::shared_ptr<RemotePeer>& peer, const Notice& notice) noexcept;

  /// Says goodbye on all connections and closes them when that has reached the other hosts, or
  /// after a second (on the monitor thread: at once). Idempotent; returns when it is done.
  void close() noexcept;

 private:
  enum class State : std::uint8_t { open, closing, closed, forked };
  struct Admitted {
    std::string secret;
    int count = 0;
  };
  /// What is left to do once the lock is released.
  struct Aftermath {
    std::vector<std::pair<std::shared_ptr<RemotePeer>, Notice>> notices;
    std::vector<std::pair<std::shared_ptr<RemotePeer>, RemotePeer::End>> ends;
    std::string warning;
    void end(const std::shared_ptr<RemotePeer>& peer, RemotePeer::End how);
  };
  using Connection = control::Connection;

  void open();
  // --- callbacks of the monitor ---
  void under_lock(const std::function<void(Aftermath&)>& work);
  void deliver(const Aftermath& after) const;
  void on_timer(Aftermath& after);
  void accept_some(Aftermath& after);
  // --- the rest is called with the lock held ---
  void send_heartbeats();
  void drop_overdue(Aftermath& after);
  void connect_wanted();
  bool drop_oldest_stranger(Aftermath& after);
  void welcome(Fd socket, Aftermath& after);
  static void end_at_once(RemotePeer& peer, RemotePeer::End how) noexcept;
  void ensure_connection(const std::shared_ptr<RemotePeer>& peer) noexcept;
  std::shared_ptr<RemotePeer> find_or_make(const RemotePeer::Identity& who);
  Connection& add(Connection connection);
  void advance(Connection& connection, Aftermath& after);
  void advance_all(Aftermath& after);
  void work_on(Connection& connection, Aftermath& after);
  void take(Connection& connection, const control::Frame& frame, Aftermath& after);
  void answer_challenge(Connection& connection, const control::Challenge& challenge);
  void check_answer(Connection& connection, const control::Answer& answer);
  void check_proof(Connection& connection, const control::Proof& proof);
  void become_proved(Connection& connection);
  void serve_as_wanted(Connection& connection);
  void finish(Connection& connection, const control::Over& over, Aftermath& after);
  void note_end(const Connection& connection, const control::Over& over, Aftermath& after);
  void note_failed_attempt(const Connection& connection, const control::Over& over,
                           Aftermath& after);
  // --- closing ---
  bool begin_to_close();
  [[nodiscard]] std::vector<std::uint64_t> services();
  void say_goodbye(control::Stage stage);
  void flush(Deadline deadline);
  void drop_in_child() noexcept;

  Monitor& monitor_;
  Options options_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable closed_;
  State state_ = State::open;
  Fd listener_;
  Fd timer_;
  std::uint64_t listener_service_ = 0;
  std::uint64_t timer_service_ = 0;
  std::map<control::KeyId, Admitted> admitted_;
  std::map<Digest, std::weak_ptr<RemotePeer>> peers_;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_;  // the oldest first
  std::uint64_t next_number_ = 1;
  ForkHook fork_hook_{mutex_, [this] { drop_in_child(); }};
};

}  // namespace tccl
