// Mutual authentication of two processes that know the same secret (HMAC-SHA256
// challenge-response).
//
//   acceptor                                             connector
//     Challenge c = make_challenge()               ->
//                                                  <-      Response r = respond(secret, c, data)
//     verify(secret, c, r, data)
//     Confirmation f = confirm(secret, c, r, data) ->
//                                                          verify(secret, c, r, f, data)
//
// A proof covers the prover's role, both nonces and the binding data (`data`), so it can be neither
// replayed on another connection nor reflected to its sender. The binding data is what both sides
// must agree on besides the secret: the protocol's name, the identities. The structs are sent as
// bytes.
// Thread safety: functions without shared state.
#pragma once

#include <string_view>

#include "base/crypto.h"

namespace tccl {

/// Acceptor to connector.
struct Challenge {
  Bytes32 nonce{};
};
/// Connector to acceptor.
struct Response {
  Bytes32 nonce{};
  Bytes32 proof{};
};
/// Acceptor to connector.
struct Confirmation {
  Bytes32 proof{};
};

Challenge make_challenge();
Response respond(std::string_view secret, const Challenge& challenge,
                 std::string_view binding_data);
[[nodiscard]] bool verify(std::string_view secret, const Challenge& challenge,
                          const Response& response, std::string_view binding_data);
Confirmation confirm(std::string_view secret, const Challenge& challenge, const Response& response,
                     std::string_view binding_data);
[[nodiscard]] bool verify(std::string_view secret, const Challenge& challenge,
                          const Response& response, const Confirmation& confirmation,
                          std::string_view binding_data);

}  // namespace tccl
