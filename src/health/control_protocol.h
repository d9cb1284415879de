// What control connections carry: frames of a fixed header and a short body. See control.h for the
// protocol; here is how it looks as bytes (little-endian), and who proves what to whom.
//
//   challenge   acceptor -> connector   its random number
//   answer      connector -> acceptor   key id, its random number, its proof, its identity
//   proof       acceptor -> connector   its id, its proof
//   heartbeat, notice, goodbye          both ways, once the connection is authenticated
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/crypto.h"
#include "health/remote_process.h"

namespace tccl::control {

enum class Kind : std::uint16_t { challenge = 1, answer, proof, heartbeat, notice, goodbye };

inline constexpr std::size_t kLargestBody = 4096;

struct Frame {
  Kind kind;
  std::string body;
};
std::string encode(Kind kind, std::string_view body = {});

/// Cuts what comes in, in whatever pieces, into frames.
class FrameReader {
 public:
  void append(std::string_view bytes) { bytes_.append(bytes); }
  /// None if the next frame is not complete. Throws Error{system} if what came is no frame.
  std::optional<Frame> next();

 private:
  std::string bytes_;
};

/// Says which secret is meant without giving it away.
using KeyId = std::array<unsigned char, 16>;
KeyId key_id(const std::string& secret);

struct Challenge {
  Digest number;
};
struct Answer {
  KeyId key;
  Digest number;
  Digest proof;
  RemoteProcess::Identity identity;
};
struct Proof {
  Digest id;
  Digest proof;
};

// Decoding throws Error{system} if the body is not what it should be. Texts that are too long for a
// frame are cut.
std::string encode(const Challenge& challenge);
std::string encode(const Answer& answer);
std::string encode(const Proof& proof);
std::string encode(const Notice& notice);
Challenge decode_challenge(std::string_view body);
Answer decode_answer(std::string_view body);
Proof decode_proof(std::string_view body);
Notice decode_notice(std::string_view body);

/// `acceptor` is whom the connector wants to reach: another process that knows the secret, too, but
/// got the port of one that has died, must not take the connection for its own.
Digest connector_proof(const std::string& secret, const Challenge& challenge, const Answer& answer,
                       const Digest& acceptor);
Digest acceptor_proof(const std::string& secret, const Challenge& challenge, const Answer& answer,
                      const Digest& acceptor);

}  // namespace tccl::control
