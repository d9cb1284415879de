// tcp_store(): a key-value server and its client. See tccl/store.h.
//
// A request is {kind, key length, value length, key, value}. The reply is {length, value}: to GET
// once the key exists, to PEEK at once (kNoSuchKey if there is none), to SET and REMOVE with length
// 0. Each request uses its own connection, so a waiting GET blocks no other request.
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/fork_hook.h"
#include "base/format.h"
#include "base/poll.h"
#include "base/system_error.h"
#include "base/tcp_socket.h"
#include "tccl/error.h"
#include "tccl/store.h"

namespace tccl {
namespace {

enum class Kind : std::uint32_t { set, get, remove, peek };

struct RequestHeader {
  Kind kind;
  std::uint32_t key_bytes;
  std::uint32_t value_bytes;
};
constexpr std::uint32_t kMaxFieldBytes = 16u << 20;
constexpr std::uint32_t kNoSuchKey = ~std::uint32_t{0};  // in place of a reply's length

std::vector<SocketAddress> addresses_of(const std::string& host, std::uint16_t port) {
  int gai_error = 0;
  std::vector<SocketAddress> addresses = SocketAddress::resolve(host, port, &gai_error);
  if (gai_error != 0)
    throw Error(Errc::system, formatted("store {}:{}: {}", host, port, gai_strerror(gai_error)));
  return addresses;
}

Fd listen_on(const std::string& host, std::uint16_t port) {
  for (const SocketAddress& address : addresses_of(host, port))
    if (Fd fd = try_listen(address)) return fd;
  throw_system_error(formatted("store: cannot listen on {}:{}", host, port));
}

bool finish_connecting(const Fd& fd, Deadline deadline) {
  if (!wait_for_event(fd.get(), POLLOUT, deadline)) return false;
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

/// Returns an invalid Fd if no server listens there.
Fd try_connect(const std::string& host, std::uint16_t port, Deadline deadline) {
  for (const SocketAddress& address : addresses_of(host, port))
    if (Fd fd = start_connecting(address); fd && finish_connecting(fd, deadline)) return fd;
  return {};
}

std::string with_length(std::string_view value) {
  const auto bytes = static_cast<std::uint32_t>(value.size());
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes).append(value);
}

/// Serves all connections from one thread. A GET of a missing key stays pending in its connection.
class Server {
 public:
  Server(const std::string& host, std::uint16_t port)
      : listener_(listen_on(host, port)), stop_(::eventfd(0, EFD_CLOEXEC)) {
    thread_ = std::thread([this] { main(); });
  }
  ~Server() {
    if (owner_ != ::getpid()) {  // a forked child has no such thread
      thread_.detach();
      return;
    }
    const std::uint64_t one = 1;
    static_cast<void>(!::write(stop_.get(), &one, sizeof one));
    thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  struct Connection {
    Fd fd;
    std::string inbox;
    std::string outbox;
    std::optional<std::string> pending_key;  // of a GET of a missing key
  };

  void main() {
    for (;;) {
      std::vector<pollfd> entries{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Connection& c : connections_)
        entries.push_back({c.fd.get(), static_cast<short>(c.outbox.empty() ? POLLIN : POLLOUT), 0});
      if (::poll(entries.data(), entries.size(), -1) < 0) continue;
      if (entries[0].revents != 0) return;
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 2; i < entries.size(); ++i)
        if (entries[i].revents != 0) serve(connections_[i - 2]);
      std::erase_if(connections_, [](const Connection& c) { return !c.fd; });
      if (entries[1].revents != 0) accept_one();
    }
  }

  void accept_one() {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd)
      connections_.push_back({.fd = std::move(fd), .inbox = {}, .outbox = {}, .pending_key = {}});
  }

  void serve(Connection& c) { c.outbox.empty() ? read_from(c) : write_to(c); }

  void write_to(Connection& c) {
    const ssize_t sent = ::send(c.fd.get(), c.outbox.data(), c.outbox.size(), MSG_NOSIGNAL);
    if (sent > 0)
      c.outbox.erase(0, static_cast<std::size_t>(sent));
    else if (errno != EAGAIN && errno != EINTR)
      c.fd.reset();
  }

  void read_from(Connection& c) {
    char buffer[4096];
    const ssize_t got = ::recv(c.fd.get(), buffer, sizeof buffer, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return c.fd.reset();
    c.inbox.append(buffer, static_cast<std::size_t>(got));
    while (c.fd && handle_request(c)) {
    }
  }

  /// False if no complete request has arrived.
  bool handle_request(Connection& c) {
    RequestHeader header;
    if (c.inbox.size() < sizeof header) return false;
    std::memcpy(&header, c.inbox.data(), sizeof header);
    if (header.key_bytes > kMaxFieldBytes || header.value_bytes > kMaxFieldBytes) {
      c.fd.reset();  // not a client of this store
      return false;
    }
    const std::size_t total = sizeof header + header.key_bytes + header.value_bytes;
    if (c.inbox.size() < total) return false;
    const std::string key = c.inbox.substr(sizeof header, header.key_bytes);
    const std::string value = c.inbox.substr(sizeof header + header.key_bytes, header.value_bytes);
    c.inbox.erase(0, total);
    reply(c, header.kind, key, value);
    return true;
  }

  void reply(Connection& c, Kind kind, const std::string& key, const std::string& value) {
    if (kind == Kind::get) return reply_when_set(c, key);
    if (kind == Kind::peek) return reply_now(c, key);
    if (kind == Kind::remove)
      values_.erase(key);
    else
      values_[key] = value;
    c.outbox += with_length("");
    if (kind == Kind::remove) return;
    for (Connection& other : connections_)
      if (other.fd && other.pending_key == key) reply_when_set(other, key);
  }

  void reply_now(Connection& c, const std::string& key) {
    const auto found = values_.find(key);
    if (found != values_.end())
      c.outbox += with_length(found->second);
    else
      c.outbox.append(reinterpret_cast<const char*>(&kNoSuchKey), sizeof kNoSuchKey);
  }

  void reply_when_set(Connection& c, const std::string& key) {
    const auto found = values_.find(key);
    c.pending_key = found == values_.end() ? std::optional(key) : std::nullopt;
    if (found != values_.end()) c.outbox += with_length(found->second);
  }

  void close_in_child() noexcept {
    listener_.reset();
    stop_.reset();
    for (Connection& c : connections_) c.fd.reset();
  }

  const pid_t owner_ = ::getpid();
  Fd listener_;
  Fd stop_;
  std::mutex
      mutex_;  // held while a request is served and across fork(): a child sees no half-done one
  std::map<std::string, std::string> values_;
  std::vector<Connection> connections_;
  std::thread thread_;
  ForkHook fork_hook_{mutex_, [this] { close_in_child(); }};
};

class TcpStore final : public Store {
 public:
  TcpStore(std::string host, std::uint16_t port, bool serve, std::chrono::milliseconds timeout)
      : host_(std::move(host)), port_(port) {
    if (serve) server_ = std::make_unique<Server>(host_, port_);
    static_cast<void>(connect_by(deadline_after(timeout)));
  }

  void set(const std::string& key, std::string_view value) override {
    static_cast<void>(request(Kind::set, key, value, deadline_after(kReplyTimeout)));
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    // A timeout of zero is for the key; the server still gets time to reply.
    if (timeout.count() <= 0) return request(Kind::peek, key, "", deadline_after(kReplyTimeout));
    return request(Kind::get, key, "", deadline_after(timeout));
  }
  void remove(const std::string& key) override {
    // Short: ranks remove keys when they close, and the server may have exited.
    static_cast<void>(request(Kind::remove, key, "", deadline_after(kRemoveTimeout)));
  }

  [[nodiscard]] std::string host() const override { return host_; }

 private:
  static constexpr std::chrono::milliseconds kReplyTimeout{30'000};
  static constexpr std::chrono::milliseconds kRemoveTimeout{2'000};

  [[nodiscard]] Fd connect_by(Deadline deadline) const {
    for (;;) {
      if (Fd fd = try_connect(host_, port_, deadline)) return fd;
      if (Clock::now() >= deadline)
        throw Error(Errc::timeout,
                    formatted("the store {}:{} does not accept connections", host_, port_));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::string request(Kind kind, const std::string& key, std::string_view value,
                      Deadline deadline) const {
    const Fd connection = connect_by(deadline);
    const RequestHeader header{kind, static_cast<std::uint32_t>(key.size()),
                               static_cast<std::uint32_t>(value.size())};
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes.append(key).append(value);
    transfer(connection, POLLOUT, bytes.data(), bytes.size(), key, deadline);
    std::uint32_t value_bytes = 0;
    transfer(connection, POLLIN, &value_bytes, sizeof value_bytes, key, deadline);
    if (value_bytes == kNoSuchKey) throw no_such_key(key);
    std::string reply(value_bytes, '\0');
    transfer(connection, POLLIN, reply.data(), value_bytes, key, deadline);
    return reply;
  }

  [[nodiscard]] Error no_such_key(const std::string& key) const {
    return {Errc::timeout,
            formatted("key \"{}\" did not appear in the store {}:{} in time", key, host_, port_)};
  }

  /// Sends (POLLOUT) or receives (POLLIN) exactly `bytes`.
  void transfer(const Fd& connection, short event, void* data, std::size_t bytes,
                const std::string& key, Deadline deadline) const {
    char* p = static_cast<char*>(data);
    while (bytes > 0) {
      if (!wait_for_event(connection.get(), event, deadline)) throw no_such_key(key);
      const ssize_t moved = event == POLLOUT ? ::send(connection.get(), p, bytes, MSG_NOSIGNAL)
                                             : ::recv(connection.get(), p, bytes, 0);
      if (moved < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (moved <= 0)
        throw Error(Errc::system,
                    formatted("store {}:{}: the server closed the connection", host_, port_));
      p += moved;
      bytes -= static_cast<std::size_t>(moved);
    }
  }

  std::string host_;
  std::uint16_t port_;
  std::unique_ptr<Server> server_;
};

}  // namespace

std::shared_ptr<Store> tcp_store(const std::string& host, std::uint16_t port, bool serve,
                                 std::chrono::milliseconds timeout) {
  return std::make_shared<TcpStore>(host, port, serve, timeout);
}

}  // namespace tccl
