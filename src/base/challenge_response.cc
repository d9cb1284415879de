#include "base/challenge_response.h"

#include <string>

namespace tccl {
namespace {

// Of one length, as are the nonces: two different inputs never give the same bytes.
constexpr std::string_view kAcceptor = "acceptor ";
constexpr std::string_view kConnector = "connector";
static_assert(kAcceptor.size() == kConnector.size());

Bytes32 proof_of(std::string_view role, std::string_view secret, const Bytes32& acceptor_nonce,
                 const Bytes32& connector_nonce, std::string_view binding_data) {
  std::string message(role);
  message.append(as_text(acceptor_nonce)).append(as_text(connector_nonce)).append(binding_data);
  return hmac_sha256(secret, message);
}

}  // namespace

Challenge make_challenge() { return {random_bytes32()}; }

Response respond(std::string_view secret, const Challenge& challenge,
                 std::string_view binding_data) {
  const Bytes32 nonce = random_bytes32();
  return {nonce, proof_of(kConnector, secret, challenge.nonce, nonce, binding_data)};
}

bool verify(std::string_view secret, const Challenge& challenge, const Response& response,
            std::string_view binding_data) {
  return same_bytes(response.proof,
                    proof_of(kConnector, secret, challenge.nonce, response.nonce, binding_data));
}

Confirmation confirm(std::string_view secret, const Challenge& challenge, const Response& response,
                     std::string_view binding_data) {
  return {proof_of(kAcceptor, secret, challenge.nonce, response.nonce, binding_data)};
}

bool verify(std::string_view secret, const Challenge& challenge, const Response& response,
            const Confirmation& confirmation, std::string_view binding_data) {
  return same_bytes(confirmation.proof,
                    proof_of(kAcceptor, secret, challenge.nonce, response.nonce, binding_data));
}

}  // namespace tccl
