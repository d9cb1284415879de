// One control connection: its socket, received bytes and bytes to send. Nothing here blocks.
// Thread safety: none; guarded by the ControlPlane's mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "health/control_handshake.h"
#include "health/control_protocol.h"
#include "health/peer_table.h"

namespace tccl::control {

struct Connection {
  std::uint64_t id = 0;  // in the ConnectionTable
  Fd socket;
  std::string remote_host;     // "10.0.0.1"
  std::string remote_address;  // "10.0.0.1:4711"
  Handshake handshake;
  Deadline handshake_deadline = Deadline::max();
  std::shared_ptr<RemotePeer> peer;  // null on an accepted connection until it is authenticated
  std::uint64_t handler = 0;         // id of Monitor::watch_fd()
  std::uint32_t events = 0;          // that the Monitor watches
  FrameReader inbox;
  std::string outbox;
  std::size_t sent = 0;           // bytes of the outbox
  int socket_error = 0;           // the first errno of the socket
  int unanswered_heartbeats = 0;  // since the peer last sent something

  [[nodiscard]] Handshake::Stage stage() const noexcept { return handshake.stage(); }
  [[nodiscard]] bool is_authenticated() const noexcept {
    return stage() == Handshake::Stage::authenticated;
  }
  /// Accepted, but not authenticated.
  [[nodiscard]] bool is_unauthenticated() const noexcept {
    return stage() == Handshake::Stage::awaits_response;
  }
  /// Started by this process, but not authenticated.
  [[nodiscard]] bool is_attempt() const noexcept {
    return !is_authenticated() && !is_unauthenticated();
  }
  [[nodiscard]] bool has_unsent() const noexcept { return sent < outbox.size(); }
  /// epoll events to wait for.
  [[nodiscard]] std::uint32_t wanted_events() const noexcept;

  /// False while connect() is in progress. Throws ConnectionClosed if it failed.
  bool finish_connecting();
  /// Sends what the socket takes now. An error is reported by a later receive_some().
  void send_outbox() noexcept;
  /// Appends received bytes to the inbox; false if there are none. Throws ConnectionClosed at the
  /// end of the connection.
  bool receive_some();
  /// The other host has acknowledged all bytes: closing the socket cannot lose them.
  [[nodiscard]] bool is_delivered() const noexcept;
};

RemoteProcess::State state_after_failed_connect(int error) noexcept;

/// This process lacks a resource (descriptors, ports, memory): says nothing about the peer.
bool is_local_shortage(int error) noexcept;

}  // namespace tccl::control
