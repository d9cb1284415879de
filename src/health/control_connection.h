// One control connection: its socket, what has come in and what is to go out. Nothing here blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "health/control_protocol.h"

namespace tccl::control {

/// How far the handshake has come. The connector passes through connecting, awaits_challenge and
/// awaits_proof, the acceptor through awaits_answer.
enum class Stage : std::uint8_t {
  connecting,
  awaits_challenge,
  awaits_proof,
  awaits_answer,
  authenticated,
};

/// Thrown where a connection turns out to be over.
struct ConnectionClosed {
  RemoteProcess::State how;
  std::string why;
};

struct Connection {
  std::uint64_t number = 0;
  Fd socket;
  std::string remote;  // "10.0.0.1:4711"
  Stage stage = Stage::connecting;
  Deadline stage_deadline = Deadline::max();  // for the stage
  std::uint64_t service = 0;                  // of the monitor
  std::uint32_t events = 0;                   // that it serves
  std::shared_ptr<RemoteProcess> peer;        // none: not known yet
  std::string secret;  // by which it is authenticated, if it was made from here
  Challenge challenge{};
  Answer answer{};  // the connector's
  FrameReader inbox;
  std::string outbox;
  std::size_t sent = 0;           // of the outbox
  int problem = 0;                // the first error of the socket
  int unanswered_heartbeats = 0;  // since it last sent something

  /// Made from here, but not authenticated yet.
  [[nodiscard]] bool is_attempt() const noexcept {
    return stage == Stage::connecting || stage == Stage::awaits_challenge ||
           stage == Stage::awaits_proof;
  }
  [[nodiscard]] bool is_unauthenticated() const noexcept { return stage == Stage::awaits_answer; }
  [[nodiscard]] bool has_unsent() const noexcept { return sent < outbox.size(); }
  [[nodiscard]] std::uint32_t wanted_events() const noexcept;

  /// False while the network has not answered. Throws ConnectionClosed if it has refused.
  bool finish_connecting();
  void send_outbox() noexcept;
  /// Appends some of what is there to the inbox; false if nothing is. Throws ConnectionClosed at
  /// the end.
  bool receive_some();
  /// Everything that was sent has reached the other host: closing the socket cannot undo that.
  [[nodiscard]] bool is_delivered() const noexcept;
};

RemoteProcess::State state_after_failed_connect(int problem) noexcept;

/// This process lacks something (descriptors, ports, memory): that says nothing about the peer.
bool is_own_shortage(int problem) noexcept;

}  // namespace tccl::control
