#include "health/control_plane.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/format.h"
#include "base/log.h"
#include "base/system_error.h"
#include "base/tcp_socket.h"
#include "tccl/error.h"

namespace tccl {

using namespace control;
using ProcessState = RemoteProcess::State;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kHeartbeatInterval{
    500};  // heartbeats, and how often deadlines are looked at
constexpr milliseconds kHandshakeTime{2000};
constexpr milliseconds kFlushTime{1000};
constexpr int kMaxUnauthenticated = 256;
constexpr int kMaxAtOnce = 16;  // of one descriptor, so that the others get their turn
constexpr int kMaxHandshakes = 3;
/// A stopped process does not read: if heartbeats filled its buffers, TCP would give it up,
/// although its host answers. Keep-alive probes do without buffers.
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

void expect(bool good, const char* problem) {
  if (!good) throw ConnectionClosed{ProcessState::died, problem};
}

}  // namespace

std::string RemoteProcess::where() const {
  return formatted("host {}, pid {}", identity_.host, identity_.pid);
}

Clock::duration RemoteProcess::silence() const noexcept {
  const Clock::rep heard_at = last_heard_.load(std::memory_order_relaxed);
  if (heard_at == 0) return Clock::duration::zero();
  return Clock::now().time_since_epoch() - Clock::duration(heard_at);
}

// ---- beginning ----

ControlPlane::ControlPlane(Monitor& monitor, Options options)
    : monitor_(monitor), options_(std::move(options)) {
  try {
    open();
  } catch (...) {
    close();
    throw;
  }
}

ControlPlane::~ControlPlane() { close(); }

void ControlPlane::open() {
  const std::lock_guard lock(mutex_);  // no fork now: a child would keep the listener
  listener_ = listen_in_range(options_.address, options_.ports);
  options_.self.address = options_.address;
  options_.self.port = SocketAddress::of_local_end(listener_.get()).port();
  timer_ = new_timer(kHeartbeatInterval);
  timer_service_ = monitor_.serve(timer_.get(), EPOLLIN, [this](std::uint32_t) {
    under_lock([this](DeferredActions& after) { on_timer(after); });
  });
  listener_service_ = monitor_.serve(listener_.get(), EPOLLIN, [this](std::uint32_t) {
    under_lock([this](DeferredActions& after) { accept_some(after); });
  });
}

void ControlPlane::add_secret(const std::string& secret) {
  const std::lock_guard lock(mutex_);
  AcceptedSecret& accepted = accepted_secrets_[key_id(secret)];
  accepted.secret = secret;
  ++accepted.count;
}

void ControlPlane::remove_secret(const std::string& secret) {
  const std::lock_guard lock(mutex_);
  const auto found = accepted_secrets_.find(key_id(secret));
  if (found != accepted_secrets_.end() && --found->second.count == 0)
    accepted_secrets_.erase(found);
}

std::shared_ptr<RemoteProcess> ControlPlane::add_peer(const RemoteProcess::Identity& who,
                                                      const std::string& secret) {
  static_cast<void>(SocketAddress::parse(who.address, who.port));
  const std::lock_guard lock(mutex_);
  auto peer = find_or_make(who);
  peer->secret_ = secret;
  return peer;
}

std::shared_ptr<RemoteProcess> ControlPlane::find_or_make(const RemoteProcess::Identity& who) {
  std::weak_ptr<RemoteProcess>& known = peers_[who.id];
  auto peer = known.lock();
  // One that ended stays so for those who knew it; but a cable may have been joined again.
  if (!peer || peer->ended_) known = peer = std::make_shared<RemoteProcess>(who);
  return peer;
}

// ---- what callers ask for ----

void ControlPlane::connect(const std::shared_ptr<RemoteProcess>& peer) noexcept {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::open) ensure_connection(peer);
}

void ControlPlane::tell(const std::shared_ptr<RemoteProcess>& peer, const Notice& notice) noexcept {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::open || peer->ended_) return;
  if (peer->authenticated_.empty()) {
    peer->unsent_ += encode(notice);
    return ensure_connection(peer);
  }
  Connection& connection = *peer->authenticated_.front();
  connection.outbox += encode(notice);
  update_events(connection);
}

/// For one that has no connection, and so has said nothing that is still to be delivered.
void ControlPlane::set_state_now(RemoteProcess& peer, ProcessState how) noexcept {
  peer.ended_ = true;
  peer.set_state(how);
}

/// What fails for want of something here is tried again by connect_wanted().
void ControlPlane::ensure_connection(const std::shared_ptr<RemoteProcess>& peer) noexcept {
  peer->wanted_ = true;
  if (peer->ended_ || peer->attempting_ || !peer->authenticated_.empty()) return;
  try {
    const auto there = SocketAddress::parse(peer->identity().address, peer->identity().port);
    Fd socket = start_connecting(there, options_.liveness_timeout);
    if (!socket && is_own_shortage(errno)) return;
    if (!socket) return set_state_now(*peer, state_after_failed_connect(errno));
    add({.socket = std::move(socket),
         .remote = there.text(),
         .stage = Stage::connecting,
         .stage_deadline = deadline_after(options_.liveness_timeout),
         .peer = peer,
         .secret = peer->secret_});
    peer->attempting_ = true;
  } catch (const Error& error) {
    if (error.code() != Errc::system) set_state_now(*peer, ProcessState::unreachable);
  }
}

// ---- on the monitor thread ----

void ControlPlane::under_lock(const std::function<void(DeferredActions&)>& work) {
  DeferredActions after;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::open) return;
    work(after);
  }
  deliver(after);
}

void ControlPlane::DeferredActions::end(const std::shared_ptr<RemoteProcess>& peer,
                                        ProcessState how) {
  peer->ended_ = true;
  ends.emplace_back(peer, how);
}

/// In this order: who sees that a peer has ended has been told what it said before.
void ControlPlane::deliver(const DeferredActions& after) const {
  for (const auto& [peer, notice] : after.notices)
    if (options_.on_notice) options_.on_notice(peer, notice);
  for (const auto& [peer, end] : after.ends) peer->set_state(end);
  static std::atomic<bool> warned{false};  // once per process: strangers may come in crowds
  if (!after.warning.empty() && !warned.exchange(true, std::memory_order_relaxed))
    log_warning(after.warning);
}

void ControlPlane::on_timer(DeferredActions& after) {
  std::uint64_t expirations = 0;
  static_cast<void>(!::read(timer_.get(), &expirations, sizeof expirations));
  monitor_.change_service(listener_service_, EPOLLIN);  // accept_some() may have paused it
  send_heartbeats();
  drop_overdue(after);
  connect_wanted();
}

void ControlPlane::send_heartbeats() {
  for (auto& [number, connection] : connections_) {
    if (connection->stage != Stage::authenticated || connection->has_unsent()) continue;
    if (connection->unanswered_heartbeats >= kMaxUnansweredHeartbeats) continue;
    ++connection->unanswered_heartbeats;
    connection->outbox += encode(Kind::heartbeat);
    connection->send_outbox();
    update_events(*connection);
  }
}

void ControlPlane::drop_overdue(DeferredActions& after) {
  const auto now = Clock::now();
  std::vector<Connection*> overdue;
  for (auto& [number, connection] : connections_)
    if (now >= connection->stage_deadline) overdue.push_back(connection.get());
  for (Connection* connection : overdue)
    finish(*connection, {ProcessState::unreachable, "it did not prove itself in time"}, after);
}

void ControlPlane::connect_wanted() {
  std::erase_if(peers_, [](const auto& known) { return known.second.expired(); });
  for (const auto& [id, weak] : peers_)
    if (const auto peer = weak.lock(); peer && peer->wanted_) ensure_connection(peer);
}

void ControlPlane::accept_some(DeferredActions& after) {
  for (int i = 0; i < kMaxAtOnce; ++i) {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      accept_connection(std::move(socket), after);
      continue;
    }
    if (errno == EAGAIN) return;
    if (is_own_shortage(errno) && !drop_oldest_unauthenticated(after))
      return monitor_.change_service(listener_service_, 0);  // until on_timer(), not to spin
  }
}

void ControlPlane::accept_connection(Fd socket, DeferredActions& after) {
  const auto is_unauthenticated = [](const auto& entry) {
    return entry.second->is_unauthenticated();
  };
  if (std::ranges::count_if(connections_, is_unauthenticated) >= kMaxUnauthenticated)
    drop_oldest_unauthenticated(after);
  set_liveness_options(socket.get(), options_.liveness_timeout);
  Connection connection{.socket = std::move(socket),
                        .stage = Stage::awaits_answer,
                        .stage_deadline = deadline_after(kHandshakeTime),
                        .challenge = {random_digest()}};
  connection.remote = SocketAddress::of_remote_end(connection.socket.get()).text();
  connection.outbox = encode(connection.challenge);
  try {
    advance(add(std::move(connection)), after);
  } catch (const Error& error) {  // it cannot be served; it may come again
    after.warning = formatted("a connection could not be accepted: {}", error.what());
  }
}

bool ControlPlane::drop_oldest_unauthenticated(DeferredActions& after) {
  const auto found = std::ranges::find_if(
      connections_, [](const auto& entry) { return entry.second->is_unauthenticated(); });
  if (found == connections_.end()) return false;
  finish(*found->second, {ProcessState::died, "there are too many that do not prove themselves"},
         after);
  return true;
}

// ---- a connection ----

ControlPlane::Connection& ControlPlane::add(Connection connection) {
  const std::uint64_t number = next_number_++;
  connection.number = number;
  auto& added = connections_[number];
  added = std::make_unique<Connection>(std::move(connection));
  if (phase_ != Phase::open) return *added;
  try {
    added->events = added->wanted_events();
    added->service =
        monitor_.serve(added->socket.get(), added->events, [this, number](std::uint32_t) {
          under_lock([this, number](DeferredActions& after) {
            const auto found = connections_.find(number);
            if (found != connections_.end()) advance(*found->second, after);
          });
        });
  } catch (const Error&) {
    connections_.erase(number);
    throw;
  }
  return *added;
}

void ControlPlane::update_events(Connection& connection) {
  const std::uint32_t wanted = connection.wanted_events();
  if (std::exchange(connection.events, wanted) != wanted)
    monitor_.change_service(connection.service, wanted);
}

/// Does what can be done without waiting. Afterwards the connection may be gone.
void ControlPlane::advance(Connection& connection, DeferredActions& after) {
  try {
    return work_on(connection, after);
  } catch (const ConnectionClosed& over) {
    finish(connection, over, after);
  } catch (const Error& error) {
    finish(connection, {ProcessState::died, error.what()}, after);
  }
}

void ControlPlane::work_on(Connection& connection, DeferredActions& after) {
  if (connection.stage == Stage::connecting) {
    if (!connection.finish_connecting()) return;
    connection.stage = Stage::awaits_challenge;
    connection.stage_deadline =
        Deadline::max();  // its host is there; a stopped process answers later
    connection.peer->note_heard();
  }
  connection.send_outbox();
  for (int i = 0; i < kMaxAtOnce && connection.receive_some(); ++i)
    while (const auto frame = connection.inbox.next()) take(connection, *frame, after);
  connection.send_outbox();
  update_events(connection);
}

void ControlPlane::take(Connection& connection, const Frame& frame, DeferredActions& after) {
  const bool authenticated = connection.stage == Stage::authenticated;
  if (authenticated) {
    connection.unanswered_heartbeats = 0;
    connection.peer->note_heard();
  }
  switch (frame.kind) {
    case Kind::challenge:
      return answer_challenge(connection, decode_challenge(frame.body));
    case Kind::answer:
      return check_answer(connection, decode_answer(frame.body));
    case Kind::proof:
      return check_proof(connection, decode_proof(frame.body));
    case Kind::heartbeat:
      return expect(authenticated, "it sent a heartbeat before a proof");
    case Kind::notice:
      expect(authenticated, "it sent a notice before a proof");
      after.notices.emplace_back(connection.peer, decode_notice(frame.body));
      return;
    case Kind::goodbye:
      // From an acceptor that has no time to prove itself, too: not to believe it would mean to
      // take it for dead.
      expect(!connection.is_unauthenticated(), "it left before a proof");
      throw ConnectionClosed{ProcessState::departed, "it left"};
  }
  throw ConnectionClosed{ProcessState::died, "it sent a frame of an unknown kind"};
}

void ControlPlane::answer_challenge(Connection& connection, const Challenge& challenge) {
  expect(connection.stage == Stage::awaits_challenge, "it sent a challenge out of turn");
  const std::string& secret = connection.secret;
  connection.challenge = challenge;
  Answer& answer = connection.answer;
  answer = {key_id(secret), random_digest(), {}, options_.self};
  answer.proof = connector_proof(secret, challenge, answer, connection.peer->identity().id);
  connection.outbox += encode(answer);
  connection.stage = Stage::awaits_proof;
}

void ControlPlane::check_answer(Connection& connection, const Answer& answer) {
  expect(connection.stage == Stage::awaits_answer, "it sent an answer out of turn");
  const auto found = accepted_secrets_.find(answer.key);
  expect(found != accepted_secrets_.end(), "it does not know a secret of this job");
  const std::string& secret = found->second.secret;
  const Digest& own_id = options_.self.id;
  expect(same_digest(answer.proof, connector_proof(secret, connection.challenge, answer, own_id)),
         "its proof is wrong, or meant for another process");
  connection.peer = find_or_make(answer.identity);
  if (connection.peer->secret_.empty()) connection.peer->secret_ = secret;
  const Digest proof = acceptor_proof(secret, connection.challenge, answer, own_id);
  connection.outbox += encode(Proof{own_id, proof});
  become_authenticated(connection);
}

void ControlPlane::check_proof(Connection& connection, const Proof& proof) {
  expect(connection.stage == Stage::awaits_proof, "it sent a proof out of turn");
  const Digest& wanted = connection.peer->identity().id;
  expect(proof.id == wanted, "it is another process");
  expect(same_digest(proof.proof, acceptor_proof(connection.secret, connection.challenge,
                                                 connection.answer, wanted)),
         "its proof is wrong");
  connection.peer->attempting_ = false;
  become_authenticated(connection);
}

void ControlPlane::become_authenticated(Connection& connection) {
  RemoteProcess& peer = *connection.peer;
  connection.stage = Stage::authenticated;
  connection.stage_deadline = Deadline::max();
  peer.note_heard();
  peer.failed_handshakes_ = 0;
  peer.authenticated_.push_back(&connection);
  connection.outbox += std::exchange(peer.unsent_, {});
  if (phase_ == Phase::closing) connection.outbox += encode(Kind::goodbye);
}

/// Takes the connection away.
void ControlPlane::finish(Connection& connection, const ConnectionClosed& over,
                          DeferredActions& after) {
  monitor_.end_service(connection.service);  // does not wait: this is its thread, or close() did
  if (connection.stage == Stage::authenticated)
    note_end(connection, over, after);
  else if (connection.peer)
    note_failed_attempt(connection, over, after);
  else
    after.warning = formatted("a connection from {} was dropped: {}", connection.remote, over.why);
  connections_.erase(connection.number);
}

void ControlPlane::note_end(const Connection& connection, const ConnectionClosed& over,
                            DeferredActions& after) {
  RemoteProcess& peer = *connection.peer;
  std::erase(peer.authenticated_, &connection);
  peer.departed_ |= over.how == ProcessState::departed;
  // Another connection may still carry what was said before.
  if (peer.authenticated_.empty())
    after.end(connection.peer, peer.departed_ ? ProcessState::departed : over.how);
}

void ControlPlane::note_failed_attempt(const Connection& connection, const ConnectionClosed& over,
                                       DeferredActions& after) {
  RemoteProcess& peer = *connection.peer;
  peer.attempting_ = false;
  if (!peer.authenticated_.empty()) return;
  const bool in_handshake = connection.stage != Stage::connecting && over.how == ProcessState::died;
  if (!in_handshake) return after.end(connection.peer, over.how);
  // The handshake failed. The other side drops who is slow, such as a process that was stopped
  // meanwhile, so try again: if it has died, the next connection will be refused.
  if (++peer.failed_handshakes_ < kMaxHandshakes) return;
  after.end(connection.peer, ProcessState::died);
  after.warning =
      formatted("no connection to {} ({}): {}", connection.remote, peer.where(), over.why);
}

// ---- the end ----

void ControlPlane::close() noexcept {
  if (!begin_to_close()) return;
  for (const std::uint64_t service : services()) monitor_.end_service(service);
  const auto deadline = deadline_after(monitor_.is_this_thread() ? milliseconds(0) : kFlushTime);
  send_departure(Stage::authenticated);
  flush(deadline);
  // One that progress_signal now may be a peer to whom notices went by another way: it hears
  // goodbye last.
  send_departure(Stage::awaits_answer);
  flush(deadline);
  const std::lock_guard lock(mutex_);
  for (auto& [number, connection] : connections_)
    if (connection->peer) connection->peer->authenticated_.clear();
  connections_.clear();
  listener_.reset();
  timer_.reset();
  phase_ = Phase::closed;
  closed_.notify_all();
}

/// False if there is nothing left to do: then it is closed (but on the monitor thread, for whose
/// callback the one who closes may be waiting).
bool ControlPlane::begin_to_close() {
  std::unique_lock lock(mutex_);
  if (!monitor_.is_this_thread()) closed_.wait(lock, [&] { return phase_ != Phase::closing; });
  if (phase_ != Phase::open) return false;
  phase_ = Phase::closing;  // callbacks do nothing any more
  return true;
}

std::vector<std::uint64_t> ControlPlane::services() {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> numbers{timer_service_, listener_service_};
  for (const auto& [number, connection] : connections_) numbers.push_back(connection->service);
  return numbers;
}

/// To all connections that have come so far. An attempt from here says it itself once it is
/// authenticated.
void ControlPlane::send_departure(Stage stage) {
  const std::lock_guard lock(mutex_);
  for (auto& [number, connection] : connections_)
    if (connection->stage == stage) connection->outbox += encode(Kind::goodbye);
}

void ControlPlane::advance_all(DeferredActions& after) {
  std::vector<Connection*> all;
  for (const auto& [number, connection] : connections_) all.push_back(connection.get());
  for (Connection* connection : all) advance(*connection, after);
}

/// Only this thread works on the connections now. It reads, too: a socket that is closed with
/// something unread tells the other side of a failure.
void ControlPlane::flush(Deadline deadline) {
  constexpr milliseconds kLook{2};  // nothing tells when the other host has got everything
  for (;;) {
    std::vector<pollfd> waiting;
    {
      const std::lock_guard lock(mutex_);
      DeferredActions ignored;
      if (listener_) accept_some(ignored);
      advance_all(ignored);
      for (const auto& [number, connection] : connections_) {
        const bool done = !connection->is_attempt() && connection->is_delivered();
        const auto events = static_cast<short>(connection->wanted_events());  // as poll()'s
        if (!done) waiting.push_back({connection->socket.get(), events, 0});
      }
    }
    if (waiting.empty() || Clock::now() >= deadline) return;
    ::poll(waiting.data(), waiting.size(), poll_timeout(std::min(deadline, Clock::now() + kLook)));
  }
}

/// A child keeps nothing of the job alive. The monitor's epoll is the parent's, too: leave it
/// alone.
void ControlPlane::drop_in_child() noexcept {
  phase_ = Phase::forked;
  listener_.reset();
  timer_.reset();
  for (auto& [number, connection] : connections_) connection->socket.reset();
}

}  // namespace tccl
