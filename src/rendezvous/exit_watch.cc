#include "rendezvous/exit_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/format.h"
#include "base/start_thread.h"
#include "base/system_error.h"
#include "base/tcp_socket.h"
#include "rendezvous/host_discovery.h"
#include "rendezvous/init_errors.h"
#include "rendezvous/packets.h"

namespace tccl {
namespace {

/// The binding data of the challenge-response handshake.
constexpr std::string_view kHandshake = "exit watch";
/// Sent by a process that ends its rendezvous, whatever the outcome.
constexpr char kFarewell = 'f';
/// For the handshake of one connection. Strangers may connect and be silent.
constexpr std::chrono::seconds kHandshakeTimeout{5};
/// Connections without a proof; further ones are refused.
constexpr std::size_t kMaxUnproved = 64;
/// How long a refused client waits before it connects again.
constexpr std::chrono::milliseconds kRetryInterval{100};
/// A host that loses power or its network is taken for ended after this time.
constexpr std::chrono::seconds kLivenessTimeout{10};

/// Connector to acceptor.
struct WatchRequest {
  Response response;
  std::int32_t rank;
  char process[80];  // "host b, pid 4711"
};

Fd open_event() {
  Fd event(::eventfd(0, EFD_CLOEXEC));
  if (!event) throw_system_error("eventfd");
  return event;
}

void signal(const Fd& event) noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(event.get(), &one, sizeof one));
}

/// Packets are far smaller than a socket's buffer: an incomplete one means a broken connection.
template <class Packet>
bool send_all(int socket, const Packet& packet) noexcept {
  return ::send(socket, &packet, sizeof packet, MSG_NOSIGNAL) ==
         static_cast<ssize_t>(sizeof packet);
}

/// From now on poll() reports the socket once it has received a whole packet, or has failed.
template <class Packet>
void expect(int socket) noexcept {
  const int bytes = sizeof(Packet);
  ::setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

/// After poll() has reported the socket. None if the connection has failed.
template <class Packet>
std::optional<Packet> receive(int socket) noexcept {
  Packet packet;
  const ssize_t received = ::recv(socket, &packet, sizeof packet, MSG_DONTWAIT);
  if (received != static_cast<ssize_t>(sizeof packet)) return std::nullopt;
  return packet;
}

enum class Received : unsigned char { nothing, farewell, end_of_file };

Received receive_farewell(int socket) noexcept {
  char byte = 0;
  const ssize_t received = ::recv(socket, &byte, 1, MSG_DONTWAIT);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return Received::nothing;
  return received == 1 && byte == kFarewell ? Received::farewell : Received::end_of_file;
}

}  // namespace

Fd listen_for_exit_watch(const AddressOffer& offer) noexcept {
  try {
    if (offer.usable.empty()) return {};
    return try_listen(SocketAddress::parse(offer.usable.front(), 0));
  } catch (const Error&) {
    return {};
  }
}

// ---- rank 0 ----

ExitWatchServer::ExitWatchServer(const RendezvousOptions& options, Fd listener)
    : options_(options), listener_(std::move(listener)), stop_(open_event()) {
  thread_ = start_thread("the thread that watches the other hosts", [this] { main(); });
}

ExitWatchServer::~ExitWatchServer() {
  signal(stop_);
  thread_.join();
  for (const Connection& connection : connections_)
    if (connection.rank >= 0) send_all(connection.socket.get(), kFarewell);
}

void ExitWatchServer::main() {
  for (;;) {
    std::vector<pollfd> entries{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_)
      entries.push_back({connection.socket.get(), POLLIN, 0});
    if (::poll(entries.data(), entries.size(), poll_timeout(next_deadline())) < 0) continue;
    if (entries[0].revents != 0) return;
    for (std::size_t i = 2; i < entries.size(); ++i)
      if (entries[i].revents != 0) serve(connections_[i - 2]);
    const Deadline now = Clock::now();
    std::erase_if(connections_, [&](const Connection& connection) {
      return !connection.socket || (connection.rank < 0 && now >= connection.prove_until);
    });
    if (entries[1].revents != 0) accept_one();
  }
}

Deadline ExitWatchServer::next_deadline() const {
  Deadline next = Deadline::max();
  for (const Connection& connection : connections_)
    if (connection.rank < 0) next = std::min(next, connection.prove_until);
  return next;
}

void ExitWatchServer::accept_one() {
  Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    // Without a free descriptor the connection stays in the queue and poll() reports it again.
    if (errno == EMFILE || errno == ENFILE) static_cast<void>(::usleep(100'000));
    return;
  }
  const auto unproved = std::ranges::count(connections_, -1, &Connection::rank);
  if (static_cast<std::size_t>(unproved) >= kMaxUnproved) return;
  set_liveness_options(socket.get(), kLivenessTimeout);
  expect<WatchRequest>(socket.get());
  Connection connection{std::move(socket), make_challenge(), deadline_after(kHandshakeTimeout)};
  if (send_all(connection.socket.get(), connection.challenge))
    connections_.push_back(std::move(connection));
}

void ExitWatchServer::serve(Connection& connection) {
  if (connection.rank < 0) return authenticate(connection);
  const Received received = receive_farewell(connection.socket.get());
  if (received == Received::nothing) return;
  if (received == Received::end_of_file) publish_end_of(connection);
  connection.socket.reset();
}

void ExitWatchServer::authenticate(Connection& connection) {
  const int socket = connection.socket.get();
  const auto request = receive<WatchRequest>(socket);
  const bool is_member =
      request && request->rank > 0 && request->rank < options_.size &&
      verify(options_.secret, connection.challenge, request->response, kHandshake);
  if (!is_member || !send_all(socket, confirm(options_.secret, connection.challenge,
                                              request->response, kHandshake)))
    return connection.socket.reset();
  expect<char>(socket);  // the farewell
  connection.rank = request->rank;
  connection.process.assign(request->process, ::strnlen(request->process, sizeof request->process));
}

void ExitWatchServer::publish_end_of(const Connection& connection) const {
  const std::string process = formatted("rank {} ({})", connection.rank, connection.process);
  try_publish_failure(options_, failure_status(ended_error(options_, process, connection.rank)));
}

// ---- the coordinators of the other hosts ----

ExitWatchClient::ExitWatchClient(const RendezvousOptions& options)
    : address_(options.rank_zero.watch_address),
      secret_(options.secret),
      rank_(options.rank),
      stop_(open_event()) {
  thread_ = start_thread("the thread that watches rank 0", [this] { main(); });
}

ExitWatchClient::~ExitWatchClient() {
  signal(stop_);
  thread_.join();
}

void ExitWatchClient::main() {
  Fd socket;
  std::optional<Challenge> challenge;
  do {
    socket = connect();
    if (!socket) return;
    challenge = receive_challenge(socket.get());
    // None: closed by the server, which has too many unproved connections.
  } while (!challenge && !is_over_within(kRetryInterval));
  if (!challenge) return;
  if (authenticate(socket.get(), *challenge)) watch(socket.get());
  // Also without a confirmation: the server may have accepted the request meanwhile, and would take
  // the end of the connection for the end of this process.
  send_all(socket.get(), kFarewell);
}

void ExitWatchClient::watch(int socket) {
  while (wait_for(socket, POLLIN)) {
    const Received received = receive_farewell(socket);
    if (received == Received::nothing) continue;
    // relaxed: see rank_zero_has_ended()
    rank_zero_has_ended_.store(received == Received::end_of_file, std::memory_order_relaxed);
    return;
  }
}

Fd ExitWatchClient::connect() const {
  try {
    Fd socket =
        start_connecting(SocketAddress::parse(address_.host, address_.port), kLivenessTimeout);
    return socket && wait_for(socket.get(), POLLOUT) ? std::move(socket) : Fd();
  } catch (const Error&) {
    return {};  // not an address: the store may contain anything
  }
}

/// False when the rendezvous is over.
bool ExitWatchClient::wait_for(int socket, short event) const {
  std::array<pollfd, 2> entries{{{stop_.get(), POLLIN, 0}, {socket, event, 0}}};
  while (::poll(entries.data(), entries.size(), -1) < 0) {
  }
  return entries[0].revents == 0;
}

/// True when the rendezvous is over before the time is.
bool ExitWatchClient::is_over_within(std::chrono::milliseconds time) const {
  pollfd entry{stop_.get(), POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(time.count())) > 0;
}

/// None if the server has closed the connection, or the rendezvous is over.
std::optional<Challenge> ExitWatchClient::receive_challenge(int socket) const {
  expect<Challenge>(socket);
  return wait_for(socket, POLLIN) ? receive<Challenge>(socket) : std::nullopt;
}

bool ExitWatchClient::authenticate(int socket, const Challenge& challenge) const {
  WatchRequest request{respond(secret_, challenge, kHandshake), rank_, {}};
  this_process_text().copy(request.process, sizeof request.process - 1);
  expect<Confirmation>(socket);
  if (!send_all(socket, request) || !wait_for(socket, POLLIN)) return false;
  const auto confirmation = receive<Confirmation>(socket);
  expect<char>(socket);  // the farewell
  return confirmation && verify(secret_, challenge, request.response, *confirmation, kHandshake);
}

}  // namespace tccl
