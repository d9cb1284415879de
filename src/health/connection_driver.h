// Drives control connections: completes their handshakes, handles their frames, and concludes from
// the end of a connection what has become of the peer.
// Thread safety: none; guarded by the ControlPlane's mutex.
#pragma once

#include "health/connection_table.h"
#include "health/deferred_actions.h"
#include "health/peer_table.h"

namespace tccl::control {

class ConnectionDriver {
 public:
  ConnectionDriver(ConnectionTable& connections, PeerTable& peers,
                   const RemoteProcess::Identity& self)
      : connections_(connections), peers_(peers), self_(self) {}

  /// Sends and receives what is possible without waiting. The connection may be removed afterwards.
  void advance(Connection& connection, DeferredActions& actions);
  /// Removes the connection and updates its peer.
  void close(Connection& connection, const ConnectionClosed& closed, DeferredActions& actions);
  /// From now on a connection sends a departure as soon as it is authenticated.
  void set_departing() { departing_ = true; }

 private:
  void transfer(Connection& connection, DeferredActions& actions);
  void handle(Connection& connection, const Frame& frame, DeferredActions& actions);
  void handle_response(Connection& connection, const ConnectorResponse& response);
  void set_authenticated(Connection& connection);
  static void on_authenticated_closed(const Connection& connection, const ConnectionClosed& closed,
                                      DeferredActions& actions);
  static void on_attempt_failed(const Connection& connection, const ConnectionClosed& closed,
                                DeferredActions& actions);

  ConnectionTable& connections_;
  PeerTable& peers_;
  const RemoteProcess::Identity& self_;
  bool departing_ = false;
};

/// How many frames or connections are handled per event, so that others get their turn.
inline constexpr int kMaxPerEvent = 16;

}  // namespace tccl::control
