// tcp_store(): the client of a TcpStoreServer, which one rank serves. See tccl/store.h.
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/fd.h"
#include "base/format.h"
#include "base/poll.h"
#include "base/system_error.h"
#include "base/tcp_socket.h"
#include "rendezvous/tcp_store_server.h"
#include "tccl/error.h"
#include "tccl/store.h"

namespace tccl {
namespace {

using namespace tcp_store_protocol;

bool finish_connecting(const Fd& fd, Deadline deadline) {
  if (!wait_for_event(fd.get(), POLLOUT, deadline)) return false;
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

/// Returns an invalid Fd if no server listens there.
Fd try_connect(const std::string& host, std::uint16_t port, Deadline deadline) {
  for (const SocketAddress& address : addresses_of(host, port)) {
    Fd fd = start_connecting(address);
    if (!fd && (errno == EMFILE || errno == ENFILE))
      throw_system_error(formatted("cannot connect to the store {}:{}", host, port));
    if (fd && finish_connecting(fd, deadline)) return fd;
  }
  return {};
}

class TcpStore final : public Store {
 public:
  TcpStore(std::string host, std::uint16_t port, bool serve, std::chrono::milliseconds timeout)
      : host_(std::move(host)), port_(port) {
    if (serve) server_ = std::make_unique<TcpStoreServer>(host_, port_);
    static_cast<void>(connect_by(deadline_after(timeout)));
  }

  void set(const std::string& key, std::string_view value) override {
    static_cast<void>(request(Kind::set, key, value, deadline_after(kReplyTimeout)));
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    // A timeout of zero is for the key; the server still gets time to reply.
    if (timeout.count() <= 0) return request(Kind::peek, key, "", deadline_after(kReplyTimeout));
    for (const Deadline deadline = deadline_after(timeout);;) {
      try {
        return request(Kind::get, key, "", deadline);
      } catch (const Error& error) {
        if (error.code() != Errc::timeout || Clock::now() >= deadline) throw;
      }
      // The server has too many waiting clients: ask again.
      std::this_thread::sleep_for(kRetryPause);
    }
  }
  void remove(const std::string& key) override {
    // Short: ranks remove keys when they close, and the server may have exited.
    static_cast<void>(request(Kind::remove, key, "", deadline_after(kRemoveTimeout)));
  }

  [[nodiscard]] std::string host() const override { return host_; }

 private:
  static constexpr std::chrono::milliseconds kReplyTimeout{30'000};
  static constexpr std::chrono::milliseconds kRemoveTimeout{2'000};
  static constexpr std::chrono::milliseconds kRetryPause{10};

  [[nodiscard]] Fd connect_by(Deadline deadline) const {
    for (;;) {
      if (Fd fd = try_connect(host_, port_, deadline)) return fd;
      if (Clock::now() >= deadline)
        throw Error(
            Errc::timeout,
            formatted("timed out: the store {}:{} does not accept connections", host_, port_));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::string request(Kind kind, const std::string& key, std::string_view value,
                      Deadline deadline) const {
    if (key.size() > kMaxFieldBytes || value.size() > kMaxFieldBytes)
      throw Error(Errc::invalid_argument,
                  formatted("keys and values of the store {}:{} have at most {} bytes", host_,
                            port_, kMaxFieldBytes));
    const Fd connection = connect_by(deadline);
    const RequestHeader header{kind, static_cast<std::uint32_t>(key.size()),
                               static_cast<std::uint32_t>(value.size())};
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes.append(key).append(value);
    transfer(connection, POLLOUT, bytes.data(), bytes.size(), key, deadline);
    std::uint32_t value_bytes = 0;
    transfer(connection, POLLIN, &value_bytes, sizeof value_bytes, key, deadline);
    if (value_bytes == kNoSuchKey) throw no_such_key(key);
    if (value_bytes > kMaxFieldBytes)
      throw Error(Errc::system, formatted("{}:{} is not a store of this library", host_, port_));
    std::string reply(value_bytes, '\0');
    transfer(connection, POLLIN, reply.data(), value_bytes, key, deadline);
    return reply;
  }

  [[nodiscard]] Error no_such_key(const std::string& key) const {
    return {Errc::timeout, formatted("timed out: no rank has stored key \"{}\" in the store {}:{}",
                                     key, host_, port_)};
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
                    formatted("store {}:{}: Connection closed by peer", host_, port_));
      p += moved;
      bytes -= static_cast<std::size_t>(moved);
    }
  }

  std::string host_;
  std::uint16_t port_;
  std::unique_ptr<TcpStoreServer> server_;
};

}  // namespace

std::shared_ptr<Store> tcp_store(const std::string& host, std::uint16_t port, bool serve,
                                 std::chrono::milliseconds timeout) {
  return std::make_shared<TcpStore>(host, port, serve, timeout);
}

}  // namespace tccl
