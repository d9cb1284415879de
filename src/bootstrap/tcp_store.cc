// A small key-value server and its client. A request is {kind, key length, value length, key,
// value}; a SET is answered by an empty value, a GET by the value once the key exists.
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/format.h"
#include "base/system_error.h"
#include "tccl/error.h"
#include "tccl/store.h"

namespace tccl {
namespace {

enum class Kind : std::uint32_t { set, get };

struct RequestHeader {
  Kind kind;
  std::uint32_t key_bytes;
  std::uint32_t value_bytes;
};
constexpr std::uint32_t kLargestField = 16u << 20;

struct AddressList {
  addrinfo* first = nullptr;
  AddressList(const std::string& host, std::uint16_t port, bool passive) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = passive ? AI_PASSIVE : 0;
    const int problem = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
    if (problem != 0)
      throw Error(Errc::system, formatted("store {}:{}: {}", host, port, gai_strerror(problem)));
  }
  ~AddressList() { ::freeaddrinfo(first); }
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
};

Fd try_each(const AddressList& list, int (*use)(int, const sockaddr*, socklen_t)) {
  for (const addrinfo* a = list.first; a != nullptr; a = a->ai_next) {
    Fd fd(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (!fd) continue;
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (use(fd.get(), a->ai_addr, a->ai_addrlen) == 0) return fd;
  }
  return {};
}

bool send_all(int fd, const void* data, std::size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, p, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    p += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool send_value(int fd, std::string_view value) {
  const auto bytes = static_cast<std::uint32_t>(value.size());
  return send_all(fd, &bytes, sizeof bytes) && send_all(fd, value.data(), value.size());
}

/// Serves all connections from one thread; a GET of a missing key waits in its connection.
class Server {
 public:
  Server(const std::string& host, std::uint16_t port)
      : listener_(try_each(AddressList(host, port, true), ::bind)),
        stop_(::eventfd(0, EFD_CLOEXEC)) {
    if (!listener_) throw_system_error(formatted("store: cannot listen on {}:{}", host, port));
    if (::listen(listener_.get(), SOMAXCONN) != 0) throw_system_error("store: listen");
    thread_ = std::thread([this] { main(); });
  }
  ~Server() {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(stop_.get(), &one, sizeof one));
    thread_.join();
  }

 private:
  struct Connection {
    Fd fd;
    std::string inbox;
    std::optional<std::string> wanted;  // the key of a GET that waits
  };

  void main() {
    for (;;) {
      std::vector<pollfd> entries{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Connection& c : connections_) entries.push_back({c.fd.get(), POLLIN, 0});
      if (::poll(entries.data(), entries.size(), -1) < 0) continue;
      if (entries[0].revents != 0) return;
      for (std::size_t i = 2; i < entries.size(); ++i)
        if (entries[i].revents != 0) read_from(connections_[i - 2]);
      std::erase_if(connections_, [](const Connection& c) { return !c.fd; });
      if (entries[1].revents != 0) accept_one();
    }
  }

  void accept_one() {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd) connections_.push_back({.fd = std::move(fd), .inbox = {}, .wanted = {}});
  }

  void read_from(Connection& c) {
    char buffer[4096];
    const ssize_t got = ::recv(c.fd.get(), buffer, sizeof buffer, 0);
    if (got <= 0) return c.fd.reset();
    c.inbox.append(buffer, static_cast<std::size_t>(got));
    while (c.fd && handle_request(c)) {
    }
  }

  /// False when no complete request is there.
  bool handle_request(Connection& c) {
    RequestHeader header;
    if (c.inbox.size() < sizeof header) return false;
    std::memcpy(&header, c.inbox.data(), sizeof header);
    if (header.key_bytes > kLargestField || header.value_bytes > kLargestField) {
      c.fd.reset();  // not one of ours
      return false;
    }
    const std::size_t total = sizeof header + header.key_bytes + header.value_bytes;
    if (c.inbox.size() < total) return false;
    const std::string key = c.inbox.substr(sizeof header, header.key_bytes);
    if (header.kind == Kind::set)
      put(c, key, c.inbox.substr(sizeof header + header.key_bytes, header.value_bytes));
    else
      answer_or_wait(c, key);
    c.inbox.erase(0, total);
    return true;
  }

  void put(Connection& c, const std::string& key, std::string value) {
    values_[key] = std::move(value);
    if (!send_value(c.fd.get(), "")) c.fd.reset();
    for (Connection& other : connections_)
      if (other.fd && other.wanted == key) answer_or_wait(other, key);
  }

  void answer_or_wait(Connection& c, const std::string& key) {
    const auto found = values_.find(key);
    c.wanted = found == values_.end() ? std::optional(key) : std::nullopt;
    if (found != values_.end() && !send_value(c.fd.get(), found->second)) c.fd.reset();
  }

  Fd listener_;
  Fd stop_;
  std::map<std::string, std::string> values_;
  std::vector<Connection> connections_;
  std::thread thread_;
};

class TcpStore final : public Store {
 public:
  TcpStore(std::string host, std::uint16_t port, bool serve, std::chrono::milliseconds timeout)
      : host_(std::move(host)), port_(port) {
    if (serve) server_ = std::make_unique<Server>(host_, port_);
    connect_by(deadline_after(timeout));
  }

  void set(const std::string& key, std::string_view value) override {
    static_cast<void>(ask(Kind::set, key, value, deadline_after(kAnswerTime)));
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return ask(Kind::get, key, "", deadline_after(timeout));
  }

 private:
  static constexpr std::chrono::milliseconds kAnswerTime{30'000};

  void connect_by(Deadline deadline) {
    for (;;) {
      connection_ = try_each(AddressList(host_, port_, false), ::connect);
      if (connection_) break;
      if (Clock::now() >= deadline)
        throw Error(Errc::timeout, formatted("store {}:{} does not answer", host_, port_));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const int on = 1;
    ::setsockopt(connection_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  std::string ask(Kind kind, const std::string& key, std::string_view value, Deadline deadline) {
    const std::lock_guard lock(mutex_);
    if (!connection_) connect_by(deadline);
    const RequestHeader header{kind, static_cast<std::uint32_t>(key.size()),
                               static_cast<std::uint32_t>(value.size())};
    std::string request(reinterpret_cast<const char*>(&header), sizeof header);
    request += key;
    request += value;
    if (!send_all(connection_.get(), request.data(), request.size())) throw gone();
    std::uint32_t bytes = 0;
    receive(&bytes, sizeof bytes, key, deadline);
    std::string answer(bytes, '\0');
    receive(answer.data(), bytes, key, deadline);
    return answer;
  }

  void receive(void* data, std::size_t bytes, const std::string& key, Deadline deadline) {
    char* p = static_cast<char*>(data);
    while (bytes > 0) {
      pollfd entry{.fd = connection_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, static_cast<int>(time_left(deadline).count())) == 0) {
        connection_.reset();  // a late answer must not be taken for the next one's
        throw Error(Errc::timeout,
                    formatted("no key \"{}\" in the store {}:{}", key, host_, port_));
      }
      const ssize_t got = ::recv(connection_.get(), p, bytes, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw gone();
      p += got;
      bytes -= static_cast<std::size_t>(got);
    }
  }

  Error gone() {
    connection_.reset();
    return {Errc::system, formatted("store {}:{}: connection lost", host_, port_)};
  }

  std::string host_;
  std::uint16_t port_;
  std::unique_ptr<Server> server_;
  std::mutex mutex_;
  Fd connection_;
};

}  // namespace

std::shared_ptr<Store> tcp_store(const std::string& host, std::uint16_t port, bool serve,
                                 std::chrono::milliseconds timeout) {
  return std::make_shared<TcpStore>(host, port, serve, timeout);
}

}  // namespace tccl
