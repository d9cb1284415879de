// Socket addresses, and non-blocking TCP sockets.
//
//   Fd listener = listen_in_range("10.0.0.1", {20000, 20100});
//   Fd connection = start_connecting(SocketAddress::parse("10.0.0.2", 20000), liveness_timeout);
//
// Thread safety: functions without shared state; SocketAddress is a value.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"

namespace tccl {

/// Ports to choose from; both 0: any free port.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

/// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t length);
  /// `text` is numeric, such as "10.0.0.1" or "fd00::2"; throws Error{invalid_argument} otherwise.
  static SocketAddress parse(const std::string& text, std::uint16_t port);
  /// Addresses of a host name or a numeric address; empty if it cannot be resolved, with the code
  /// of getaddrinfo() in `gai_error`.
  static std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port,
                                            int* gai_error = nullptr);
  static SocketAddress of_local_end(int socket);
  static SocketAddress of_remote_end(int socket);

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t length() const { return length_; }
  [[nodiscard]] int family() const { return storage_.ss_family; }
  [[nodiscard]] std::string host() const;  // numeric
  [[nodiscard]] std::uint16_t port() const;
  /// "10.0.0.1:4711" or "[fd00::2]:4711"
  [[nodiscard]] std::string text() const;

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

/// Returns an invalid Fd and sets errno on failure, such as EADDRINUSE.
Fd try_listen(const SocketAddress& address) noexcept;

/// The text of the error that no port of the range is free.
std::string no_free_port_text(const std::string& address, PortRange ports);

/// Listens on the first free port of the range; throws Error{system} if there is none.
Fd listen_in_range(const std::string& address, PortRange ports);

/// Starts a non-blocking connect: poll() reports the socket as writable once it has succeeded or
/// failed. Returns an invalid Fd and sets errno if it failed at once. A liveness timeout is set as
/// in set_liveness_options().
Fd start_connecting(
    const SocketAddress& to,
    std::optional<std::chrono::milliseconds> liveness_timeout = std::nullopt) noexcept;

/// Sets FD_CLOEXEC on all sockets of this process with this local port: for sockets that another
/// library has opened without it. A program that the process starts would keep the port in use.
void close_on_exec(std::uint16_t local_port) noexcept;

/// The socket of this process that listens on this address: one that another library has opened.
/// -1 if there is none.
int find_listener(const SocketAddress& address) noexcept;

/// The other ends of this process's connections with this local port, as numeric addresses.
std::vector<std::string> hosts_connected_to(std::uint16_t local_port);

/// For connections that carry small messages to a host that may disappear: TCP_NODELAY, and the
/// connection fails with ETIMEDOUT if the other host acknowledges nothing for that long.
void set_liveness_options(int socket, std::chrono::milliseconds liveness_timeout) noexcept;

}  // namespace tccl
