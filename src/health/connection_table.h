// The open control connections of a process, oldest first, and their registration with the Monitor.
// Thread safety: none; guarded by the ControlPlane's mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "health/control_connection.h"
#include "health/monitor.h"

namespace tccl::control {

class ConnectionTable {
 public:
  /// `on_event(id)` runs on the monitor thread, without the mutex, when a connection is ready.
  ConnectionTable(Monitor& monitor, std::function<void(std::uint64_t)> on_event)
      : monitor_(monitor), on_event_(std::move(on_event)) {}

  /// Registers the connection with the Monitor, unless stop_watching() was called.
  Connection& add(Connection connection);
  /// Null if it has been removed.
  [[nodiscard]] Connection* find(std::uint64_t id) const;
  /// Closes it. On the monitor thread, or after stop_watching(): waits for no callback.
  void remove(Connection& connection);
  /// Call after the outbox has changed.
  void update_events(Connection& connection);

  [[nodiscard]] std::vector<Connection*> all() const;
  [[nodiscard]] std::vector<Connection*> overdue(Clock::time_point now) const;
  /// Those of peers to which another connection broke: see RemotePeer::close_all_at.
  [[nodiscard]] std::vector<Connection*> of_broken_peers(Clock::time_point now) const;
  [[nodiscard]] int count_unauthenticated() const;
  [[nodiscard]] int count_unauthenticated_of(const std::string& remote_host) const;

  /// From now on the caller drives the connections. Returns the ids for Monitor::unwatch_fd(),
  /// which the caller must call without the mutex held.
  std::vector<std::uint64_t> stop_watching();
  void clear();
  /// In a forked child: the epoll instance is the parent's, too, so only the sockets are closed.
  void close_in_child() noexcept;

 private:
  Monitor& monitor_;
  std::function<void(std::uint64_t)> on_event_;
  bool watching_ = true;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_;
};

}  // namespace tccl::control
