// The wire format of control connections: frames of a fixed header and a short body, little-endian.
// control_plane.h describes the protocol.
//
//   challenge      acceptor -> connector   Challenge
//   response       connector -> acceptor   ConnectorResponse
//   confirmation   acceptor -> connector   AcceptorConfirmation
//   heartbeat, notice, departure           both ways, once the connection is authenticated
//
// Thread safety: pure functions; a FrameReader belongs to one connection.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/challenge_response.h"
#include "base/crypto.h"
#include "health/remote_process.h"

namespace tccl::control {

enum class FrameKind : std::uint16_t {
  challenge = 1,
  response,
  confirmation,
  heartbeat,
  notice,
  departure
};

inline constexpr std::size_t kMaxBodyBytes = 4096;

struct Frame {
  FrameKind kind;
  std::string body;
};
std::string encode(FrameKind kind, std::string_view body = {});

/// Cuts the received bytes, which arrive in pieces of any size, into frames.
class FrameReader {
 public:
  void append(std::string_view bytes) { bytes_.append(bytes); }
  /// None if the next frame is not complete. Throws Error{system} if the bytes are not a frame.
  std::optional<Frame> next();

 private:
  std::string bytes_;
};

/// Identifies a secret without revealing it.
using KeyId = std::array<unsigned char, 16>;
KeyId key_id(const std::string& secret);

struct ConnectorResponse {
  KeyId key;
  Response response;
  RemoteProcess::Identity identity;
};
struct AcceptorConfirmation {
  Bytes32 id;
  Confirmation confirmation;
};

// Decoding throws Error{system} if the body does not fit the kind. Texts that are too long for a
// frame are truncated.
std::string encode(const Challenge& challenge);
std::string encode(const ConnectorResponse& response);
std::string encode(const AcceptorConfirmation& confirmation);
std::string encode(const Notice& notice);
/// T is one of the four above.
template <class T>
T decode(std::string_view body);

/// What both proofs cover besides the nonces. `acceptor_id` is the process that the connector means
/// to reach: another process that knows the secret, but got the port of one that has died, must not
/// accept the connection as its own.
std::string handshake_binding_data(const Bytes32& acceptor_id,
                                   const RemoteProcess::Identity& connector);

}  // namespace tccl::control
