#include "health/control_handshake.h"

#include "tccl/error.h"

namespace tccl::control {

void require(bool condition, const char* reason) {
  if (!condition) throw Error(Errc::system, reason);
}

ConnectorResponse Handshake::respond_to(const Challenge& challenge,
                                        const RemoteProcess::Identity& self,
                                        const Bytes32& acceptor_id) {
  require(stage_ == Stage::awaits_challenge, "the peer sent an unexpected challenge");
  challenge_ = challenge;
  response_ = respond(secret_, challenge, handshake_binding_data(acceptor_id, self));
  stage_ = Stage::awaits_confirmation;
  return {key_id(secret_), response_, self};
}

void Handshake::check_confirmation(const AcceptorConfirmation& confirmation,
                                   const RemoteProcess::Identity& self,
                                   const Bytes32& acceptor_id) {
  require(stage_ == Stage::awaits_confirmation, "the peer sent an unexpected confirmation");
  require(confirmation.id == acceptor_id, "another process listens on the peer's port");
  require(verify(secret_, challenge_, response_, confirmation.confirmation,
                 handshake_binding_data(acceptor_id, self)),
          "the peer's proof is wrong");
  stage_ = Stage::authenticated;
}

AcceptorConfirmation Handshake::check_response(const ConnectorResponse& response,
                                               const std::string* secret, const Bytes32& own_id) {
  require(stage_ == Stage::awaits_response, "the peer sent an unexpected response");
  require(secret != nullptr, "the peer does not know a secret of this job");
  const std::string binding_data = handshake_binding_data(own_id, response.identity);
  require(verify(*secret, challenge_, response.response, binding_data),
          "the peer's proof is wrong, or meant for another process");
  stage_ = Stage::authenticated;
  return {own_id, confirm(*secret, challenge_, response.response, binding_data)};
}

}  // namespace tccl::control
