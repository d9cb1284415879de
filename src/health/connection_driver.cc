#include "health/connection_driver.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl::control {
namespace {

using Stage = Handshake::Stage;
using State = RemoteProcess::State;
using Warning = DeferredActions::Warning;

constexpr int kMaxFailedHandshakes = 3;
/// A peer that has died closes all its connections at the same time.
constexpr std::chrono::milliseconds kLastNoticesTimeout{1000};

}  // namespace

void ConnectionDriver::advance(Connection& connection, DeferredActions& actions) {
  try {
    transfer(connection, actions);
  } catch (const ConnectionClosed& closed) {
    close(connection, closed, actions);
  } catch (const Error& error) {
    if (connection.is_authenticated())
      actions.warn(Warning::broken,
                   formatted("closed the control connection to {} ({}): {}",
                             connection.remote_address, connection.peer->where(), error.what()));
    close(connection, {State::died, error.what()}, actions);
  }
}

void ConnectionDriver::transfer(Connection& connection, DeferredActions& actions) {
  if (connection.stage() == Stage::connecting) {
    if (!connection.finish_connecting()) return;
    connection.handshake.set_connected();
    // The host has answered. Its process may be stopped and answer any time later.
    connection.handshake_deadline = Deadline::max();
    connection.peer->note_heard();
  }
  connection.send_outbox();
  for (int i = 0; i < kMaxPerEvent && connection.receive_some(); ++i)
    while (const auto frame = connection.inbox.next()) handle(connection, *frame, actions);
  connection.send_outbox();
  connections_.update_events(connection);
}

void ConnectionDriver::handle(Connection& connection, const Frame& frame,
                              DeferredActions& actions) {
  const bool authenticated = connection.is_authenticated();
  if (authenticated) {
    connection.unanswered_heartbeats = 0;
    connection.peer->note_heard();
  }
  switch (frame.kind) {
    case FrameKind::challenge: {
      const auto challenge = decode<Challenge>(frame.body);
      require(connection.peer != nullptr, "the peer sent an unexpected challenge");
      connection.outbox +=
          encode(connection.handshake.respond_to(challenge, self_, connection.peer->identity().id));
      return;
    }
    case FrameKind::response:
      return handle_response(connection, decode<ConnectorResponse>(frame.body));
    case FrameKind::confirmation: {
      const auto confirmation = decode<AcceptorConfirmation>(frame.body);
      require(connection.peer != nullptr, "the peer sent an unexpected confirmation");
      connection.handshake.check_confirmation(confirmation, self_, connection.peer->identity().id);
      connection.peer->connecting = false;
      return set_authenticated(connection);
    }
    case FrameKind::heartbeat:
      return require(authenticated, "the peer sent a heartbeat before it was authenticated");
    case FrameKind::notice:
      require(authenticated, "the peer sent a notice before it was authenticated");
      return actions.add_notice(connection.peer, decode<Notice>(frame.body));
    case FrameKind::departure:
      // Also accepted from an acceptor that closes before it is authenticated: otherwise its peer
      // would consider it dead.
      require(!connection.is_unauthenticated(),
              "the peer sent a departure before it was authenticated");
      throw ConnectionClosed{State::departed, "the peer departed"};
  }
  throw Error(Errc::system, "the peer sent a frame of an unknown kind");
}

void ConnectionDriver::handle_response(Connection& connection, const ConnectorResponse& response) {
  const std::string* secret = peers_.find_secret(response.key);
  const AcceptorConfirmation confirmation =
      connection.handshake.check_response(response, secret, self_.id);
  connection.peer = peers_.find_or_add(response.identity);
  if (connection.peer->secrets.empty()) connection.peer->secrets.push_back(*secret);
  connection.outbox += encode(confirmation);
  set_authenticated(connection);
}

void ConnectionDriver::set_authenticated(Connection& connection) {
  RemotePeer& peer = *connection.peer;
  connection.handshake_deadline = Deadline::max();
  peer.note_heard();
  peer.failed_handshakes = 0;
  peer.authenticated.push_back(&connection);
  connection.outbox += std::exchange(peer.queued_notices, {});
  if (departing_) connection.outbox += encode(FrameKind::departure);
}

void ConnectionDriver::close(Connection& connection, const ConnectionClosed& closed,
                             DeferredActions& actions) {
  if (connection.is_authenticated())
    on_authenticated_closed(connection, closed, actions);
  else if (connection.peer)
    on_attempt_failed(connection, closed, actions);
  else
    actions.warn(Warning::unauthenticated,
                 formatted("dropped an unauthenticated control connection from {}: {}",
                           connection.remote_address, closed.reason));
  connections_.remove(connection);
}

void ConnectionDriver::on_authenticated_closed(const Connection& connection,
                                               const ConnectionClosed& closed,
                                               DeferredActions& actions) {
  RemotePeer& peer = *connection.peer;
  std::erase(peer.authenticated, &connection);
  peer.departed |= closed.state == State::departed;
  if (peer.authenticated.empty())
    return actions.set_final_state(connection.peer, peer.departed ? State::departed : closed.state);
  // Another connection may still carry notices that were sent before. If it does not end, too, the
  // peer is alive, but a notice may have been lost with this one.
  if (closed.state == State::departed || peer.close_all_at != Deadline::max()) return;
  peer.close_all_at = deadline_after(kLastNoticesTimeout);
  peer.state_after_break = closed.state;
}

void ConnectionDriver::on_attempt_failed(const Connection& connection,
                                         const ConnectionClosed& closed, DeferredActions& actions) {
  RemotePeer& peer = *connection.peer;
  peer.connecting = false;
  if (!peer.authenticated.empty()) return;
  const bool during_handshake =
      connection.stage() != Stage::connecting && closed.state == State::died;
  if (!during_handshake) return actions.set_final_state(connection.peer, closed.state);
  // Closed without a challenge: the acceptor has too many connections, or has died just now. Try
  // again: if it has died, the next connection is refused.
  if (connection.stage() == Stage::awaits_challenge) return;
  // An acceptor drops connections that are slow, too, such as those of a process that was stopped
  // meanwhile. One that does not accept a response again and again is another process.
  if (++peer.failed_handshakes < kMaxFailedHandshakes) return;
  actions.set_final_state(connection.peer, State::died);
  actions.warn(Warning::refused, formatted("no control connection to {} ({}): {}",
                                           connection.remote_address, peer.where(), closed.reason));
}

}  // namespace tccl::control
