#include "health/control_plane.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "base/format.h"
#include "base/system_error.h"
#include "base/tcp_socket.h"
#include "tccl/error.h"

namespace tccl {

using namespace control;
using std::chrono::milliseconds;
using State = RemoteProcess::State;

namespace {

/// Also the resolution of handshake deadlines.
constexpr milliseconds kControlHeartbeatInterval{500};
constexpr milliseconds kControlHandshakeTimeout{2000};
constexpr milliseconds kControlFlushTimeout{1000};
/// Anyone may connect. Beyond these limits the newest connection is refused: a flood must not
/// displace a peer that is authenticating itself. A host may have some hundred ranks.
constexpr int kMaxUnauthenticated = 1024;
constexpr int kMaxUnauthenticatedOfOneHost = 256;
/// A stopped process does not read. If heartbeats filled its receive buffer, TCP_USER_TIMEOUT would
/// break the connection although its host answers. Keep-alive probes need no buffer.
constexpr int kMaxUnansweredHeartbeats = 20;

Fd new_timer(milliseconds period) {
  Fd fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!fd) throw_system_error("timerfd_create");
  const timespec interval{.tv_sec = period.count() / 1000,
                          .tv_nsec = period.count() % 1000 * 1'000'000};
  const itimerspec times{.it_interval = interval, .it_value = interval};
  if (::timerfd_settime(fd.get(), 0, &times, nullptr) != 0) throw_system_error("timerfd_settime");
  return fd;
}

/// For a peer without a connection, so without notices to deliver first.
void set_final_state(RemotePeer& peer, State state) noexcept {
  peer.has_final_state = true;
  peer.set_state(state);
}

}  // namespace

// ---- open ----

ControlPlane::ControlPlane(Monitor& monitor, Options options)
    : monitor_(monitor),
      options_(std::move(options)),
      connections_(monitor,
                   [this](std::uint64_t id) {
                     run_locked([this, id](Actions& actions) {
                       if (Connection* connection = connections_.find(id))
                         driver_.advance(*connection, actions);
                     });
                   }),
      driver_(connections_, peers_, options_.self) {
  try {
    open();
  } catch (...) {
    close();
    throw;
  }
}

ControlPlane::~ControlPlane() { close(); }

void ControlPlane::open() {
  const std::lock_guard lock(mutex_);  // excludes fork(): a child would keep the listener open
  listener_ = listen_in_range(options_.address, options_.ports);
  options_.self.address = options_.address;
  options_.self.port = SocketAddress::of_local_end(listener_.get()).port();
  timer_ = new_timer(kControlHeartbeatInterval);
  timer_handler_ = monitor_.watch_fd(timer_.get(), EPOLLIN, [this](std::uint32_t) {
    run_locked([this](Actions& actions) { on_timer(actions); });
  });
  listener_handler_ = monitor_.watch_fd(listener_.get(), EPOLLIN, [this](std::uint32_t) {
    run_locked([this](Actions& actions) { accept_pending(actions); });
  });
}

// ---- calls ----

void ControlPlane::add_secret(const std::string& secret) {
  const std::lock_guard lock(mutex_);
  peers_.add_secret(secret);
}

void ControlPlane::retire_secret(const std::string& secret) {
  const std::lock_guard lock(mutex_);
  peers_.retire_secret(secret);
}

std::shared_ptr<RemoteProcess> ControlPlane::add_peer(const RemoteProcess::Identity& identity,
                                                      const std::string& secret) {
  static_cast<void>(SocketAddress::parse(identity.address, identity.port));
  const std::lock_guard lock(mutex_);
  return peers_.find_or_add(identity, secret);
}

bool ControlPlane::send_notice(const std::shared_ptr<RemoteProcess>& process,
                               const Notice& notice) noexcept {
  const std::lock_guard lock(mutex_);
  const auto peer = as_peer(process);
  if (phase_ != Phase::open || peer->has_final_state) return true;
  Connection* const connection =
      peer->authenticated.empty() ? nullptr : peer->authenticated.front();
  try {
    (connection != nullptr ? connection->outbox : peer->queued_notices) += encode(notice);
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (connection == nullptr) {
    connect_to(peer);
    return true;
  }
  connection
      ->send_outbox();  // at once: the process may be killed before the monitor thread does it
  connections_.update_events(*connection);
  return true;
}

/// A failure for lack of a local resource is retried by on_timer(), which also logs it.
void ControlPlane::connect_to(const std::shared_ptr<RemotePeer>& peer, Actions* actions) noexcept {
  peer->wanted = true;
  if (peer->has_final_state || peer->connecting || !peer->authenticated.empty()) return;
  try {
    const auto address = SocketAddress::parse(peer->identity().address, peer->identity().port);
    Fd socket = start_connecting(address, options_.liveness_timeout);
    if (!socket && is_local_shortage(errno)) {
      if (actions != nullptr)
        actions->warn(Actions::Warning::shortage, formatted("no control connection to {} yet: {}",
                                                            peer->where(), reason_of(errno)));
      return;
    }
    if (!socket) return set_final_state(*peer, state_after_failed_connect(errno));
    connections_.add({.socket = std::move(socket),
                      .remote_host = address.host(),
                      .remote_address = address.text(),
                      .handshake = Handshake::connecting(peer->secrets.back()),
                      .handshake_deadline = deadline_after(options_.liveness_timeout),
                      .peer = peer});
    peer->connecting = true;
  } catch (const Error& error) {
    if (error.code() != Errc::system) set_final_state(*peer, State::unreachable);
  } catch (const std::bad_alloc&) {
    // on_timer() tries again.
  }
}

// ---- on the monitor thread ----

void ControlPlane::run_locked(const std::function<void(Actions&)>& work) {
  Actions actions;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::open) return;
    work(actions);
  }
  actions.run(options_.on_notice);
}

void ControlPlane::on_timer(Actions& actions) {
  std::uint64_t expirations = 0;
  static_cast<void>(!::read(timer_.get(), &expirations, sizeof expirations));
  monitor_.change_events(listener_handler_, EPOLLIN);  // accept_pending() may have paused it
  send_heartbeats();
  for (Connection* connection : connections_.overdue(Clock::now()))
    driver_.close(*connection, {State::unreachable, "the peer did not authenticate itself in time"},
                  actions);
  for (Connection* connection : connections_.of_broken_peers(Clock::now()))
    driver_.close(*connection,
                  {connection->peer->state_after_break, "another connection to the peer broke"},
                  actions);
  for (const auto& peer : peers_.wanted()) connect_to(peer, &actions);
}

void ControlPlane::send_heartbeats() {
  for (Connection* connection : connections_.all()) {
    if (!connection->is_authenticated() || connection->has_unsent()) continue;
    if (connection->unanswered_heartbeats >= kMaxUnansweredHeartbeats) continue;
    ++connection->unanswered_heartbeats;
    connection->outbox += encode(FrameKind::heartbeat);
    connection->send_outbox();
    connections_.update_events(*connection);
  }
}

void ControlPlane::accept_pending(Actions& actions) {
  for (int i = 0; i < kMaxPerEvent; ++i) {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      accept_connection(std::move(socket), actions);
      continue;
    }
    if (errno == EAGAIN) return;
    // Without a descriptor for it, the listener would stay readable: pause it until on_timer().
    if (is_local_shortage(errno)) return monitor_.change_events(listener_handler_, 0);
  }
}

void ControlPlane::accept_connection(Fd socket, Actions& actions) {
  const SocketAddress from = SocketAddress::of_remote_end(socket.get());
  if (connections_.count_unauthenticated() >= kMaxUnauthenticated ||
      connections_.count_unauthenticated_of(from.host()) >= kMaxUnauthenticatedOfOneHost)
    return actions.warn(
        Actions::Warning::flood,
        formatted("refused a control connection from {}: too many others are unauthenticated",
                  from.text()));
  set_liveness_options(socket.get(), options_.liveness_timeout);
  Connection connection{.socket = std::move(socket),
                        .remote_host = from.host(),
                        .remote_address = from.text(),
                        .handshake = Handshake::accepting(),
                        .handshake_deadline = deadline_after(kControlHandshakeTimeout)};
  connection.outbox = encode(connection.handshake.challenge());
  try {
    driver_.advance(connections_.add(std::move(connection)), actions);
  } catch (const Error& error) {  // the peer will try again
    actions.warn(Actions::Warning::shortage,
                 formatted("could not accept a control connection: {}", error.what()));
  }
}

// ---- close ----

void ControlPlane::close() noexcept {
  if (!begin_to_close()) return;
  const auto deadline =
      deadline_after(monitor_.is_this_thread() ? milliseconds(0) : kControlFlushTimeout);
  send_departure(Handshake::Stage::authenticated);
  flush(deadline);
  // An unauthenticated connection may be from a peer that gets notices over another one: it gets
  // the departure last.
  send_departure(Handshake::Stage::awaits_response);
  flush(deadline);
  const std::lock_guard lock(mutex_);
  connections_.clear();
  listener_.reset();
  timer_.reset();
  phase_ = Phase::closed;
  closed_.notify_all();
}

/// False if another call has closed it. (On the monitor thread also while another call closes it:
/// that one may be waiting for this callback.)
bool ControlPlane::begin_to_close() {
  std::vector<std::uint64_t> handlers;
  {
    std::unique_lock lock(mutex_);
    if (!monitor_.is_this_thread()) closed_.wait(lock, [&] { return phase_ != Phase::closing; });
    if (phase_ != Phase::open) return false;
    phase_ = Phase::closing;  // callbacks return at once from now on
    driver_.set_departing();
    handlers = connections_.stop_watching();
  }
  handlers.insert(handlers.end(), {timer_handler_, listener_handler_});
  for (const std::uint64_t handler : handlers) monitor_.unwatch_fd(handler);
  return true;
}

/// To all connections in this stage. An attempt of this process sends it once it is authenticated.
void ControlPlane::send_departure(Handshake::Stage stage) {
  const std::lock_guard lock(mutex_);
  for (Connection* connection : connections_.all())
    if (connection->stage() == stage) connection->outbox += encode(FrameKind::departure);
}

/// Only this thread drives the connections now. It also reads: closing a socket with unread bytes
/// would reset the connection, which the peer takes for a death.
void ControlPlane::flush(Deadline deadline) {
  constexpr milliseconds kPollInterval{2};  // no event reports that the other host acknowledged
  for (;;) {
    std::vector<pollfd> waiting;
    {
      const std::lock_guard lock(mutex_);
      Actions ignored;
      if (listener_) accept_pending(ignored);
      for (Connection* connection : connections_.all()) driver_.advance(*connection, ignored);
      for (const Connection* connection : connections_.all()) {
        const bool done = !connection->is_attempt() && connection->is_delivered();
        const auto events =
            static_cast<short>(connection->wanted_events());  // same values as poll's
        if (!done) waiting.push_back({connection->socket.get(), events, 0});
      }
    }
    if (waiting.empty() || Clock::now() >= deadline) return;
    ::poll(waiting.data(), waiting.size(),
           poll_timeout(std::min(deadline, Clock::now() + kPollInterval)));
  }
}

/// A child must not keep connections open. The monitor's epoll instance is the parent's, too: it
/// stays as it is.
void ControlPlane::close_in_child() noexcept {
  phase_ = Phase::forked;
  listener_.reset();
  timer_.reset();
  connections_.close_in_child();
}

}  // namespace tccl
