// Authentication of one control connection: the state machine of both sides.
//
//   connector:  connecting -> awaits_challenge -> awaits_confirmation -> authenticated
//   acceptor:   awaits_response -> authenticated
//
// Thread safety: none; belongs to one connection.
#pragma once

#include <cstdint>
#include <string>

#include "base/challenge_response.h"
#include "health/control_protocol.h"
#include "health/remote_process.h"

namespace tccl::control {

/// Thrown where a connection turns out to be closed.
struct ConnectionClosed {
  RemoteProcess::State state;  // of the peer, as far as this connection tells
  std::string reason;
};

/// Throws Error{system} if the peer breaks the protocol.
void require(bool condition, const char* reason);

class Handshake {
 public:
  enum class Stage : std::uint8_t {
    connecting,
    awaits_challenge,
    awaits_confirmation,
    awaits_response,
    authenticated,
  };

  /// For the acceptor; encode(challenge()) is its first frame.
  static Handshake accepting() { return {Stage::awaits_response, make_challenge(), {}}; }
  /// For the connector, which chooses the secret.
  static Handshake connecting(const std::string& secret) { return {Stage::connecting, {}, secret}; }

  [[nodiscard]] Stage stage() const noexcept { return stage_; }
  [[nodiscard]] const Challenge& challenge() const noexcept { return challenge_; }

  // --- connector ---
  /// The TCP connection is established.
  void set_connected() { stage_ = Stage::awaits_challenge; }
  /// Returns what to send.
  ConnectorResponse respond_to(const Challenge& challenge, const RemoteProcess::Identity& self,
                               const Bytes32& acceptor_id);
  void check_confirmation(const AcceptorConfirmation& confirmation,
                          const RemoteProcess::Identity& self, const Bytes32& acceptor_id);

  // --- acceptor ---
  /// `secret` is null if the response names none that is accepted. Returns what to send.
  AcceptorConfirmation check_response(const ConnectorResponse& response, const std::string* secret,
                                      const Bytes32& own_id);

 private:
  Handshake(Stage stage, const Challenge& challenge, std::string secret)
      : stage_(stage), challenge_(challenge), secret_(std::move(secret)) {}

  Stage stage_;
  Challenge challenge_;
  std::string secret_;  // of the connector
  Response response_;   // of the connector
};

}  // namespace tccl::control
