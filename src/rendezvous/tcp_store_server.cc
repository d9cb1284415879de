#include "rendezvous/tcp_store_server.h"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/system_error.h"
#include "base/tcp_socket.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using namespace tcp_store_protocol;
using std::chrono::milliseconds;

/// Until accept() is tried again when the process has no more descriptors.
constexpr milliseconds kAcceptPause{100};

Fd listen_on(const std::string& host, std::uint16_t port) {
  for (const SocketAddress& address : addresses_of(host, port))
    if (Fd fd = try_listen(address)) return fd;
  throw_system_error(formatted("store: cannot listen on {}:{}", host, port));
}

/// The process needs descriptors for other things, too.
TcpStoreServer::Limits within_half_of_descriptors(TcpStoreServer::Limits limits) {
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) == 0)
    limits.connections = std::min<std::size_t>(limits.connections, descriptors.rlim_cur / 2);
  return limits;
}

RequestHeader header_of(const std::string& request) {
  RequestHeader header;
  std::memcpy(&header, request.data(), sizeof header);
  return header;
}

}  // namespace

std::vector<SocketAddress> tcp_store_protocol::addresses_of(const std::string& host,
                                                            std::uint16_t port) {
  int gai_error = 0;
  std::vector<SocketAddress> addresses = SocketAddress::resolve(host, port, &gai_error);
  if (gai_error != 0)
    throw Error(Errc::system, formatted("store {}:{}: {}", host, port, gai_strerror(gai_error)));
  return addresses;
}

TcpStoreServer::TcpStoreServer(const std::string& host, std::uint16_t port, Limits limits)
    : limits_(within_half_of_descriptors(limits)),
      owner_(::getpid()),
      listener_(listen_on(host, port)),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      fork_hook_(mutex_, [this] { close_in_child(); }) {
  if (!stop_) throw_system_error("eventfd");
  thread_ = start_thread("the thread of the store", [this] { main(); });
}

TcpStoreServer::~TcpStoreServer() {
  if (owner_ != ::getpid()) {  // a forked child has no such thread
    thread_.detach();
    return;
  }
  const std::uint64_t one = 1;
  static_cast<void>(!::write(stop_.get(), &one, sizeof one));
  thread_.join();
}

void TcpStoreServer::close_in_child() noexcept {
  listener_.reset();
  stop_.reset();
  for (Connection& c : connections_) c.fd.reset();
}

// ---- connections ----

void TcpStoreServer::main() {
  for (;;) {
    const short accepts = accepts_connections() ? POLLIN : 0;
    std::vector<pollfd> entries{{stop_.get(), POLLIN, 0}, {listener_.get(), accepts, 0}};
    for (const Connection& c : connections_) {
      const bool sends = c.state == Connection::State::sends_reply;
      entries.push_back({c.fd.get(), static_cast<short>(sends ? POLLOUT : POLLIN), 0});
    }
    if (::poll(entries.data(), entries.size(), poll_timeout(next_deadline())) < 0) continue;
    if (entries[0].revents != 0) return;
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 2; i < entries.size(); ++i)
      if (entries[i].revents != 0) serve(connections_[i - 2]);
    const Deadline now = Clock::now();
    std::erase_if(connections_, [&](const Connection& c) { return !c.fd || now >= c.deadline; });
    if (entries[1].revents != 0) accept_one();
  }
}

Deadline TcpStoreServer::next_deadline() const {
  Deadline next = accept_again_at_ > Clock::now() ? accept_again_at_ : Deadline::max();
  for (const Connection& c : connections_) next = std::min(next, c.deadline);
  return next;
}

bool TcpStoreServer::accepts_connections() const {
  return connections_.size() < limits_.connections && Clock::now() >= accept_again_at_;
}

void TcpStoreServer::accept_one() {
  Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) {
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
      accept_again_at_ = deadline_after(kAcceptPause);
    return;
  }
  // A client that waits for a key may have lost its host.
  const int on = 1;
  static_cast<void>(::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
  connections_.push_back({.fd = std::move(fd), .deadline = deadline_after(limits_.request)});
}

void TcpStoreServer::serve(Connection& c) {
  try {
    c.state == Connection::State::sends_reply ? send_reply(c) : read_request(c);
  } catch (const std::bad_alloc&) {
    c.fd.reset();
  }
}

// ---- requests ----

void TcpStoreServer::read_request(Connection& c) {
  char buffer[4096];
  const ssize_t got = ::recv(c.fd.get(), buffer, sizeof buffer, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  // A client that waits for a key has nothing more to say.
  if (got <= 0 || c.state == Connection::State::waits_for_key) return c.fd.reset();
  const bool had_header = c.request.size() >= sizeof(RequestHeader);
  c.request.append(buffer, static_cast<std::size_t>(got));
  if (c.request.size() < sizeof(RequestHeader)) return;
  if (!had_header && !accepts_header(c)) return c.fd.reset();
  const std::size_t total = sizeof(RequestHeader) + c.announced_bytes;
  if (c.request.size() > total) return c.fd.reset();  // not a client of this store
  if (c.request.size() == total) handle(c);
}

/// Accounts for the memory that the request announces.
bool TcpStoreServer::accepts_header(Connection& c) const {
  const RequestHeader header = header_of(c.request);
  if (header.key_bytes > kMaxFieldBytes || header.value_bytes > kMaxFieldBytes) return false;
  c.announced_bytes = std::size_t{header.key_bytes} + header.value_bytes;
  std::size_t bytes = stored_bytes_;
  for (const Connection& other : connections_) bytes += other.announced_bytes;
  if (bytes <= limits_.bytes) return true;
  log_warning(formatted("the store refuses a request of {} bytes: all keys and values may take {}",
                        c.announced_bytes, limits_.bytes));
  return false;
}

void TcpStoreServer::handle(Connection& c) {
  const RequestHeader header = header_of(c.request);
  const std::string key = c.request.substr(sizeof header, header.key_bytes);
  std::string value = c.request.substr(sizeof header + header.key_bytes);
  c.request = {};
  c.announced_bytes = key.size();
  switch (header.kind) {
    case Kind::set:
      set(key, std::move(value));
      return start_reply(c, 0, nullptr);
    case Kind::remove:
      remove(key);
      return start_reply(c, 0, nullptr);
    case Kind::get:
      return reply_when_set(c, key);
    case Kind::peek:
      return values_.contains(key) ? reply_when_set(c, key) : start_reply(c, kNoSuchKey, nullptr);
  }
  c.fd.reset();  // not a client of this store
}

void TcpStoreServer::set(const std::string& key, std::string value) {
  remove(key);
  stored_bytes_ += key.size() + value.size();
  values_[key] = std::make_shared<const std::string>(std::move(value));
  for (Connection& other : connections_)
    if (other.fd && other.state == Connection::State::waits_for_key && other.key == key)
      reply_when_set(other, key);
}

void TcpStoreServer::remove(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return;
  stored_bytes_ -= key.size() + found->second->size();
  values_.erase(found);
}

void TcpStoreServer::reply_when_set(Connection& c, const std::string& key) {
  const auto found = values_.find(key);
  if (found != values_.end())
    return start_reply(c, static_cast<std::uint32_t>(found->second->size()), found->second);
  c.state = Connection::State::waits_for_key;
  limit_waiting();
  c.key = key;
  c.deadline = Deadline::max();  // the client's
}

/// Clients that wait must not keep out the one that sets the key. The one that has waited longest is
/// told that the key does not exist; clients ask again until their timeout.
void TcpStoreServer::limit_waiting() {
  const auto waits = [](const Connection& c) {
    return c.fd && c.state == Connection::State::waits_for_key;
  };
  if (static_cast<std::size_t>(std::ranges::count_if(connections_, waits)) <=
      limits_.connections * 3 / 4)
    return;
  start_reply(*std::ranges::find_if(connections_, waits), kNoSuchKey, nullptr);
}

// ---- replies ----

void TcpStoreServer::start_reply(Connection& c, std::uint32_t length, Value value) {
  c.state = Connection::State::sends_reply;
  c.deadline = deadline_after(limits_.request);
  c.reply_length = length;
  c.reply = std::move(value);
}

/// The client closes the connection once it has the reply; so does the server.
void TcpStoreServer::send_reply(Connection& c) const {
  const auto* length = reinterpret_cast<const char*>(&c.reply_length);
  const std::size_t total = sizeof c.reply_length + (c.reply ? c.reply->size() : 0);
  while (c.sent < total) {
    const std::span<const char> rest =
        c.sent < sizeof c.reply_length
            ? std::span(length, sizeof c.reply_length).subspan(c.sent)
            : std::span(c.reply->data(), c.reply->size()).subspan(c.sent - sizeof c.reply_length);
    const ssize_t sent = ::send(c.fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent <= 0) break;
    c.sent += static_cast<std::size_t>(sent);
  }
  c.fd.reset();
}

}  // namespace tccl
